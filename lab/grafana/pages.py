"""The pages for people: what is stored, as text. Charts are not drawn here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from lab.grafana.api.uids import slug
from lab.grafana.errors import ApiError

NOTICE = "This is the lab's preview, not Grafana: it shows what is stored and evaluates no alert rules."
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 0 1rem 4rem }
.notice { background: #fd6; color: #222; padding: .4rem 1rem; margin: 0 -1rem 1rem }
h2 { margin: 2rem 0 .3rem; font-size: 1.1rem }
article { border: 1px solid #8884; border-radius: 6px; padding: .6rem 1rem; margin: .6rem 0 }
article h3 { margin: 0; font-size: 1rem }
.kind { opacity: .65; font-weight: normal }
pre { white-space: pre-wrap; margin: .3rem 0 0; font-size: 13px }
"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)} (stand-in)</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f'<p class="notice">{NOTICE}</p>{body}</html>'
    )


def overview(data: Mapping[str, Any]) -> str:
    """Folders with their dashboards, then how much of the rest there is."""
    folders = {"": "Dashboards without a folder", **{uid: folder["title"] for uid, folder in data["folders"].items()}}
    sections = []
    for uid, title in folders.items():
        inside = [kept["model"] for kept in data["dashboards"].values() if kept["folderUid"] == uid]
        if inside or uid:
            links = "".join(
                f'<li><a href="/d/{escape(model["uid"])}/{slug(model["title"])}">{escape(model["title"])}</a></li>'
                for model in sorted(inside, key=lambda model: model["title"])
            )
            sections.append(f"<h2>{escape(title)}</h2><ul>{links or '<li>empty</li>'}</ul>")
    rules = sum(len(group["rules"]) for group in data["rule_groups"].values())
    sources = ", ".join(f"{escape(source['name'])} ({escape(source['type'])})" for source in data["datasources"].values())
    points = ", ".join(sorted({escape(point["name"]) for point in data["contact_points"]}))
    sections.append(
        f"<h2>Also stored</h2><ul><li>Data sources: {sources or 'none'}</li>"
        f"<li>Alert rules: {rules} in {len(data['rule_groups'])} groups</li><li>Contact points: {points}</li></ul>"
    )
    return _page("Dashboards", "<h1>Dashboards</h1>" + "".join(sections))


def dashboard(data: Mapping[str, Any], uid: str) -> str:
    """Every panel with its queries, in the dashboard's order. Raises ApiError when there is no such dashboard."""
    if uid not in data["dashboards"]:
        raise ApiError(404, "Dashboard not found", status="not-found")
    model = data["dashboards"][uid]["model"]
    variables = ", ".join(escape(variable.get("name", "")) for variable in model.get("templating", {}).get("list", []))
    parts = [f'<p><a href="/">All dashboards</a></p><h1>{escape(model["title"])}</h1>']
    parts += [f"<p>{escape(model['description'])}</p>"] if model.get("description") else []
    parts += [f"<p>Variables: {variables}</p>"] if variables else []
    parts += [_panel(panel) for panel in _in_order(model.get("panels") or [])]
    return _page(model["title"], "".join(parts))


def _in_order(panels: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Panels of a collapsed row lie inside it."""
    for panel in panels:
        yield panel
        yield from _in_order(panel.get("panels") or [])


def _panel(panel: Mapping[str, Any]) -> str:
    title, kind = escape(panel.get("title") or "(no title)"), escape(panel.get("type", ""))
    if kind == "row":
        return f"<h2>{title}</h2>"
    queries = "\n".join(_query(target) for target in panel.get("targets") or [])
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
    described = f"<p>{escape(panel['description'])}</p>" if panel.get("description") else ""
    kind = f"{kind}, {escape(unit)}" if unit else kind
    return f'<article><h3>{title} <span class="kind">{kind}</span></h3>{described}<pre>{queries}</pre></article>'


def _query(target: Mapping[str, Any]) -> str:
    text = target.get("expr") or json.dumps(target)
    legend = f"\n   legend: {target['legendFormat']}" if target.get("legendFormat") else ""
    return escape(f"{target.get('refId', '')}  {text}{legend}")
