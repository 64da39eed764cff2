"""The pages for people: what is stored, and the shell in which page/main.js draws a dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from lab.grafana.api.uids import slug
from lab.grafana.errors import ApiError

NOTICE = "This is the lab's preview, not Grafana: it shows what is stored, evaluates rules only on request, and sends no "
"notifications."
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
    """The page's script asks for everything else by itself. Raises ApiError when there is no such dashboard."""
    if uid not in data["dashboards"]:
        raise ApiError(404, "Dashboard not found", status="not-found")
    title = data["dashboards"][uid]["model"]["title"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)} (stand-in)</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/preview/vendor/uPlot.min.css"><link rel="stylesheet" href="/preview/page.css">'
        '<script src="/preview/vendor/uPlot.iife.min.js"></script><script type="module" src="/preview/main.js"></script>'
        f'<p class="notice">{NOTICE} <a href="/">All dashboards</a></p><main data-uid="{escape(uid)}"></main></html>'
    )
