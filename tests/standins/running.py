"""Plugins as the engine runs them, spoken to as the engine speaks; stand-in and official ones alike.

Values are written and read with protobuf's own JSON mapping, not with the code under test.
Source of what the engine sends: sdk/go/common/resource/plugin/provider_plugin.go and pkg/resource/deploy/providers/registry.go of
pulumi 3.259.0, read 2026-11-22.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import engine_pb2_grpc, provider_pb2, provider_pb2_grpc, status_pb2

from gpu_fleet.stackfile.stand_ins import LAB_STACKS
from gpu_fleet.toolchain.locate import located

REPO = Path(__file__).parents[2]
# Longer than the official grafana plugin waits for a rule group that is refused (128 s).
CALL_S = 180
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"


def binaries(name: str) -> list[Path]:
    """The stand-in of a plugin, and the official one when it is on this machine.

    Official ones are found where the toolchain finds them, and in the directories of GPU_FLEET_OFFICIAL_PLUGINS.
    """
    found = [REPO / "lab" / "standins" / "bin" / name]
    installed = located(name)
    if installed is not None:
        found.append(installed.path)
    for directory in filter(None, os.environ.get("GPU_FLEET_OFFICIAL_PLUGINS", "").split(os.pathsep)):
        if os.access(Path(directory, name), os.X_OK):
            found.append(Path(directory, name))
    return found


def name_of(binary: Path) -> str:
    return "stand-in" if binary.is_relative_to(REPO) else "official"


def secret(value: Any) -> dict[str, Any]:
    return {SIGNATURE: SECRET, "value": value}


def is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET


def revealed(value: Any) -> Any:
    """The value without the marks of secrets, at every depth."""
    if is_secret(value):
        return revealed(value["value"])
    if isinstance(value, dict):
        return {key: revealed(item) for key, item in value.items()}
    return [revealed(item) for item in value] if isinstance(value, list) else value


def _struct(value: dict[str, Any]) -> struct_pb2.Struct:
    return json_format.ParseDict(value, struct_pb2.Struct())


def _mark_secrets(outputs: dict[str, Any], inputs: dict[str, Any]) -> None:
    for key in outputs.keys() & inputs.keys():
        found, given = outputs[key], inputs[key]
        if isinstance(found, dict) and isinstance(given, dict) and not is_secret(found) and not is_secret(given):
            _mark_secrets(found, given)
        elif not is_secret(found) and revealed(given) != given:
            outputs[key] = secret(found)


def _plain(struct: struct_pb2.Struct) -> dict[str, Any]:
    return json_format.MessageToDict(struct)


class Refused(Exception):
    """The plugin answered a call with an error. `kept_id`: of the resource that the engine keeps in the state all the same.

    The text is what the engine shows: of a kept resource the reasons (provider_plugin.go, InitError).
    """

    def __init__(self, error: grpc.RpcError) -> None:
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        kept = provider_pb2.ErrorResourceInitFailed()
        for detail in status_pb2.Status.FromString(details).details:
            detail.Unpack(kept)
        super().__init__("\n".join(kept.reasons) or error.details())
        self.kept_id = kept.id


class Engine(engine_pb2_grpc.EngineServicer):
    """What a plugin needs of the engine: somewhere to send its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(4))
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Log(self, request, context):
        with self._said:
            self.lines.append(request.message)
            self._said.notify_all()
        return empty_pb2.Empty()

    def wait_for(self, line: str) -> None:
        with self._said:
            assert self._said.wait_for(lambda: line in self.lines, timeout=300), f"{line!r} was not logged: {self.lines}"

    def stop(self) -> None:
        self._server.stop(None)


class RunningPlugin:
    def __init__(self, binary: Path, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.engine = Engine()
        self.process = subprocess.Popen(
            [binary, self.engine.address],
            cwd=directory,
            env={**os.environ, LAB_STACKS: "test", **(environment or {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        assert port.isdigit(), f"the engine reads the port from the first line, which was {port!r}"
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub = provider_pb2_grpc.ResourceProviderStub(self._channel)
        self._package = binary.name.removeprefix("pulumi-resource-")
        self._accepts_secrets = True
        self._shake_hands(binary)

    def stop(self) -> None:
        self._channel.close()
        self.process.terminate()
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.engine.stop()

    def call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=CALL_S)
        except grpc.RpcError as error:
            raise Refused(error) from None

    def cancel(self) -> None:
        self.call("Cancel", empty_pb2.Empty())

    def _shake_hands(self, binary: Path) -> None:
        directory = str(binary.parent)
        request = provider_pb2.ProviderHandshakeRequest(
            engine_address=self.engine.address,
            root_directory=directory,
            program_directory=directory,
            configure_with_urn=True,
            supports_views=True,
            supports_refresh_before_update=True,
            invoke_with_preview=True,
            accepts_byte_string=True,
        )
        try:
            self._stub.Handshake(request, timeout=CALL_S)
        except grpc.RpcError as error:  # older plugins have none, and the engine goes on without
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error

    def configure(self, config: dict[str, Any]) -> None:
        """The configuration in both forms: `args`, and `variables`, which older plugins read: text, and JSON of what is none."""
        urn, type_name = f"urn:pulumi:test::standins::pulumi:providers:{self._package}::it", f"pulumi:providers:{self._package}"
        check = provider_pb2.CheckRequest(urn=urn, name="it", type=type_name, news=_struct(revealed(config)))
        answer = self.call("CheckConfig", check)
        assert not answer.failures, answer.failures
        checked = _plain(answer.inputs)
        request = provider_pb2.ConfigureRequest(
            urn=urn,
            name="it",
            type=type_name,
            id="7a0d3c52-8a4f-4d3e-9d52-0c6f3f1f1c11",
            variables={
                f"{self._package}:config:{key}": value if isinstance(value, str) else json.dumps(value)
                for key, value in revealed(checked).items()
                if key != "version"
            },
            args=_struct(checked),
            acceptSecrets=True,
            acceptResources=True,
            sends_old_inputs=True,
            sends_old_inputs_to_delete=True,
        )
        self._accepts_secrets = self.call("Configure", request).acceptSecrets

    def sent(self, values: dict[str, Any]) -> struct_pb2.Struct:
        """As the engine sends them: without the marks of secrets to a plugin that does not accept them (grafana 2.44.0)."""
        return _struct(values if self._accepts_secrets else revealed(values))

    def received(self, answer: struct_pb2.Struct, sent: dict[str, Any]) -> dict[str, Any]:
        """As the engine takes them: what such a plugin was sent as a secret stays one (provider_plugin.go, annotateSecrets)."""
        values = _plain(answer)
        if not self._accepts_secrets:
            _mark_secrets(values, sent)
        return values

    def schema(self) -> str:
        return self.call("GetSchema", provider_pb2.GetSchemaRequest()).schema

    def resource(self, type_name: str, name: str = "thing") -> Resource:
        return Resource(self, type_name, name)


class Resource:
    """One resource of a running plugin, with the state that the engine would keep of it."""

    def __init__(self, plugin: RunningPlugin, type_name: str, name: str) -> None:
        self._plugin = plugin
        self.urn = f"urn:pulumi:test::standins::{type_name}::{name}"
        self._known_by = {"urn": self.urn, "name": name, "type": type_name}  # of every request
        self.id = ""
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def failures(self, news: dict[str, Any]) -> dict[str, str]:
        """What Check refuses: property to reason."""
        answer = self._plugin.call("Check", provider_pb2.CheckRequest(**self._known_by, news=self._plugin.sent(news)))
        return {failure.property: failure.reason for failure in answer.failures}

    def checked(self, news: dict[str, Any]) -> dict[str, Any]:
        sent = self._plugin.sent
        request = provider_pb2.CheckRequest(**self._known_by, news=sent(news), olds=sent(self.inputs), randomSeed=b"1" * 32)
        answer = self._plugin.call("Check", request)
        assert not answer.failures, answer.failures
        return self._plugin.received(answer.inputs, news)

    def preview(self, **news: Any) -> dict[str, Any]:
        """The outputs that a preview of creation shows."""
        inputs = self.checked(news)
        return self._plugin.received(self._plugin.call("Create", self._create(inputs, preview=True)).properties, inputs)

    def create(self, **news: Any) -> dict[str, Any]:
        inputs = self.checked(news)
        answer = self._plugin.call("Create", self._create(inputs, preview=False))
        self.id, self.inputs, self.outputs = answer.id, inputs, self._plugin.received(answer.properties, inputs)
        return self.outputs

    def diff(self, **news: Any) -> tuple[dict[str, str], set[str]]:
        """Changed paths with their kind, and the paths that need a new resource."""
        request = provider_pb2.DiffRequest(
            **self._known_by,
            id=self.id,
            olds=self._plugin.sent(self.outputs),
            old_inputs=self._plugin.sent(self.inputs),
            news=self._plugin.sent(self.checked(news)),
        )
        answer = self._plugin.call("Diff", request)
        kinds = {path: provider_pb2.PropertyDiff.Kind.Name(diff.kind) for path, diff in answer.detailedDiff.items()}
        # A bridged plugin may name the properties alone, without how each changed (grafana 2.44.0, of sets).
        kinds = kinds or dict.fromkeys(answer.diffs, "UPDATE")
        assert bool(kinds) == (answer.changes == provider_pb2.DiffResponse.DIFF_SOME)
        return kinds, set(answer.replaces)

    def preview_update(self, **news: Any) -> dict[str, Any]:
        inputs = self.checked(news)
        return self._plugin.received(self._plugin.call("Update", self._update(inputs, preview=True)).properties, inputs)

    def update(self, **news: Any) -> dict[str, Any]:
        inputs = self.checked(news)
        answer = self._plugin.call("Update", self._update(inputs, preview=False))
        self.inputs, self.outputs = inputs, self._plugin.received(answer.properties, inputs)
        return self.outputs

    def refresh(self) -> bool:
        """Takes over what is in the world; False when the resource is gone."""
        sent = self._plugin.sent
        return self._read(
            provider_pb2.ReadRequest(**self._known_by, id=self.id, inputs=sent(self.inputs), properties=sent(self.outputs))
        )

    def delete(self) -> None:
        request = provider_pb2.DeleteRequest(
            **self._known_by, id=self.id, properties=self._plugin.sent(self.outputs), old_inputs=self._plugin.sent(self.inputs)
        )
        self._plugin.call("Delete", request)

    def _read(self, request: provider_pb2.ReadRequest) -> bool:
        answer = self._plugin.call("Read", request)
        if answer.HasField("inputs"):  # else the engine keeps those that it has
            self.inputs = self._plugin.received(answer.inputs, self.inputs)
        self.outputs = self._plugin.received(answer.properties, self.outputs)
        return bool(answer.id)

    def _create(self, inputs: dict[str, Any], preview: bool) -> provider_pb2.CreateRequest:
        return provider_pb2.CreateRequest(**self._known_by, properties=self._plugin.sent(inputs), preview=preview)

    def _update(self, inputs: dict[str, Any], preview: bool) -> provider_pb2.UpdateRequest:
        return provider_pb2.UpdateRequest(
            **self._known_by,
            id=self.id,
            olds=self._plugin.sent(self.outputs),
            old_inputs=self._plugin.sent(self.inputs),
            news=self._plugin.sent(inputs),
            preview=preview,
        )
