"""The vocabulary: made of metrics that exporters really give, and complete for every exporter that gives them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerts.vocabulary import GROUPS, SERIES

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
