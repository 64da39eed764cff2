"""Grafana as a process, or its stand-in where it is not installed, and a client of its API."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from lab.grafana import process
from lab.ports import free_ports


class GrafanaServer:
    auth = "admin:correct-horse"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self._process = process.start(self.directory, self.port, self.auth.partition(":")[2])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(120)

    def ask(self, method: str, path: str, body: Any = None, auth: str | None = None, **headers: str) -> tuple[int, Any]:
        """Status and answer; status 0 when nobody answers."""
        login = base64.b64encode((auth or self.auth).encode()).decode()
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())
        except OSError:
            return 0, None

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()
