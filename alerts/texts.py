"""Files of alerts/ that people edit, as text: one that is missing, not text, or that a merge left in conflict is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_CONFLICT: Final = re.compile(r"(<{7}|\|{7}|>{7})( |$)")  # what git writes; seven `=` alone underline a heading, too


class TextError(SystemExit):
    """`place`: the file, and the line if there is one. Like a table that is invalid, it ends any command without a traceback."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"{place}: {what}")
        self.place, self.what = place, what


def read(file: Path) -> str:
    """Raises TextError."""
    name = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise TextError(name, f"is missing; `git checkout -- {name}` restores it") from None
    except OSError as error:
        raise TextError(name, f"cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        before = content.count(b"\n", 0, error.start)
        raise TextError(f"{name}, line {before + 1}", "is not UTF-8; save the file in that encoding") from None
    for number, line in enumerate(text.splitlines(), start=1) if "<<<<<<<" in text or ">>>>>>>" in text else ():
        if _CONFLICT.match(line):
            raise TextError(f"{name}, line {number}", "is a conflict of a merge; resolve it")
    return text.replace("\r\n", "\n")
