"""Text for comments and issues of GitHub and GitLab: it is code there, where no link, image, HTML, mention or quick action is
taken from it, and it does not end the code that it is in."""

from __future__ import annotations

import re
from typing import Final

from gpu_fleet.safetext.terminal import printable, printable_line

_HARMLESS: Final = re.compile(r"[\w (),.:/%+=°-]*")


def code(text: str) -> str:
    """A text within a line, as code. Its own backticks become apostrophes: readers disagree on longer fences."""
    line = printable_line(text).replace("`", "'")
    return f"`{line or ' '}`"


def plain(text: str) -> str:
    """A text within a line: as it is, or as code where it has more than letters, digits and punctuation without a meaning."""
    return text if text and _HARMLESS.fullmatch(text) else code(text)


def strong(text: str) -> str:
    """The same in bold."""
    return f"**{shown}**" if (shown := plain(text)) == text else shown


def block(text: str, language: str = "", indent: str = "") -> str:
    """Lines of code. Three backticks in them become apostrophes: in a longer fence GitLab would take quick actions from what
    follows them (lib/gitlab/quick_actions/extractor.rb, read 2026-11-25)."""
    lines = printable(text).replace("```", "'''").splitlines()
    return "\n".join(f"{indent}{line}".rstrip() for line in (f"```{language}", *lines, "```"))
