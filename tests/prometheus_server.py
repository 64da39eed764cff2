"""Real stores other than Mimir, for tests: Prometheus, and VictoriaMetrics with vmalert."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from gpu_fleet.toolchain import find
from lab.ports import free_ports


class Server:
    """A program that serves Prometheus's API, started with `command`. `headers`, `tls`: how the test itself reaches it."""

    def __init__(
        self, url: str, command: Sequence[str], log: Path, headers: Mapping[str, str] | None, tls: ssl.SSLContext | None
    ) -> None:
        self.url, self._headers, self._tls, self._log = url, dict(headers or {}), tls, log
        with log.open("w") as output:
            self._process = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=output)
        self.wait_for("ready", self._is_ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()  # no data has to be kept
        self._process.wait()

    def get(self, path: str, **parameters: Any) -> Any:
        request = urllib.request.Request(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=120, context=self._tls) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.code} {error.read().decode()}") from None

    def query(self, promql: str) -> list[dict[str, Any]]:
        return self.get("/api/v1/query", query=promql)["result"]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def wait_for(self, what: str, holds: Any, within_s: float = 180, shown: Any = lambda: "") -> Any:
        """`shown`: what a failure shows beside the log."""
        deadline = time.monotonic() + within_s
        while not (found := holds()):
            is_over = self._process.poll() is not None or time.monotonic() > deadline
            assert not is_over, f"{what}: not within {within_s} s: {shown()}\n{self.log}"
            time.sleep(0.5)
        return found

    @property
    def log(self) -> str:
        return self._log.read_text()[-4000:]

    def _is_ready(self) -> bool:
        request = urllib.request.Request(f"{self.url}/-/ready", headers=self._headers)
        try:
            urllib.request.urlopen(request, timeout=5, context=self._tls).close()
        except OSError:
            return False
        return True


class PrometheusServer(Server):
    """`web`: its web.config.file, with TLS then."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        *flags: str,
        web: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        [port] = free_ports(1)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
        (directory / "web.yml").write_text(yaml.safe_dump(dict(web or {})))
        command = [
            str(find("prometheus")),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--web.config.file={directory / 'web.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *flags,
        ]
        super().__init__(f"http{'s' if web else ''}://127.0.0.1:{port}", command, directory / "prometheus.log", headers, tls)


class VictoriaMetrics(Server):
    """A single node, with TLS."""

    def __init__(self, directory: Path, *flags: str, headers: Mapping[str, str], tls: ssl.SSLContext) -> None:
        [port] = free_ports(1)
        command = [
            str(find("victoria-metrics")),
            f"-storageDataPath={directory / 'victoria-metrics'}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-tls",
            "-search.latencyOffset=1s",  # default: 30 s, by which every answer is late
            *flags,
        ]
        super().__init__(f"https://127.0.0.1:{port}", command, directory / "victoria-metrics.log", headers, tls)


class Vmalert(Server):
    """Evaluates a file of rules on `store` and writes the recorded series there."""

    def __init__(self, directory: Path, rules: Path, store: Server, *flags: str) -> None:
        [port] = free_ports(1)
        command = [
            str(find("vmalert")),
            f"-rule={rules}",
            f"-datasource.url={store.url}",
            f"-remoteWrite.url={store.url}",
            "-notifier.blackhole",
            "-rule.evalDelay=0s",  # default: 30 s
            f"-httpListenAddr=127.0.0.1:{port}",
            *flags,
        ]
        super().__init__(f"http://127.0.0.1:{port}", command, directory / "vmalert.log", None, None)
