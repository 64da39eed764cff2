"""Lines in the engine's display, on the resource they belong to."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

_BETWEEN_STATUSES_S = 0.5  # per resource: a person reads no faster, and 1,000 hosts tell a lot


class EngineLog:
    """Sends lines without making anyone wait. Before `connect` they go nowhere."""

    def __init__(self) -> None:
        self._stub: engine_pb2_grpc.EngineAsyncStub | None = None
        self._waiting: dict[str, str] = {}  # last line of each resource that told one a moment ago
        self._sending: set[asyncio.Task[None]] = set()

    def connect(self, address: str) -> None:
        # One class at run time for both kinds of channel, two for type checkers.
        self._stub = cast("engine_pb2_grpc.EngineAsyncStub", engine_pb2_grpc.EngineStub(grpc.aio.insecure_channel(address)))

    def status(self, urn: str, line: str) -> None:
        """What a resource is doing now; the next line takes its place, and lines that come too fast give way to the last one."""
        if urn in self._waiting:
            self._waiting[urn] = line
            return
        self._send(engine_pb2.INFO, urn, line, ephemeral=True)
        self._waiting[urn] = ""
        asyncio.get_running_loop().call_later(_BETWEEN_STATUSES_S, self._tell_waiting, urn)

    def _tell_waiting(self, urn: str) -> None:
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
        """Until all lines are with the engine: what comes after an answer may find its display gone."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=5)

    def _send(self, severity: engine_pb2.LogSeverity.ValueType, urn: str, message: str, *, ephemeral: bool = False) -> None:
        if self._stub:
            request = engine_pb2.LogRequest(severity=severity, message=message, urn=urn, ephemeral=ephemeral)
            task = asyncio.get_running_loop().create_task(self._log(self._stub, request))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _log(self, stub: engine_pb2_grpc.EngineAsyncStub, request: engine_pb2.LogRequest) -> None:
        try:
            await stub.Log(request, timeout=30)
        except grpc.aio.AioRpcError:
            return  # a line less to read; the work goes on


class EngineLogHandler(logging.Handler):
    """What libraries log, for --debug. Standard error is no place for it: the engine shows that to everybody."""

    def __init__(self, log: EngineLog):
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._log.debug(self.format(record))
        except RuntimeError:  # no running loop: the process is ending
            return
