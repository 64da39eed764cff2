from __future__ import annotations

from pathlib import Path

from lab.gpu.fixtures import write_fixtures

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_the_fixtures_are_what_the_simulators_make(tmp_path: Path, request) -> None:
    directory = FIXTURES if request.config.getoption("--regen") else tmp_path
    for path in write_fixtures(directory):
        kept = FIXTURES / path.relative_to(directory)
        assert kept.is_file(), f"{kept.name} is new: run `python -m lab.gpu fixtures` and review the diff"
        assert path.read_text() == kept.read_text(), f"{kept.name} is old: run `python -m lab.gpu fixtures` and review the diff"
        assert kept.read_text().startswith("# Made by `python -m lab.gpu fixtures`")
