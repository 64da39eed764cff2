"""The scrape interval in Grafana's data source of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.grafana.dashboards import _settings
from components.grafana.wiring import dashboards_args
from components.stack import LoadedConfig
from gpu_fleet.stackfile.config import StackConfig

STACK = {
    "rulers": {"mimir": {"url": "https://mimir.example.com"}, "loki": {"url": "https://loki.example.com"}},
    "grafana": {"url": "https://grafana.example.com"},
}


@pytest.mark.parametrize(
    ("given", "expected"), [({}, None), ({"scrapeInterval": "15s"}, None), ({"scrapeInterval": "60s"}, {"timeInterval": "60s"})]
)
def test_windows_of_panels_are_made_of_the_interval_of_the_stack_file(
    given: dict[str, str], expected: dict[str, str] | None, tmp_path: Path
) -> None:
    """$__rate_interval is four of them; where a data source names none, Grafana takes 15 s."""
    config = StackConfig.load({**STACK, **given}, tmp_path, {"grafanaAuth"})
    metrics, logs = dashboards_args(LoadedConfig(config, {})).data_sources
    found = _settings(metrics)
    assert (found and json.loads(found)) == expected
    assert _settings(logs) is None
