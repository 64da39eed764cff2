"""Runbooks: those of alerts/runbooks, one panel each, so that a notification can link to one without a server for this checkout.

No query, no variable: a link opens one panel (`viewPanel`). Grafana finds a panel by its number in every version (Grafana 12.3,
public/app/features/dashboard-scene/utils/utils.ts, findVizPanelByKey, read 2026-11-22).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import alerts
from alerts import texts
from dashboards.layout import SCHEMA_VERSION, TAG, panel_id, uid

NAME: Final = "runbooks"
_FILES: Final = Path(alerts.__file__).parent / "runbooks"
_WIDTH, _HEIGHT = 24, 14


def dashboard() -> dict[str, Any]:
    return {
        "uid": uid(NAME),
        "title": "GPU fleet / Runbooks",
        "description": "What each alert means and how to resolve it. Notifications link to these panels.",
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": [_panel(place, file) for place, file in enumerate(_files())],
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
    }


def runbook_paths() -> dict[str, str]:
    """By alert, the path of its runbook's panel below Grafana's URL."""
    return {file.stem: f"/d/{uid(NAME)}?orgId=1&viewPanel={_number(file)}" for file in _files()}


def _files() -> list[Path]:
    return sorted(_FILES.glob("*.md"))


def _number(file: Path) -> int:
    """Of the alert's name: a link in an old page or ticket leads to the same runbook after an update."""
    return panel_id(NAME, file.stem)


def _panel(place: int, file: Path) -> dict[str, Any]:
    title, _, text = texts.read(file).partition("\n")
    return {
        "id": _number(file),
        "type": "text",
        "title": title.removeprefix("# "),
        "gridPos": {"x": 0, "y": place * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "options": {"mode": "markdown", "content": _with_links(text.strip()) + "\n"},
    }


def _with_links(text: str) -> str:
    """Another runbook is another panel, below whatever path Grafana is served; of the pages in docs/ Grafana has paths alone."""
    runbook = re.compile(r"(?<=\]\()(\w+)\.md(?:#\w+)?(?=\))")
    text = runbook.sub(lambda found: f"?orgId=1&viewPanel={panel_id(NAME, found[1])}", text)
    return re.sub(r"\[([^]]+)\]\((?:\.\./)+([^)#]+)[^)]*\)", lambda found: _page(*found.groups()), text)


def _page(title: str, path: str) -> str:
    return path if title == path else f"{title} ({path})"
