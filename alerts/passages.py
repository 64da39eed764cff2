"""Passages of files written by hand that follow from xid.csv: the ranks of codes, and which codes are documented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from alerts import texts
from alerts.xid import CATALOGUE, Severity
from alerts.xid_rules import rank_expression

_HERE: Final = Path(__file__).parent
_EVENTS: Final = _HERE / "rules" / "xid-events.yaml"
_KERNEL_LINES: Final = _HERE.parent / "gpu_fleet" / "host" / "rootfs" / "etc" / "gpu-fleet" / "alloy" / "process_kernel.alloy"
_RANKS: Final = re.compile(r"(?<=- record: gpu:xid_latest:rank\n        expr: \|\n)(?: {10}.*\n)+")
_DOCUMENTED: Final = re.compile(r'(?<=xid!~")\[1-9\]\|[^"]*')


def written_anew() -> dict[Path, str]:
    """Each file with such a passage, as its text is with the passages of today's table."""
    ranks = "".join(f"          {line}\n" for line in rank_expression().splitlines())
    documented = _pattern(str(code) for code, xid in CATALOGUE.items() if xid.severity is not Severity.UNDOCUMENTED)
    return {
        _EVENTS: _RANKS.sub(lambda _: ranks, _DOCUMENTED.sub(lambda _: documented, texts.read(_EVENTS))),
        _KERNEL_LINES: _DOCUMENTED.sub(lambda _: documented, texts.read(_KERNEL_LINES)),
    }


def _pattern(codes: Iterable[str]) -> str:
    """A short regular expression that matches these numbers and no others: `[1-9]|1[0-4]` for 1 to 14."""
    by_length: dict[int, set[str]] = {}
    for code in codes:
        by_length.setdefault(len(code), set()).add(code)
    return "|".join(one for _, same in sorted(by_length.items()) for one in _alternatives(frozenset(same)))


def _alternatives(codes: frozenset[str]) -> list[str]:
    """The same for numbers of one length."""
    if codes == {""}:
        return [""]
    by_rest: dict[frozenset[str], str] = {}  # the first digits after which the same may follow
    for digit in sorted({code[0] for code in codes}):
        rest = frozenset(code[1:] for code in codes if code[0] == digit)
        by_rest[rest] = by_rest.get(rest, "") + digit
    return [_class(digits) + after for rest, digits in by_rest.items() for after in _alternatives(rest)]


def _class(digits: str) -> str:
    """`digits`: ascending."""
    if len(digits) == 1:
        return digits
    return f"[{digits[0]}-{digits[-1]}]" if int(digits[-1]) - int(digits[0]) == len(digits) - 1 else f"[{digits}]"
