"""What promtool's cases cannot show of the ports' rules: a ruler whose own records are late."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import alerts
from alerts.model import rule_file
from gpu_fleet import toolchain

PORT = 'datacenter="us-west", cluster="training", instance="n", device="mlx5_0", port="1"'
HOST = 'datacenter="us-west", cluster="training", instance="n"'
TEST = f"""\
rule_files: [rules.yaml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{series: 'port:infiniband_active:timestamp_seconds{{{PORT}}}', values: '600x80'}}
      - {{series: 'node_infiniband_state_id{{{PORT}}}', values: '4x45 1x40'}}
      - {{series: 'node_boot_time_seconds{{{HOST}}}', values: '0x80'}}
    alert_rule_test:
      - {{eval_time: 11m, alertname: HostInfinibandPortDown}}
    promql_expr_test:
      - {{expr: 'count(port:infiniband_down:seconds)', eval_time: 11m}}
      - expr: count(ALERTS{{alertname="HostInfinibandPortDown", alertstate="firing"}})
        eval_time: 11m45s
        exp_samples: [{{labels: '{{}}', value: 1}}]
"""


def test_a_port_that_is_active_is_not_down_although_the_ruler_could_not_record_it_for_a_minute(tmp_path: Path) -> None:
    """The record is given here, from minute 10 on; the rules that read it are the real ones."""
    (ports,) = [group for group in alerts.rule_groups("mimir") if group.name == "fabric-ports"]
    readers = tuple(rule for rule in ports.rules if rule.get("record") != "port:infiniband_active:timestamp_seconds")
    (tmp_path / "rules.yaml").write_text(rule_file([replace(ports, rules=readers)]))
    (tmp_path / "test.yaml").write_text(TEST)
    command = [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
