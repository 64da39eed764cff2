"""The table at the end of `make up`, made of pulumi's events. With a real run: test_deploy.py, tests/e2e/test_operations.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gpu_fleet.operations.results import results, shown

TYPE = "gpu-fleet:host:Host"
FACTS = {"GPU_MODELS": "8 x NVIDIA H100", "GPU_FLEET_EXPORTER_MODE": "dcgm-exporter", "GPU_FLEET_EXPORTER_REASON": "bare metal"}


def urn(name: str) -> str:
    return f"urn:pulumi:s::gpu-fleet::gpu-fleet:host:Fleet${TYPE}::{name}"


def step(name: str, op: str, seconds: int = 0, *, has_failed: bool = False) -> Iterator[dict[str, Any]]:
    """What pulumi writes about one host that begins at 100."""
    states = {"old": {"outputs": {"facts": FACTS}}, "new": None if op == "delete" else {"outputs": {"facts": FACTS}}}
    metadata = {"metadata": {"op": op, "urn": urn(name), "type": TYPE, **states}}
    yield {"timestamp": 100, "resourcePreEvent": metadata}
    yield {"timestamp": 100 + seconds, "resOpFailedEvent" if has_failed else "resOutputsEvent": metadata}


def error(name: str, message: str) -> dict[str, Any]:
    return {"timestamp": 101, "diagnosticEvent": {"urn": urn(name), "severity": "error", "message": message}}


def summary(*, is_preview: bool = False) -> dict[str, Any]:
    return {"timestamp": 200, "summaryEvent": {"isPreview": is_preview}}


def table(*events: dict[str, Any], hosts: tuple[str, ...] = ()) -> list[str]:
    return shown(results(map(json.dumps, events), hosts)).splitlines()


def test_each_host_has_its_result_and_failed_ones_are_first() -> None:
    lines = table(
        *step("gpu-1", "create", 12),
        *step("gpu-2", "same"),
        error("gpu-3", "<{%reset%}>gpu-3: unreachable: 10.0.0.3 did not answer<{%reset%}>\nmore"),
        *step("gpu-3", "update", 15, has_failed=True),
        *step("gpu-9", "delete", 4),
        *step("not-in-this-run", "same"),
        {"timestamp": 101, "resourcePreEvent": {"metadata": {"op": "same", "urn": "urn::x", "type": "pulumi:pulumi:Stack"}}},
        summary(),
        hosts=("gpu-1", "gpu-2", "gpu-3", "gpu-4"),
    )
    assert [line.split(None, 2)[:2] for line in lines[1:-2]] == [
        ["gpu-3", "failed"],
        ["gpu-4", "not"],
        ["gpu-1", "created"],
        ["gpu-2", "unchanged"],
        ["gpu-9", "removed"],
    ]
    assert lines[1].endswith("15       unreachable: 10.0.0.3 did not answer"), "the cause in one line, without colours"
    assert re.split("  +", lines[3]) == ["gpu-1", "created", "8 x NVIDIA H100", "dcgm-exporter", "12", "bare metal"]
    assert lines[-1] == "5 hosts: 1 failed, 1 not reached, 1 created, 1 unchanged, 1 removed."


def test_a_run_that_ended_with_its_preview_has_no_table() -> None:
    assert results(map(json.dumps, [*step("gpu-1", "create"), summary(is_preview=True)]), ["gpu-1"]) == {}
    assert results([], ["gpu-1"]) == {}


def test_a_thousand_unchanged_hosts_are_one_line() -> None:
    steps = [event for number in range(1000) for event in step(f"gpu-{number}", "same")]
    lines = table(*steps, *step("new", "create", 3), summary(), hosts=tuple(f"gpu-{number}" for number in range(1000)))
    assert [line.split()[0] for line in lines[:2]] == ["HOST", "new"] and len(lines) == 4
    assert lines[-1] == "1001 hosts: 1000 unchanged, 1 created (not listed: unchanged)."


def test_of_a_killed_run_nothing_is_said() -> None:
    lines = [json.dumps(event) for event in step("gpu-node-001", "create")]
    assert results([*lines, lines[-1][:-5]], ["gpu-node-001"]) == {}
