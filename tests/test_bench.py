"""What the bench leaves behind."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from bench import rules
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
