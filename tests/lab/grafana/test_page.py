"""The page that draws dashboards, as Chromium shows it: every kind of panel, and its message when it cannot.

The project's own dashboards are drawn in tests/dashboards, with real data.
"""

from __future__ import annotations

from typing import Any

import pytest

from dashboards import LOKI_UID, MIMIR_UID
from lab.grafana.browser import Browser
from tests.lab.grafana.data_sources import DataSources
from tests.standins.grafana_server import GrafanaServer

PANELS = """[...document.querySelectorAll(".panel")].map((panel) => ({
  title: panel.querySelector("h3").innerText, type: panel.dataset.type, state: panel.dataset.state,
  text: panel.querySelector(".body").innerText,
}))"""
# A chart is drawn when its canvas has pixels in the colours of its legend; red is also that of limits and marks. A heatmap has
# no legend: any colour but grey will do.
INK = """[...document.querySelectorAll(".panel canvas")].map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const legend = [...canvas.closest(".panel").querySelectorAll(".swatch")].map((swatch) => getComputedStyle(swatch).getPropertyValue("--color"));
  const colors = legend.filter((hex) => hex !== "#f2495c").map((hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)));
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 60) continue;
    const rgb = data.slice(i, i + 3);
    if (legend.length ? colors.some((color) => color.every((channel, c) => Math.abs(rgb[c] - channel) < 12)) : Math.max(...rgb) - Math.min(...rgb) > 60) count += 1;
  }
  return count;
})"""  # noqa: E501


def show(grafana: GrafanaServer, browser: Browser, model: dict[str, Any], query: str = "") -> list[dict[str, str]]:
    """The dashboard's panels, once each of them has settled."""
    status, answer = grafana.ask("POST", "/api/dashboards/db", {"dashboard": model, "overwrite": True})
    assert status == 200, answer
    browser.open(f"{grafana.url}/d/{model['uid']}?{query or 'from=now-1h&to=now'}")
    return browser.run(PANELS)


def board(*panels: dict[str, Any], **more: Any) -> dict[str, Any]:
    placed = [
        {"id": number, "gridPos": {"x": 0, "y": number * 8, "w": 12, "h": 8}, "title": f"Panel {number}", **panel}
        for number, panel in enumerate(panels, start=1)
    ]
    return {"uid": "board", "title": "Board", "panels": placed, **more}


def panel(kind: str, source: str = MIMIR_UID, expr: str = "up", **more: Any) -> dict[str, Any]:
    loki = source == LOKI_UID
    target = {"refId": "A", "expr": expr, "legendFormat": "{{instance}}", **({} if loki else {"range": True})}
    return {"type": kind, "datasource": {"uid": source, "type": "loki" if loki else "prometheus"}, "targets": [target], **more}


def test_the_page_says_that_it_is_not_grafana_and_contacts_no_other_server(grafana: GrafanaServer, browser: Browser) -> None:
    show(grafana, browser, board(panel("timeseries")))
    assert "not Grafana" in browser.run("document.body.innerText")
    assert browser.requests
    assert [url for url in browser.requests if not url.startswith((grafana.url, "data:"))] == []


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (panel("timeseries", "broken"), "1:5: parse error: unexpected <nothing>"),
        (panel("timeseries", "gone"), 'no data source "gone"'),
        (panel("piechart"), "the preview draws no piechart"),
        (panel("table", transformations=[{"id": "spatial"}]), 'the preview has no transformation "spatial"'),
    ],
    ids=["query", "data source", "type", "transformation"],
)
def test_a_panel_shows_its_error_and_the_others_are_drawn(
    broken: dict[str, Any], message: str, grafana: GrafanaServer, browser: Browser
) -> None:
    first, second = show(grafana, browser, board(broken, panel("stat")))
    assert first["state"] == "error" and message in first["text"]
    assert second["state"] == "drawn"


def test_every_kind_of_panel_is_drawn(grafana: GrafanaServer, browser: Browser) -> None:
    kinds = ["timeseries", "stat", "gauge", "bargauge", "table", "state-timeline", "status-history"]
    heatmap = panel("heatmap", options={"calculate": True})
    text = {"type": "text", "options": {"mode": "markdown", "content": "# Runbook\n\nSee **the** [guide](/guide)."}}
    logs = panel("logs", LOKI_UID, '{job="kernel"}')
    panels = show(grafana, browser, board(*map(panel, kinds), heatmap, text, logs))
    assert [one["state"] for one in panels] == ["drawn"] * len(panels), panels
    assert "Runbook\nSee the guide." in panels[-2]["text"].replace("\n\n", "\n")
    assert panels[-1]["text"].count("GPU has fallen off the bus") == 3
    assert min(browser.run(INK)) > 20


def test_text_from_data_is_never_read_as_html(grafana: GrafanaServer, browser: Browser) -> None:
    pods = panel("stat", options={"textMode": "value_and_name"})
    pods["targets"][0]["legendFormat"] = "{{pod}}"
    [shown] = show(grafana, browser, board(pods, title="Board <i>1</i>"))
    assert "train-<b>0</b>" in shown["text"]
    assert browser.run("document.querySelector('h1').innerText") == "Board <i>1</i>"


def variable(name: str, query: str, **more: Any) -> dict[str, Any]:
    everything = {"includeAll": True, "multi": True, "current": {"value": "$__all"}}
    return {"name": name, "type": "query", "datasource": {"uid": MIMIR_UID}, "query": query, **everything, **more}


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [
        ("", r'up{instance=~"(gpu-host-1|gpu-host-2|gpu-host-3)"}'),
        ("&var-host=$__all", r'up{instance=~"(gpu-host-1|gpu-host-2|gpu-host-3)"}'),
        ("&var-host=gpu-host-2", r'up{instance=~"gpu-host-2"}'),
        ("&var-host=gpu-host-1&var-host=a.b", r'up{instance=~"(gpu-host-1|a\\.b)"}'),
    ],
)
def test_variables_of_the_address_are_in_the_queries(
    chosen: str, asked: str, grafana: GrafanaServer, browser: Browser, sources: DataSources
) -> None:
    model = board(
        panel("stat", expr='up{instance=~"$host"}'), templating={"list": [variable("host", "label_values(up, instance)")]}
    )
    sources.queries.clear()
    show(grafana, browser, model, f"from=now-1h&to=now{chosen}")
    assert set(sources.queries) == {asked}


def test_a_collapsed_row_queries_nothing_until_it_is_opened(
    grafana: GrafanaServer, browser: Browser, sources: DataSources
) -> None:
    inside = board(panel("stat", expr="hidden_metric"))["panels"]
    row = {"type": "row", "title": "More", "collapsed": True, "panels": inside, "gridPos": {"x": 0, "y": 1, "w": 24, "h": 1}}
    sources.queries.clear()
    show(grafana, browser, board(row))
    assert sources.queries == []
    browser.run("document.querySelector('section h2 button').click()")
    browser.wait_for("document.querySelector('.panel').dataset.state", "drawn")
    assert set(sources.queries) == {"hidden_metric"}
