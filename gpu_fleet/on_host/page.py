"""The pages of servers on this host: their metrics, and whether they answer at all."""

from __future__ import annotations

import socket
import sys
import time

_MOST_BODY = 64 << 20


def get(url: str, within_s: float) -> bytes:
    """The body of an answer that is no error, without any proxy. Raises OSError and ValueError. By hand: http.client takes longer
    to be imported than everything else that asks."""
    where, _, path = url[len("http://") :].partition("/")
    host, _, port = where.rpartition(":")
    if not url.startswith("http://") or not port.isdigit():
        raise ValueError(f"{url}: expected http://HOST:PORT/PATH")
    until = time.monotonic() + within_s
    with socket.create_connection((host.strip("[]"), int(port)), timeout=within_s) as connection:
        connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {where}\r\nAccept: */*\r\n\r\n".encode())
        answer = bytearray()
        while len(answer) < _MOST_BODY:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(url)
            connection.settimeout(left_s)
            block = connection.recv(1 << 16)
            if not block:
                break
            answer += block
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not b"200" <= words[1] < b"400":
        raise ValueError(f"{url}: {head[:80]!r}")
    return body


def main(arguments: list[str]) -> int:
    """`page URL SECONDS` prints it."""
    url, within_s = arguments
    try:
        body = get(url, float(within_s))
    except (OSError, ValueError) as error:
        print(f"{url} does not respond: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(body)
    return 0
