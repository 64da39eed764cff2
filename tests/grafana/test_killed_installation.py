"""A first installation in Grafana whose run is killed while Grafana answers: what exists is not in the state. Again and again, at
each kind of thing, and each run continues what the one before it left."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.grafana import test_repairs
from tests.grafana.test_repairs import PROVISIONING, SECRETS
from tests.hosts.stack import Stack
from tests.provider.ruler_server import RulerServer
from tests.stackfile.stacks import HOST_KEY
from tests.standins.grafana_server import GrafanaServer

ALERTS = {
    **test_repairs.ALERTS,
    "routes": [{"matchers": ["severity=critical"], "receiver": "team", "muteTimings": ["move"]}],
    "muteTimings": {"move": {"daysOfMonth": [24], "months": ["december"], "years": [2026]}},
}
# What creates each kind, as far as a run comes while it waits for those before.
CREATING = [
    r"POST /api/folders",
    rf"POST /api/datasources|PUT {PROVISIONING}/(folder/[^/]+/rule-groups|templates)/.+|POST {PROVISIONING}/mute-timings",
    rf"POST /api/dashboards/db|POST {PROVISIONING}/contact-points",
    rf"PUT {PROVISIONING}/policies",
]


class Proxy:
    """Between the plugin and Grafana. Requests that match `held` reach Grafana, and its answers reach nobody."""

    def __init__(self, server: GrafanaServer) -> None:
        proxy = self
        self.held = ""
        self.has_held = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
                upstream.request(self.command, self.path, body, dict(self.headers.items()))
                answer = upstream.getresponse()
                content = answer.read()
                if proxy.held and re.fullmatch(proxy.held, f"{self.command} {self.path}") and answer.status < 500:
                    proxy.has_held.set()
                    threading.Event().wait(60)
                    return
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type") or "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GrafanaServer]:
    (tmp_path / "grafana").mkdir()
    server = GrafanaServer(tmp_path / "grafana")
    yield server
    server.stop()


@pytest.fixture
def proxy(server: GrafanaServer) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def stack(server: GrafanaServer, proxy: Proxy, tmp_path: Path) -> Iterator[Stack]:
    ruler = RulerServer()
    ruler.password = SECRETS["rulersPassword"]
    login = {"url": ruler.url, "tenant": "us-west", "username": "writer"}
    config = {"rulers": {"mimir": login}, "grafana": {"url": proxy.url}, "alerts": ALERTS}
    (tmp_path / "stack").mkdir()
    yield Stack(tmp_path / "stack", "killed", config, {**SECRETS, "grafanaAuth": server.auth}).create()
    ruler.close()


UP = ("deploy", "up", "--yes", "--skip-preview")


def killed_at(stack: Stack, proxy: Proxy, creating: str, operation: Sequence[str] = UP) -> str:
    """What the run printed that is killed while Grafana has done what it was asked for, and nobody knows."""
    proxy.held = creating
    proxy.has_held.clear()
    command = [sys.executable, "-m", f"gpu_fleet.operations.{operation[0]}", "--stack", stack.name, *operation[1:]]
    with (stack.directory / "printed").open("w+") as printed:
        process = subprocess.Popen(
            command,
            cwd=stack.directory,
            env={**os.environ, **stack._environment()},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        while not (reached := proxy.has_held.wait(0.1)) and process.poll() is None:
            pass
        if reached:
            time.sleep(3)  # all that goes on beside it is saved by then
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        output = printed.read()
    assert reached, f"{creating} was not reached:\n{output}"
    stack.unlock()
    proxy.held = ""
    return output


def test_a_mute_timing_of_somebody_else_is_left_alone(stack: Stack, proxy: Proxy, server: GrafanaServer) -> None:
    """Killed before Grafana was asked: what has the name is not of the run, though it had begun to create it."""
    theirs = {"name": "move", "time_intervals": [{"weekdays": ["saturday"]}]}
    killed_at(stack, proxy, "POST /api/folders")
    assert server.ask("POST", f"{PROVISIONING}/mute-timings", theirs)[0] == 201
    killed_at(stack, proxy, f"POST {PROVISIONING}/mute-timings")
    output = stack.operation(*UP, ok=False)
    assert "is left alone: MuteTiming alerting-mute-move (move)" in output and "with this name already exists" in output
    [timing] = server.get(f"{PROVISIONING}/mute-timings")
    assert timing["time_intervals"] == theirs["time_intervals"]


def test_hosts_and_what_is_in_grafana_are_settled_together(stack: Stack, proxy: Proxy, server: GrafanaServer) -> None:
    """What a killed run was creating is in one list of the state, which an import of the state empties."""
    killed_at(stack, proxy, "POST /api/dashboards/db")
    saved = json.loads(stack.state.read_text())
    latest = saved["checkpoint"]["latest"]
    [ours] = [one for one in latest["resources"] if one["type"] == "pulumi:providers:gpu-fleet"]
    host = {
        "urn": "urn:pulumi:killed::gpu-fleet::gpu-fleet:host:Host::gpu-1",
        "type": "gpu-fleet:host:Host",
        "custom": True,
        "provider": f"{ours['urn']}::{ours['id']}",
        "inputs": {
            "host": "gpu-1",
            "connection": {"kind": "ssh", "address": "127.0.0.1", "port": 1, "hostKey": HOST_KEY},
            "settings": {},
        },
    }
    latest["pending_operations"].insert(0, {"type": "creating", "resource": host})  # as of a host that was slower
    stack.state.write_text(json.dumps(saved))
    output = stack.operation(*UP, ok=False)
    assert "brought up gpu-1: this one finishes or removes it" in output and "gpu-1: unreachable" in output, output
    assert "had created Dashboard" in output and "[412]" not in output, output
    types = [one["type"] for one in stack.resources()]
    assert types.count("grafana:oss/dashboard:Dashboard") == len(server.get("/api/search?type=dash-db"))


def test_each_run_continues_what_a_killed_one_left_in_grafana(stack: Stack, proxy: Proxy, server: GrafanaServer) -> None:
    for creating in CREATING:
        killed_at(stack, proxy, creating)
    stack.operation(*UP)
    assert not json.loads(stack.pulumi("stack", "export"))["deployment"].get("pending_operations")
    stack.up_unchanged()
    points = server.get(f"{PROVISIONING}/contact-points")
    assert [point["name"] for point in points].count("team") == 1, "a second integration would notify twice"
    killed_at(stack, proxy, rf"DELETE {PROVISIONING}/alert-rules/.+", ("destroy", "--yes"))
    for operation in json.loads(stack.pulumi("stack", "export"))["deployment"]["pending_operations"]:
        if operation["resource"]["type"] == "grafana:alerting/ruleGroup:RuleGroup":
            folder, name = operation["resource"]["id"].split(":")[-2:]
            server.ask("DELETE", f"{PROVISIONING}/folder/{folder}/rule-groups/{quote(name)}")  # as the killed run, a moment later
    stack.operation("destroy", "--yes")
    left = [point for point in server.get(f"{PROVISIONING}/contact-points") if point["name"] == "team"]
    assert not left and server.get("/api/folders") == [] and server.get(f"{PROVISIONING}/mute-timings") == []
