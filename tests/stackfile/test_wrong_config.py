"""Every kind of error in a stack file (wrong_config.yaml): reported once, at its path, with what is expected and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stackfile.stacks import REMOVED, problems, stack

PLANTED = "hunter2-planted"  # stands where secrets may stand; no message may show it
WRONG = yaml.safe_load(Path(__file__).with_name("wrong_config.yaml").read_text())


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["what"])
def test_an_error_is_reported_once_where_it_is(case: dict[str, Any], base: Path) -> None:
    (base / "known.yml").write_text("hosts: {spare: {address: 10.0.7.7}}\n")
    changes = {key: REMOVED if value == "REMOVED" else value for key, value in case["change"].items()}
    errors = problems(stack(**changes), base, set(case.get("secrets", ())))
    assert errors is not None, f"{case['what']} was accepted"
    text = str(errors)
    assert [problem.where for problem in errors.problems] == [case["where"]], f"reported elsewhere, or not alone:\n{text}"
    for words in case["says"]:
        assert words in text, f"{words!r} is missing in:\n{text}"
    problem = errors.problems[0]
    assert problem.expected or problem.fix, f"no fix is named:\n{text}"
    assert PLANTED not in text, "a message shows what may be a secret"
