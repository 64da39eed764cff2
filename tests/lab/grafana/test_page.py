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
# How much of the chart has the colour of each entry of its legend.
SHARES_BY_LEGEND = """[...document.querySelectorAll(".panel .swatch")].map((swatch) => {
  const canvas = document.querySelector(".panel canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const hex = getComputedStyle(swatch).getPropertyValue("--color");
  const color = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  let alike = 0;
  for (let i = 0; i < data.length; i += 4) if (color.every((channel, c) => Math.abs(data[i + c] - channel) < 12)) alike += 4;
  return alike / data.length;
})"""


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


@pytest.mark.parametrize("kind", ["timeseries", "stat", "gauge", "bargauge", "table", "state-timeline", "heatmap", "logs"])
def test_a_panel_without_data_says_so(kind: str, grafana: GrafanaServer, browser: Browser) -> None:
    [shown] = show(grafana, browser, board(panel(kind, "empty")))
    assert (shown["state"], shown["text"]) == ("empty", "No data")


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


def test_a_choice_in_the_toolbar_queries_again_and_is_kept_in_the_url(
    grafana: GrafanaServer, browser: Browser, sources: DataSources
) -> None:
    variables = [
        variable("host", "label_values(up, instance)"),
        {"name": "mode", "type": "custom", "query": "fast : f,slow : s", "current": {"value": "f"}},
        {"name": "source", "type": "datasource", "query": "loki", "current": {}},
    ]
    model = board(panel("stat", expr='up{instance=~"$host", mode="$mode"}'), templating={"list": variables})
    show(grafana, browser, model)
    assert browser.run(
        "[...document.querySelectorAll('.variable > summary')].map((one) => one.innerText.replace(/\\s+/g, ' '))"
    ) == [
        "host All",
        "mode fast",
        f"source {LOKI_UID}",
    ]
    sources.queries.clear()
    browser.run("document.querySelectorAll('[data-variable=host] input')[2].click()")
    browser.wait_for("document.body.dataset.state", "settled")
    assert set(sources.queries) == {'up{instance=~"gpu-host-2", mode="f"}'}
    assert "var-host=gpu-host-2" in browser.run("location.search")


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


def test_tables_of_several_queries_are_merged_and_named_as_in_the_dashboard(grafana: GrafanaServer, browser: Browser) -> None:
    targets = [{"refId": ref, "expr": expr, "format": "table", "instant": True} for ref, expr in (("A", "used"), ("B", "total"))]
    organize = {
        "includeByName": {"instance": True, "Value #A": True, "Value #B": True},
        "indexByName": {"instance": 0, "Value #A": 1, "Value #B": 2},
        "renameByName": {"instance": "Host", "Value #A": "Used", "Value #B": "Total"},
    }
    table = {
        **panel("table", transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]),
        "targets": targets,
        "options": {"sortBy": [{"displayName": "Host", "desc": True}]},
        "fieldConfig": {
            "defaults": {},
            "overrides": [
                {"matcher": {"id": "byName", "options": "Used"}, "properties": [{"id": "unit", "value": "percentunit"}]}
            ],
        },
    }
    show(grafana, browser, board(table))
    rows = browser.run("[...document.querySelectorAll('.panel tr')].map((row) => [...row.cells].map((cell) => cell.innerText))")
    assert rows[0] == ["Host ↓", "Used", "Total"]
    assert [row[0] for row in rows[1:]] == ["gpu-host-3", "gpu-host-2", "gpu-host-1"]
    assert all(row[1].endswith("%") and not row[2].endswith("%") for row in rows[1:])


def test_a_failing_annotation_query_is_reported_and_the_panels_are_drawn(grafana: GrafanaServer, browser: Browser) -> None:
    marks = {"name": "XID", "enable": True, "datasource": {"uid": "broken"}, "expr": "up"}
    [shown] = show(grafana, browser, board(panel("timeseries"), annotations={"list": [marks]}))
    assert shown["state"] == "drawn"
    assert browser.run("document.querySelector('.trouble').innerText").startswith("annotation XID: 1:5: parse error")


def test_a_stack_shows_every_one_of_its_bars(grafana: GrafanaServer, browser: Browser) -> None:
    bars = panel("timeseries")
    custom = {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal"}}
    bars["fieldConfig"] = {"defaults": {"custom": custom}, "overrides": []}
    show(grafana, browser, board(bars))
    shares = browser.run(SHARES_BY_LEGEND)
    assert len(shares) == 3 and min(shares) > 0.02, "a bar hides those below it"


def test_numbers_have_the_units_that_grafana_gives_them(grafana: GrafanaServer, browser: Browser) -> None:
    show(grafana, browser, board())
    expected = {
        (0.8053, "percentunit"): "80.5%",
        (85899345920, "bytes"): "80 GiB",
        (1500, "watt"): "1.5 kW",
        (0, "watt"): "0 W",
        (53, "celsius"): "53 °C",
        (66200000, "Bps"): "66.2 MB/s",
        (0.25, "s"): "250 ms",
        (7200, "s"): "2 hour",
        (1234567, "short"): "1.23 Mil",
        (8, "short"): "8",
        (3, "suffix:links"): "3 links",
    }
    cases = [list(case) for case in expected]
    shown = browser.run(f"import('/preview/units.js').then(({{format}}) => {cases}.map(([value, unit]) => format(value, unit)))")
    assert dict(zip(expected, shown, strict=True)) == expected
