"""The section about what a stack adds to ours: rule files, dashboards, and the metrics that they use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gpu_fleet.stackfile.values import LocalPath, Section

# Directories of what is loaded, with the end of its file names; and the file with the metrics of exporters that we do not know.
CONTENT = {"rules": ".yaml", "loki": ".yaml", "dashboards": ".json"}
METRICS = "metrics.txt"


def _directory_alone(value: Any) -> Any:
    return {"directory": value} if isinstance(value, str) else value


class CustomDirectory(Section):
    """A directory of yours with rules and dashboards, which are checked and deployed like ours."""

    directory: LocalPath = Field(examples=["custom"])
    """rules/*.yaml (Mimir, Prometheus), loki/*.yaml (Loki), dashboards/*.json (Grafana), metrics.txt."""


Custom = Annotated[CustomDirectory, BeforeValidator(_directory_alone, json_schema_input_type=str | CustomDirectory)]


def files_of(directory: Path, kind: str) -> tuple[Path, ...]:
    """`kind`: of CONTENT."""
    return tuple(sorted((directory / kind).glob(f"*{CONTENT[kind]}")))
