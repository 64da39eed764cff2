"""What the bench leaves behind."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from bench import panels, rules
from bench.measure import cost_of


def test_an_interrupted_measurement_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    communicate = process.communicate

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(process, "communicate", communicate)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cost_of(process)
    assert process.returncode == -signal.SIGINT, "interrupted before it is killed, as pulumi has hosts to stop"


def test_the_figures_of_the_rules_replace_only_what_is_between_their_marks() -> None:
    page = "before\n<!-- rules: begin -->\nold\n<!-- rules: end -->\nafter\n"
    row = {"GPUs": 2000, "alerts, CPU s/min": 1.5}
    written = rules._with_tables(page, [row], [{"panel": "Power", "million samples": 12.5}])
    assert written.startswith("before\n<!-- rules: begin -->")
    assert written.endswith("<!-- rules: end -->\nafter\n")
    assert "| 2,000 | 1.5 |" in written
    assert "old" not in written


def test_a_counter_of_mimir_is_summed_over_its_labels() -> None:
    metrics = 'a_total{user="x"} 2\na_total{user="y"} 3.5\na_total_more{user="x"} 7\na_total 1e+01\n'
    assert rules._sum(metrics, "a_total") == 15.5


@pytest.mark.parametrize(
    ("query", "instant", "expected"),
    [
        ('sum(a{b=~"$cluster"})', False, [('a{b=~".*"}', panels.RANGE_S)]),
        ('a{instance=~"$instance"} > 1', True, [('a{instance=~"n1"}', 0)]),
        ("rate(a[5m] offset 1d) / b", True, [("a", 300), ("b", 0)]),
        ("max_over_time(a[$__range])", True, [("a", panels.RANGE_S)]),
        ("max_over_time(sum(a)[1d:1h])", True, [("a", 86_400)]),
    ],
)
def test_a_query_reads_its_windows_and_the_range_of_its_panel(
    query: str, instant: bool, expected: list[tuple[str, float]]
) -> None:
    found = [(one.selector.replace("{}", ""), one.seconds) for one in panels.readings(query, instant, {"instance": "n1"})]
    assert found == expected


def test_what_a_large_fleet_reads_follows_from_two_measured_sizes() -> None:
    """A series per GPU and one per cluster; what is recorded every minute holds a quarter of the samples."""
    assert panels.at_size({100: 100, 2000: 2000, 500: 500}, 10_000) == 10_000
    assert panels.at_size({500: 3, 2000: 3}, 10_000) == 3
    month = panels.Reading('cluster:gpus:count{cluster=~".*"}', 600)
    assert panels.samples(2, month, {"cluster:gpus:count": 60}) == 20
    assert panels.samples(2, month, {}) == 80
    assert panels.samples(2, panels.Reading("a", 0), {}) == 2, "an instant query reads the last sample of each series"
