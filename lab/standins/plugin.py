"""The ResourceProvider service of a stand-in: everything that does not depend on what its resources are.

A stand-in is a Plugin with ResourceTypes. It gets plain values and gives plain values back; secrets are stripped before and
marked again after, and what it does not declare is refused before it is called.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from gpu_fleet.stackfile.stand_ins import StandInsRefused
from lab.standins import permission
from lab.standins.differences import differences, replacing, response
from lab.standins.properties import UNKNOWN, Properties, Secret, decode, encode, has_unknown, plain, with_secrets_of
from lab.standins.schema import Problem, Property, completed, problems, specification
from lab.standins.serving import UNLIMITED, serve


class Failure(Exception):
    """An operation did not work; the message is what the person sees, after the resource's name."""


class Cancelled(Failure):
    def __init__(self) -> None:
        super().__init__("cancelled")


@dataclass(frozen=True)
class Call:
    """One operation on one resource: its name, where its messages go, and what ends it when the person presses Ctrl-C."""

    name: str
    log: Callable[[str], None] = field(repr=False)
    ending: Callable[[Callable[[], None]], contextlib.AbstractContextManager[None]] = field(repr=False)


class ResourceType(ABC):
    """One type of resource. `outputs` are those that are no inputs; every input is an output too, as in the official plugins."""

    type_name: ClassVar[str]
    inputs: ClassVar[Mapping[str, Property]]
    outputs: ClassVar[Mapping[str, Property]]

    # The input that gets the resource's name and a random end when it is not given; empty for none.
    autonamed: ClassVar[str] = ""
    # Whether a preview shows a change from the last inputs or, as plugins made from Terraform's do, from the last outputs.
    shows_old_inputs: ClassVar[bool] = True
    # Inputs that get a value when they are created without one.
    computed: ClassVar[tuple[str, ...]] = ()

    def check(self, inputs: Properties) -> Iterator[Problem]:
        """What the schema cannot say. `inputs` are plain; any of them may be UNKNOWN."""
        return iter(())

    def comparable(self, inputs: Properties) -> Properties:
        """The plain inputs in the form in which two that mean the same are equal."""
        return inputs

    def changes(self, olds: Properties, news: Properties, outputs: Properties) -> Mapping[str, int]:
        """Path to kind. `olds` and `news` are comparable inputs, `outputs` the last outputs."""
        return differences(olds, news)

    def replacing(self, changes: Mapping[str, int], olds: Properties, news: Properties) -> set[str]:
        return replacing(self.inputs, changes)

    def preview_create(self, inputs: Properties) -> Properties:
        """The outputs beside the inputs that a preview shows. Raises Failure for what would fail."""
        later = [name for name, output in self.outputs.items() if output.required]
        return dict.fromkeys([*later, *(name for name in self.computed if name not in inputs)], UNKNOWN)

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        """The outputs that a preview shows; UNKNOWN for what the update may change."""
        return {name: olds.get(name) for name in (*self.outputs, *self.computed) if name not in news}

    @abstractmethod
    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        """Gives the id and the outputs. Raises Failure, and nothing is then kept in the state."""

    @abstractmethod
    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        """Gives the outputs; `olds` are the old outputs."""

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        """Inputs and outputs as they are in the world; None when it is gone. Without one, what the state holds is true."""
        return inputs, outputs

    @abstractmethod
    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        """Does nothing when it is gone already."""


class Plugin:
    """A package: its name and version as the engine knows them, its configuration and its resources."""

    def __init__(
        self,
        name: str,
        version: str,
        resources: Sequence[ResourceType],
        config: Mapping[str, Property] | None = None,
        configure: Callable[[Properties], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.version = version
        self.resources = {resource.type_name: resource for resource in resources}
        self.config = config or {}
        self.configure = configure

    def resource(self, token: str) -> ResourceType:
        """The resource type of a token. Raises Failure."""
        if token not in self.resources:
            known = ", ".join(sorted(self.resources))
            raise Failure(f"this stand-in of the {self.name} plugin has no {token}; it has: {known}")
        return self.resources[token]

    def schema(self) -> dict[str, Any]:
        types: dict[str, Any] = {}
        resources = {
            token: {
                **specification({**resource.inputs, **resource.outputs}, "required", types),
                **specification(resource.inputs, "requiredInputs", types),
            }
            for token, resource in self.resources.items()
        }
        provider = specification(self.config, "requiredInputs", types)
        return {
            "name": self.name,
            "version": self.version,
            "description": f"Stand-in of the official {self.name} plugin: the part of its schema that this project uses",
            "config": {"variables": provider["inputProperties"]},
            "provider": provider,
            "types": types,
            "resources": resources,
        }


def _failing(method: Callable[..., Any]) -> Callable[..., Any]:
    """A Failure becomes the error of the call; any other exception is a bug of ours, and gRPC shows it as one."""

    @wraps(method)
    def answered(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            if urn := getattr(request, "urn", ""):
                self.permit(urn)
            return method(self, request, context)
        except (Failure, StandInsRefused) as failure:
            context.abort(grpc.StatusCode.UNKNOWN, str(failure))

    return answered


class ProviderServicer(provider_pb2_grpc.ResourceProviderServicer):
    def __init__(self, plugin: Plugin, engine_address: str) -> None:
        self._plugin = plugin
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(engine_address, UNLIMITED)) if engine_address else None
        self._endings: set[Callable[[], None]] = set()
        self._is_cancelled = False
        self._has_warned = False
        self._lock = threading.Lock()

    def Handshake(self, request, context):
        if self._engine is None and request.engine_address:
            self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(request.engine_address, UNLIMITED))
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True, accept_resources=True)

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version=self._plugin.version)

    def GetSchema(self, request, context):
        return provider_pb2.GetSchemaResponse(schema=json.dumps(self._plugin.schema()))

    def GetMapping(self, request, context):
        return provider_pb2.GetMappingResponse()

    @_failing
    def CheckConfig(self, request, context):
        given = decode(request.news)
        config = _parsed(self._plugin.config, given)
        found = [*problems(self._plugin.config, config, self._plugin.name)]
        secret = {name for name, expected in self._plugin.config.items() if expected.secret}
        marked = {name: Secret(plain(value)) if name in secret else value for name, value in given.items()}
        return provider_pb2.CheckResponse(inputs=encode(marked), failures=_failures(found))

    def DiffConfig(self, request, context):
        """The configuration says how to reach things; a change of it replaces none."""
        return response(differences(decode(request.old_inputs), decode(request.news)), set())

    @_failing
    def Configure(self, request, context):
        config = decode(request.args)
        if not has_unknown(config):
            self._plugin.configure(plain(completed(self._plugin.config, _parsed(self._plugin.config, config))))
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True, acceptResources=True)

    @_failing
    def Check(self, request, context):
        resource = self._resource(request.urn)
        inputs, olds = decode(request.news), decode(request.olds)
        if found := [*problems(resource.inputs, inputs, resource.type_name)]:
            return _checked(inputs, found)
        inputs = completed(resource.inputs, inputs)
        if resource.autonamed and resource.autonamed not in inputs:
            inputs[resource.autonamed] = olds.get(resource.autonamed) or autoname(_name(request.urn))
        return _checked(inputs, [*resource.check(plain(inputs))])

    @_failing
    def Diff(self, request, context):
        resource = self._resource(request.urn)
        olds, news = (resource.comparable(plain(decode(inputs))) for inputs in (request.old_inputs, request.news))
        changes = resource.changes(olds, news, plain(decode(request.olds)))
        return response(changes, resource.replacing(changes, olds, news), of_inputs=resource.shows_old_inputs)

    @_failing
    def Create(self, request, context):
        resource = self._resource(request.urn)
        inputs = decode(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=_outputs(resource, inputs, resource.preview_create(plain(inputs))))
        id, outputs = resource.create(self._call(request.urn), plain(inputs))
        return provider_pb2.CreateResponse(id=id, properties=_outputs(resource, inputs, outputs))

    @_failing
    def Update(self, request, context):
        resource = self._resource(request.urn)
        olds, news = decode(request.olds), decode(request.news)
        if request.preview:
            outputs = resource.preview_update(plain(olds), plain(news))
        else:
            outputs = resource.update(self._call(request.urn), request.id, plain(olds), plain(news))
        return provider_pb2.UpdateResponse(properties=_outputs(resource, news, outputs))

    @_failing
    def Read(self, request, context):
        resource = self._resource(request.urn)
        inputs, outputs = decode(request.inputs), decode(request.properties)
        found = resource.read(self._call(request.urn), request.id, plain(inputs), plain(outputs))
        if found is None:
            return provider_pb2.ReadResponse()
        live_inputs, live_outputs = found
        marked = with_secrets_of(inputs, completed(resource.inputs, live_inputs))
        return provider_pb2.ReadResponse(
            id=request.id, inputs=encode(marked), properties=_outputs(resource, marked, live_outputs)
        )

    @_failing
    def Delete(self, request, context):
        self._resource(request.urn).delete(self._call(request.urn), request.id, plain(decode(request.properties)))
        return empty_pb2.Empty()

    def Cancel(self, request, context):
        self.end_calls()
        return empty_pb2.Empty()

    def end_calls(self) -> None:
        with self._lock:
            self._is_cancelled = True
            endings = list(self._endings)
        for end in endings:
            end()

    def permit(self, urn: str) -> None:
        """Raises StandInsRefused when the resource's stack may not use a stand-in; shows the warning of a trial once."""
        stack = urn.split(":")[2]
        if (warning := permission.permit(f"pulumi-resource-{self._plugin.name}", stack)) and not self._has_warned:
            self._has_warned = True
            self._log(warning, "WARNING")

    def _resource(self, urn: str) -> ResourceType:
        return self._plugin.resource(urn.split("::")[2].split("$")[-1])

    def _call(self, urn: str) -> Call:
        return Call(_name(urn), lambda line: self._log(line, "INFO", urn=urn, ephemeral=True), self._ending)

    def _log(self, line: str, severity: str, **options: Any) -> None:
        if self._engine is not None:
            level = engine_pb2.LogSeverity.Value(severity)
            # An engine that is going away must not keep a command's output from being read.
            with contextlib.suppress(grpc.RpcError):
                self._engine.Log(engine_pb2.LogRequest(severity=level, message=line, **options))

    @contextlib.contextmanager
    def _ending(self, end: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            is_cancelled = self._is_cancelled
            if not is_cancelled:
                self._endings.add(end)
        if is_cancelled:
            end()
            raise Cancelled
        try:
            yield
        finally:
            with self._lock:
                self._endings.discard(end)


def _name(urn: str) -> str:
    return urn.split("::", 3)[3]


def autoname(name: str) -> str:
    """What the engine calls a resource, with a random end, as the official plugins name what has no name of its own."""
    return f"{name}-{secrets.token_hex(4)[:7]}"


def _outputs(resource: ResourceType, inputs: Properties, outputs: Properties) -> Any:
    return encode(_marked(resource, inputs, outputs))


def _marked(resource: ResourceType, inputs: Properties, outputs: Properties) -> Properties:
    every = {**{name: value for name, value in inputs.items() if not name.startswith("__")}, **outputs}
    marked = with_secrets_of(inputs, every)
    return {
        name: Secret(plain(value)) if name in resource.outputs and resource.outputs[name].secret else value
        for name, value in marked.items()
    }


def _checked(inputs: Properties, found: Sequence[Problem]) -> provider_pb2.CheckResponse:
    return provider_pb2.CheckResponse(inputs=encode(inputs), failures=_failures(found))


def _failures(found: Sequence[Problem]) -> list[provider_pb2.CheckFailure]:
    return [provider_pb2.CheckFailure(property=problem.path, reason=problem.reason) for problem in found]


# Of every package: which plugin it is, not how the plugin is configured.
OF_THE_ENGINE = ("version", "pluginDownloadURL")


def _parsed(properties: Mapping[str, Property], config: Properties) -> Properties:
    """The engine sends configuration that is no string as JSON text."""

    def parsed(name: str, value: Any) -> Any:
        inner = value.value if isinstance(value, Secret) else value
        if name not in properties or properties[name].type == "string" or not isinstance(inner, str) or inner == UNKNOWN:
            return value
        with contextlib.suppress(ValueError):
            inner = json.loads(inner)
        return Secret(inner) if isinstance(value, Secret) else inner

    return {name: parsed(name, value) for name, value in config.items() if name not in OF_THE_ENGINE}


def main(arguments: Sequence[str], plugin: Plugin) -> int:
    """`arguments`: the engine's address, the last one; options before it (tracing) are not used here."""
    servicer = ProviderServicer(plugin, arguments[-1] if arguments else "")
    return serve(lambda server: provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server), servicer.end_calls)
