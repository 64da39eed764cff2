"""What `make preview` prints: of what changes every line, of what is new its name. The text of a new dashboard or group of rules
is in the checkout, and of a stack's first preview that would be 30,000 lines.

`pulumi preview --diff` in `make shell` prints all of it.
"""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
# pulumi 3.259.0, pkg/backend/display/diff.go: the line that opens a resource. It is followed by its URN.
_OPENING: Final = re.compile(r"^ *(\S*) *[\w-]+(?::[\w./-]+)+: \(([\w-]+)\)")
_URN: Final = re.compile(r"^ *\[urn=.*::(.*)\]$")
_MOST_NAMED: Final = 100  # of one type: all groups of rules, which are 60 and one of the stack itself
_PASSPHRASES: Final = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


def named(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a preview, those of new resources reduced to one each: type and name."""
    found: Counter[str] = Counter()
    opening = ""  # of a new resource whose name is not read yet
    is_new = False
    for line in lines:
        text = _ANSI.sub("", line.rstrip("\n"))
        if match := _OPENING.match(text):
            is_new = (match[1], match[2]) == ("+", "create")
            opening = line.rstrip("\n") if is_new else ""
        elif (text and not text.startswith(" ")) or text.strip() == "--outputs:--":
            if is_new and (rest := found.total() - sum(min(_MOST_NAMED, count) for count in found.values())):
                yield f"    and {rest} more that are new\n"
                found.clear()
            is_new = False
        if not is_new:
            yield line
        elif opening and (match := _URN.match(text)):
            kind = _ANSI.sub("", opening).strip()
            found[kind] += 1
            if found[kind] <= _MOST_NAMED:
                yield f"{opening} {match[1]}\n"
            opening = ""


def run(command: Sequence[str], variables: Mapping[str, str], stack_file: Path) -> int:
    """Runs pulumi and prints what `named` keeps. Its exit status."""
    variables = dict(variables)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if (
        is_terminal
        and not any(name in variables for name in _PASSPHRASES)
        and "\nencryptionsalt:" in "\n" + stack_file.read_text()
    ):
        # pulumi asks only where it prints to a terminal itself.
        variables[_PASSPHRASES[0]] = getpass.getpass("Passphrase of the stack: ")
    colours = ["--color=always"] if is_terminal and "NO_COLOR" not in os.environ else []
    # Ctrl-C reaches the whole process group: pulumi stops its work in order, and this process waits for it.
    signal.signal(signal.SIGINT, lambda *_: None)
    with subprocess.Popen([*command, *colours], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in named(process.stdout):
            print(line, end="", flush=True)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
