"""Text for a terminal, a CI log and Pulumi's engine, which interprets text too: nobody out there moves the cursor, hides a word,
adds a line, gives the CI a command or ends the engine.

Cleaned where it leaves the program (gpu_fleet/provider/server.py, gpu_fleet/provider/engine.py, components/messages.py,
gpu_fleet/operations/table.py), so that no path is forgotten; and what hosts and servers send where it is read too, so that a part
of it stays one line.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_SHOWN: Final = 2_000  # characters of one line; the rest of a longer one is for nobody to read
LONGEST_MESSAGE: Final = 64 << 10  # characters of one message with all its lines

# C0 but tab and newline, DEL and C1, which terminals execute; what changes the direction of text or cannot be seen, with which
# one text shows as another; line and paragraph separators; lone surrogates, which no stream can encode.
# Source: Unicode 15, general categories Cc, Cs, Zl, Zp and the property Bidi_Control, and the invisible ones of Cf.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
# The beginning of what programs take for a command, up to where a backslash makes it text:
# - `<{%`, of a colour. Pulumi's command line panics at one that it does not know, on a terminal, and the state of the run is lost
#   (pulumi 3.259.0, sdk/go/common/diag/colors/colors.go, writeDirective).
# - `::error::` at the begin of a line, `##[error]` and `##vso[...]` anywhere: GitHub's and Azure's runners
#   (github.com/actions/runner, src/Runner.Common/ActionCommand.cs, read 2026-11-25).
_COMMAND: Final = re.compile(r"<(?=\{%)|#(?=#(?:vso)?\[)|^[^\S\n]*(?=::[A-Za-z].*::)", re.MULTILINE)
# In a text of several lines, which the engine may decode as YAML: an escape that makes another character than punctuation, a tag
# (!!binary), or an anchor.
_OF_YAML: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[0abefnrtvNLP_xuU\s]|(?<![^\s\[{,])[!&](?![=~&\s])")

# The colour of above, also where the engine decodes the text first.
_COLOUR: Final = re.compile(r"(?:<|\\u003c|\\x3c)(?:\{|\\u007b|\\x7b)(?:%|\\u0025|\\x25)", re.IGNORECASE)


def printable(text: str) -> str:
    """The text with unsafe characters as visible escapes such as `\\x1b`, and a backslash within commands. Newlines and tabs
    stay."""
    return _COMMAND.sub(r"\g<0>\\", _UNSAFE.sub(_escape, text))


def printable_line(text: str) -> str:
    """The same as one line of at most LONGEST_SHOWN characters: a newline within a host's text would begin a line that looks
    like ours."""
    line = printable(text[: LONGEST_SHOWN + 1].replace("\r\n", "\n").strip().replace("\n", " ").replace("\t", " "))
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 1]}…"


def printable_message(text: str) -> str:
    """The same with its lines, and with at most LONGEST_MESSAGE characters."""
    cut = len(text) - LONGEST_MESSAGE
    return printable(text) if cut <= 0 else f"{printable(text[:LONGEST_MESSAGE])}\n… and {cut} more characters"


def printable_value(text: str) -> str:
    """A value of a resource, of which the engine shows what it decodes to where it is JSON, or YAML of several lines: what
    escapes in it would decode to is put in backticks, and so is no JSON and no YAML. Source: pulumi 3.259.0,
    pkg/backend/display/object_diff.go, decodeValue."""
    text = printable(text)
    if text.startswith("`"):
        return text
    is_json = "\\" in text and text.lstrip().startswith(("{", "["))
    return f"`{text}`" if is_json or ("\n" in text and _OF_YAML.search(text)) else text


def is_colour(text: str) -> bool:
    """Whether Pulumi's command line would take a part of the text for one of its colours, and may end there."""
    return bool(_COLOUR.search(text))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()
