"""Who a host is: its own record says, and `check` and `remove` act on nobody else."""

from __future__ import annotations

import fcntl

from tests.host.hosts import Run, SimulatedHost, page, scripted, snapshot


def named(host: SimulatedHost, name: str) -> SimulatedHost:
    host.settings["GPU_FLEET_INSTANCE"] = name
    return host


def renamed(run: Run) -> list[tuple[str, str]]:
    return [(event["from"], event["to"]) for event in run.events if event["event"] == "renamed"]


def test_a_host_with_another_name_is_neither_checked_nor_removed(host: SimulatedHost) -> None:
    named(host, "node-007").apply([page()])
    before = snapshot(host.prefix)
    for verb in ("check", "remove"):
        run = host.run(verb, None, "--instance", "gpu-007")
        assert (run.code, run.result["ok"]) == (1, False)
        error = run.error("host")
        assert error["code"] == "other-instance"
        assert "this machine's own record says that it is node-007, not gpu-007" in error["message"]
        assert snapshot(host.prefix) == before
    assert host.run("check", None, "--instance", "node-007").code == 0
    assert host.run("remove", None, "--instance", "node-007").code == 0
    assert snapshot(host.prefix) == {}


def test_a_host_with_another_name_is_said_so_while_another_run_holds_it(host: SimulatedHost) -> None:
    """`destroy` of a state with both names removes them at the same time."""
    named(host, "node-007").apply([page()])
    lock = host.at("/var/lib/gpu-fleet/lock")
    with lock.open("a") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert host.run("remove", None, "--instance", "gpu-007").error("host")["code"] == "other-instance"


def test_a_host_that_never_had_a_name_is_removed_under_any(host: SimulatedHost) -> None:
    host.apply([page()])
    assert host.run("remove", None, "--instance", "gpu-007").code == 0
    assert snapshot(host.prefix) == {}


def test_a_plan_and_an_apply_say_that_they_rename_and_place_nothing_again(host: SimulatedHost) -> None:
    named(host, "gpu-007").apply([page()])
    assert renamed(host.apply([page()])) == []
    named(host, "node-007")
    assert renamed(host.run("plan", [page()])) == [("gpu-007", "node-007")]
    apply = host.apply([page()])
    assert renamed(apply) == [("gpu-007", "node-007")]
    assert apply.changes("host") == ["file /etc/gpu-fleet/gpu-fleet.env: content differs: GPU_FLEET_INSTANCE"]
    assert apply.statuses["page"] == "unchanged"
    again = host.apply([page()])
    assert (renamed(again), again.result["changed"]) == ([], 0)


def test_an_apply_that_a_probe_ends_says_whom_it_met_and_leaves_its_name(host: SimulatedHost) -> None:
    named(host, "gpu-007").apply([page()])
    probe = scripted("no_driver", "echo no driver >&2; exit 10\n")
    fatal = page(name="driver", probe=probe, fatal=True, directories=(), files=())
    run = named(host, "node-007").run("apply", [fatal, page()])
    assert (run.code, renamed(run)) == (5, [("gpu-007", "node-007")])
    assert host.run("check", None, "--instance", "gpu-007").code == 0, "it is who it was"


def test_an_apply_that_may_not_rename_changes_nothing_and_says_whom_it_met(host: SimulatedHost) -> None:
    lock = "var/lib/gpu-fleet/lock"  # names the last run
    named(host, "gpu-a").apply([page()])
    before = snapshot(host.prefix) | {lock: None}
    named(host, "gpu-b")
    refused = host.run("apply", [page(name="another")], "--instance", "gpu-b")
    assert (refused.error("host")["code"], renamed(refused)) == ("other-instance", [("gpu-a", "gpu-b")])
    assert snapshot(host.prefix) | {lock: None} == before
    accepted = host.run("apply", [page()], "--instance", "gpu-b gpu-a")
    assert (accepted.code, renamed(accepted)) == (0, [("gpu-a", "gpu-b")])
