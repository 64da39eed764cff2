"""Lines in the engine's display, on the resource they belong to."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from gpu_fleet.safetext.terminal import printable_message

_BETWEEN_STATUSES_S = 0.5  # per resource: nobody reads faster, and 1,000 hosts send many lines


class EngineLog:
    """Sends log lines without blocking the caller. Before `connect` they are dropped."""

    def __init__(self) -> None:
        self._stub: engine_pb2_grpc.EngineAsyncStub | None = None
        self._waiting: dict[str, str] = {}  # latest unsent line of each resource that sent one a moment ago
        self._sending: set[asyncio.Task[None]] = set()

    def connect(self, address: str) -> None:
        # One class at run time for both kinds of channel, two for type checkers.
        self._stub = cast("engine_pb2_grpc.EngineAsyncStub", engine_pb2_grpc.EngineStub(grpc.aio.insecure_channel(address)))

    def status(self, urn: str, line: str) -> None:
        """What a resource is doing now. The next line replaces it; of lines that come too fast only the last is sent."""
        if urn in self._waiting:
            self._waiting[urn] = line
            return
        self._send(engine_pb2.INFO, urn, line, ephemeral=True)
        self._waiting[urn] = ""
        asyncio.get_running_loop().call_later(_BETWEEN_STATUSES_S, self._send_waiting, urn)

    def _send_waiting(self, urn: str) -> None:
        if line := self._waiting.pop(urn):
            self.status(urn, line)

    def info(self, urn: str, text: str) -> None:
        self._send(engine_pb2.INFO, urn, text)

    def warning(self, urn: str, text: str) -> None:
        self._send(engine_pb2.WARNING, urn, text)

    def debug(self, text: str) -> None:
        """Shown only with --debug."""
        self._send(engine_pb2.DEBUG, "", text)

    async def flush(self) -> None:
        """Waits until the engine has all lines: its display may be gone once the answer has been sent."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=5)

    def _send(self, severity: engine_pb2.LogSeverity.ValueType, urn: str, message: str, *, ephemeral: bool = False) -> None:
        if self._stub:
            request = engine_pb2.LogRequest(severity=severity, message=printable_message(message), urn=urn, ephemeral=ephemeral)
            task = asyncio.get_running_loop().create_task(self._log(self._stub, request))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _log(self, stub: engine_pb2_grpc.EngineAsyncStub, request: engine_pb2.LogRequest) -> None:
        try:
            await stub.Log(request, timeout=30)
        except grpc.aio.AioRpcError:
            return  # one line is lost; the work goes on


class EngineLogHandler(logging.Handler):
    """Sends what libraries log to --debug. Not to standard error: the engine shows that to every user."""

    def __init__(self, log: EngineLog):
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._log.debug(self.format(record))
        except RuntimeError:  # no running event loop: the process is ending
            return
