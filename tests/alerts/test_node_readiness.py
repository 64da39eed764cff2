"""What the readiness of Kubernetes nodes asks of the store: promtool evaluates the queries over what the rules record."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

import alerts
from alerts.readiness import _TEXTS as READINESS_TEXTS
from alerts.readiness import LATE_S, RULES_OLD_S, cluster_table
from dashboards.parts import RECOVERY_ACTIONS
from gpu_fleet import toolchain
from gpu_fleet.on_cluster.nodes import TAINT
from gpu_fleet.on_host.collect.nvidia import _RECOVERY as RECOVERY_WORDS

SCRAPED_S = 15
TABLE = json.loads(cluster_table("d", "c", SCRAPED_S))
FRESH = {one["code"]: one["query"] for one in TABLE["fresh"]}
SIGNALS = {one["code"]: one["query"] for one in TABLE["signals"]}


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    text = ", ".join(f'{key}="{value}"' for key, value in {"datacenter": "d", "cluster": "c", **labels}.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def gpu(name: str, values: str, instance: str, index: str, **labels: str) -> dict[str, str]:
    address = {"pci_bus_id": f"00000000:{index}B:00.0", "modelName": "H100", "exporter_mode": "dcgm-exporter"}
    return series(name, values, instance=instance, gpu=index, UUID=f"GPU-{instance}-{index}", **address, **labels)


def answers(tmp_path: Path, given: list[dict[str, str]], cases: list[tuple[str, str, list[tuple[str, float]]]]) -> None:
    """`cases`: query, time, and what it must answer."""
    test = {
        "rule_files": [str(file) for file in alerts.rule_files("mimir")],
        "evaluation_interval": "15s",
        "group_eval_order": ["gpu-info", "gpu-memory-errors", "xid-tables", "xid-reported", "xid-incidents", "inventory"],
        "tests": [
            {
                "interval": "15s",
                "input_series": given,
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": at,
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in wanted],
                    }
                    for query, at, wanted in cases
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    command = [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_queries_find_what_is_wrong_and_how_old_it_is(tmp_path: Path) -> None:
    given = [
        *(series("up", "1x80", instance=node, job="alloy") for node in ("sick", "well")),
        # Its exporter answers until minute 10; Alloy says that it is down.
        series("up", "1x40 0x40", instance="sick", job="gpu-exporter"),
        series("up", "1x80", instance="well", job="gpu-exporter"),
        *(gpu("DCGM_FI_DEV_GPU_TEMP", "40x80", node, index) for node in ("sick", "well") for index in "01"),
        gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x20 1x60", "sick", "1"),
        gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x80", "well", "1"),
        series("gpu_fleet_xid_last_timestamp_seconds", "_x20 300x60", instance="sick", job="alloy", pci="0000:0b:00", xid="79"),
        # About a program, and of another cluster.
        series("gpu_fleet_xid_last_timestamp_seconds", "_x20 300x60", instance="well", job="alloy", pci="0000:0b:00", xid="31"),
        {"series": 'up{datacenter="d", cluster="other", instance="well", job="alloy"}', "values": "1x80"},
        # Eight GPUs, of which two are listed.
        {"series": 'inventory:gpus_expected:count{datacenter="d", cluster="c", instance="well"}', "values": "2x10 8x70"},
    ]
    xids = f"group by (instance, xid) ({SIGNALS['']})"
    both = [('{instance="sick"}', 0.0), ('{instance="well"}', 0.0)]
    cases = [
        (FRESH["exporter_old"], "10m", both),
        (FRESH["exporter_old"], "12m", [('{instance="well"}', 0.0)]),
        (FRESH["agent_old"], "12m", both),
        (FRESH["rules_old"], "12m", both),
        (FRESH["events_old"], "12m", both),
        (xids, "4m", []),
        (xids, "6m", [('{instance="sick", xid="79"}', 1.0)]),
        (SIGNALS["row_remap_failed"], "4m", []),
        (SIGNALS["row_remap_failed"], "6m", [('{instance="sick", gpu="1", uuid="GPU-sick-1"}', 1.0)]),
        (SIGNALS["gpus_missing"], "7m", []),
        (f"group by (instance) ({SIGNALS['gpus_missing']})", "9m", [('{instance="well"}', 1.0)]),
    ]
    answers(tmp_path, given, cases)


def test_a_sample_is_as_old_as_when_it_was_scraped(tmp_path: Path) -> None:
    """Prometheus still finds a sample five minutes later."""
    given = [series("up", "1x20 _x40", instance="away", job=job) for job in ("gpu-exporter", "alloy")]
    given += [gpu("DCGM_FI_DEV_GPU_TEMP", "40x20 _x40", "away", "0")]
    cases: list[Any] = [(FRESH[code], "7m", [('{instance="away"}', 120.0)]) for code in ("exporter_old", "agent_old")]
    answers(tmp_path, given, cases)
    assert 3 * SCRAPED_S < SCRAPED_S + LATE_S < RULES_OLD_S < 300


def test_every_query_reads_what_a_rule_records_or_a_scrape_has_by_itself() -> None:
    rules = [rule for group in alerts.rule_groups("mimir") for rule in group.rules]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for query in (*FRESH.values(), *SIGNALS.values()):
        if any(rule["expr"] in query for rule in rules if "alert" in rule):
            continue
        names = set(re.findall(r"([a-z_:]+)\{", query))
        assert names and names <= recorded | {"up"}, query


def test_every_action_that_a_driver_asks_for_has_a_text_here_and_on_the_dashboards() -> None:
    codes = {code for _, code in RECOVERY_WORDS}
    assert {str(code) for code in codes} <= READINESS_TEXTS["recovery_action"].keys()
    assert codes <= RECOVERY_ACTIONS.keys()


def test_our_taint_is_no_maintenance_that_would_silence_the_alerts_of_the_node(tmp_path: Path) -> None:
    given = [
        series("kube_node_spec_taint", "1x20", node="a", key=TAINT, effect="NoSchedule", instance="kube-state-metrics"),
        series("kube_node_spec_taint", "1x20", node="b", key="example.com/maintenance", effect="NoSchedule"),
    ]
    answers(tmp_path, given, [("group by (instance) (host:maintenance:bool)", "4m", [('{instance="b"}', 1.0)])])
