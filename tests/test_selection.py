"""Which of the lab's own tests a change leaves out: none that guards what changed, and none where that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import selection
from tests.selection import LAB_S_OWN, REPO, left_out


def test_a_page_for_people_leaves_all_of_them_out() -> None:
    assert left_out(["README.md", "docs/operating.md", "alerts/runbooks/GpuXid.md"]) == set(LAB_S_OWN)


@pytest.mark.parametrize(
    "change", ["Makefile", "requirements.txt", "toolchain/versions.yaml", "tests/conftest.py", "new/room.py"]
)
def test_what_everybody_uses_and_what_nobody_knows_leaves_none_out(change: str) -> None:
    assert left_out(["README.md", change]) == set()


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ("lab/standins/bin/start", {"tests/standins"}),
        ("lab/grafana/page/page.js", {"tests/lab/grafana", "tests/lab/showcase", "tests/standins"}),
        ("tests/standins/grafana_server.py", {"tests/standins", "tests/lab/grafana"}),
        ("dashboards/host.py", {"tests/lab/grafana", "tests/lab/showcase"}),
        ("alerts/rules/host.yaml", {"tests/lab/grafana", "tests/lab/showcase"}),
        ("provider/ruler.py", set()),
    ],
)
def test_the_tests_of_what_changed_and_of_what_uses_it_run(change: str, runs: set[str]) -> None:
    ran = set(LAB_S_OWN) - left_out([change])
    stand_ins = {tests for tests in LAB_S_OWN if tests.startswith("tests/standins")}
    expected = (runs - {"tests/standins"}) | (stand_ins if "tests/standins" in runs else set())
    assert {tests for tests in ran if not tests.startswith("tests/hosts/")} == expected


def test_the_lab_s_own_tests_are_where_they_are_looked_for() -> None:
    assert [tests for tests in LAB_S_OWN if not (REPO / tests).exists()] == []


def test_without_a_history_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "REPO", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # the temporary directory may be in a repository
    assert selection.base() is None and selection.changed("HEAD") is None
