"""A Mimir and a Loki that only take: one HTTP server which keeps what Alloy pushes, as plain data.

Speaks what Alloy sends and no more: snappy-compressed protobuf of Prometheus remote write 1.0 and of Loki's push API.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class LogLine:
    labels: dict[str, str]
    line: str
    metadata: dict[str, str]


@dataclass
class Receiver:
    """`series`: the last value of every series, by name and labels. `headers`: those of the last request per path.

    `times`: the time stamps of all samples of `up`, in seconds. `away`: answer 503, as a store that restarts, where the path has
    this in it; `refused`: how often, per path; `refused_times`: as `times`, of what was refused.

    Alloy sends in parallel: the series of one scrape, and the lines of one log, arrive in several pushes in any order. A test
    waits for each of those that it looks at.
    """

    series: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    refused_times: list[float] = field(default_factory=list)
    away: str = ""
    refused: Counter[str] = field(default_factory=Counter)
    lines: list[LogLine] = field(default_factory=list)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)

    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and last value of every series of this name."""
        return [(dict(labels), value) for labels, value in list(self.series.items()) if ("__name__", name) in labels]

    def wait_for(self, what: Callable[[], object], within_s: float = 120) -> None:
        """Returns when `what()` is true; a failure reports what had arrived by then."""
        deadline = time.monotonic() + within_s
        while not (found := what()):
            if time.monotonic() > deadline:
                names = sorted({value for labels in list(self.series) for name, value in labels if name == "__name__"})
                raise AssertionError(
                    f"not within {within_s} s: {found!r}; {len(self.lines)} lines arrived, and {len(self.series)} series: "
                    f"{', '.join(names)}"
                )
            time.sleep(0.05)

    def wait_until(self, found: Callable[[], object], expected: object) -> None:
        """Returns when `found()` is `expected`; a failure shows both."""
        with contextlib.suppress(AssertionError):
            self.wait_for(lambda: found() == expected)
        assert found() == expected

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = unsnappy(self.rfile.read(int(self.headers["Content-Length"])))
                lines, sent = [], []  # decoded before anything is kept: who sees one line of a push sees all of them
                if self.path.endswith("/api/v1/push") and "loki" in self.path:
                    lines = list(log_lines(body))
                else:
                    sent = list(samples(body))
                times = [time_s for labels, _, time_s in sent if ("__name__", "up") in labels]
                if receiver.away and receiver.away in self.path:
                    receiver.refused_times += times
                    receiver.refused[self.path] += 1
                    self.send_error(503)
                    return
                receiver.headers[self.path] = dict(self.headers)
                receiver.lines += lines
                receiver.series.update((labels, value) for labels, value, _ in sent)
                receiver.times += times
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def samples(write_request: bytes) -> Iterator[tuple[tuple[tuple[str, str], ...], float, float]]:
    """Labels, value and time in seconds of every sample."""
    for _, series in fields(write_request, 1):
        labels = tuple(sorted((text(label, 1), text(label, 2)) for _, label in fields(series, 1)))
        for _, sample in fields(series, 2):
            value = next((raw for _, raw in fields(sample, 1)), bytes(8))  # protobuf leaves a zero out
            time_ms = varint(next(raw for _, raw in fields(sample, 2)), 0)[0]
            yield labels, struct.unpack("<d", value)[0], time_ms / 1000


def log_lines(push_request: bytes) -> Iterator[LogLine]:
    for _, stream in fields(push_request, 1):
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text(stream, 1)))
        for _, entry in fields(stream, 2):
            metadata = {text(pair, 1): text(pair, 2) for _, pair in fields(entry, 3)}
            yield LogLine(labels=labels, line=text(entry, 2), metadata=metadata)


def text(message: bytes, number: int) -> str:
    return next((value.decode() for _, value in fields(message, number)), "")


def fields(message: bytes, wanted: int) -> Iterator[tuple[int, bytes]]:
    """The fields of one number in a protobuf message, undecoded; variable-length integers as their bytes."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 2:
            size, at = varint(message, at)
        elif kind == 0:
            size = varint(message, at)[1] - at
        else:
            size = {1: 8, 5: 4}[kind]
        if number == wanted:
            yield number, message[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def unsnappy(data: bytes) -> bytes:
    """The snappy block format, see google/snappy format_description.txt."""
    size, at = varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(data[at : at + extra], "little")
                at += extra
            out += data[at : at + length + 1]
            at += length + 1
            continue
        if tag & 3 == 1:
            length, offset = 4 + ((tag >> 2) & 7), (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, offset = 1 + (tag >> 2), int.from_bytes(data[at : at + width], "little")
            at += width
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == size, "snappy: the length at the start does not match"
    return bytes(out)
