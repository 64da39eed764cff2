"""service.sh of the embedded backend: what it calls ready is ready, and what it gives up is not left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.ports import free_ports
from tests.checkout import REPO

SERVER = "import http.server, time; time.sleep({delay}); http.server.HTTPServer(('127.0.0.1', {port}), {handler}).serve_forever()"
ANSWERING, REFUSING = "http.server.SimpleHTTPRequestHandler", "http.server.BaseHTTPRequestHandler"


@dataclass
class Service:
    directory: Path
    script: Path
    port: int
    marker: str = field(default_factory=lambda: f"service-{os.urandom(8).hex()}")

    def environment(self, handler: str = ANSWERING, delay: float = 0) -> dict[str, str]:
        program = SERVER.format(port=self.port, handler=handler, delay=delay)
        return {
            **os.environ,
            "SERVICE_DIR": str(self.directory),
            "SERVICE_COMMAND": f'{sys.executable} -c "{program}" {self.marker}',
            "SERVICE_READY": f"http://127.0.0.1:{self.port}/",
            "SERVICE_LISTEN": f"127.0.0.1:{self.port}",
            "SERVICE_ENV": "",
        }

    def be_patient(self, seconds: int) -> None:
        text = (REPO / "components/backend/service.sh").read_text()
        assert "ready_within_s=90 " in text
        self.script.write_text(text.replace("ready_within_s=90 ", f"ready_within_s={seconds} "))

    def run(self, *arguments: str, handler: str = ANSWERING, delay: float = 0) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(self.script), *arguments]
        environment = self.environment(handler, delay)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)

    def processes(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if self.marker in words:
                found.append(process.name)
        return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (port,) = free_ports(1)
    service = Service(tmp_path / "services", tmp_path / "service.sh", port)
    service.be_patient(90)
    yield service
    service.run("stop", "web")
    assert service.processes() == []


def test_a_service_that_does_not_get_ready_is_stopped_and_the_next_run_starts_it(service: Service) -> None:
    service.be_patient(2)
    for _ in range(2):
        run = service.run("start", "web", handler=REFUSING)
        assert run.returncode == 1 and "web was not ready after 2 s" in run.stderr, run.stderr
        assert service.processes() == []
    service.be_patient(90)
    assert service.run("start", "web").returncode == 0
    assert len(service.processes()) == 1


def test_a_service_that_a_killed_run_left_behind_is_not_ready_before_it_answers(service: Service) -> None:
    slow = {"delay": 1.0}
    killed = subprocess.Popen(["sh", service.script, "start", "web"], env=service.environment(**slow), start_new_session=True)
    while not (service.processes() and (service.directory / "web/pid").exists()):
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    [before] = service.processes()
    run = service.run("start", "web", **slow)
    assert run.returncode == 0 and f"web is ready (pid {before})" in run.stderr, "it waits, and starts no second one"
    assert service.processes() == [before]


def test_a_run_that_is_interrupted_while_it_waits_leaves_no_process(service: Service) -> None:
    environment = service.environment(handler=REFUSING)
    running = subprocess.Popen(["sh", service.script, "start", "web"], env=environment, start_new_session=True)
    while not service.processes():
        assert running.poll() is None
    running.terminate()
    assert running.wait(timeout=120) != 0
    assert service.processes() == []


def test_a_busy_port_is_named_before_anything_is_started(service: Service) -> None:
    assert service.run("start", "web").returncode == 0
    run = service.run("start", "other")
    assert run.returncode == 1 and f"another program already listens on 127.0.0.1:{service.port}" in run.stderr
    assert len(service.processes()) == 1


def test_revive_starts_what_has_ended_and_nothing_else(service: Service) -> None:
    service.run("start", "web")
    [before] = service.processes()
    assert service.run("revive").returncode == 0
    assert service.processes() == [before]
    os.kill(int(before), 9)
    while Path(f"/proc/{before}").exists():  # until then it counts as running, and revive would wait for it
        time.sleep(0.01)
    run = service.run("revive")
    assert run.returncode == 0 and "web is not running: restarting it" in run.stderr, run.stderr
    assert service.processes() not in ([], [before])


def test_a_proxy_of_the_workstation_is_not_asked_for_services_on_loopback(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does a .curlrc change what curl says of them."""
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    (tmp_path / ".curlrc").write_text("proxy = http://127.0.0.1:9\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CDPATH", "/")
    service.be_patient(30)
    run = service.run("start", "web")
    assert run.returncode == 0, run.stderr
    (tmp_path / "other").mkdir()
    taken = Service(tmp_path / "other", service.script, service.port).run("start", "web")
    assert taken.returncode == 1 and f"another program already listens on 127.0.0.1:{service.port}" in taken.stderr


@pytest.mark.parametrize("own", [{}, {"no_proxy": "intranet.example.com"}, {"NO_PROXY": "intranet.example.com"}])
def test_programs_of_make_ask_loopback_without_the_proxy(own: dict[str, str]) -> None:
    """And what the user exempts is still exempt."""
    hosts = ("127.0.0.1", "intranet.example.com", "example.com")
    asked = f"import urllib.request as r; print(*(bool(r.proxy_bypass(h)) for h in {hosts}))"
    rule = f'asked: ; @{sys.executable} -c "{asked}"'
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    done = subprocess.run(
        ["make", "-s", "--eval", rule, "asked"],
        cwd=REPO,
        env={**environment, "http_proxy": "http://127.0.0.1:9", **own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", str(bool(own)), "False"]
