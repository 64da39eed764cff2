"""Grafana as a process on loopback: the installed one, or the stand-in where there is none."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from pathlib import Path

from lab.standins import programs

READY_S = 300


def start(directory: Path, port: int, password: str) -> subprocess.Popen[bytes]:
    """Returns when it answers. `directory`: of all that it writes. `password`: of admin. Raises ToolchainError where stand-ins
    are refused and Grafana is not installed, RuntimeError if it ends or does not answer."""
    program = programs.find("grafana")
    settings = {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(directory),
        "GF_PATHS_LOGS": str(directory / "log"),
        "GF_PATHS_PLUGINS": str(directory / "plugins"),
        "GF_SECURITY_ADMIN_PASSWORD": password,
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_LOG_MODE": "console",
        "GF_LOG_LEVEL": "warn",
    }
    home = str(program.resolve().parents[1])
    process = subprocess.Popen([program, "server", "--homepath", home], env={**os.environ, **settings})
    deadline = time.monotonic() + READY_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{program} did not start on 127.0.0.1:{port}")
        time.sleep(0.05)
    return process


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
    except OSError:
        return False
    return True
