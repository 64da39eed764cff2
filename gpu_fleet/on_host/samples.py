"""Prometheus's text format, read: what an exporter or a collector of this host says."""

from __future__ import annotations

import re
from typing import Iterator, Mapping, NamedTuple

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str, names: str) -> Iterator[Sample]:
    """Those whose name matches the regular expression; what is no sample is skipped."""
    wanted = re.compile(names)
    for line in text.splitlines():
        if not wanted.match(line):
            continue
        found = _LINE.fullmatch(line)
        if found and wanted.fullmatch(found[1]):
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(found[2] or "")}
            try:
                yield Sample(found[1], labels, float(found[3]))
            except ValueError:
                continue


def _unescaped(value: str) -> str:
    return re.sub(r'\\\\|\\"|\\n', lambda found: _ESCAPES[found[0]], value)
