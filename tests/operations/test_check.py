"""The table of `make check`, from what `pulumi refresh --preview-only --json` prints."""

from __future__ import annotations

from typing import Any

import pytest

from operations.check import HostState, report, states


def urn(host: str) -> str:
    return f"urn:pulumi:s::gpu-fleet::gpu-fleet:host:Fleet$gpu-fleet:host:Host::{host}"


def step(host: str, op: str = "refresh", drift: list[str] | None = None) -> dict[str, Any]:
    new = {} if op == "delete" else {"newState": {"outputs": {"drift": drift or []}}}
    return {"op": op, "urn": urn(host), "oldState": {"inputs": {"host": host}, "outputs": {"drift": []}}, **new}


def unhealthy(host: str, text: str) -> dict[str, str]:
    message = f"warning: Refreshed resource is in an unhealthy state:\n* {host}: {text}\n"
    return {"urn": urn(host), "severity": "warning", "message": message}


def state_of(host: str, refresh: dict[str, Any], lost: bool = False) -> HostState:
    (found,) = states(refresh, {host: lost})
    return found


def test_a_host_without_a_difference_is_ok() -> None:
    assert state_of("gpu-1", {"steps": [step("gpu-1")]}).state == "ok"


def test_drift_is_told_line_by_line_also_when_the_state_knew_of_it() -> None:
    lines = ["alloy: file /etc/gpu-fleet/alloy/discover.alloy: content differs", "alloy: service gpu-fleet-alloy: not running"]
    for op in ("update", "refresh"):
        found = state_of("gpu-1", {"steps": [step("gpu-1", op, lines)]})
        assert (found.state, found.lines) == ("drift", tuple(lines))


def test_an_unreachable_host_is_said_and_not_dropped() -> None:
    refresh = {"steps": [step("gpu-1")], "diagnostics": [unhealthy("gpu-1", "unreachable: 10.0.1.1: no answer within 20 s")]}
    assert state_of("gpu-1", refresh) == HostState(host="gpu-1", state="unreachable", lines=("10.0.1.1: no answer within 20 s",))


def test_a_host_that_cannot_be_checked_keeps_its_cause_and_its_log() -> None:
    refresh = {
        "steps": [step("gpu-1")],
        "diagnostics": [unhealthy("gpu-1", "GPU count: driver-check: 7 of 8\n    GPU 3 is lost")],
    }
    found = state_of("gpu-1", refresh)
    assert found.state == "failed"
    assert found.lines == ("GPU count: driver-check: 7 of 8", "    GPU 3 is lost")


def test_what_one_host_says_is_not_taken_for_another() -> None:
    refresh = {"steps": [step("gpu-1"), step("gpu-10")], "diagnostics": [unhealthy("gpu-10", "unreachable: no route")]}
    assert [one.state for one in states(refresh, {})] == ["ok", "unreachable"]


def test_a_wiped_host_and_one_that_was_never_reached_are_not_installed() -> None:
    refresh = {"steps": [step("gpu-1", "delete")]}
    assert [one.state for one in states(refresh, {"gpu-1": False, "gpu-2": False})] == ["not installed", "not installed"]


def test_a_lost_host_is_no_alarm() -> None:
    assert state_of("gpu-1", {"steps": [step("gpu-1")]}, lost=True).state == "lost"
    assert states({"steps": []}, {"gpu-1": True}) == [], "taken out already"


@pytest.fixture
def fleet() -> list[HostState]:
    drift = tuple(f"host: file /etc/{number}: content differs" for number in range(7))
    return [
        HostState(host="gpu-1", state="unreachable", lines=("10.0.1.1: no answer within 20 s",)),
        HostState(host="gpu-2", state="drift", lines=drift),
        HostState(host="gpu-3", state="ok"),
    ]


def test_the_table_ends_with_the_worst_and_counts_the_rest_of_long_lists(fleet: list[HostState]) -> None:
    shown = report(fleet, "us-west-training").splitlines()
    assert shown[:8] == [
        "HOST   STATE        DIFFERENCES",
        "gpu-3  ok",
        "gpu-2  drift 7      host: file /etc/0: content differs",
        "                    host: file /etc/1: content differs",
        "                    host: file /etc/2: content differs",
        "                    host: file /etc/3: content differs",
        "                    host: file /etc/4: content differs",
        "                    and 2 more",
    ]
    assert shown[8] == "gpu-1  unreachable  10.0.1.1: no answer within 20 s"
    assert "3 hosts: 1 ok, 1 drift, 1 unreachable." in shown
    assert "    pulumi up --refresh --stack us-west-training" in shown


def test_a_fleet_that_is_fine_gets_no_advice() -> None:
    assert report([HostState(host="gpu-3", state="ok")], "s").splitlines()[-1] == "1 host: 1 ok."


def release(name: str, drift: list[str] | None = None) -> dict[str, Any]:
    return {
        "op": "refresh",
        "urn": f"urn:pulumi:s::gpu-fleet::gpu-fleet:kubernetes:GpuCluster$gpu-fleet:kubernetes:Manifest::{name}-objects",
        "oldState": {"inputs": {"release": name}, "outputs": {"drift": []}},
        "newState": {"outputs": {"drift": drift or []}},
    }


def test_helm_releases_are_looked_at_too() -> None:
    line = "DaemonSet alloy: spec.template.spec.containers[alloy].image: a:2 instead of a:1"
    refresh = {"steps": [step("gpu-1"), release("alloy", [line]), release("dcgm-exporter")]}
    refresh["diagnostics"] = [
        {
            "urn": refresh["steps"][2]["urn"],
            "message": unhealthy("dcgm-exporter", "unreachable: https://10.0.0.1: refused")["message"],
        }
    ]
    found = states(refresh, {"gpu-1": False})
    assert [(one.host, one.state, one.lines) for one in found] == [
        ("gpu-1", "ok", ()),
        ("release alloy", "drift", (line,)),
        ("release dcgm-exporter", "unreachable", ("https://10.0.0.1: refused",)),
    ]
    assert "1 host and 2 releases: 1 ok, 1 drift, 1 unreachable." in report(found, "s")
