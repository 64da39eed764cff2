"""The tapes, and the page that is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab.scorecard import table, tape
from lab.scorecard.tape import BadTape

TAPES = tape.read()
GOOD = {
    "name": "a",
    "what": "A.",
    "source": "a document",
    "steps": [{"at": 0, "kernel": "a line"}],
    "expect": {"severity": "page", "action": "reboot"},
}


def written(directory: Path, **changes: object) -> Path:
    (directory / "a.yaml").write_text(yaml.safe_dump({"tapes": [GOOD | changes]}))
    return directory


def test_there_are_at_least_80_tapes_and_every_mode_has_its_own():
    assert len(TAPES) >= 80
    for mode in tape.MODES:
        assert sum(mode in each.modes for each in TAPES) >= 10, mode


def test_every_xid_that_the_page_counts_as_unknown_is_in_no_catalogue_of_ours():
    from alerts.xid import CATALOGUE

    for each in TAPES:
        if each.is_unknown_code and each.name.startswith("xid-unknown-"):
            code = int(each.name.removeprefix("xid-unknown-"))
            assert code not in CATALOGUE or not CATALOGUE[code].is_alerted


def test_the_page_lists_every_tape():
    assert table.PAGE.read_text() == table.page(), "write it again: python -m lab.scorecard.table"
    for each in TAPES:
        assert f"| {each.name} |" in table.PAGE.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stepz": []}, "unknown key stepz"),
        ({"modes": ["dcmg"]}, "mode dcmg: expected one of dcgm, smi, textfile"),
        ({"source": ""}, "no source"),
        ({"steps": [{"at": 0}]}, "expected `at` and one of"),
        ({"steps": [{"at": 0, "kernel": "a", "stop": "alloy"}]}, "expected `at` and one of"),
        ({"expect": {"severity": "critical"}}, "expect.severity is 'critical'; expected page, warning or none"),
        ({"expect": {"severity": "page", "action": "pray"}}, "expect.action pray"),
        ({"expect": {"severity": "page", "until": 3}}, "expect: unknown key until"),
        ({"name": "A b"}, "lower-case"),
        ({"kernel": "x", "name": "b"}, "unknown key kernel"),
    ],
)
def test_an_error_in_a_tape_names_the_file_the_tape_and_what_was_expected(tmp_path, changes, words):
    with pytest.raises(BadTape, match=r"a\.yaml: tape") as error:
        tape.read(written(tmp_path, **changes))
    assert words in str(error.value)


def test_two_tapes_of_one_name_are_an_error(tmp_path):
    written(tmp_path)
    (tmp_path / "b.yaml").write_text((tmp_path / "a.yaml").read_text())
    with pytest.raises(BadTape, match="more than one tape is named a"):
        tape.read(tmp_path)


def test_a_page_is_watched_for_longer_than_the_ten_minutes_after_which_an_event_is_forgotten(tmp_path):
    (only,) = tape.read(written(tmp_path))
    assert only.length_s > 600
    assert only.expected["dcgm"].stays


def test_variants_fill_numbers_as_numbers(tmp_path):
    variants = {"name": "x-$code", "variants": [{"code": 13}], "steps": [{"at": 0, "inject": "xid", "code": "$code", "gpu": 1}]}
    (only,) = tape.read(written(tmp_path, **variants))
    assert only.name == "x-13"
    assert only.steps[0]["code"] == 13
