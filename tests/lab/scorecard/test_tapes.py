"""The tapes, and the page that is made from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lab.gpu import setup
from lab.scorecard import fuzz, table, tape
from lab.scorecard.exporters import GpuExporter, edited, shuffled
from lab.scorecard.tape import BadTape

TAPES = tape.read()
GOOD = {
    "name": "a",
    "what": "A.",
    "source": "a document",
    "read": "2026-11-25",
    "steps": [{"at": 0, "kernel": "a line"}],
    "expect": {"severity": "page", "action": "reboot"},
}


def written(directory: Path, **changes: object) -> Path:
    (directory / "a.yaml").write_text(yaml.safe_dump({"tapes": [GOOD | changes]}))
    return directory


def test_every_mode_has_its_own_tapes_and_a_third_of_all_is_generated():
    every = table.every_tape()
    for mode in tape.MODES:
        assert sum(mode in each.modes for each in every) >= 10, mode
    assert sum(each.kind == "fuzz" for each in every) == len(every) // 3


def test_a_generated_tape_expects_what_its_written_one_expects_about_the_gpu_that_its_lines_name():
    written = {each.name: each for each in TAPES}
    generated = fuzz.generated(TAPES)
    assert generated == fuzz.generated(TAPES), "the seed is fixed"
    for each in generated:
        origin = written[each.name.removeprefix("fuzz-").rpartition("-")[0]]
        before, after = origin.expected, each.expected
        assert (after.severity, after.actions, after.count) == (before.severity, before.actions, before.count)
        if isinstance(after.gpu, int):
            named = "".join(str(step["kernel"]) for step in each.steps).lower()
            assert f"{{pci{after.gpu}}}" in named, each.name


def test_generated_lines_vary_in_spacing_case_prefix_and_repetition():
    steps = [step for each in fuzz.generated(TAPES) for step in each.steps]
    lines = [step["kernel"] for step in steps]
    assert {step["form"] for step in steps} == set(tape.FORMS)
    assert any("{PCI" in line for line in lines)
    assert any("Fatal     XC" in line for line in lines)
    assert max(step.get("times", 1) for step in steps) > 5


def test_the_page_is_made_from_the_results():
    assert table.PAGE.read_text() == table.page(), "write it again: python -m lab.scorecard.table"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stepz": []}, "unknown key stepz"),
        ({"modes": ["dcmg"]}, "mode dcmg: expected one of dcgm, smi, textfile"),
        ({"source": ""}, "no source"),
        ({"read": ""}, "no source, or no day"),
        ({"steps": [{"at": 0, "kernel": "a", "form": "xml"}]}, "form xml: expected one of dmesg"),
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


def test_the_notification_has_to_name_the_only_gpu_that_the_steps_name(tmp_path):
    one, two = "NVRM: Xid (PCI:{pci2}): 79, x", ["NVRM: Xid (PCI:{pci2}): 79, x", "NVRM: Xid (PCI:{PCI3}): 45, x"]
    for kernel, gpu in ((one, 2), (two, None)):
        (only,) = tape.read(written(tmp_path, steps=[{"at": 0, "kernel": kernel}]))
        assert only.expected.gpu == gpu


def test_variants_fill_numbers_as_numbers(tmp_path):
    variants = {"name": "x-$code", "variants": [{"code": 13}], "steps": [{"at": 0, "inject": "xid", "code": "$code", "gpu": 1}]}
    (only,) = tape.read(written(tmp_path, **variants))
    assert only.name == "x-13"
    assert only.steps[0]["code"] == 13


VALUES = [
    (each, mode, pattern)
    for each in TAPES
    for step in each.steps
    for mode, values in step.get("value", {}).items()
    for pattern in values
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[tuple[str, str], str]:
    """What the exporters of these tapes' machines serve."""
    found = {}
    for each, mode, _ in VALUES:
        if (mode, each.scenario) not in found:
            state = tmp_path_factory.mktemp(mode) / "machine"
            setup.init(state=state, scenario=each.scenario, hostname="a")
            found[mode, each.scenario] = GpuExporter(mode, state).body()
    return found


@pytest.mark.parametrize(("each", "mode", "pattern"), VALUES, ids=lambda value: getattr(value, "name", None))
def test_a_tape_changes_series_that_the_exporter_has(pages, each, mode, pattern):
    if "XID" not in pattern:  # no series before the first event
        filled = pattern.replace("{uuid1}", "[0-9a-f-]{36}")  # of the host
        assert re.search(rf"^{filled}", pages[mode, each.scenario], re.MULTILINE)


def test_series_can_be_changed_renamed_and_left_out():
    body = '# HELP a Help.\na{gpu="0"} 1\na{gpu="1"} 2\nb{gpu="0"} 3\n'
    assert edited(body, {r'a\{gpu="1"\}': 7, r"b\{.*\}": None}) == '# HELP a Help.\na{gpu="0"} 1\na{gpu="1"} 7\n'
    assert 'x_a{gpu="0"} 1' in edited(body, {"(?=a)": "x_"})


def test_labels_in_another_order_are_the_same_series():
    body = '# HELP a With {braces} in it.\na{gpu="0",name="x, \\"y\\"",b="2"} 1.5\nb 3\n'
    orders = {shuffled(body, seed) for seed in range(20)}
    assert len(orders) > 2
    for each in orders:
        series = each.splitlines()[1]
        assert sorted(re.findall(r'\w+="(?:[^"\\]|\\.)*"', series)) == ['b="2"', 'gpu="0"', 'name="x, \\"y\\""']
        assert (each.splitlines()[0], series[-4:], each.splitlines()[2]) == ("# HELP a With {braces} in it.", " 1.5", "b 3")
