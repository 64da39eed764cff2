"""The pages that people read, and the commands in their fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import REPO

PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
SHELL = ("sh", "bash", "shell", "console")
# In the first line of a block: ```sh title="needs …". The site shows it above the block.
NEEDS = re.compile(r'title="needs ([^"]+)"')
_PROGRAMS = r"make|pulumi|git|curl|kubectl|helm|docker|python3?|ssh(-\w+)?|sudo|systemctl|sh|\S*/?gpu-fleet-\w+"


@dataclass(frozen=True)
class Block:
    """A fenced block. `info`: what its first line says after the fence."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def needs(self) -> str:
        found = NEEDS.search(self.info)
        return found[1] if found else ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(REPO)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command as the page has it, without its comment."""

    text: str
    block: Block


def blocks(page: Path) -> Iterator[Block]:
    fence, started, info, lines = "", 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if not fence:
            if opening := re.match(r"( *)(```+|~~~+)(.*)", line):
                fence, started, info, lines = opening[2], number, opening[3].strip(), []
        elif line.strip() == fence:
            yield Block(page, started, info, "\n".join(lines))
            fence = ""
        else:
            lines.append(line)


def looks_like_commands(block: Block) -> bool:
    return not block.language and re.search(rf"(?m)^ *(\$ )?({_PROGRAMS}) [\w./-]", block.text) is not None


def commands(block: Block) -> Iterator[Command]:
    """Of a block of shell: one per line or per `&&`, with its pipes. A loop around one command is one; what a command is
    given on its standard input is left out."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    text = re.sub(r"(?ms)^([^\n]*<<'(\w+)')\n.*?^\2$", r"\1", text)
    text = re.sub(
        r"(?ms)^(for [^\n]*; do)\n *(.*?)\n *done$", lambda loop: f"{loop[1]} {'; '.join(loop[2].splitlines())}; done", text
    )
    for line in text.splitlines():
        yield from (Command(part, block) for part in _parts(line))


def _parts(line: str) -> list[str]:
    """The line at its `&&`, up to its comment."""
    found, current, quote = list[str](), "", ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (index == 0 or line[index - 1].isspace()):
            break
        current += character
        if not quote and current.endswith("&&"):
            found, current = [*found, current[:-2]], ""
    return [part for part in map(str.strip, [*found, current]) if part]
