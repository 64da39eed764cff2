"""Files that people edit, with what an editor, a disk or a merge may have done to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from alerts import model, texts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> x\n", "table.csv, line 2: is a conflict of a merge; resolve it"),
        (b"a\nb\n>>>>>>> x\n", "table.csv, line 3: is a conflict of a merge; resolve it"),
        (b"a\nb\xe4\n", "table.csv, line 2: is not UTF-8; save the file in that encoding"),
        (None, "table.csv: is missing; `git checkout -- table.csv` restores it"),
    ],
    ids=["a conflict", "its end alone", "not UTF-8", "missing"],
)
def test_what_is_no_text_is_named_with_its_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "table.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(texts.TextError) as refused:
        texts.read(file)
    assert str(refused.value) == said


def test_a_directory_in_its_place_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(texts.TextError, match="cannot be read: Is a directory"):
        texts.read(tmp_path)


def test_a_heading_that_is_underlined_and_arrows_are_no_conflict(tmp_path: Path) -> None:
    file = tmp_path / "GpuMissing.md"
    file.write_bytes("Title\r\n=======\r\na <<<<<<< b, \u00e4\r\n".encode())
    assert texts.read(file) == "Title\n=======\na <<<<<<< b, \u00e4\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [("a: 1\nb: 2\na: 3\n", 3, "the key 'a' occurs twice"), ("a: 1\n? [b, c]\n: 2\n", 2, "found unhashable key")],
)
def test_a_key_written_twice_and_a_list_as_a_key_are_errors_of_yaml_with_a_place(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(yaml.MarkedYAMLError) as refused:
        model.document(file)
    assert refused.value.problem == said and refused.value.problem_mark and refused.value.problem_mark.line + 1 == line
