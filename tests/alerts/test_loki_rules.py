"""Loki's rules against a real Loki: its ruler takes every group, and each alert is there for ten minutes from the first line on.

Expressions are asked as queries at chosen times: the ruler asks the same, once per interval.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

import alerts
import dashboards
from components.backend.backend import LOKI_CONFIG
from dashboards import xid
from gpu_fleet import toolchain
from gpu_fleet.signals.panels import filled_in
from lab.ports import free_ports

STARTS_WITHIN_S = 300
HOST = {"datacenter": "us-west", "cluster": "training", "instance": "gpu-node-001"}
# What Alloy adds to the lines of a boot and of a driver's load.
BOOTED, LOADED = {"booted": "Linux version"}, {"loaded": "NVRM: loading NVIDIA UNIX"}
RULES = {rule["alert"]: rule for group in alerts.rule_groups("loki") for rule in group.rules}


class Loki:
    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, data: bytes | None = None, content_type: str = "application/json") -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (urllib.error.URLError, ConnectionError):
            return 0, b""

    def push(self, labels: dict[str, str], lines: list[tuple[float, str, dict[str, str]]]) -> None:
        values = [[str(int(at * 1e9)), line, metadata] for at, line, metadata in lines]
        status, body = self.call("/loki/api/v1/push", json.dumps({"streams": [{"stream": labels, "values": values}]}).encode())
        assert status == 204, body

    def labels_at(self, expression: str, at: float) -> list[dict[str, str]]:
        query = urllib.parse.urlencode({"query": expression, "time": str(int(at * 1e9))})
        status, body = self.call(f"/loki/api/v1/query?{query}")
        assert status == 200, body
        return [sample["metric"] for sample in json.loads(body)["data"]["result"]]


@pytest.fixture(scope="module")
def loki(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("loki")
    port, grpc_port, mimir_port = free_ports(3)
    environment = os.environ | {
        "LOKI_DIRECTORY": str(directory / "loki" / "data"),
        "LOGS_RETENTION": "30d",
        "LOKI_PORT": str(port),
        "LOKI_GRPC_PORT": str(grpc_port),
        "MIMIR_PORT": str(mimir_port),
    }
    command = [toolchain.find("loki"), f"-config.file={LOKI_CONFIG}", "-config.expand-env=true"]
    log = directory / "loki.log"
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        server = Loki(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + STARTS_WITHIN_S
        while server.call("/ready")[0] != 200:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield server
        process.terminate()


@pytest.fixture(scope="module")
def event(loki) -> float:
    """Lines as Alloy's pipeline sends them; the time of the first."""
    at = time.time() - 1800
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST}
    loki.push(
        kernel | {"xid": "79"},
        [
            (at, "NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.", {"pci": "0000:4b:00"}),
            (at + 300, "NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=python3, GPU has fallen off the bus.", {"pci": "0000:4b:00"}),
            (at, "NVRM: Xid (PCI:0000:b1:00): 79, GPU has fallen off the bus.", {"pci": "0000:b1:00"}),
        ],
    )
    details = {"0000:c1:00": "NETIR_LINK_EVT Fatal", "0000:d1:00": "NETIR_BER_EVENT Nonfatal"}
    loki.push(
        kernel | {"xid": "149"},
        [(at, f"NVRM: Xid (PCI:{pci}): 149, {detail}", {"pci": pci, "detail": detail}) for pci, detail in details.items()],
    )
    loki.push(
        kernel | {"sxid": "20034"},
        [(at, "SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30", {"pci": "0000:c1:00.0", "sxid_severity": "Fatal"})],
    )
    loki.push(
        kernel | {"sxid": "12028"},
        [(at, "SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32", {"pci": "0000:05:00.0", "sxid_severity": "Non-fatal"})],
    )
    return at


def in_order(labels: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(labels, key=lambda one: one["pci"])


@pytest.mark.parametrize("group", alerts.rule_groups("loki"), ids=lambda group: group.name)
def test_the_ruler_accepts_the_group(loki, group):
    status, body = loki.call(f"/loki/api/v1/rules/{group.namespace}", group.yaml.encode(), "application/yaml")
    assert status == 202, body


def test_a_page_s_copy_is_an_alert_per_gpu_from_its_line_until_ten_minutes_after_the_last(loki, event):
    expression = RULES["GpuXid"]["expr"]
    first, second, link = (
        {**HOST, "pci": pci, "xid": xid} for pci, xid in (("0000:4b:00", "79"), ("0000:b1:00", "79"), ("0000:c1:00", "149"))
    )
    assert loki.labels_at(expression, event - 1) == []
    assert in_order(loki.labels_at(expression, event + 1)) == [first, second, link], "a non-fatal link error is none"
    assert loki.labels_at(expression, event + 601) == [first], "the repeated code restarts the ten minutes"
    assert loki.labels_at(expression, event + 901) == []


def test_the_load_of_the_driver_ends_the_copies_of_its_host_and_a_later_failure_pages_again(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "rebooted"}
    off_the_bus = "NVRM: Xid (PCI:0000:4b:00): 79, off the bus"
    loki.push(kernel | {"xid": "79"}, [(event + s, off_the_bus, {"pci": "0000:4b:00"}) for s in (0, 260)])
    of_users = [f"a[7]: segfault at 0 in {text}" for text in ("NVRM: loading NVIDIA UNIX", "Linux version 6.8.0")]
    loki.push(kernel, [(event + 100, text, {}) for text in of_users])
    loki.push(kernel, [(event + 200, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", LOADED)])

    def clusters(at: float) -> set[str]:
        return {labels["cluster"] for labels in loki.labels_at(RULES["GpuXid"]["expr"], at)}

    assert clusters(event + 199) == {HOST["cluster"], "rebooted"}
    assert clusters(event + 202) == {HOST["cluster"]}
    assert clusters(event + 262) == {HOST["cluster"], "rebooted"}


def test_a_line_from_before_a_crash_is_kept_and_pages_nobody(loki, event):
    """Alloy sends it after the boot, with the time of the journal."""
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "crashed"}
    loki.push(kernel, [(event + 100, "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054)", BOOTED)])
    loki.push(kernel | {"xid": "79"}, [(event + 50, "NVRM: Xid (PCI:0000:4b:00): 79, off the bus", {"pci": "0000:4b:00"})])

    def found(at: float, query: str) -> list[dict[str, str]]:
        return [labels for labels in loki.labels_at(query, at) if labels["cluster"] == "crashed"]

    assert found(event + 101, 'sum by (cluster, xid) (count_over_time({job="kernel", xid="79"}[10m]))') != []
    assert found(event + 101, RULES["GpuXid"]["expr"]) == []


def test_only_the_gravest_code_of_a_gpu_pages(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "burst"}
    """Of equally grave ones the lowest of the first second."""
    start = int(event) + 1
    reset = "0x1 (GPU Reset Required)"
    burst = ((0, "119", ""), (0.2, "62", ""), (1, "46", ""), (1.2, "154", reset), (2, "79", ""), (3, "48", ""))
    for seconds, code, detail in burst:
        metadata = {"pci": "0000:4b:00"} | ({"detail": detail} if detail else {})
        loki.push(kernel | {"xid": code}, [(start + seconds, f"NVRM: Xid (PCI:0000:4b:00): {code}, …", metadata)])

    def pages(at: float) -> list[str]:
        return [found["xid"] for found in loki.labels_at(RULES["GpuXid"]["expr"], at) if found["cluster"] == "burst"]

    assert [pages(start + at) for at in (0.1, 0.5, 1.5, 2.5, 3.5)] == [["119"], ["62"], ["62"], ["79"], ["79"]]


def test_a_recovery_action_of_reset_or_reboot_pages(loki, event):
    expression = RULES["GpuXid"]["expr"]
    alone = {**HOST, "cluster": "recovery", "pci": "0000:4b:00"}
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "recovery", "xid": "154"}
    actions = {"0000:4b:00": "0x2 (Node Reboot Required)", "0000:b1:00": "0x4 (Drain and Reset)", "0000:01:00": "0x0 (None)"}
    loki.push(kernel, [(event, "NVRM: …: 154, …", {"pci": pci, "detail": detail}) for pci, detail in actions.items()])
    found = [labels for labels in loki.labels_at(expression, event + 1) if labels["cluster"] == "recovery"]
    assert found == [{**alone, "xid": "154"}], "a drain stops no running job"
    assert loki.labels_at(expression, event - 1) == []


def test_the_gravest_event_of_an_amd_gpu_pages_until_the_driver_has_reset_it(loki, event):
    """A reset does not repair a GPU that is to be retired; a load of the driver ends both."""
    kernel = {"job": "kernel", "exporter_mode": "textfile", **HOST, "cluster": "amd"}

    def logged(pci: str, *events: tuple[float, str]) -> None:
        for seconds, name in events:
            loki.push(kernel | {"event": name}, [(event + seconds, f"amdgpu {pci}.0: {name}", {"pci": pci})])

    logged("0000:c1:00", (0, "page_fault"), (1, "uncorrectable"), (2, "poison_consumed"), (60, "reset_succeeded"))
    logged("0000:c2:00", (3, "bad_page_threshold"), (61, "reset_succeeded"))
    loki.push(kernel, [(event + 120, "[drm] amdgpu kernel modesetting enabled.", LOADED)])

    def pages(at: float) -> dict[str, str]:
        found = loki.labels_at(RULES["GpuAmdEvent"]["expr"], event + at)
        return {labels["pci"]: labels["event"] for labels in found if labels["cluster"] == "amd"}

    assert pages(0.5) == {}, "a program's fault is a warning"
    assert pages(1.5) == {"0000:c1:00": "uncorrectable"}
    assert pages(59) == {"0000:c1:00": "poison_consumed", "0000:c2:00": "bad_page_threshold"}
    assert pages(62) == {"0000:c2:00": "bad_page_threshold"}
    assert pages(121) == {}


def test_a_switch_s_fatal_error_pages_longer_than_what_it_causes_on_gpus_within_a_burst(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "switch"}
    pci = {"pci": "0000:c1:00.0"}
    loki.push(kernel | {"sxid": "20034"}, [(event, "SXid (PCI:0000:c1:00.0): 20034, Fatal", {**pci, "sxid_severity": "Fatal"})])
    loki.push(kernel | {"xid": "74"}, [(event + 170, "NVRM: Xid (PCI:0000:4b:00): 74, NVLink", {"pci": "0000:4b:00"})])

    def pages(at: float) -> set[str]:
        found = loki.labels_at(f"({RULES['NvswitchSxid']['expr']}) or ({RULES['GpuXid']['expr']})", event + at)
        return {labels.get("sxid") or labels["xid"] for labels in found if labels["cluster"] == "switch"}

    assert pages(-1) == set()
    assert pages(1) == {"20034"}
    assert pages(769) == {"20034", "74"}
    assert pages(771) == {"20034"}
    assert pages(781) == set()


def test_after_the_load_of_the_driver_a_switch_s_error_is_over_for_good(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "switch-reset"}
    metadata = {"pci": "0000:c1:00.0", "sxid_severity": "Fatal"}
    loki.push(kernel | {"sxid": "20034"}, [(event, "SXid (PCI:0000:c1:00.0): 20034, Fatal", metadata)])
    loki.push(kernel, [(event + 100, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", LOADED)])

    def pages(at: float) -> bool:
        found = loki.labels_at(RULES["NvswitchSxid"]["expr"], event + at)
        return any(labels["cluster"] == "switch-reset" for labels in found)

    assert [pages(at) for at in (1, 99, 101, 599, 650, 750)] == [True, True, False, False, False, False]


def test_a_switch_s_error_without_severity_pages_if_the_table_calls_it_fatal_and_its_detail_lines_do_not(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "switches"}
    pci = {"pci": "0000:c1:00.0"}
    loki.push(kernel | {"sxid": "12020"}, [(event, "SXid (PCI:0000:c1:00.0): 12020, egress sequence ID error", pci)])
    loki.push(kernel | {"sxid": "26006"}, [(event, "SXid (PCI:0000:c1:00.0): 26006, SOE HALTED", pci)])
    loki.push(
        kernel | {"sxid": "20034"},
        [
            (event, "SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 30 LTSSM Fault Up", {**pci, "sxid_severity": "Non-fatal"}),
            (event, "SXid (PCI:0000:c1:00.0): 20034, Data {0x50610002, 0x10100030}", pci),
            (event, "SXid (PCI:0000:c1:00.0): 20034, Severity 0 Engine instance 30 Sub-engine instance 00", pci),
        ],
    )
    found = [labels for labels in loki.labels_at(RULES["NvswitchSxid"]["expr"], event + 1) if labels["cluster"] == "switches"]
    assert found == [{**HOST, "cluster": "switches", **pci, "sxid": "12020"}]


def test_an_adapter_whose_firmware_stopped_pages_until_the_host_is_booted(loki, event):
    expression = RULES["HostNicDriverError"]["expr"]
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "adapters"}
    nic = {"nic": "0000:18:00.0"}
    loki.push(kernel | {"nic_event": "health_compromised"}, [(event, "mlx5_core 0000:18:00.0: device's health compromised", nic)])
    loki.push(kernel | {"nic_event": "tx_timeout"}, [(event, "mlx5_core 0000:18:00.0 eth2: TX timeout detected", nic)])
    loki.push(kernel, [(event + 50, "a[7]: segfault at 0 in Linux version 6.8.0", {})])
    loki.push(
        kernel,
        [(event + 100, "NVRM: loading NVIDIA UNIX Open Kernel Module", LOADED), (event + 200, "Linux version 6.8.0", BOOTED)],
    )
    adapter = {**HOST, "cluster": "adapters", **nic, "nic_event": "health_compromised"}
    assert loki.labels_at(expression, event - 1) == []
    assert loki.labels_at(expression, event + 1) == [adapter], "a queue that its driver resets is a warning, by Mimir"
    assert loki.labels_at(expression, event + 199) == [adapter], "a driver of GPUs resets no network adapter"
    assert loki.labels_at(expression, event + 201) == []


LOG_QUERIES = {
    (uid, panel["title"]): target["expr"]
    for uid, board in dashboards.all_dashboards().items()
    for panel in board["panels"]
    if panel.get("datasource", {}).get("type") == "loki"
    for target in panel["targets"]
}


def test_the_table_of_xids_shows_the_severity_and_action_of_the_line(loki, event):
    kernel = {"job": "kernel", "exporter_mode": "dcgm-exporter", **HOST, "cluster": "table"}
    lines = {
        "79": ("", "critical", "reboot"),
        "81": ("", "critical", "support"),  # of Volta and Turing
        "177": ("row remapper fatal", "warning", "look the code up"),
        "154": ("0x2 (Node Reboot Required)", "critical", "reboot"),
        "144": ("SAW_MVB Link fatal", "critical", "reset"),
        "145": ("RLW_REMAP Nonfatal", "info", ""),
        "150": ("", "critical", "reset"),
    }
    for code, (detail, _, _) in lines.items():
        metadata = {"pci": "0000:4b:00"} | ({"detail": detail} if detail else {})
        loki.push(kernel | {"xid": code}, [(event, f"NVRM: Xid (PCI:0000:4b:00): {code}, {detail}", metadata)])
    actions = {
        "0x1 (PF FLR)": "critical",
        "0x4 (Drain and Reset)": "warning",
        "0x5 (Bus Reset)": "critical",
        "0x0": "info",
    }
    metadata = [{"pci": f"0000:b{number}:00", "detail": detail} for number, detail in enumerate(actions)]
    loki.push(kernel | {"xid": "154"}, [(event, "NVRM: …: 154, …", one) for one in metadata])

    query = re.sub(r'"\$\w+"', '".+"', filled_in(LOG_QUERIES["gpu-fleet-xid", "XIDs and recommended actions"], {}))
    rows = [labels for labels in loki.labels_at(query, event + 1) if labels["cluster"] == "table"]
    of_gpu = {row["xid"]: row for row in rows if row["pci"] == "0000:4b:00"}
    for code, (_, severity, action) in lines.items():
        assert xid.SEVERITIES[of_gpu[code]["severity"]][0] == severity
        assert action in xid.ACTIONS[of_gpu[code]["action"]][0].lower()
    shown = {row["pci"]: xid.SEVERITIES[row["severity"]][0] for row in rows if row["pci"] != "0000:4b:00"}
    assert shown == {one["pci"]: actions[one["detail"]] for one in metadata}


@pytest.mark.parametrize("expression", LOG_QUERIES.values(), ids=["-".join(name) for name in LOG_QUERIES])
def test_loki_understands_the_dashboards_queries(loki, expression):
    status, body = loki.call("/loki/api/v1/format_query?" + urllib.parse.urlencode({"query": filled_in(expression, {})}))
    assert status == 200, body
