"""The real plugin process, an engine that listens to it, and hosts whose converge program does as its settings say."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, provider_pb2_grpc, status_pb2

from gpu_fleet.provider.values import decode, encode

PLUGIN = Path(__file__).parents[2] / "gpu_fleet/provider" / "pulumi-resource-gpu-fleet"
BUNDLE, HOST = "gpu-fleet:host:Bundle", "gpu-fleet:host:Host"
PASSWORD = "correct-horse-battery"  # planted as a secret: must be found nowhere but on the host
MESSAGE_SIZE = [("grpc.max_receive_message_length", 1 << 28)]


# --- the engine's side ------------------------------------------------------------------------------------------------------


class Engine(engine_pb2_grpc.EngineServicer):
    """Keeps what the plugin logs."""

    def __init__(self) -> None:
        self.lines: list[engine_pb2.LogRequest] = []
        self.received = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Log(self, request: engine_pb2.LogRequest, context: grpc.ServicerContext) -> Empty:
        with self.received:
            self.lines.append(request)
            self.received.notify_all()
        return Empty()

    def texts(self, severity: int) -> list[str]:
        return [line.message for line in self.lines if line.severity == severity and not line.ephemeral]

    def wait_for_status(self, text: str) -> None:
        with self.received:
            assert self.received.wait_for(lambda: any(text in line.message for line in self.lines if line.ephemeral), timeout=300)

    def stop(self) -> None:
        self._server.stop(None)


@dataclasses.dataclass
class Failure(Exception):
    """An answer that is an error; `kept` is the resource's state that came with it."""

    message: str
    code: grpc.StatusCode
    kept: provider_pb2.ErrorResourceInitFailed | None

    def __str__(self) -> str:
        return self.message


class Plugin:
    """The plugin as the engine speaks with it."""

    def __init__(self, environment: dict[str, str] | None = None):
        self.engine = Engine()
        self.process = subprocess.Popen(
            [PLUGIN, self.engine.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PULUMI_CONFIG_PASSPHRASE": PASSWORD, **(environment or {})},
            start_new_session=True,
        )
        port = self.process.stdout.readline().decode().strip()
        assert port.isdigit(), self.process.stderr.read().decode()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", MESSAGE_SIZE)
        self.stub = provider_pb2_grpc.ResourceProviderStub(self._channel)
        self.answers: list[str] = []  # every answer as text, to look for secrets in

    def close(self) -> str:
        """What the plugin wrote to standard error, which the engine would show."""
        self._channel.close()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=120)
        self.engine.stop()
        return errors.decode()

    def start(self, method: str, request: Any) -> Callable[[], Any]:
        """Sends the request; call the returned function for the answer."""
        pending = getattr(self.stub, method).future(request, timeout=600)

        def answer() -> Any:
            try:
                response = pending.result()
            except grpc.RpcError as error:
                self.answers.append(f"{error.details()} {error.trailing_metadata()}")
                raise Failure(error.details(), error.code(), _init_failed(error)) from None
            self.answers.append(str(response))
            return response

        return answer

    def call(self, method: str, request: Any) -> Any:
        return self.start(method, request)()

    def configure(self, **config: Any) -> None:
        checked = self.call("CheckConfig", provider_pb2.CheckRequest(urn=urn("pulumi:providers:gpu-fleet"), news=encode(config)))
        assert not checked.failures, checked.failures
        self.answers.pop()  # configuration comes back as it went, its secrets marked
        self.call("Configure", provider_pb2.ConfigureRequest(args=checked.inputs, acceptSecrets=True))

    def check(self, kind: str, inputs: dict[str, Any]) -> provider_pb2.CheckResponse:
        return self.call("Check", provider_pb2.CheckRequest(urn=urn(kind), type=kind, news=encode(inputs)))

    def checked(self, kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
        response = self.check(kind, inputs)
        assert not response.failures, response.failures
        return decode(response.inputs)

    def diff(self, kind: str, old: dict[str, Any], new: dict[str, Any], outputs: dict[str, Any] | None = None) -> Any:
        request = provider_pb2.DiffRequest(
            id="x", urn=urn(kind), type=kind, old_inputs=encode(old), news=encode(new), olds=encode(outputs or {})
        )
        return self.call("Diff", request)

    def create(
        self, kind: str, inputs: dict[str, Any], *, preview: bool = False, timeout: float = 0
    ) -> tuple[str, dict[str, Any]]:
        response = self.start_create(kind, inputs, preview=preview, timeout=timeout)()
        return response.id, decode(response.properties)

    def start_create(self, kind: str, inputs: dict[str, Any], *, preview: bool = False, timeout: float = 0) -> Callable[[], Any]:
        request = provider_pb2.CreateRequest(
            urn=urn(kind, inputs.get("host", "x")), type=kind, properties=encode(inputs), preview=preview, timeout=timeout
        )
        return self.start("Create", request)

    def update(self, kind: str, id_: str, old: dict[str, Any], new: dict[str, Any], *, preview: bool = False) -> dict[str, Any]:
        request = provider_pb2.UpdateRequest(
            id=id_, urn=urn(kind, id_), type=kind, old_inputs=encode(old), news=encode(new), preview=preview
        )
        return decode(self.call("Update", request).properties)

    def read(self, kind: str, id_: str, inputs: dict[str, Any], outputs: dict[str, Any] | None = None) -> Any:
        request = provider_pb2.ReadRequest(
            id=id_, urn=urn(kind, id_), type=kind, inputs=encode(inputs), properties=encode(outputs or {})
        )
        return self.call("Read", request)

    def delete(self, kind: str, id_: str, inputs: dict[str, Any]) -> None:
        self.call("Delete", provider_pb2.DeleteRequest(id=id_, urn=urn(kind, id_), type=kind, old_inputs=encode(inputs)))

    def bundle(self, converge: str = "") -> str:
        """A bundle whose converge program is `converge`, or the obedient one; its digest."""
        return self.checked(BUNDLE, bundle_inputs(converge or CONVERGE.read_text()))["digest"]


def urn(kind: str, name: str = "x") -> str:
    return f"urn:pulumi:test::gpu-fleet::{kind}::{name}"


def _init_failed(error: grpc.RpcError) -> provider_pb2.ErrorResourceInitFailed | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            detail = provider_pb2.ErrorResourceInitFailed()
            status_pb2.Status.FromString(value).details[0].Unpack(detail)
            return detail
    return None


# --- bundles ----------------------------------------------------------------------------------------------------------------

CONVERGE = Path(__file__).parent / "obedient_converge.sh"


def bundle_tar(converge: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("converge")
        info.size = len(converge.encode())
        tar.addfile(info, io.BytesIO(converge.encode()))
    return buffer.getvalue()


def bundle_inputs(converge: str, files: dict[str, str] | None = None) -> dict[str, Any]:
    archive = base64.b64encode(gzip.compress(bundle_tar(converge), mtime=0)).decode()
    return {"files": files or {"converge": converge}, "archive": archive}


def digest_of(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(gzip.decompress(base64.b64decode(inputs["archive"]))).hexdigest()


@dataclasses.dataclass
class LocalHost:
    """A host on this machine, below a prefix. `do`: what its converge program has to do."""

    prefix: Path
    bundle: str
    name: str = "node-1"

    def inputs(self, do: str = "", **changed: Any) -> dict[str, Any]:
        settings = {"GPU_FLEET_STACK": "us-west/training", "DO": do}
        connection = {"kind": "local", "prefix": str(self.prefix)}
        return {"host": self.name, "connection": connection, "bundle": self.bundle, "settings": settings, **changed}

    def placed(self, path: str) -> str:
        return (self.prefix / path).read_text()

    def everything(self) -> list[str]:
        return sorted(str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*"))
