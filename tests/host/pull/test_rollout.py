"""What bounds the harm of a publication: it expires, reaches the hosts in waves, can be stopped, and keys can be replaced."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from gpu_fleet.host.part import Directory
from gpu_fleet.host.pull.publish import ALL, Schedule
from tests.host.hosts import page
from tests.host.pull.pulled import PulledHost, Site, make_key

HOUR_S = 3600


def _shown(pulled: PulledHost) -> str:
    return pulled.at("/etc/page/index.html").read_text()


def _pull_ok(pulled: PulledHost, *arguments: str) -> str:
    run = pulled.pull(*arguments)
    assert run.code == 0, run.said
    return run.said


# --- expiry ---


def test_an_expired_publication_is_refused_and_what_runs_stays(pulled: PulledHost) -> None:
    """Whoever serves an old copy for ever holds hosts back for no longer than it is valid."""
    digest = pulled.site.publish([page()], valid_s=9 * HOUR_S)
    assert pulled.install().code == 0
    pulled.site.publish([page("newer\n")], valid_s=HOUR_S)  # two hours ago
    run = pulled.pull()
    assert run.code == 1 and re.search(r"latest expired on 20\d\d-.* UTC: publish again", run.said), run.said
    assert pulled.digest() == digest and _shown(pulled) == "hello\n"
    again = pulled.install()
    assert again.code == 1 and "expired on" in again.said


def test_a_version_far_ahead_is_refused_and_locks_nobody_out(pulled: PulledHost) -> None:
    """A thief of the key signs with the highest version there is."""
    pulled.site.publish([page()])
    pulled.install()
    shutil.copytree(pulled.site.directory, pulled.site.directory.parent / "copy")
    pulled.site.time_s += 10 * 365 * 24 * HOUR_S
    (pulled.site.directory / "latest").unlink()
    pulled.site.publish([page("evil\n")])
    run = pulled.pull()
    assert run.code == 1 and "was published on 203" in run.said and "nothing was run" in run.said, run.said
    shutil.copyfile(pulled.site.directory.parent / "copy/latest", pulled.site.directory / "latest")
    pulled.site.time_s = int(time.time()) - HOUR_S
    pulled.site.publish([page("newer\n")])
    _pull_ok(pulled)
    assert _shown(pulled) == "newer\n"


@pytest.mark.parametrize("damage", ["", "no number\n", "9999999999999999999999\n"])
def test_a_damaged_version_is_replaced_by_that_of_the_bundle_that_runs(pulled: PulledHost, damage: str, tmp_path: Path) -> None:
    pulled.site.publish([page("old\n")])
    shutil.copyfile(pulled.site.directory / "latest", tmp_path / "old")
    pulled.site.publish([page()])
    pulled.install()
    version = pulled.at("/var/lib/gpu-fleet/pull/version")
    before = version.read_text()
    version.write_text(damage)
    shutil.copyfile(pulled.site.directory / "latest", tmp_path / "new")
    shutil.copyfile(tmp_path / "old", pulled.site.directory / "latest")
    run = pulled.pull()
    assert run.code == 1 and "a replay attack" in run.said, run.said
    shutil.copyfile(tmp_path / "new", pulled.site.directory / "latest")
    _pull_ok(pulled)
    assert version.read_text() == before


def test_the_bundle_that_runs_is_found_again_after_a_power_cut_between_two_renames(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    good = pulled.at("/var/lib/gpu-fleet/pull/good")
    good.rename(good.with_name("good.old"))
    (pulled.site.directory / "latest").unlink()
    pulled.at("/etc/page/index.html").write_text("by hand")
    run = pulled.pull()
    assert run.code == 1 and run.said.rstrip().endswith("is running"), run.said
    assert _shown(pulled) == "hello\n" and good.is_dir()


# --- waves ---


def _in_waves(site: Site, begins_s: float, *, content: str = "newer\n", **options: object) -> str:
    """Two waves a day apart; the first one begins then."""
    site.time_s = max(site.time_s + 1, int(begins_s)) - 60
    return site.publish([page(content)], schedule=Schedule(shares=(5_000, ALL), pause_s=24 * HOUR_S), **options)


def test_hosts_take_a_bundle_wave_by_wave(pulled: PulledHost, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled.site.publish([page()])
    places = {}
    for name in ("gpu-node-001", "gpu-node-002", "gpu-node-003", "gpu-node-004", "gpu-node-005", "gpu-node-006"):
        pulled.run(pulled.installer("--instance", name))
        new = _in_waves(pulled.site, time.time() - HOUR_S)
        said = _pull_ok(pulled)
        places[name] = "came up" in said
        if not places[name]:
            assert re.search(
                rf"bundle {new[:12]} is published, and this host's turn is at 20.* UTC; bundle \w+ is running", said
            ), said
            assert _shown(pulled) == "hello\n"
            pulled.at("/etc/page/index.html").write_text("by hand")
            _pull_ok(pulled)
            assert _shown(pulled) == "hello\n", "a host that waits is kept in repair"
            waiting = name
        pulled.site.publish([page()])
        _pull_ok(pulled)
    assert set(places.values()) == {True, False}, "a host's place follows from its name"

    pulled.run(pulled.installer("--instance", waiting))
    _in_waves(pulled.site, time.time() - HOUR_S)
    assert "this host's turn is at" in _pull_ok(pulled)
    assert "came up" in _pull_ok(pulled, "--now")


def test_a_stopped_rollout_goes_no_further_and_another_publication_ends_it(pulled: PulledHost) -> None:
    old = pulled.site.publish([page()])
    pulled.install()
    new = pulled.site.publish([page("newer\n")], is_stopped=True)
    said = _pull_ok(pulled)
    assert f"bundle {new[:12]} is published, and its rollout was stopped; bundle {old[:12]} is running" in said
    assert pulled.digest() == old
    assert pulled.pull("--status").code == 0
    pulled.site.publish([page("newer\n")])
    assert "came up" in _pull_ok(pulled)
    pulled.site.publish([page("newer\n")], is_stopped=True)
    assert "nothing to do" in _pull_ok(pulled), "a host that has it keeps it"


def test_places_are_spread_over_the_time_that_the_bandwidth_needs() -> None:
    schedule = Schedule(shares=(100, 1_000, ALL), pause_s=HOUR_S, hosts=10_000, bytes_per_s=1e9 / 8)
    waves = schedule.waves(0, 400_000_000)
    assert waves == [(100, 0, 320), (1_000, 320 + HOUR_S, 2_880), (ALL, 3_200 + 2 * HOUR_S, 28_800)]
    assert Schedule().waves(7, 400_000_000) == [(ALL, 7, 0)]


# --- keys ---


def test_a_key_is_replaced_without_a_login_and_the_old_one_counts_for_nothing(pulled: PulledHost, tmp_path: Path) -> None:
    old, new = pulled.site.key, make_key(tmp_path / "new-key")
    pulled.site.publish([page("1\n")])
    pulled.install()
    pulled.site.publish([page("2\n")], keys=[old, new])
    _pull_ok(pulled)
    pulled.site.publish([page("3\n")], keys=[new])
    _pull_ok(pulled)
    assert _shown(pulled) == "3\n"
    pulled.site.publish([page("4\n")], keys=[old])
    run = pulled.pull()
    assert run.code == 1 and "does not have a valid signature by this fleet's key" in run.said
    assert _shown(pulled) == "3\n"


def test_a_host_that_was_off_meanwhile_accepts_what_both_keys_signed(pulled: PulledHost, tmp_path: Path) -> None:
    pulled.site.publish([page("1\n")])
    pulled.install()
    new = make_key(tmp_path / "new-key")
    pulled.site.publish([page("2\n")], keys=[new, pulled.site.key])
    _pull_ok(pulled)
    assert _shown(pulled) == "2\n"


def test_a_thief_of_the_key_in_use_cannot_shut_out_the_spare_one(pulled: PulledHost, tmp_path: Path) -> None:
    spare, thief = make_key(tmp_path / "spare"), make_key(tmp_path / "thief")
    pulled.site.publish([page("1\n")], spare_key=spare.public)
    pulled.install()
    pulled.site.publish([page("evil\n")], keys=[pulled.site.key, thief])
    _pull_ok(pulled)
    pulled.site.publish([page("evil 2\n")], keys=[thief], spare_key=thief.public)
    _pull_ok(pulled)
    pulled.site.publish([page("ours again\n")], keys=[spare])
    _pull_ok(pulled)
    assert _shown(pulled) == "ours again\n"
    for stolen in (pulled.site.key, thief):
        pulled.site.publish([page("evil 3\n")], keys=[stolen])
        assert pulled.pull().code == 1
    assert _shown(pulled) == "ours again\n"


# --- who it is, and what it reports ---


def test_a_stack_that_moves_to_another_cluster_takes_its_hosts_along(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    pulled.site.publish([page()], settings={"GPU_FLEET_CLUSTER": "inference"})
    _pull_ok(pulled)
    assert pulled.values()["GPU_FLEET_STACK"] == "us-west/inference"
    assert pulled.at("/var/lib/gpu-fleet/stack").read_text() == "us-west/inference\n"
    _pull_ok(pulled)
    again = pulled.run(pulled.installer("--cluster", "research"))
    assert again.code == 0, again.said


def test_versions_expiry_and_the_last_success_are_metrics(pulled: PulledHost) -> None:
    textfile = Directory(path="/var/lib/gpu-fleet/textfile", contents="runtime")
    parts = [page(directories=(*page().directories, textfile))]
    pulled.site.publish(parts, valid_s=9 * HOUR_S)
    begun = int(time.time())
    pulled.install()
    first = pulled.site.time_s

    def metrics() -> dict[str, int]:
        text = pulled.at("/var/lib/gpu-fleet/textfile/fleet_pull.prom").read_text()
        return {name: int(value) for name, value in re.findall(r"^gpu_fleet_pull_(\w+) (\d+)$", text, re.MULTILINE)}

    found = metrics()
    assert (found["version"], found["seen_version"], found["expires_timestamp_seconds"]) == (first, first, first + 9 * HOUR_S)
    succeeded = found["last_success_timestamp_seconds"]
    assert begun <= succeeded <= time.time()
    pulled.site.publish([page("stopped\n")], is_stopped=True)
    pulled.pull()
    assert (metrics()["version"], metrics()["seen_version"]) == (first, first + 60)
    (pulled.site.directory / "latest").unlink()
    assert pulled.pull().code == 1
    assert metrics()["success"] == 0 and metrics()["last_success_timestamp_seconds"] >= succeeded
