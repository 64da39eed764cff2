"""The table of `make check`, from the event log of `pulumi refresh --preview-only`."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree as wipe
from typing import Any

import pytest

from gpu_fleet.operations import check
from gpu_fleet.operations.arrivals import Arrivals
from gpu_fleet.operations.check import (
    HostState,
    Refresh,
    deployed_resources,
    refresh_preview,
    report,
    states,
    states_of_nodes,
    with_arrivals,
)
from gpu_fleet.provider.resources.cluster import Node
from gpu_fleet.stackfile.config import hosts_of
from gpu_fleet.stackfile.kubernetes import Kubernetes
from tests.provider.plugin import PASSWORD
from tests.provider.ruler_server import RulerServer
from tests.provider.test_engine import Stack

Event = dict[str, Any]


def urn(host: str) -> str:
    return f"urn:pulumi:s::gpu-fleet::gpu-fleet:host:Fleet$gpu-fleet:host:Host::{host}"


def outcome(host: str, op: str = "same", drift: list[str] | None = None, errors: list[str] | None = None) -> Event:
    new = {"outputs": {"drift": drift or []}, **({"initErrors": errors} if errors else {})}
    return {"resOutputsEvent": {"metadata": {"op": op, "urn": urn(host), "new": None if op == "delete" else new}}}


def failure(host: str) -> Event:
    return {"resOpFailedEvent": {"metadata": {"op": "refresh", "urn": urn(host)}}}


def error(host: str, text: str) -> Event:
    return {"diagnosticEvent": {"urn": urn(host) if host else "", "severity": "error", "message": f"{text}\n"}}


def found(*events: Event, hosts: tuple[str, ...] = ("gpu-1",), lost: tuple[str, ...] = ()) -> list[HostState]:
    """`hosts`: in the stack file and deployed."""
    return states({urn(host): host for host in hosts}, Refresh(events=events), {host: host in lost for host in hosts})


def state_of(*events: Event, lost: bool = False) -> HostState:
    (one,) = found(*events, lost=("gpu-1",) if lost else ())
    return one


def test_drift_is_listed_line_by_line_also_when_the_state_knew_of_it() -> None:
    lines = ["alloy: file /etc/gpu-fleet/alloy/discover.alloy: content differs", "alloy: service gpu-fleet-alloy: not running"]
    for op in ("update", "same"):
        one = state_of(outcome("gpu-1", op, lines))
        assert (one.state, one.lines) == ("drift", tuple(lines))


def test_an_unreachable_host_keeps_its_cause() -> None:
    one = state_of(outcome("gpu-1", errors=["gpu-1: unreachable: 10.0.1.1: no answer within 20 s"]))
    assert one == HostState(host="gpu-1", state="unreachable", lines=("10.0.1.1: no answer within 20 s",))


def test_a_host_that_cannot_be_checked_keeps_its_cause_and_its_log() -> None:
    one = state_of(outcome("gpu-1", errors=["gpu-1: GPU count: driver-check: 7 of 8\n    GPU 3 is lost"]))
    assert one.state == "failed"
    assert one.lines == ("GPU count: driver-check: 7 of 8", "    GPU 3 is lost")


def test_the_outcome_of_one_host_is_not_taken_for_another() -> None:
    hosts = found(outcome("gpu-1"), outcome("gpu-10", errors=["gpu-10: unreachable: no route"]), hosts=("gpu-1", "gpu-10"))
    assert [one.state for one in hosts] == ["ok", "unreachable"]


@pytest.mark.parametrize(
    ("events", "state", "line"),
    [
        ([], "unknown", "pulumi reported nothing about it"),
        ([outcome("gpu-2")], "unknown", "pulumi reported nothing about it"),
        ([outcome("gpu-1", "replace")], "unknown", "pulumi reported an unexpected operation: replace"),
        ([failure("gpu-1")], "failed", "pulumi could not read it and gave no reason"),
        ([error("gpu-1", "gpu-1: the plugin ended")], "failed", "the plugin ended"),
        ([outcome("gpu-1"), error("gpu-1", "gpu-1: the plugin ended")], "failed", "the plugin ended"),
    ],
)
def test_a_host_is_fine_only_when_the_engine_reported_it(events: list[Event], state: str, line: str) -> None:
    assert state_of(*events) == HostState(host="gpu-1", state=state, lines=(line,))
    assert state not in check._FINE


def test_a_lost_host_is_no_alarm() -> None:
    assert state_of(outcome("gpu-1"), lost=True).state == "lost"
    assert states({}, Refresh(events=[]), {"gpu-1": True}) == [], "removed from the stack already"


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
        "HOST   STATE        DETAILS",
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


def test_a_host_is_fine_only_if_all_its_samples_arrive(tmp_path: Path) -> None:
    """Hosts in pull mode, which no run contacts, are known by them alone."""
    of_file = {name: {"address": "10.0.0.1"} for name in "abcd"} | {"p": {"connection": "pull"}, "q": {"connection": "pull"}}
    hosts = hosts_of({"datacenter": "d", "cluster": "c", "hosts": of_file, "pull": {"url": "https://x"}}, tmp_path).hosts
    states = [HostState(host=name, state="ok") for name in "abc"]
    drifted = HostState(host="d", state="drift")
    everything = frozenset("abcdpq")
    arrived = Arrivals(
        newest={"a": 9_990.0, "b": 4_000.0, "c": 9_990.0, "d": 1.0, "p": 9_990.0},
        readings=everything - {"c"},
        system=everything,
        checked=dict.fromkeys(everything, 9_900.0),
    )
    found = with_arrivals([*states, drifted, HostState(host="rules mimir fleet/xid", state="ok")], hosts, arrived, now=10_000)
    assert [(one.host, one.state) for one in found] == [
        ("a", "ok"),
        ("b", "silent"),
        ("c", "partial"),
        ("d", "drift"),
        ("p", "ok"),
        ("q", "silent"),
        ("rules mimir fleet/xid", "ok"),
    ]
    text = report(found, "s")
    assert "b     silent   the last sample in the metrics store: 100 min ago" in text and "not in 1d" in text
    assert "c     partial  no GPU readings: the exporter answers without them, or nothing scrapes it" in text
    assert "docs/when-up-fails.md lists causes and fixes." in text


def test_nodes_of_a_cluster_are_fine_if_their_samples_arrive() -> None:
    nodes = {name: Node(name=name, gpus=8 * (name != "cpu"), labels={}) for name in ("gpu-1", "gpu-2", "gpu-3", "cpu")}
    arrived = Arrivals(
        newest={"gpu-1": 9_990.0, "gpu-2": 9_990.0, "cpu": 9_990.0}, readings=frozenset({"gpu-1"}), system=frozenset(nodes)
    )
    found = states_of_nodes(nodes, Kubernetes(), arrived, now=10_000)
    assert [(one.host, one.state) for one in found] == [
        ("node cpu", "ok"),
        ("node gpu-1", "ok"),
        ("node gpu-2", "partial"),
        ("node gpu-3", "silent"),
    ]
    text = report([HostState(host="release alloy", state="ok"), *found], "s")
    assert "node gpu-3     silent   the last sample in the metrics store: not in 1d" in text
    assert "node gpu-1" not in text, "of a thousand nodes those are shown that are not fine"
    assert "4 Kubernetes nodes and 1 release: 3 ok, 1 partial, 1 silent." in text


def test_helm_releases_are_checked_too() -> None:
    line = "DaemonSet alloy: spec.template.spec.containers[alloy].image: a:2 instead of a:1"
    releases = {
        f"urn:pulumi:s::gpu-fleet::gpu-fleet:kubernetes:GpuCluster$gpu-fleet:kubernetes:Manifest::{name}-objects": name
        for name in ("alloy", "dcgm-exporter")
    }
    events = [outcome("gpu-1"), outcome("alloy", "update", [line])]
    events.append(outcome("dcgm-exporter", errors=["dcgm-exporter: unreachable: https://10.0.0.1: refused"]))
    for event, release in zip(events[1:], releases, strict=True):
        event["resOutputsEvent"]["metadata"]["urn"] = release
    deployed = {urn("gpu-1"): "gpu-1"} | {release: f"release {name}" for release, name in releases.items()}
    hosts = states(deployed, Refresh(events=events), {"gpu-1": False})
    assert [(one.host, one.state, one.lines) for one in hosts] == [
        ("gpu-1", "ok", ()),
        ("release alloy", "drift", (line,)),
        ("release dcgm-exporter", "unreachable", ("https://10.0.0.1: refused",)),
    ]
    assert "1 host and 2 releases: 1 ok, 1 drift, 1 unreachable." in report(hosts, "s")


def test_objects_of_a_cluster_that_somebody_deleted_or_changed_are_named() -> None:
    """Steps as pulumi-kubernetes has them; of an annotation that the operator adds it says nothing."""
    place = "urn:pulumi:s::gpu-fleet::gpu-fleet:kubernetes:GpuCluster$kubernetes"
    rules, monitor, dashboard = (
        f"{place}:monitoring.coreos.com/v1:PrometheusRule::gpu-fleet-xid",
        f"{place}:monitoring.coreos.com/v1:PodMonitor::gpu-fleet-gpu-exporter",
        f"{place}:core/v1:ConfigMap::gpu-fleet-host-dashboard",
    )
    resources = [{"urn": one, "type": one.split("$")[1].split("::")[0]} for one in (rules, monitor, dashboard)]
    deployed = {one["urn"]: check._name(one) for one in resources}
    assert check._name({"urn": f"{place}:helm.sh/v3:Release::alloy", "type": "kubernetes:helm.sh/v3:Release"}) == ""
    targets = check._targets(deployed)
    assert "**kubernetes:core/v1:ConfigMap::**" in targets and "**kubernetes:monitoring.coreos.com/v1:PodMonitor::**" in targets
    events = [outcome(rules, "update"), outcome(monitor, "delete"), outcome(dashboard)]
    for event, one in zip(events, deployed, strict=True):
        event["resOutputsEvent"]["metadata"]["urn"] = one
    events[0]["resOutputsEvent"]["metadata"] |= {"diffs": None, "detailedDiff": {"spec.groups[0].interval": {}}}
    found = states(deployed, Refresh(events=events), {})
    assert [(one.host, one.state, one.lines) for one in found] == [
        ("object ConfigMap gpu-fleet-host-dashboard", "ok", ()),
        ("object PodMonitor gpu-fleet-gpu-exporter", "not installed", ("the server does not have it any more",)),
        ("object PrometheusRule gpu-fleet-xid", "drift", ("changed on the server: spec.groups[0].interval",)),
    ]
    assert "3 objects: 1 ok, 1 drift, 1 not installed." in report(found, "s")


def test_a_cluster_that_does_not_answer_is_one_row() -> None:
    cause = ("https://10.0.0.1: connection refused",)
    found = [HostState(host=f"object ConfigMap d{number}", state="failed", lines=cause) for number in range(40)]
    text = report([HostState(host="gpu-1", state="ok"), *found], "s")
    assert text.count(cause[0]) == 1 and "40 objects  failed  https://10.0.0.1" in text
    assert "1 host and 40 objects: 1 ok, 40 failed." in text


# --- with the real engine and plugin --------------------------------------------------------------------------------------


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    stack = Stack(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    return stack


def checked(stack: Stack, *hosts: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By host. `hosts`: of the stack file."""
    found = states(deployed_resources("test"), refresh_preview("test", {}), dict.fromkeys(hosts, False))
    return {one.host: (one.state, one.lines) for one in found}


def test_every_kind_of_host_is_distinguished_by_what_the_engine_records(stack: Stack) -> None:
    stack.desired |= {"hosts": {"gpu-1": "", "node-1": "", "node-2": "", "node-3": "", "node-4": ""}, "exports": False}
    stack.up()
    (stack.directory / "hosts/node-2/etc/gpu-fleet/gpu-fleet.env").unlink()
    converge = stack.directory / "hosts/node-3/var/lib/gpu-fleet/current/converge"
    intact = converge.read_text()
    converge.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    wipe(stack.directory / "hosts/node-4")
    found = checked(stack, "gpu-001", "node-1", "node-2", "node-3", "node-4")
    assert found.pop("gpu-1") == (
        "ok",
        ("not in the stack file any more: the next `up` removes it, or renames its machine",),
    ), "the old name of gpu-001"
    assert {host: state for host, (state, _) in found.items()} == {
        "gpu-001": "not installed",
        "node-1": "ok",
        "node-2": "drift",
        "node-3": "failed",
        "node-4": "not installed",
    }
    assert found["node-2"][1] == ("alloy: /etc/gpu-fleet/gpu-fleet.env is missing",)
    assert "broken" in "".join(found["node-3"][1])
    converge.write_text(intact)
    stack.desired |= {"hosts": {"gpu-001": ""}, "machines": {"gpu-001": "gpu-1"}}
    stack.up()
    assert checked(stack, "gpu-001") == {"gpu-001": ("ok", ())}, "renamed"


# A host whose check kills the plugin that runs it.
_KILLS_THE_PLUGIN = r"""#!/bin/sh
parent=$$
until tr '\0' ' ' <"/proc/$parent/cmdline" | grep -q provider.server; do
  parent=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$parent/status")
done
kill -KILL "$parent"
"""


def test_a_host_whose_check_the_plugin_did_not_survive_is_not_fine(stack: Stack) -> None:
    stack.up()
    (stack.directory / "hosts/node-2/var/lib/gpu-fleet/current/converge").write_text(_KILLS_THE_PLUGIN)
    assert checked(stack, "node-1", "node-2")["node-2"][0] in ("failed", "unknown")


def test_a_store_that_lost_its_disk_is_named_and_the_next_up_restores_it(stack: Stack) -> None:
    ruler = RulerServer()
    stack.desired |= {"ruler": ruler.url, "rules": "name: xid\nrules: [{alert: A, expr: up == 0}]\n"}
    try:
        stack.up()
        found = [*states(deployed_resources("test"), refresh_preview("test", {}), dict.fromkeys(("node-1", "node-2"), False))]
        assert report(found, "test").splitlines()[-1] == "2 hosts, 1 rule group and 1 Alertmanager configuration: 4 ok."
        ruler.groups.clear()
        ruler.alertmanagers[""] = ruler.alertmanagers[""].replace(PASSWORD, "by-hand")
        found_now = checked(stack, "node-1", "node-2")
        assert found_now["rules mimir fleet/xid"] == ("not installed", ("the server does not have it any more",))
        assert found_now["alertmanager anonymous"] == ("drift", ("changed on the server: config",))
        stack.up()
        assert [*ruler.groups] == [("mimir", "", "fleet", "xid")] and PASSWORD in ruler.alertmanagers[""]
    finally:
        stack.run("destroy", "--yes")
        ruler.close()
