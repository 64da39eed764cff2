"""Samples of any time to Mimir by Prometheus' remote write protocol 1.0, without a library for protobuf or snappy.

Source: Prometheus, remote write 1.0 specification (message WriteRequest, stale markers); snappy, format_description.txt; read
2026-11-21.
"""

from __future__ import annotations

import struct
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

# Labels as sorted pairs, the metric's name among them as __name__.
Labels = tuple[tuple[str, str], ...]
# Seconds and value, oldest first; a value of STALE says that the series has ended.
Samples = Sequence[tuple[float, float | None]]
STALE: Final = None

# A NaN of these very bits, which no float of Python would keep.
_STALE_BITS: Final = struct.pack("<Q", 0x7FF0000000000002)
_pack_value: Final = struct.Struct("<d").pack
_SERIES_PER_REQUEST: Final = 2000
_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_WITHIN_S: Final = 60


def push(url: str, series: Mapping[Labels, Samples]) -> None:
    """`url`: of Mimir's push API. Raises OSError, with Mimir's message if it rejected the samples."""
    encoded = [_series(labels, samples) for labels, samples in series.items() if samples]
    for start in range(0, len(encoded), _SERIES_PER_REQUEST):
        body = _stored(b"".join(encoded[start : start + _SERIES_PER_REQUEST]))
        request = urllib.request.Request(url, data=body, headers=_HEADERS)  # noqa: S310  always http to loopback
        try:
            urllib.request.urlopen(request, timeout=_WITHIN_S).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            raise OSError(f"{url}: {error.read().decode(errors='replace')[:500]}") from None


def ended(samples: Samples, step_s: float, until_s: float) -> Iterator[tuple[float, float | None]]:
    """The samples with STALE where the series has a gap or ends before `until_s`: otherwise a query looks back past it."""
    expected_s = samples[0][0] if samples else until_s
    for at_s, value in samples:
        if at_s > expected_s:
            yield expected_s, STALE
        yield at_s, value
        expected_s = at_s + step_s
    if samples and expected_s <= until_s:
        yield expected_s, STALE


def _series(labels: Labels, samples: Samples) -> bytes:
    named = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
    encoded = []
    for at_s, value in samples:
        before, after = _around_value(at_s)
        encoded.append(before + (_STALE_BITS if value is STALE else _pack_value(value)) + after)
    return _field(1, named + b"".join(encoded))


@cache
def _around_value(at_s: float) -> tuple[bytes, bytes]:
    """What is before and after the eight bytes of a value: thousands of series have samples at the same time."""
    after = b"\x10" + _varint(int(at_s * 1000))
    return bytes([2 << 3 | 2]) + _varint(1 + 8 + len(after)) + b"\x09", after


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _stored(content: bytes) -> bytes:
    """Snappy's block format without any compression: its length, then one literal."""
    return _varint(len(content)) + b"\xfc" + struct.pack("<I", len(content) - 1) + content
