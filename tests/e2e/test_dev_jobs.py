"""`make dev JOBS=1`: jobs of a real Slurm on the simulated GPUs, its queue, and nothing of it without JOBS=1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.dev import slurm
from lab.dev.workspace import DevError
from lab.hosts.errors import HostsError
from tests.e2e.conftest import Datacenter
from tests.waiting import eventually


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datacenter]:
    made = Datacenter(tmp_path_factory.mktemp("busy"))
    try:
        made.run("lab.dev", "up", "--jobs")
        yield made
    finally:
        made.run("lab.dev", "down")
    made.has_ended()


def test_jobs_users_and_the_queue_are_those_of_slurm(busy: Datacenter) -> None:
    held = busy.metrics("gpu:job:info")
    about = {(series["metric"]["user"], series["metric"]["account"]) for series in held}
    assert about <= {("alice", "vision"), ("bob", "vision"), ("carol", "speech")}, held
    assert {series["metric"]["instance"] for series in held} == {slurm.HOST}
    assert all(series["metric"]["uuid"].startswith("GPU-") and series["metric"]["gpu"] for series in held), held
    allocated = 'gpu_fleet_slurm_gpus{state="allocated"} > 0'
    eventually("GPUs of the queue", lambda: busy.metrics(allocated), shown=lambda: busy.metrics("gpu_fleet_slurm_success"))
    assert busy.metrics(f'gpu_fleet_slurm_node_info{{node="{slurm.HOST}"}}')


def test_without_jobs_nothing_of_it_stays(busy: Datacenter) -> None:
    assert any("lab.dev.slurm" in process for process in busy.processes())
    busy.run("lab.dev", "up")
    assert not any("lab.dev.slurm" in process for process in busy.processes())
    textfiles = busy.host / "var/lib/gpu-fleet/textfile"
    eventually("no metrics of it", lambda: not [*textfiles.glob("jobs*.prom"), *textfiles.glob("slurm*.prom")])


def test_a_machine_without_slurm_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_root(_: object) -> None:
        raise HostsError("this needs root: run it again with sudo.")

    monkeypatch.setattr(slurm, "_pid", lambda: 0)
    monkeypatch.setattr(slurm.needs, "require", needs_root)
    with pytest.raises(DevError, match=r"this needs root.*`make dev` without JOBS=1 needs none of it"):
        slurm.start()
