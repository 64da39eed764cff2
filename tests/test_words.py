"""No text of this repository has a word of tests/words.yaml."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[1]
LIST: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text())
# White space, or a line break inside a comment, a Markdown quote or a string literal of several lines.
GAP = r'(?:[ \t]+|"?[ \t]*\n[ \t]*(?:(?:#|//|\*|>|--)+[ \t]*)?f?"?)'
# One expression for all words, on text in lower case: 28 expressions that ignore case take 20 s for the repository, this one 1 s.
WORDS = [re.sub(r"\((?!\?)", "(?:", entry["word"]).replace(" ", GAP) for entry in LIST["words"]]
ANY_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(f'({word})' for word in WORDS)})(?!\w)")


def found_in(text: str, exceptions: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Line number, the words as written, and what to write instead."""
    excepted = [(match.start(), match.end()) for phrase in exceptions for match in re.finditer(re.escape(phrase), text)]
    for match in ANY_WORD.finditer(text.lower()):
        if not any(start <= match.start() and match.end() <= end for start, end in excepted):
            assert match.lastindex
            say = LIST["words"][match.lastindex - 1]["say"]
            yield text.count("\n", 0, match.start()) + 1, re.sub(r"\s+", " ", match[0]), say


def texts() -> Iterator[tuple[str, str]]:
    """Every tracked text file, by its path."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        file = REPOSITORY / path
        if not path.endswith(tuple(LIST["ignored"])) and file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            if b"\0" not in content:
                yield path, content.decode(errors="replace")


def findings() -> Iterator[str]:
    """A sentence about each."""
    exceptions = [entry["phrase"] for entry in LIST["exceptions"]]
    for path, text in texts():
        for line, word, say in sorted(found_in(text, exceptions)):
            yield f"{path}:{line}: {word!r}; say: {say}"


def test_no_text_has_a_word_of_the_list() -> None:
    found = list(findings())
    assert not found, "\n".join(["", *found])
