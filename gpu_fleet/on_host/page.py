"""The pages of servers on this host: their metrics, and whether they answer at all."""

from __future__ import annotations

import socket
import sys
import time

_MOST_BODY = 64 << 20


def get(url: str, within_s: float) -> bytes:
    """The body of an answer that is no error. Raises OSError and ValueError."""
    status, body = ask("GET", url, within_s)
    if not _is_good(status):
        raise ValueError(f"{url}: {status}")
    return body


def metrics(listen: str, within_s: float) -> str:
    """Those of an exporter. Raises OSError and ValueError."""
    return get(f"http://{listen}/metrics", within_s).decode("utf-8", "replace")


def ask(method: str, url: str, within_s: float) -> tuple[int, bytes]:
    """Status and body, without any proxy. Raises OSError and ValueError. By hand: http.client takes longer to be imported than
    everything else that asks."""
    where, _, path = url[len("http://") :].partition("/")
    host, _, port = where.rpartition(":")
    if not url.startswith("http://") or not port.isdigit():
        raise ValueError(f"{url}: expected http://HOST:PORT/PATH")
    until = time.monotonic() + within_s
    with socket.create_connection((host.strip("[]"), int(port)), timeout=within_s) as connection:
        head = f"{method} /{path} HTTP/1.0\r\nHost: {where}\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(head.encode())
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
    first, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError(f"{url}: {first[:80]!r}")
    return int(words[1]), body


def _is_good(status: int) -> bool:
    return 200 <= status < 400


def main(arguments: list[str]) -> int:
    """`page GET|POST URL SECONDS` prints it; that of an error on stderr."""
    method, url, within_s = arguments
    try:
        status, body = ask(method, url, float(within_s))
    except (OSError, ValueError) as error:
        print(f"{url} does not respond: {error}", file=sys.stderr)
        return 1
    if _is_good(status):
        sys.stdout.buffer.write(body)
        return 0
    sys.stderr.buffer.write(body + f"\n{url} answers {status}\n".encode())
    return 1
