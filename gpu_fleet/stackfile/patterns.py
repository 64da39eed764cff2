"""Host patterns, host files and known_hosts: which hosts a stack names, as plain data.

Pure: texts in, data out. Files of hosts are read, and values checked, elsewhere in `stackfile`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpu_fleet.stackfile.problems import Place

MOST_HOSTS_OF_A_PATTERN = 100_000  # a typo such as [1:99999999] must not eat the memory

PATTERN_EXPECTED = "ranges such as [001:016] or [a:d], as in Ansible"

_RANGE = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Listed:
    """One entry of a list of hosts: the names it expands to and its values, keyed as in the stack file."""

    names: tuple[str, ...]
    values: Mapping[str, object]
    place: Place  # of a key of this entry, for messages; () is the entry itself


class PatternError(ValueError):
    """A pattern that cannot be expanded; the message says what is wrong with it."""


def is_pattern(text: str) -> bool:
    return "[" in text or "]" in text


@lru_cache(maxsize=1024)
def expand(pattern: str) -> tuple[str, ...]:
    """The names a pattern expands to, in order: `gpu-[01:03]`, `r[1:2]n[a:b]`, `n[0:10:5]` as Ansible expands them.

    Both ends count. A start with leading zeroes fixes the width. Several ranges multiply, the last runs fastest.
    Raises PatternError.
    """
    if not is_pattern(pattern):
        return (pattern,)
    texts: list[Sequence[str]] = []
    end = 0
    count = 1
    for match in _RANGE.finditer(pattern):
        texts += [(pattern[end : match.start()],), _range(match.group(1))]
        count *= len(texts[-1])
        if count > MOST_HOSTS_OF_A_PATTERN:
            raise PatternError(f"expands to more than {MOST_HOSTS_OF_A_PATTERN:,} hosts")
        end = match.end()
    texts.append((pattern[end:],))
    if any(is_pattern(literal[0]) for literal in texts[::2]):
        raise PatternError("has a [ or ] without its partner")
    return tuple("".join(pieces) for pieces in itertools.product(*texts))


def _range(text: str) -> Sequence[str]:
    match = re.fullmatch(r"(\d+|[a-z]|[A-Z]):(\d+|[a-z]|[A-Z])(?::(\d+))?", text)
    if not match:
        meant = re.sub(r"\s*(-|\.\.)\s*", ":", text)
        hint = f", did you mean [{meant}]?" if re.fullmatch(r"\d+:\d+|[a-z]:[a-z]|[A-Z]:[A-Z]", meant) else ""
        raise PatternError(f"[{text}] is not a range{hint}")
    start, end, step = match.group(1), match.group(2), int(match.group(3) or 1)
    if start.isdigit() != end.isdigit() or start.isupper() != end.isupper():
        raise PatternError(f"[{text}] mixes kinds of ends")
    if step == 0:
        raise PatternError(f"[{text}] has step 0")
    if not start.isdigit():
        if start > end:
            raise PatternError(f"[{text}] runs backwards")
        return [chr(code) for code in range(ord(start), ord(end) + 1, step)]
    if int(start) > int(end):
        raise PatternError(f"[{text}] runs backwards")
    is_padded = len(start) > 1 and start.startswith("0")
    if is_padded and len(start) != len(end):
        raise PatternError(f"[{text}] has ends of {len(start)} and {len(end)} digits, and leading zeroes fix the width")
    if int(end) - int(start) > MOST_HOSTS_OF_A_PATTERN * step:
        raise PatternError(f"expands to more than {MOST_HOSTS_OF_A_PATTERN:,} hosts")
    width = len(start) if is_padded else 0
    return [str(number).zfill(width) for number in range(int(start), int(end) + 1, step)]


_NAMES = re.compile(
    r"^\s*(?:@\S+\s+)?[^|#@\s]\S*", re.MULTILINE
)  # names of a known_hosts file, of which OpenSSH ignores the case


class KnownHosts:
    """Answers whether a known_hosts file has a key for a host: plain, hashed, [host]:port, wildcard and @cert-authority lines.

    asyncssh parses and matches, as it does when the provider connects, so both come to the same answer.
    """

    # A hashed line has its own salt: each host must be tried on each line, about 1 µs a try. Beyond this many tries we
    # do not look: the connection itself is refused by the provider when the key is missing.
    MOST_HASHED_TRIES = 1_000_000

    def __init__(self, text: str):
        """Raises ValueError when a line cannot be read; the message names the line."""
        import asyncssh  # here because it takes 0.2 s to load, and a stack without SSH hosts does not need it

        if text.startswith("\ufeff"):
            raise ValueError("line 1 begins with a byte order mark, which ssh reads as part of the host's name")
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#") and len(line.split()) < 3:
                raise ValueError(f"line {number} is not `HOST TYPE KEY`")
        self._hosts = asyncssh.import_known_hosts(_NAMES.sub(lambda match: match[0].lower(), text))
        self._hashed_lines = sum(line.startswith("|1|") for line in text.splitlines())

    def missing(self, hosts: Sequence[tuple[str, int]]) -> Iterator[int]:
        """Indexes of those (address, port) that have no key and no certificate authority."""
        if self._hashed_lines * len(hosts) > self.MOST_HASHED_TRIES:
            return
        for index, (address, port) in enumerate(hosts):
            host_keys, ca_keys, *_ = self._hosts.match(address.lower(), "", port if port != 22 else None)
            if not host_keys and not ca_keys:
                yield index
