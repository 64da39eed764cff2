"""A Prometheus and a Loki that answer every query, the same for the same query: three series, or three lines, or nothing."""

from __future__ import annotations

import json
import math
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Whatever label a legend, a table or a variable asks for.
LABELS = {
    "datacenter": "us-west",
    "cluster": "training",
    "exporter_mode": "dcgm-exporter",
    "uuid": "GPU-1",
    "model": "NVIDIA H100 80GB HBM3",
    "severity": "critical",
    "alertname": "GpuXid",
    "alertstate": "firing",
    "action": "reboot_node",
    "xid": "79",
    "pci": "0000:4b:00",
    "namespace": "research",
    "pod": "train-<b>0</b>",
    "link": "3",
    "reason": "hw_thermal",
    "mountpoint": "/",
    "job": "kernel",
}
HOSTS = ("gpu-host-1", "gpu-host-2", "gpu-host-3")


class DataSources:
    """`url` + "/full", "/empty" or "/broken" is a data source's address. `queries` are what was asked, in order."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        handler = type("Handler", (_Handler,), {"queries": self.queries})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    queries: list[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _, kind, path = url.path.split("/", 2)
        length = int(self.headers.get("Content-Length") or 0)
        asked = {name: values[0] for name, values in parse_qs(url.query + "&" + self.rfile.read(length).decode()).items()}
        if "query" in asked:
            self.queries.append(asked["query"])
        if kind == "broken":
            return self._send(400, {"status": "error", "error": "1:5: parse error: unexpected <nothing>"})
        self._send(200, {"status": "success", "data": _answer(path, asked) if kind == "full" else _nothing(path)})

    do_POST = do_GET

    def _send(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: requests are no test output."""


def _nothing(path: str) -> Any:
    return [] if path.endswith("/values") else {"resultType": "vector", "result": []}


def _answer(path: str, asked: dict[str, str]) -> Any:
    if path.endswith("/values"):
        label = path.split("/")[-2]
        return list(HOSTS) if label == "instance" else ["0", "1"] if label == "gpu" else [LABELS[label]]
    query = asked["query"]
    is_logs = path.startswith("loki/") and "count_over_time" not in query and "rate(" not in query
    if is_logs:
        start = int(asked["start"])
        line = "NVRM: Xid (PCI:0000:4b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        values = [[str(start + minute * 60 * 10**9), line] for minute in (1, 2, 3)]
        return {"resultType": "streams", "result": [{"stream": LABELS, "values": values}]}
    series = [LABELS | {"instance": host, "gpu": str(number)} for number, host in enumerate(HOSTS)]
    if "step" not in asked:
        time = float(asked["time"])
        return {"resultType": "vector", "result": [{"metric": m, "value": [time, _value(query, m, time)]} for m in series]}
    scale = 10**9 if path.startswith("loki/") else 1
    start, end = (int(float(asked[name]) / scale) for name in ("start", "end"))
    step = 60 if scale > 1 else int(float(asked["step"]))
    return {
        "resultType": "matrix",
        "result": [{"metric": m, "values": [[t, _value(query, m, t)] for t in range(start, end + 1, step)]} for m in series],
    }


def _value(query: str, metric: dict[str, str], time: float) -> str:
    """Between 0 and 1, so that panels of every unit have room for it."""
    phase = zlib.crc32((query + metric["instance"]).encode()) % 628 / 100
    return str(round(0.5 + 0.45 * math.sin(time / 900 + phase), 4))
