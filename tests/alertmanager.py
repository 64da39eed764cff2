"""Real Alertmanagers, as tests look at them: Mimir's, and Debian's prometheus-alertmanager."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from alerts.model import to_yaml
from lab.debian import Packages
from lab.ports import free_ports
from tests.prometheus_server import Server

# The first release of Debian whose Alertmanager (0.28) knows what alerts/channels.py writes for Teams.
DEBIANS: Final = Packages(suite="trixie", component="main", names=("prometheus-alertmanager",))


def has_loaded(mimir: str, text: str) -> bool:
    """Whether `text` is in the configuration that it runs with: it looks for a posted one every few seconds."""
    try:
        with urllib.request.urlopen(f"{mimir}/alertmanager/api/v2/status", timeout=120) as answer:
            return text in json.load(answer)["config"]["original"]
    except urllib.error.HTTPError:
        return False  # it has none yet


class DebiansAlertmanager(Server):
    """Below a path of its own, as behind a proxy."""

    def __init__(self, directory: Path, config: Mapping[str, Any], templates: Mapping[str, str]) -> None:
        [port] = free_ports(1)
        root = DEBIANS.ensure()
        for name, text in {"alertmanager.yml": to_yaml(dict(config)), **templates}.items():
            (directory / name).write_text(text)
        url = f"http://127.0.0.1:{port}/am"
        # Debian's reads its own templates from /usr/share, and this one is not installed.
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", *user, "--mount", "sh", "-c", 'mount --bind "$0/usr/share" /usr/share && exec "$@"', str(root)]
        command += [
            f"{root}/usr/bin/prometheus-alertmanager",
            f"--config.file={directory / 'alertmanager.yml'}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--web.external-url={url}",
            "--cluster.listen-address=",
        ]
        super().__init__(url, command, directory / "alertmanager.log", None, None)

    def post(self, path: str, body: Any) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data=json.dumps(body).encode(), headers=headers)
        urllib.request.urlopen(request, timeout=120).close()
