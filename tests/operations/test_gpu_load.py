"""A known load on a GPU: what is run where, what Mimir has to show, and the error when it does not."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from components.kubernetes.load_job import load_job
from gpu_fleet.operations import gpu_load
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.gpu_load import Reading, host_command, is_visible, readings, report
from gpu_fleet.operations.mimir import Mimir, through_proxy
from gpu_fleet.operations.on_host import run
from gpu_fleet.provider.transport import LocalTransport
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.toolchain.versions import image
from tests.stackfile.stacks import stack

ENGINE, UTILIZATION, TENSOR = "gpu:graphics_engine_active:ratio", "gpu:utilization:ratio", "gpu:tensor_active:ratio"


def found(**peaks: float | None) -> list[Reading]:
    names = {"engine": ENGINE, "utilization": UTILIZATION, "tensor": TENSOR}
    return [Reading(name, 0.02, peaks.get(key)) for key, name in names.items()]


@pytest.mark.parametrize(
    ("test", "peaks", "proved"),
    [
        (1004, {"engine": 0.98, "utilization": 1.0, "tensor": 0.87}, True),
        (1004, {"engine": 0.98, "utilization": 1.0, "tensor": 0.05}, False),  # it ran, and not on the tensor cores
        (1004, {"utilization": 1.0}, True),  # standard counters measure no tensor activity
        (1004, {"engine": 0.03, "utilization": 0.01, "tensor": 0.87}, False),
        (1007, {"engine": 0.98}, True),
        (1004, {}, False),
    ],
)
def test_the_engine_must_rise_and_what_the_test_keeps_busy_as_far_as_it_is_measured(
    test: int, peaks: dict[str, float], proved: bool
) -> None:
    assert is_visible(test, found(**peaks)) is proved


def test_a_busy_gpu_before_is_no_proof() -> None:
    assert not is_visible(1004, [Reading(name, 0.9, 0.95) for name in (ENGINE, UTILIZATION, TENSOR)])


def test_the_report_shows_what_was_seen_and_what_to_check() -> None:
    good = report(1004, found(engine=0.98, utilization=1.0, tensor=0.87))
    assert "98%" in good and "87%" in good and "The load reached Mimir" in good
    bad = report(1004, found(utilization=0.02))
    assert "did not reach Mimir" in bad and "counters: profiling" in bad and "no value" in bad


# --- Mimir --------------------------------------------------------------------------------------------------------------


class Asked(BaseHTTPRequestHandler):
    values: ClassVar[dict[str, float]] = {}
    seen: ClassVar[list[tuple[str, str | None]]] = []  # query and tenant

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        self.seen.append((query, self.headers["X-Scope-OrgID"]))
        value = next((value for part, value in self.values.items() if part in query), None)
        result = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"result": result}}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mimir() -> Iterator[Mimir]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    Asked.seen.clear()
    yield Mimir(f"http://127.0.0.1:{server.server_port}/prometheus", {"X-Scope-OrgID": "us-west"})
    server.shutdown()
    server.server_close()


def test_the_loaded_gpu_is_compared_with_its_state_before(mimir: Mimir) -> None:
    Asked.values.clear()
    Asked.values |= {f'{TENSOR}{{pod=~"gpu-load-1-.*"}}[1m] offset 60s': 0.01, f"max_over_time({TENSOR}": 0.87}
    by_series = {one.series: one for one in readings(mimir, 1004, 'pod=~"gpu-load-1-.*"', 60)}
    assert by_series[TENSOR] == Reading(TENSOR, 0.01, 0.87) and by_series[ENGINE] == Reading(ENGINE, None, None)
    assert {tenant for _, tenant in Asked.seen} == {"us-west"}
    assert f'max(max_over_time({TENSOR}{{pod=~"gpu-load-1-.*"}}[60s]))' in [query for query, _ in Asked.seen]


def test_a_mimir_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(OperationError, match=r"the store cannot be reached at http://127\.0\.0\.1:9/prometheus"):
        Mimir("http://127.0.0.1:9/prometheus", {}).highest("up")


# --- a cluster ----------------------------------------------------------------------------------------------------------


def job(namespace: str, **changes: object) -> dict:
    section = Kubernetes.model_validate({"namespace": namespace})
    return load_job(section, "gpu-load-1", **{"test": 1004, "duration_s": 1, "resource": "nvidia.com/gpu", **changes})


def test_the_job_requests_one_gpu_and_tolerates_the_taint() -> None:
    spec = job("a", node="gpu-node-1")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert container["args"] == ["--no-dcgm-validation", "-t", "1004", "-d", "1"]
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "gpu-node-1"}


# --- a host -------------------------------------------------------------------------------------------------------------


def host(tmp_path: Path):  # type: ignore[no-untyped-def]
    raw = stack(hosts={"dev": {"connection": "local", "prefix": str(tmp_path)}}, ssh={})
    return StackConfig.load(raw, tmp_path).hosts["dev"]


def program(directory: Path, text: str, name: str = "dcgmproftester12") -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with these programs and a shell: this machine may have Docker."""
    directory.mkdir(exist_ok=True)
    (directory / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(directory))


def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "image", lambda name: replace(image(name), digest=f"sha256:{'0' * 64}"))


def test_a_host_runs_the_program_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", f'echo "$*" >{tmp_path}/ran')
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command = host_command(1004, 45, [str(tmp_path / "bin")])
    asyncio.run(run(LocalTransport(), host(tmp_path), command, what="the load", timeout_s=120))
    assert (tmp_path / "ran").read_text() == "--no-dcgm-validation -t 1004 -d 45\n"


def test_a_load_that_fails_on_a_host_is_reported_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "echo first >&2; echo 'no CUDA device' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(OperationError, match=r"dev: the load failed \(3\): no CUDA device"):
        asyncio.run(run(LocalTransport(), host(tmp_path), host_command(1004, 45), what="the load", timeout_s=120))


def test_a_hosts_endless_output_fills_no_memory_and_moves_no_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flood = "head -c 100000000 /dev/zero"
    program(tmp_path / "bin", f"{flood}; {flood} >&2; printf '\\nno \\033[2JCUDA' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    tracemalloc.start()
    with pytest.raises(OperationError, match=r"dev: the load failed \(3\): no \\x1b\[2JCUDA$"):
        asyncio.run(run(LocalTransport(), host(tmp_path), host_command(1004, 45), what="the load", timeout_s=600))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


DOCKER = "run --rm --gpus all --cap-add SYS_ADMIN IMAGE dcgmproftester12"
PODMAN = "run --rm --device nvidia.com/gpu=all --security-opt label=disable --cap-add SYS_ADMIN IMAGE dcgmproftester12"


@pytest.mark.parametrize(
    ("engines", "version", "expected"),
    [
        (["docker"], "Docker version 28.1", DOCKER),
        (["podman"], "podman version 5.4", PODMAN),
        (["podman", "docker"], "podman version 5.4", PODMAN),  # podman-docker
    ],
)
def test_without_the_program_it_is_a_container_of_docker_or_podman(
    engines: list[str], version: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned(monkeypatch)
    for engine in engines:
        program(tmp_path / "bin", f'[ "$1" != --version ] || {{ echo "{version}"; exit; }}; echo "$*" >{tmp_path}/ran', engine)
    only(tmp_path / "bin", monkeypatch)
    asyncio.run(run(LocalTransport(), host(tmp_path), host_command(1004, 45), what="the load", timeout_s=120))
    assert (tmp_path / "ran").read_text().replace(gpu_load.image("dcgm").reference, "IMAGE").startswith(expected)


def test_a_host_without_an_engine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned(monkeypatch)
    only(tmp_path / "bin", monkeypatch)
    with pytest.raises(OperationError, match="this host has neither dcgmproftester12 nor Docker nor Podman"):
        asyncio.run(run(LocalTransport(), host(tmp_path), host_command(1004, 45), what="the load", timeout_s=120))


def test_an_image_without_a_digest_is_not_pulled_and_the_command_that_pins_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_load, "image", lambda name: replace(image(name), digest=None))
    program(tmp_path / "bin", f'echo "$*" >{tmp_path}/ran', name="docker")
    only(tmp_path / "bin", monkeypatch)
    with pytest.raises(OperationError, match=r"images\.dcgm.*Run `make pin`"):
        asyncio.run(run(LocalTransport(), host(tmp_path), host_command(1004, 45), what="the load", timeout_s=120))
    assert not (tmp_path / "ran").exists()
    cluster = StackConfig.load(
        {"datacenter": "d", "cluster": "c", "metrics": {"url": "https://m.example.com/api/v1/push"}, "kubernetes": {}}, tmp_path
    )
    with pytest.raises(OperationError, match=r"images\.dcgm.*Run `make pin`"):
        gpu_load._on_cluster(cluster, "s", argparse.Namespace())


def test_a_proxy_of_the_environment_is_named_where_it_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:planted-password@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(OperationError, match=r"at https://10\.0\.0\.1 through the proxy of HTTPS_PROXY") as refused:
        Mimir("https://10.0.0.1", {}).vector("up")
    assert "planted" not in str(refused.value)
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    assert through_proxy("https://10.0.0.1") == ""
