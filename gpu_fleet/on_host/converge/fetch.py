"""Fetches a file by HTTP or from a file: URL, through the proxies of the environment."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Iterator

from .disk import create, unlink
from .errors import Failure
from .events import say, without_password

_TRIES = 3
_PATIENCE_S = 60  # without a byte; a server that is busy answers late
_SLOWEST = 1024  # bytes a second, over a minute
_BEAT_S = 60
_LONGEST_S = 7200  # a transfer that takes longer is considered dead, and the provider ends the run when it has been silent


class TooLarge(Exception):
    """More than fits, or more than any of our programs has."""


def fetch(url: str, path: str, most: int, what: str) -> None:
    """`most`: bytes; a server that sends more than it should must not fill the disk before the checksum is compared."""
    name = without_password(url)
    for number in range(_TRIES):
        try:
            with _heartbeat(what):
                _fetch(url, path, most)
            return
        except TooLarge:
            unlink(path)
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            unlink(path)
            if number + 1 < _TRIES and _may_pass(error):
                time.sleep(1 << number)
                continue
            raise _failure(name, path, error) from error


def _fetch(url: str, path: str, most: int) -> None:
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))  # noqa: S310 # of the stack
    if parts.username is not None:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        # Only for the host that it was given for, wherever a redirect leads.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    with _opener().open(request, timeout=_PATIENCE_S) as response:
        announced = response.headers.get("Content-Length")
        create(path, b"")
        received, minute, at_minute = 0, time.monotonic(), 0
        with open(path, "wb") as file:
            for block in iter(lambda: response.read(1 << 16), b""):
                received += len(block)
                if received > most:
                    raise TooLarge
                file.write(block)
                if time.monotonic() - minute >= 60:
                    if received - at_minute < 60 * _SLOWEST:
                        raise TimeoutError(f"less than {_SLOWEST} bytes a second arrived")
                    minute, at_minute = time.monotonic(), received
        if announced is not None and announced.isdigit() and received != int(announced):
            raise ConnectionError(f"only {received} of {announced} bytes arrived")


def _opener() -> urllib.request.OpenerDirector:
    handlers = []
    bundle = os.environ.get("CURL_CA_BUNDLE")
    with contextlib.suppress(ImportError):  # a Python without SSL fetches by HTTP
        import ssl

        context = ssl.create_default_context()  # SSL_CERT_FILE and SSL_CERT_DIR are read by OpenSSL
        if bundle and os.path.isfile(bundle):
            context.load_verify_locations(bundle)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


@contextlib.contextmanager
def _heartbeat(what: str) -> Iterator[None]:
    """A line each minute. The provider gives up on a run that prints nothing for a long time (gpu_fleet/provider/host.py,
    IDLE_S)."""
    done = threading.Event()

    def beat() -> None:
        for second in range(_BEAT_S, _LONGEST_S + 1, _BEAT_S):
            if done.wait(_BEAT_S):
                return
            say(f"{what}, for {second} seconds")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _may_pass(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429, 500, 502, 503, 504)
    return not (isinstance(error, OSError) and error.errno == 28)


def _failure(name: str, path: str, error: Exception) -> Failure:
    reason = getattr(error, "reason", None) or error
    if isinstance(error, urllib.error.HTTPError):
        said = f"the server answered {error.code} {error.reason}"
    elif isinstance(reason, OSError):
        said = reason.strerror or str(reason)
        if reason.errno == 28:
            return Failure("disk-full", f"cannot store {name} below {os.path.dirname(path)}; free some space and apply again")
    else:
        said = str(reason) or type(reason).__name__
    if re.search("certificate (?:is not yet valid|has expired)", said):
        now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        said += f"; this host's clock says {now} UTC: correct it if that is wrong (timedatectl)"
    return Failure.saying("download", f"cannot get {name}", said)
