"""XIDs through the whole chain: kernel line, Alloy, Mimir and Loki, their rulers, Alertmanager, receiver. One incident, one page.

Alertmanager's own part is tested with alerts of hosts that do not exist, sent to it as the ruler sends them: a dead host takes
seven minutes to alert.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from alerts.grafana_rules import ON_NO_DATA, GrafanaRule, rule_groups
from alerts.xid import CATALOGUE
from dashboards import LOKI_UID, MIMIR_UID
from lab.dev import query
from lab.dev.xids import COMMON
from lab.gpu import inject
from tests.e2e.conftest import Datacenter
from tests.waiting import eventually

VERDICTS = {gpu: codes[0] for gpu, codes in COMMON.items()}
HOST = {"datacenter": "dev", "cluster": "elsewhere"}
XID = {"alertname": "GpuXid", "severity": "critical", "scope": "gpu"}


def send(datacenter: Datacenter, *labels: dict[str, str], over: bool = False) -> None:
    """Alerts as a ruler sends them; they last until they are sent with `over`."""
    now = datetime.datetime.now(datetime.UTC)
    end = now if over else now + datetime.timedelta(hours=2)  # longer than the slowest machine takes for this module
    given = [
        {"labels": {**HOST, **one}, "annotations": {"summary": "sent by a test"}, "endsAt": end.isoformat()} for one in labels
    ]
    url = f"{datacenter.endpoints['ALERTMANAGER_URL']}/api/v2/alerts"
    request = urllib.request.Request(url, data=json.dumps(given).encode(), headers={"Content-Type": "application/json"})
    assert urllib.request.urlopen(request, timeout=60).status == 200


def received(datacenter: Datacenter, instance: str) -> list[dict[str, Any]]:
    """The notifications about a host at the receiver, oldest first."""
    alerts = query.received_alerts(datacenter.endpoints["RECEIVER_URL"])
    return [alert for alert in alerts if alert["labels"].get("instance") == instance]


def names(datacenter: Datacenter, instance: str) -> set[str]:
    return {alert["labels"]["alertname"] + alert["labels"].get("xid", "") for alert in received(datacenter, instance)}


def are_notified(datacenter: Datacenter, instance: str, *expected: str) -> None:
    """These alerts of a host and no others."""
    found = lambda: names(datacenter, instance)  # noqa: E731
    eventually(f"the notifications about {instance}", lambda: found() >= set(expected), shown=found)
    assert found() == set(expected)


@pytest.fixture(scope="module")
def incidents(datacenter: Datacenter) -> Iterator[str]:
    """The table that `python -m lab.dev xids` printed; the sent alerts are notified while it runs."""
    eventually("the rules are evaluated", lambda: datacenter.metrics("inventory:host:expected"))
    bus, other = {"instance": "lost", "pci": "0000:f1:00"}, {"instance": "lost", "pci": "0000:f2:00"}
    send(
        datacenter,
        {**XID, **bus, "xid": "79"},
        {**XID, **bus, "xid": "119", "source": "log"},
        {**XID, **other, "xid": "74"},
    )
    send(
        datacenter,
        {"alertname": "NvswitchSxid", "severity": "critical", "scope": "fabric", "instance": "switch", "sxid": "20034"},
        {**XID, **bus, "instance": "switch", "xid": "74", "source": "log"},
        {**XID, **bus, "instance": "switch", "xid": "74"},
        {**XID, **other, "instance": "switch", "xid": "119"},
    )
    send(
        datacenter,
        {"alertname": "HostInMaintenance", "severity": "info", "scope": "host", "instance": "maintained"},
        {"alertname": "HostSilent", "severity": "critical", "scope": "host", "instance": "maintained"},
        {**XID, **bus, "instance": "maintained", "xid": "79"},
    )
    send(
        datacenter,
        {"alertname": "HostSilent", "severity": "critical", "scope": "host", "instance": "dead"},
        {"alertname": "GpuTemperatureHigh", "severity": "critical", "scope": "gpu", "instance": "dead", "gpu": "0"},
        {"alertname": "HostDiskFilling", "severity": "critical", "scope": "host", "instance": "dead"},
        {"alertname": "GpuTemperatureHigh", "severity": "critical", "scope": "gpu", "instance": "alive", "gpu": "0"},
    )
    over = {**XID, "instance": "over", "pci": "0000:f1:00", "xid": "48"}
    send(datacenter, over)
    eventually("its page", lambda: received(datacenter, "over"))
    send(datacenter, over, over=True)
    try:
        yield datacenter.run("lab.dev", "xids")
    finally:
        inject.clear(datacenter.directory / ".dev/gpus/state")


def test_each_gpu_is_notified_with_the_severity_and_action_of_its_gravest_code(incidents: str) -> None:
    print(incidents)
    rows = re.findall(r"^ *(\d+) +(\d) +(\w+) +(\w+) +after (\d+) s$", incidents, re.MULTILINE)
    assert {int(gpu): int(code) for code, gpu, *_ in rows} == VERDICTS, incidents
    for code, _, severity, action, _ in rows:
        assert (severity, action) == (CATALOGUE[int(code)].severity.value, CATALOGUE[int(code)].action.value), code


@pytest.mark.usefixtures("incidents")
def test_make_dev_xid_describes_an_alert_that_fires_already(datacenter: Datacenter) -> None:
    """GPU 3 has this code among those of the incidents."""
    output = datacenter.run("lab.dev", "xid", "--code", "79", "--gpu", "3")
    assert "it is not injected again" in output and re.search(r"xid +79", output), output


def test_what_the_xids_leave_behind_pages_nobody_a_second_time(incidents: str, datacenter: Datacenter) -> None:
    """Lost memory, a lost GPU, an nvidia-smi that hangs, the driver's 154 after nearly every code."""
    alerts = [alert["labels"] for alert in received(datacenter, "dev-gpu-host") if alert["status"] == "firing" and is_page(alert)]
    pages = {(labels["alertname"], labels.get("xid")) for labels in alerts if labels.get("scope") != "test"}
    assert pages == {("GpuXid", str(code)) for code in VERDICTS.values() if CATALOGUE[code].severity.value == "critical"}


def is_page(alert: dict[str, Any]) -> bool:
    return alert["labels"]["severity"] == "critical"


def test_loki_s_copy_of_a_page_is_hidden_by_mimir_s_of_the_same_gpu(incidents: str, datacenter: Datacenter) -> None:
    are_notified(datacenter, "lost", "GpuXid79", "GpuXid74")


def test_a_fatal_switch_error_hides_the_link_errors_that_it_causes_and_no_other_failure(
    incidents: str, datacenter: Datacenter
) -> None:
    are_notified(datacenter, "switch", "NvswitchSxid", "GpuXid119")


def test_a_host_in_maintenance_may_be_silent_and_its_gpus_may_not_fail(incidents: str, datacenter: Datacenter) -> None:
    eventually("the page", lambda: "GpuXid79" in names(datacenter, "maintained"), shown=lambda: names(datacenter, "maintained"))
    assert "HostSilent" not in names(datacenter, "maintained")


def test_a_dead_host_hides_its_gpus_and_disks_and_no_other_host_s(incidents: str, datacenter: Datacenter) -> None:
    are_notified(datacenter, "dead", "HostSilent")
    are_notified(datacenter, "alive", "GpuTemperatureHigh")


def test_grafana_evaluates_the_same_incidents_in_the_same_way(incidents: str, datacenter: Datacenter) -> None:
    """The state of the rules in the lab's Grafana, over the real Mimir and Loki."""
    ask(datacenter, "POST", "/api/folders", {"uid": "evaluated", "title": "Evaluated"})
    try:
        for group in rule_groups(["mimir", "loki"]):
            if group.name.startswith("xid-"):
                body = {"interval": group.interval_s, "rules": [provisioned(rule) for rule in group.rules]}
                ask(datacenter, "PUT", f"/api/v1/provisioning/folder/evaluated/rule-groups/{group.name}", body)
        groups = ask(datacenter, "GET", "/api/prometheus/grafana/api/v1/rules?folder_uid=evaluated")["data"]["groups"]
    finally:
        ask(datacenter, "DELETE", "/api/folders/evaluated?forceDeleteRules=true")
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert {name: rule["lastError"] for name, rule in rules.items() if rule["health"] == "error"} == {}
    states = {name: rule["state"] for name, rule in rules.items() if rule["state"] != "inactive"}
    expected = {f"GpuXid {code}": "firing" for code in VERDICTS.values()}
    assert {name: state for name, state in states.items() if name.startswith("GpuXid ")} == expected
    (lost,) = rules["GpuXid 79"]["alerts"]
    assert (lost["state"], lost["labels"]["instance"], lost["labels"]["alert"]) == ("Alerting", "dev-gpu-host", "GpuXid")


def provisioned(rule: GrafanaRule) -> dict[str, Any]:
    """A rule as Grafana's provisioning API takes it."""
    return {
        "title": rule.title,
        "condition": rule.condition,
        "data": rule.nodes({"mimir": MIMIR_UID, "loki": LOKI_UID}[rule.source]),
        "for": rule.for_,
        "noDataState": ON_NO_DATA,
        "execErrState": rule.on_error,
        "labels": dict(rule.labels),
        "annotations": dict(rule.annotations),
    }


def ask(datacenter: Datacenter, method: str, path: str, body: Any = None) -> Any:
    """Grafana's answer."""
    password = (datacenter.directory / ".dev/grafana-password").read_text().strip()
    login = base64.b64encode(f"admin:{password}".encode()).decode()
    request = urllib.request.Request(
        datacenter.endpoints["GRAFANA_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")


def test_a_page_ends_by_itself(incidents: str, datacenter: Datacenter) -> None:
    def states() -> list[str]:
        return [alert["status"] for alert in received(datacenter, "over")]

    eventually("the receiver is notified that it is resolved", lambda: states() == ["firing", "resolved"], shown=states)


def test_an_incident_is_open_until_the_driver_is_loaded_again(incidents: str, datacenter: Datacenter) -> None:
    """`clear` repairs the GPUs and logs the driver's start, as a reboot does."""

    def pages() -> dict[str, str]:
        """The last notification of each code. Warnings wait for the interval of their group, five minutes."""
        alerts = [alert for alert in received(datacenter, "dev-gpu-host") if is_page(alert)]
        return {alert["labels"]["xid"]: alert["status"] for alert in alerts if alert["labels"]["alertname"] == "GpuXid"}

    def open_incidents() -> list[dict[str, str]]:
        labels = [alert["labels"] for alert in query.active_alerts(datacenter.endpoints["ALERTMANAGER_URL"])]
        return [each for each in labels if each["alertname"] == "GpuXid" and each["instance"] == "dev-gpu-host"]

    assert set(pages().values()) == {"firing"}
    assert {each["xid"] for each in open_incidents()} == {str(code) for code in VERDICTS.values()}
    inject.clear(datacenter.directory / ".dev/gpus/state")
    eventually("all incidents end", lambda: not open_incidents(), shown=open_incidents)
    eventually("the receiver is notified of it", lambda: set(pages().values()) == {"resolved"}, shown=pages)


def test_an_injected_xid_reaches_the_receiver_with_what_to_do(incidents: str, datacenter: Datacenter) -> None:
    """After the others, which count the XIDs of this datacenter."""
    output = datacenter.run("lab.dev", "xid", "--code", "46", "--gpu", "7")
    assert re.search(r"reached the receiver \d+ s after", output), output
    assert re.search(r"severity\s+critical", output), output
    assert re.search(r"xid\s+46", output), output
    assert "instance        dev-gpu-host" in output, output
    lines = lambda: query.kernel_lines(datacenter.endpoints["LOKI_URL"], xid=46)  # noqa: E731
    eventually("its line in Loki", lambda: any("Xid" in line for line in lines()), shown=lines)
