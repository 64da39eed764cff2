"""What no message may show, found in a text in every form that programs print it.

Applied to values after they were parsed, never to the JSON around them: a password with a quotation mark is escaped there and
would not be found, and one that is the name of a part would rename it.

A secret of 8 characters or more is replaced wherever it occurs, also encoded. One of 4 to 7 may be a word of our own messages
or paths (`alloy`), so it is replaced only where it stands alone, and never in facts and differences, which programs read.
Shorter ones are not replaced: every text contains them."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

SHOWN_INSTEAD: Final = "[secret]"
_ANYWHERE: Final = 8  # characters from which on a secret, or a form of it, is replaced wherever it occurs
_ALONE: Final = 4
_TOKEN: Final = 16  # characters of a word in a secret of several lines that is a secret by itself
_PATH: Final = re.compile(r"(/[a-z0-9._-]+){2,}")  # of a certificate or key in a web config, say: errors have to name it


class Redaction:
    def __init__(self, secrets: Iterable[str] = ()):
        anywhere: set[str] = set()
        alone: set[str] = set()
        for secret in filter(None, secrets):
            stripped = secret.strip()
            if _ALONE <= len(stripped) < _ANYWHERE:
                alone.add(stripped)
            elif stripped:
                anywhere.update(form for form in _forms(stripped) if len(form) >= _ANYWHERE)
        self._anywhere = _pattern(anywhere, "", "")
        # Not beside what joins words of paths and names, nor before the colon after a part's name.
        self._alone = _pattern(alone, r"(?<![\w./-])", r"(?![\w./-]|:\s)")

    def text(self, text: str) -> str:
        """A message or a line of a log without any secret."""
        text = self.value(text)
        return self._alone.sub(SHOWN_INSTEAD, text) if self._alone else text

    def value(self, text: str) -> str:
        """The same for what programs read, where only secrets of 8 characters or more are replaced."""
        return self._anywhere.sub(SHOWN_INSTEAD, text) if self._anywhere else text


def _pattern(forms: set[str], before: str, after: str) -> re.Pattern[str] | None:
    if not forms:
        return None
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, longest_first))}){after}")


def _forms(secret: str) -> Iterator[str]:
    yield from _written(secret)
    lines = secret.splitlines()
    if len(lines) < 2:
        return
    # A key or a file is also printed line by line. Its short words and its headings are no secrets.
    for line in map(str.strip, lines):
        for word in line.split():
            if (
                len(word) >= _TOKEN
                and not word.startswith("-----")
                and not word.endswith((":", "-----"))
                and not _PATH.fullmatch(word)
            ):
                yield from _written(word)


def _written(text: str) -> Iterator[str]:
    yield text
    yield from (quote(text, safe=""), quote(text), quote_plus(text))
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    # As shells print it: 'a'"'"'b', 'a'\''b', a\'b, "a\"b"; and YAML: 'a''b'.
    yield from (shlex.quote(text).removeprefix("'").removesuffix("'"), text.replace("'", "'\\''"), text.replace("'", "''"))
    yield from (re.sub(r"([^\w@%+=:,./-])", r"\\\1", text), re.sub(r'(["$`\\])', r"\\\1", text))
    yield from _base64(text.encode())


def _base64(data: bytes) -> Iterator[str]:
    """What the data is in base64 at each of the three places where it may begin, without the characters that neighbours
    decide: so it is found within `user:password` too."""
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        begin = (0, 2, 3)[offset]
        end = len(encoded) - ((offset + len(data)) % 3 != 0)
        fragment = encoded[begin:end]
        yield from (fragment, fragment.replace("+", "-").replace("/", "_"))
