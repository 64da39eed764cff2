"""Samples of any time to Mimir by Prometheus' remote write protocol 1.0, without a library for protobuf or snappy.

Source: Prometheus, remote write 1.0 specification (message WriteRequest); snappy, format_description.txt; read 2026-11-21.
"""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Mapping, Sequence

# Labels as sorted pairs, the metric's name among them as __name__.
Labels = tuple[tuple[str, str], ...]
# Seconds and value, oldest first.
Samples = Sequence[tuple[float, float]]

_SERIES_PER_REQUEST = 2000
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_WITHIN_S = 60


def push(url: str, series: Mapping[Labels, Samples]) -> None:
    """`url`: of Mimir's push API. Raises OSError, with Mimir's words where it refused."""
    encoded = [_series(labels, samples) for labels, samples in series.items() if samples]
    for start in range(0, len(encoded), _SERIES_PER_REQUEST):
        body = _stored(b"".join(encoded[start : start + _SERIES_PER_REQUEST]))
        request = urllib.request.Request(url, data=body, headers=_HEADERS)
        try:
            urllib.request.urlopen(request, timeout=_WITHIN_S).close()  # noqa: S310  always http to loopback
        except urllib.error.HTTPError as error:
            raise OSError(f"{url}: {error.read().decode(errors='replace')[:500]}") from None


def _series(labels: Labels, samples: Samples) -> bytes:
    named = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
    valued = b"".join(
        _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(int(at_s * 1000))) for at_s, value in samples
    )
    return _field(1, named + valued)


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
