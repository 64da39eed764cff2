"""The gpu-fleet plugin: answers the engine's ResourceProvider calls. Each method decodes, calls, and encodes.

No traceback reaches a user: what the user can fix is an error message, anything else an internal error whose traceback goes to
the engine's debug log (`pulumi up --debug`)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from gpu_fleet.provider.engine import EngineLog, EngineLogHandler
from gpu_fleet.provider.host import Hosts, SudoPasswords
from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.provider.renames import Renames
from gpu_fleet.provider.resources.bundle import Archives, Bundle
from gpu_fleet.provider.resources.cluster import Cluster
from gpu_fleet.provider.resources.host import Host
from gpu_fleet.provider.resources.manifest import Manifest
from gpu_fleet.provider.resources.node_mark import NodeMark
from gpu_fleet.provider.resources.resource import Call, Change, Resource, ResourceError, Unhealthy, changes
from gpu_fleet.provider.resources.rulers import AlertmanagerConfig, RuleGroup
from gpu_fleet.provider.ruler import Rulers
from gpu_fleet.provider.schema import InputError, schema, secret_config
from gpu_fleet.provider.settings import Settings, digest_key, parse
from gpu_fleet.provider.transport import LocalTransport, Transport
from gpu_fleet.provider.values import Secret, decode, encode, replace_value, safe_to_show, texts
from gpu_fleet.safetext.terminal import is_colour, printable, printable_message
from gpu_fleet.version import VERSION

_KINDS = {
    ("add", False): provider_pb2.PropertyDiff.ADD,
    ("add", True): provider_pb2.PropertyDiff.ADD_REPLACE,
    ("update", False): provider_pb2.PropertyDiff.UPDATE,
    ("update", True): provider_pb2.PropertyDiff.UPDATE_REPLACE,
    ("delete", False): provider_pb2.PropertyDiff.DELETE,
    ("delete", True): provider_pb2.PropertyDiff.DELETE_REPLACE,
}
_ABOUT_A_RESOURCE = (
    provider_pb2.CreateResponse,
    provider_pb2.ReadResponse,
    provider_pb2.UpdateResponse,
    provider_pb2.ErrorResourceInitFailed,
)
_ORPHAN_CHECK_S = 0.5
_CLOSE_S = 15  # for calls that were cancelled to end the work on their hosts, each of which has its own limit below that
# gRPC would refuse messages above 4 MB, and end calls that wait 30 s for a busy process.
# Source of both values: Pulumi's Python SDK, runtime/_grpc_settings.py, 3.259, read 2026-11-22.
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 400 << 20),
    ("grpc.server_max_unrequested_time_in_server", 30 * 60),
)


Context = grpc.aio.ServicerContext[Any, Any]


class Package(Protocol):
    """Components that the plugin serves beside its resources (components/package). `schema`: of both, as JSON."""

    schema: str

    async def construct(self, request: Any, context: Context, engine: str) -> Any: ...


Method = Callable[["Provider", Any, Context], Coroutine[Any, Any, Any]]


@dataclass
class Work:
    """What one call is doing, for the answer when it is stopped."""

    began_at: float = field(default_factory=time.monotonic)
    sent: tuple[str, str] | None = None

    def sending(self, what: str, then: str) -> None:
        self.sent = (what, then)

    def stopped(self) -> str:
        if self.sent is None:
            return "stopped before anything was changed"
        what, then = self.sent
        seconds = time.monotonic() - self.began_at
        return f"stopped after {seconds:.0f} s while {what}, which may have been done or not; {then}"


_WORK: ContextVar[Work] = ContextVar("work of the call")


def answers_the_engine(method: Method) -> Method:
    """What the method raises becomes an answer. Cancel can stop it while it runs, and says what may have been changed."""

    @functools.wraps(method)
    async def answer(self: Provider, request: Any, context: Context) -> Any:
        work = Work()
        _WORK.set(work)
        running = asyncio.ensure_future(method(self, request, context))
        self.in_flight.add(running)
        if self.is_cancelled:
            running.cancel()
        detail = None
        try:
            return _safe(await running, request)
        except asyncio.CancelledError:
            if not running.cancelled():  # the engine no longer waits for the answer
                running.cancel()
                raise
            code, message = grpc.StatusCode.CANCELLED, work.stopped()
        except Unhealthy as error:
            code, message = grpc.StatusCode.UNKNOWN, str(error)
            detail = _init_failed(error, request)
        except ResourceError as error:
            code, message = grpc.StatusCode.UNKNOWN, str(error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            self.log.debug(traceback.format_exc())
            code = grpc.StatusCode.INTERNAL
            message = (
                f"internal error in the gpu-fleet provider ({type(error).__name__} in {method.__name__}); this is a bug in "
                "gpu-fleet, not in your stack: please report it with the output of `--debug`"
            )
        finally:
            self.in_flight.discard(running)
            await self.log.flush()
        message = printable_message(message)
        await context.abort(code, message, _trailing(code, message, detail))

    return answer


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """`is_cancelled`: whether the engine has cancelled the operation. `in_flight`: the calls that a cancellation stops."""

    def __init__(self, log: EngineLog, package: Package | None = None, engine: str = ""):
        self.log = log
        self._package, self._engine = package, engine
        self.in_flight: set[asyncio.Task[Any]] = set()
        self.is_cancelled = False
        self._resources: dict[str, Resource] = {}
        self._rulers = Rulers()
        self._hosts: Hosts | None = None

    # --- the plugin ---------------------------------------------------------------------------------------------------------

    @answers_the_engine
    async def Handshake(self, request: Any, context: Context) -> Any:
        self.log.connect(request.engine_address)
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    @answers_the_engine
    async def Attach(self, request: Any, context: Context) -> Any:
        self.log.connect(request.address)
        return Empty()

    @answers_the_engine
    async def GetPluginInfo(self, request: Any, context: Context) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    @answers_the_engine
    async def GetSchema(self, request: Any, context: Context) -> Any:
        return provider_pb2.GetSchemaResponse(schema=self._package.schema if self._package else json.dumps(schema()))

    @answers_the_engine
    async def Construct(self, request: Any, context: Context) -> Any:
        if self._package is None:
            raise ResourceError(f"{request.type} is a component of the package; add it with `pulumi package add`")
        return await self._package.construct(request, context, self._engine)

    async def Cancel(self, request: Any, context: Context) -> Any:
        """Answers at once. Each call in flight ends its work on the host and then answers with what may have been changed."""
        self.cancel()
        return Empty()

    def cancel(self) -> None:
        self.is_cancelled = True
        for work in self.in_flight:
            work.cancel()

    async def close(self) -> None:
        if self.in_flight:
            await asyncio.wait(self.in_flight, timeout=_CLOSE_S)
        await self._rulers.close()
        if self._hosts:
            self._hosts.close()

    # --- its configuration --------------------------------------------------------------------------------------------------

    @answers_the_engine
    async def CheckConfig(self, request: Any, context: Context) -> Any:
        config, old = decode(request.news), decode(request.olds)
        inputs = _copy(request.news)
        for name in secret_config() & config.keys():
            replace_value(inputs, name, Secret(config[name]))
        replace_value(inputs, "digestKey", Secret(digest_key(config, old)))
        return provider_pb2.CheckResponse(inputs=inputs, failures=_failures(parse(config)[1], inputs))

    @answers_the_engine
    async def DiffConfig(self, request: Any, context: Context) -> Any:
        """Another login or password never replaces the provider: hosts see a changed secret by their secretsDigest."""
        return _diff_response(changes(decode(request.old_inputs), decode(request.news)))

    @answers_the_engine
    async def Configure(self, request: Any, context: Context) -> Any:
        settings = Settings.of(decode(request.args))
        archives, renames = Archives(), Renames()
        self._rulers = Rulers(settings.ruler_logins, takes_over=settings.take_over_rulers)
        hosts = self._hosts = Hosts(
            LocalTransport(),
            functools.partial(_ssh_transport, settings),
            sudo_passwords=SudoPasswords(common=settings.sudo_password, of_hosts=settings.sudo_passwords),
            artifacts=settings.artifact_directory,
            secrets=settings.every_secret(),
            idle_s=settings.idle_s,
        )
        cluster = _cluster_api(settings)
        resources = (
            Bundle(archives, renames),
            Host(hosts, archives, settings, renames),
            RuleGroup(self._rulers),
            AlertmanagerConfig(self._rulers),
            Cluster(cluster),
            Manifest(cluster),
            NodeMark(cluster),
        )
        self._resources = {resource.type_name: resource for resource in resources}
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    # --- its resources ------------------------------------------------------------------------------------------------------

    @answers_the_engine
    async def Check(self, request: Any, context: Context) -> Any:
        checked = self._resource(request).check(decode(request.news))
        inputs = _copy(request.news)
        for name, value in checked.changed.items():
            replace_value(inputs, name, value)
        for name in checked.dropped:
            inputs.fields.pop(name, None)
        return provider_pb2.CheckResponse(inputs=inputs, failures=_failures(checked.errors, inputs))

    @answers_the_engine
    async def Diff(self, request: Any, context: Context) -> Any:
        resource = self._resource(request)
        old, new, outputs = decode(request.old_inputs), decode(request.news), decode(request.olds)
        found = await resource.diff(old, new, outputs, self._call(request))
        return _diff_response(found, deletes_first=resource.replaces_by_deleting_first)

    @answers_the_engine
    async def Create(self, request: Any, context: Context) -> Any:
        id_, outputs = await self._resource(request).create(decode(request.properties), self._call(request))
        return provider_pb2.CreateResponse(id="" if request.preview else id_, properties=encode(outputs))

    @answers_the_engine
    async def Read(self, request: Any, context: Context) -> Any:
        resource, inputs = self._resource(request), decode(request.inputs)
        current = await resource.read(request.id, inputs, decode(request.properties), self._call(request))
        if not current.id:
            return provider_pb2.ReadResponse()
        now = _copy(request.inputs)
        for name, value in (current.inputs or {}).items():
            replace_value(now, name, value)
        properties = request.properties if current.outputs is None else encode(current.outputs)
        return provider_pb2.ReadResponse(id=current.id, properties=properties, inputs=now)

    @answers_the_engine
    async def Update(self, request: Any, context: Context) -> Any:
        old, new, outputs = decode(request.old_inputs), decode(request.news), decode(request.olds)
        outputs = await self._resource(request).update(request.id, old, new, outputs, self._call(request))
        return provider_pb2.UpdateResponse(properties=encode(outputs))

    @answers_the_engine
    async def Delete(self, request: Any, context: Context) -> Any:
        inputs, outputs = decode(request.old_inputs), decode(request.properties)
        await self._resource(request).delete(request.id, inputs, outputs, self._call(request))
        return Empty()

    def _resource(self, request: Any) -> Resource:
        name = request.type or _type_of(request.urn)
        if name not in self._resources:
            raise ResourceError(f"gpu-fleet has no resource type {name}; it has {', '.join(sorted(schema()['resources']))}")
        return self._resources[name]

    def _call(self, request: Any) -> Call:
        return Call(
            urn=request.urn,
            is_preview=getattr(request, "preview", False),
            timeout_s=getattr(request, "timeout", 0) or None,
            progress=functools.partial(self.log.status, request.urn),
            info=functools.partial(self.log.info, request.urn),
            warning=functools.partial(self.log.warning, request.urn),
            sending=_WORK.get().sending,
        )


def _cluster_api(settings: Settings) -> ClusterApi | None:
    if settings.kubernetes is None:
        return None
    return ClusterApi(
        file=settings.kubernetes.get("kubeconfig"), text=settings.kubeconfig, context=settings.kubernetes.get("context")
    )


def _ssh_transport(settings: Settings) -> Transport:
    from gpu_fleet.provider.ssh import SshTransport  # importing asyncssh takes longer than a run that contacts no host

    return SshTransport(settings)


def _copy(struct: Struct) -> Struct:
    copy = Struct()
    copy.CopyFrom(struct)
    return copy


def _safe(answer: Any, request: Any) -> Any:
    """An answer whose values came from hosts and servers: safe to show. What the engine sent comes back as it was."""
    if isinstance(answer, _ABOUT_A_RESOURCE):
        given = _given(request)
        for name in ("properties", "inputs"):
            if (values := getattr(answer, name, None)) and values.fields:
                values.CopyFrom(safe_to_show(values, given))
    return answer


def _given(request: Any) -> set[str]:
    structs = (value for _, value in request.ListFields() if isinstance(value, Struct))
    return {text for struct in structs for _, text in texts(struct, secrets=True)}


def _failures(errors: Iterable[InputError], inputs: Struct) -> list[provider_pb2.CheckFailure]:
    """`inputs`: what the engine shows next, so those that would end it are refused."""
    colours = dict.fromkeys(path for path, text in texts(inputs) if is_colour(text))
    reason = "contains `<{` followed by %, which Pulumi takes for a colour of its own; remove it"
    return [
        provider_pb2.CheckFailure(
            property="" if colours else printable(error.path),  # with it the engine shows the value
            reason=printable(f"{error.path}: {error.reason}"),
        )
        for error in (*errors, *(InputError(path, reason) for path in colours))
    ]


def _diff_response(found: Iterable[Change], *, deletes_first: bool = False) -> provider_pb2.DiffResponse:
    found = list(found)
    replaces = sorted({_top_level(change.path) for change in found if change.replaces})
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE,
        replaces=replaces,
        deleteBeforeReplace=bool(replaces) and deletes_first,
        diffs=sorted({_top_level(change.path) for change in found}),
        detailedDiff={
            change.path: provider_pb2.PropertyDiff(kind=_KINDS[change.kind, change.replaces], inputDiff=change.of_inputs)
            for change in found
        },
        hasDetailedDiff=True,
    )


def _top_level(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _type_of(urn: str) -> str:
    """urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME, for engines that do not send the type separately."""
    return urn.split("::")[2].rpartition("$")[2]


def _init_failed(error: Unhealthy, request: Any) -> Any:
    inputs = request.inputs if isinstance(request, provider_pb2.ReadRequest) else None
    failed = provider_pb2.ErrorResourceInitFailed(
        id=error.id, properties=encode(error.outputs), reasons=[printable_message(error.reason)], inputs=inputs
    )
    return _safe(failed, request)


def _trailing(code: grpc.StatusCode, message: str, detail: Any) -> tuple[tuple[str, bytes], ...]:
    if detail is None:
        return ()
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)


async def serve(arguments: list[str], package: Package | None) -> None:
    engine_pid = os.getppid()
    log = EngineLog()
    addresses = [argument for argument in arguments if not argument.startswith("-")]
    if addresses:
        log.connect(addresses[-1])
    logging.basicConfig(handlers=[EngineLogHandler(log)], level=logging.WARNING)
    provider = Provider(log, package, addresses[-1] if addresses else "")
    server = grpc.aio.server(options=_CHANNEL_OPTIONS)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    orphan_watch = asyncio.create_task(_until_orphaned(engine_pid, ended))
    await ended.wait()
    orphan_watch.cancel()
    provider.cancel()
    await provider.close()
    await server.stop(grace=1)
    # A thread that waits for a name server or a kubeconfig's credential plugin cannot be interrupted, and Python would wait for
    # it.
    os._exit(0)


async def _until_orphaned(engine_pid: int, ended: asyncio.Event) -> None:
    """A killed engine does not end its plugins: they have to notice."""
    while os.getppid() == engine_pid:
        await asyncio.sleep(_ORPHAN_CHECK_S)
    ended.set()


def main(package: Package | None = None) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1:], package))
