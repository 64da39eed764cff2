"""Text of hosts and servers made safe to show: nobody out there moves the cursor, hides a word or adds a line in a terminal or
log.

Everything that a host or server sends is cleaned where it is read (host.py, TransportError), and once more where it leaves the
provider (engine.py, server.py), so that a path that was forgotten shows an escape and executes none.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_SHOWN: Final = 2_000  # characters of one line; the rest of a longer one is for nobody to read

# C0 but tab and newline, DEL and C1, which terminals execute; what changes the direction of text or cannot be seen, with which
# one text shows as another; line and paragraph separators; lone surrogates, which no stream can encode.
# Source: Unicode 15, general categories Cc, Cs, Zl, Zp and the property Bidi_Control, and the invisible ones of Cf.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text with unsafe characters as visible escapes such as `\\x1b`. Newlines and tabs stay."""
    return _UNSAFE.sub(_escape, text)


def printable_line(text: str) -> str:
    """The same as one line of at most LONGEST_SHOWN characters: a newline within a host's text would begin a line that looks
    like ours."""
    line = printable(text[: LONGEST_SHOWN + 1].replace("\r\n", "\n").strip().replace("\n", " ").replace("\t", " "))
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 1]}…"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()
