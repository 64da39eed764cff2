"""A real Alloy that scrapes further exporters of a host, as the stack file names them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest

from gpu_fleet.stackfile.scrape_targets import ScrapeTarget, settings
from tests.host.parts.conftest import IDENTITY, RunningAlloy, running_alloy

BODY = 'vllm:requests_running{instance="model\'s own",model="other"} 3\nvllm:waiting 1\nprocess_open_fds 7\npython_info 1\n'
KEPT = {"vllm:requests_running", "vllm:waiting", "process_open_fds", "up", "scrape_samples_scraped"}
# What both jobs send. The series of one scrape arrive in several pushes, in any order.
SENT = {(job, name) for job in ("vllm", "whisper") for name in KEPT} | {("whisper", "python_info")}


@pytest.fixture(scope="module")
def requests() -> list[tuple[str, float]]:
    """Path and time of each request to the exporters, in order."""
    return []


@pytest.fixture(scope="module")
def server(requests: list[tuple[str, float]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, time.monotonic()))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(BODY.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def alloy(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    labels = {"model": 'llama "70b" $HOME \\d'}
    targets = {
        "vllm": ScrapeTarget(url=server, interval="5s", keep=("vllm:*", "process_open_fds"), labels=labels),
        "whisper": ScrapeTarget(url=f"{server}/stt/metrics", interval="5s"),
    }
    values = {f"GPU_FLEET_{name}": value for name, value in settings(targets, 15).items()}
    facts = {"GPU_FLEET_EXPORTER_MODE": "textfile", **values}
    with running_alloy(tmp_path_factory.mktemp("host"), facts, scrape_targets=True) as running:
        running.receiver.wait_for(
            lambda: {(series["job"], series["__name__"]) for series in map(dict, list(running.receiver.series))} >= SENT
        )
        yield running


def test_a_target_has_the_labels_of_its_host_and_its_own(alloy: RunningAlloy) -> None:
    (labels,) = {tuple(labels.items()) for labels, _ in alloy.receiver.of("vllm:requests_running") if labels["job"] == "vllm"}
    found = dict(labels)
    host = {name.removeprefix("GPU_FLEET_").lower(): value for name, value in IDENTITY.items()}
    assert found.items() >= {**host, "exporter_mode": "textfile"}.items()
    assert found["model"] == 'llama "70b" $HOME \\d', "the stack file's label wins"
    assert (found["exported_instance"], found["exported_model"]) == ("model's own", "other")


def test_only_what_a_job_keeps_is_sent_and_whether_it_answers(alloy: RunningAlloy) -> None:
    def jobs(name: str) -> set[str]:
        return {labels["job"] for labels, _ in alloy.receiver.of(name)}

    assert jobs("python_info") == {"whisper"}
    assert jobs("vllm:waiting") == {"vllm", "whisper"} <= jobs("process_open_fds")
    assert jobs("up") >= {"vllm", "whisper"} and jobs("scrape_samples_scraped") >= {"vllm", "whisper"}


def test_a_target_is_scraped_at_its_path_and_in_its_interval(alloy: RunningAlloy, requests: list[tuple[str, float]]) -> None:
    assert {path for path, _ in requests} == {"/metrics", "/stt/metrics"}
    for path in ("/metrics", "/stt/metrics"):

        def gaps(path: str = path) -> list[float]:
            times = [at for asked, at in requests if asked == path]
            return [later - earlier for earlier, later in pairwise(times)]

        alloy.receiver.wait_for(lambda gaps=gaps: any(gap < 15 for gap in gaps()))  # the default interval is 30 s
