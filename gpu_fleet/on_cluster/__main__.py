"""Readiness of the nodes of a Kubernetes cluster: every 30 s, for the scheduler, people and Prometheus.

One pod for the whole cluster, so that one place counts how many nodes are tainted, and no GPU node holds a token that may change
the others. While there are two (a node that lost its network keeps its pod), their stores may differ, and each would taint as
many nodes as it may: the one that holds a Lease writes, the other only looks.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ..on_host.metrics import READINESS, Metrics
from .lease import LEASE, Lease
from .marks import Plan, Settings, plan, tainted_at, with_taint, without_taint
from .nodes import Api, ApiError, Node
from .verdict import STATES, UNKNOWN, Reason, Store, StoreError, state_of, summary, verdicts

ROUND_S = 30
STUCK_S = 180  # without a round, successful or not: the kubelet restarts the program
PORT = 9108
BETWEEN_WRITES_S = 0.05  # at most 20 nodes a second, when all change at once
WRITES_S = 20  # of one round: what is left is written in the next ones, and is seen by then with its newest verdict
TABLE = Path(__file__).with_name("table.json")


class Program:
    """`text`: what Prometheus reads. `tried_at`: when the last round began, by the monotonic clock."""

    def __init__(self, api: Api, store: Any, table: Mapping[str, Any], settings: Settings, lease: Lease) -> None:
        self._api, self._store, self._table, self._settings, self._lease = api, store, table, settings, lease
        self._said: dict[str, str] = {}
        self.text, self.tried_at = "", time.monotonic()

    def round(self, now: float) -> None:
        """Raises ApiError when the nodes cannot be read; what is served then grows old."""
        self.tried_at = time.monotonic()
        writes = self._settings.does != "dry-run" and self._holds(now)
        listed = self._api.nodes()
        try:
            known = verdicts(listed, self._table, self._store)
            self._say("store", "")
        except StoreError as error:
            self._say("store", str(error))
            away = Reason(UNKNOWN, "store_away", "", "the store of the metrics does not answer")
            known = {name: [away] for name in listed}
        nodes = {name: node for name, node in listed.items() if _is_ours(node, known[name])}
        wanted = plan(nodes, known, self._settings, now)
        if wanted.taint:  # how many there are already is counted in what the API server has now
            newest = self._api.nodes(newest=True)
            nodes = {name: newest[name] for name in nodes if name in newest}
            wanted = plan(nodes, known, self._settings, now)
        refused = set(wanted.refused)
        if writes or self._settings.does == "dry-run":
            self._announce(wanted, nodes, known)
        if writes:
            self._write(wanted, nodes)
        self.text = rendered(nodes, known, refused, now)

    def _holds(self, now: float) -> bool:
        try:
            holder = self._lease.taken(now)
        except ApiError as error:
            self._say("lease", f"nothing is written: the Lease {LEASE} is not available: {error}")
            return False
        self._say("lease", f"nothing is written: {holder} holds the Lease {LEASE}" if holder else "")
        return not holder

    def _write(self, wanted: Plan, nodes: Mapping[str, Node]) -> None:
        steps: list[Any] = [(name, lambda name=name: self._condition(name, wanted)) for name in wanted.conditions]
        if self._settings.does == "taint":
            add = [
                (n, lambda n=n: self._api.set_taints(nodes[n], lambda now: with_taint(now, wanted.taint[n])))
                for n in wanted.taint
            ]
            remove = [(n, lambda n=n: self._api.set_taints(nodes[n], without_taint)) for n in wanted.untaint]
            steps = [*remove, *add, *steps]
        until = time.monotonic() + WRITES_S
        for name, step in steps:
            if time.monotonic() > until:
                break
            try:
                step()
                self._say(f"write {name}", "")
            except ApiError as error:
                if error.status != 404:  # the node has left
                    self._say(f"write {name}", f"{name} was not changed: {error}")
            time.sleep(BETWEEN_WRITES_S)

    def _condition(self, name: str, wanted: Plan) -> None:
        self._api.set_condition(name, wanted.conditions[name])

    def _announce(self, wanted: Plan, nodes: Mapping[str, Node], known: Mapping[str, Sequence[Reason]]) -> None:
        """Says what changes, once."""
        would = "" if self._settings.does == "taint" else f"{self._settings.does}: would "
        for name in nodes:
            state, text = state_of(known[name]), summary(known[name], 500)
            self._say(f"state {name}", f"{name}: {state}" + (f": {text}" if text else ""))
            done = ""
            if name in wanted.taint:
                done = f"{would}taint {name}: {text}"
            elif name in wanted.refused:
                done = f"not tainted: of {len(nodes)} GPU nodes no more than {wanted.most} may be by us: {name}: {text}"
            elif name in wanted.untaint:
                done = f"{would}remove the taint of {name}: it is ready again"
            self._say(f"taint {name}", done)

    def _say(self, about: str, text: str) -> None:
        if text != self._said.get(about, "") and text:
            print(text, flush=True)
        self._said[about] = text


def _is_ours(node: Node, reasons: Sequence[Reason]) -> bool:
    """A GPU node: by its capacity, by what its exporter lists, or because it was one when we marked it."""
    lists_gpus = not any(reason.code in ("store_away", "exporter_old") for reason in reasons)
    return node.has_gpus or lists_gpus or bool(node.condition) or node.our_taint is not None


def rendered(nodes: Mapping[str, Node], known: Mapping[str, Sequence[Reason]], refused: set[str], now: float) -> str:
    """The metrics of hosts, with the node as instance."""
    of_nodes = {name: metric._replace(labels=("instance", *metric.labels)) for name, metric in READINESS.items()}
    found = Metrics(known=of_nodes, prefix="gpu_fleet_")
    for name, node in sorted(nodes.items()):
        found.add("ready_state", STATES.index(state_of(known[name])), name)
        found.add("ready_timestamp_seconds", int(now), name)
        for (code, gpu), state in {(one.code, one.gpu): one.state for one in known[name]}.items():
            found.add("ready_reason", STATES.index(state), name, code, gpu)
        at = tainted_at(node)
        if at is not None:
            found.add("ready_drained_timestamp_seconds", at, name)
        found.add("ready_schedulable", int(node.is_schedulable), name)
        found.add("ready_drain_refused", int(name in refused), name)
    return found.render()


def serve(program: Program, address: str, port: int) -> http.server.ThreadingHTTPServer:
    """/metrics, and /healthz for the kubelet."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_metrics = self.path == "/metrics"
            is_well = time.monotonic() - program.tried_at < STUCK_S
            body = program.text if is_metrics else "ok\n" if is_well else "no round for too long\n"
            self.send_response(200 if is_metrics or is_well else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

    server = Server((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)  # the first process of a container has no default for it
    environment, prefix = os.environ, os.environ.get("GPU_FLEET_PREFIX", "")
    settings = Settings(environment["GPU_FLEET_READY_DOES"], float(environment["GPU_FLEET_READY_MOST_DRAINED"]))
    api = Api(environment, prefix)
    lease = Lease(api, environment["GPU_FLEET_READY_POD"])
    program = Program(api, Store(environment, prefix), json.loads(TABLE.read_text()), settings, lease)
    serve(program, environment["GPU_FLEET_READY_ADDRESS"], PORT)
    while True:
        began = time.monotonic()
        try:
            program.round(time.time())
        except ApiError as error:
            print(f"the nodes cannot be read: {error}", flush=True)
        time.sleep(max(0.0, ROUND_S - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
