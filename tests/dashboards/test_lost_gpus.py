"""The table of lost GPUs: which it lists, and since when, asked of Prometheus' own evaluation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from dashboards.queries import fleet, gpu
from gpu_fleet import toolchain

HOUR = 60  # samples


def _series(name: str, host: str, index: int, values: str) -> dict[str, str]:
    labels = f'datacenter="d", cluster="c", instance="{host}", gpu="{index}", uuid="GPU-{host}{index}"'
    return {"series": f"{name}{{{labels}}}", "values": values}


def test_gpus_of_a_day_that_their_host_lacks_are_listed_with_their_last_reading(tmp_path: Path) -> None:
    """At 30 h: lost 18 h ago, 23 minutes ago, 27 h ago, and replaced by another one."""
    lost_after = {"earlier": 12 * HOUR, "now": 30 * HOUR - 23, "yesterday": 3 * HOUR, "replaced": 12 * HOUR}
    inputs = []
    for host, minutes in lost_after.items():
        for name, value in (("gpu:info", 1), ("gpu:temperature:celsius", 61)):
            inputs += [_series(name, host, 0, f"{value}x{minutes} stale"), _series(name, host, 1, f"{value}x{31 * HOUR}")]
        for name, count in (("instance:gpus_most:count", 2), ("instance:gpus:count", 2 if host == "replaced" else 1)):
            series = f'{name}{{datacenter="d", cluster="c", instance="{host}"}}'
            inputs.append({"series": series, "values": f"{count}x{31 * HOUR}"})
    labels = {host: f'{{datacenter="d", cluster="c", instance="{host}", gpu="0", uuid="GPU-{host}0"}}' for host in lost_after}
    asked = {
        gpu.lost('datacenter="d"'): {host: lost_after[host] * 60_000 for host in ("earlier", "now")},
        gpu.last_of_lost("gpu:temperature:celsius", 'datacenter="d"'): dict.fromkeys(("earlier", "now"), 61),
    }
    tests = [
        {
            "expr": query,
            "eval_time": "30h",
            "exp_samples": [{"labels": labels[host], "value": value} for host, value in found.items()],
        }
        for query, found in asked.items()
    ]
    # None of these hosts has a number of GPUs in its stack file: what was lost 18 hours ago is still missing.
    tests.append(
        {"expr": fleet.expected_gpus('datacenter="d"'), "eval_time": "30h", "exp_samples": [{"labels": "{}", "value": 8}]}
    )
    document = {"evaluation_interval": "1m", "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}]}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    command = [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
