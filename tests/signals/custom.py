"""The examples of docs/overrides.md as files, and stacks that use them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs/overrides.md"
DASHBOARD = {
    "id": 17,  # Grafana's own numbers, as in an export
    "version": 4,
    "uid": "our-models",
    "title": "Models",
    "schemaVersion": 41,
    "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}]},
    "panels": [
        {
            "id": 1,
            "type": "timeseries",
            "title": "Waiting requests",
            "gridPos": {"h": 8, "w": 12, "x": 0, "y": 0},
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "targets": [{"refId": "A", "expr": "sum by (language) (whisper_jobs_waiting)"}],
        }
    ],
}


def examples(directory: Path) -> None:
    """The page's files below a stack's directory, and a dashboard beside them."""
    blocks = re.findall(r"(?ms)^```(?:yaml|text)\n# (custom/\S+)\n(.*?)^```$", PAGE.read_text())
    assert {path for path, _ in blocks} == {"custom/rules/models.yaml", "custom/metrics.txt"}
    for path, text in blocks:
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    board = directory / "custom/dashboards/models.json"
    board.parent.mkdir(parents=True, exist_ok=True)
    board.write_text(json.dumps(DASHBOARD))


def section(key: str) -> dict[str, Any]:
    """A section of the page's stack files."""
    files = [yaml.safe_load(text) for text in re.findall(r"(?ms)^```yaml\n# Pulumi\.\S+\n(.*?)^```$", PAGE.read_text())]
    (found,) = [file["config"][f"gpu-fleet:{key}"] for file in files if f"gpu-fleet:{key}" in file["config"]]
    return found
