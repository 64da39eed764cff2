"""The lab's Grafana over the showcase: its data sources, every dashboard, and the URL of one at a point in time."""

from __future__ import annotations

import base64
import json
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboards import LOKI_UID, MIMIR_UID, Price, all_dashboards
from lab.grafana import process
from lab.ports import free_ports
from lab.showcase.showcase import Showcase

USER, PASSWORD = "admin", "showcase"  # on loopback, with simulated data


class Board:
    """`url`: of Grafana, or its stand-in."""

    def __init__(self, showcase: Showcase, directory: Path) -> None:
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._process = process.start(directory, port, PASSWORD)
        try:
            self._fill(showcase)
        except BaseException:
            self.close()
            raise

    def _fill(self, showcase: Showcase) -> None:
        for uid, kind, url in ((MIMIR_UID, "prometheus", f"{showcase.mimir}/prometheus"), (LOKI_UID, "loki", showcase.loki)):
            self._post("/api/datasources", {"uid": uid, "name": uid, "type": kind, "access": "proxy", "url": url})
        for model in all_dashboards(Price(2.5, "USD")).values():
            self._post("/api/dashboards/db", {"dashboard": model, "overwrite": True})

    def address(self, uid: str, *, start_s: float, end_s: float, variables: Mapping[str, Sequence[str]]) -> str:
        """Of a dashboard. `variables`: name to value; the others stay at All."""
        asked = {
            "from": int(start_s * 1000),
            "to": int(end_s * 1000),
            **{f"var-{name}": chosen for name, chosen in variables.items()},
        }
        return f"{self.url}/d/{uid}?{urllib.parse.urlencode(asked, doseq=True)}"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)  # noqa: S310
        urllib.request.urlopen(request, timeout=120).close()  # noqa: S310  always http to loopback
