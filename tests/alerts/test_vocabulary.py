"""The vocabulary: made of metrics that exporters really give, and complete for every exporter that gives them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import alerts
from alerts.selectors import of_our_hosts
from alerts.vocabulary import GROUPS, SERIES
from gpu_fleet.on_host.metrics import JOBS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
# Of prometheus_nvlink_exporter (seed 003), which has no stand-in.
OF_THE_PROGRAMS_WE_REPLACE = ("gpu_nvlink_tx_kbytes", "gpu_nvlink_rx_kbytes", "gpu_pci_tx_mb_per_s", "gpu_pci_rx_mb_per_s")
OF_EVERY_SCRAPE = ("up", "scrape_duration_seconds")
# Of NVLink domains across hosts, which no simulated machine is part of; tests/samples/test_textfile_nvidia.py has its rows.
NOT_SIMULATED = ("node_gpu_fabric_info",)
UNITS = {"info", "ratio", "bytes", "watts", "joules_total", "celsius", "hertz", "total", "bool", "code", "count"} | {
    "seconds_total",
    "lanes",
    "version",
    "bytes_per_second",
    "seconds",
}


def names(pattern: str) -> set[str]:
    """The names of metrics in the fixtures whose file name matches."""
    files = list(FIXTURES.glob(pattern))
    assert files, f"no fixture {pattern}: python -m lab.gpu fixtures"
    return {name for file in files for name in re.findall(r"^([a-zA-Z_:][\w:]*)", file.read_text(), re.MULTILINE)}


def test_every_metric_that_a_word_is_made_of_is_given_by_some_exporter():
    given = names("*.prom") | set(SERIES) | set(OF_THE_PROGRAMS_WE_REPLACE) | set(NOT_SIMULATED) | set(OF_EVERY_SCRAPE)
    given |= {f"gpu_fleet_{name}" for name in JOBS}
    unknown = {series.name: set(source.metrics) - given for series in SERIES.values() for source in series.sources}
    assert {name: metrics for name, metrics in unknown.items() if metrics} == {}


@pytest.mark.parametrize("series", SERIES.values(), ids=lambda series: series.name)
def test_a_word_says_its_meaning_and_has_a_known_unit(series):
    assert series.meaning.endswith(".")
    assert series.unit in UNITS


@pytest.mark.parametrize("name", ["dcgm-4.8", "dcgm-4.9", "nvidia_gpu_exporter-exec", "textfile-nvidia", "textfile-amd"])
def test_every_exporter_gives_what_a_host_s_dashboard_shows(name):
    given = names(f"{name}.prom")
    for word in (
        "gpu:info",
        "gpu:utilization:ratio",
        "gpu:memory_used:bytes",
        "gpu:memory_total:bytes",
        "gpu:temperature:celsius",
    ):
        sources = [source for source in SERIES[word].sources if set(source.metrics) & given]
        assert sources, f"{word} has no source in {name}"
    assert any(set(source.metrics) & given for source in SERIES["gpu:power:watts"].sources)


def test_the_two_generations_of_dcgm_give_the_same_words():
    def words(pattern: str) -> set[str]:
        given = names(pattern)
        return {series.name for series in SERIES.values() if any(set(source.metrics) & given for source in series.sources)}

    assert words("dcgm-4.8.prom") == words("dcgm-4.9.prom")


def test_no_word_is_recorded_in_two_groups():
    recorded = [series.name for words in GROUPS.values() for series in words]
    assert len(set(recorded)) == len(recorded)


def test_rules_read_only_series_with_our_labels():
    """A Prometheus that scrapes the same exporters itself would count each GPU twice, and alert twice."""
    of_stores = ("RuleEvaluationFailing",)
    rules = [rule for group in alerts.rule_groups("mimir") for rule in group.rules if rule.get("alert") not in of_stores]
    assert [rule["expr"] for rule in rules if of_our_hosts(rule["expr"]) != rule["expr"]] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("up == 0", 'up{datacenter!=""} == 0'),
        ('up{job="alloy"} > 0', 'up{datacenter!="", job="alloy"} > 0'),
        ("rate(a_total[5m]) / on (up) gpu:info", 'rate(a_total{datacenter!=""}[5m]) / on (up) gpu:info'),
        ('label_replace(up, "up", "up{", "", "")', 'label_replace(up{datacenter!=""}, "up", "up{", "", "")'),
        ('{__name__=~"a|b", c="d"}', '{datacenter!="", __name__=~"a|b", c="d"}'),
        ('{__name__=~"gpu:a|gpu:b"} or ALERTS{x="y"}', '{__name__=~"gpu:a|gpu:b"} or ALERTS{x="y"}'),
        ("# up\nmax_over_time(up[1h:1m])", '# up\nmax_over_time(up{datacenter!=""}[1h:1m])'),
    ],
)
def test_a_selector_asks_for_the_label_once(before, after):
    assert of_our_hosts(before) == after
    assert of_our_hosts(after) == after
