"""Names that users depend on. A resource with another name is replaced or deleted; outputs, Grafana's uids, alerts and recorded
series are linked, silenced and queried by name. What leaves the golden file breaks whoever updates the checkout: give a renamed
resource an alias, and say in CHANGELOG.md what goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checkout import REPO

GOLDEN = REPO / "tests/golden/names.txt"
EXAMPLES = sorted(REPO.glob("examples/**/Pulumi.*-*.yaml"))


def test_resources_outputs_alerts_series_and_uids_keep_their_names(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    dev = yaml.safe_load((REPO / "Pulumi.dev.yaml").read_text())
    dev["config"]["gpu-fleet:alerts"]["targets"] = ["ruler", "grafana"]
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump(dev))
    command = [sys.executable, "-m", "components.registered", str(REPO), str(tmp_path / "Pulumi.dev.yaml"), *map(str, EXAMPLES)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    lines = sorted({line for text in done.stdout.splitlines() for line in names(json.loads(text))})
    found = "".join(f"{line}\n" for line in lines)
    if request.config.getoption("--regen"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), f"run pytest {__file__} --regen and review the diff"


def names(registered: dict[str, Any]) -> Iterator[str]:
    assert not registered["error"], registered["error"]
    stack = Path(registered["file"]).name.removeprefix("Pulumi.").removesuffix(".yaml")
    yield from (f"output {path}" for path in keys(registered["outputs"]))
    for one in registered["resources"]:
        yield f"resource {stack} {one['type']} {one['name']}"
        inputs = one["inputs"]
        if "configJson" in inputs or "uid" in inputs:
            yield f"uid {json.loads(inputs['configJson'])['uid'] if 'configJson' in inputs else inputs['uid']}"
        if one["type"] == "gpu-fleet:ruler:RuleGroup":
            group = yaml.load(inputs["rules"], yaml.CSafeLoader)
            for rule in group["rules"] if isinstance(group, dict) else group:
                yield from (f"{kind} {rule[kind]}" for kind in ("alert", "record") if kind in rule)


def keys(value: Any, above: str = "") -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield f"{above}{key}"
        yield from keys(inner, f"{above}{key}.")
