"""Our own cost with many hosts: the real program, engine, provider and SSH against hosts that respond immediately."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.answering_hosts import address
from bench.measure import cost_of
from gpu_fleet.operations.deploy import SAVED_ONCE
from lab.ports import free_ports
from lab.standins.programs import gather
from tests.checkout import REPO
from tests.hosts.stack import UP, Stack

_REFRESH = ("refresh", "--yes", "--skip-preview", "--suppress-permalink", "--parallel", "200")
_PREVIEW = ("preview", "--suppress-permalink", "--parallel", "200")


def measure(count: int) -> dict[str, Any]:
    """Seconds of each operation, peak memory in MB, size of the state in bytes."""
    with tempfile.TemporaryDirectory() as directory, _hosts(Path(directory), count) as port:
        home = Path(directory)
        gather(home / "artifacts")
        config = {
            "datacenter": "bench",
            "cluster": "loopback",
            "ssh": {
                "user": "root",
                "port": port,
                "privateKeyFile": str(home / "key"),
                "knownHostsFile": str(home / "known_hosts"),
            },
            "hosts": {f"node-{number:04}": {"address": address(number), "gpus": 8} for number in range(count)},
            "artifacts": {"source": "controller", "directory": str(home / "artifacts")},
            "metrics": {"url": "http://mimir.example.com/api/v1/push"},
        }
        if count > 500:  # Pulumi passes the whole configuration to the program in its environment, which is limited to 128 KiB
            inventory = home / "hosts.json"
            inventory.write_text(json.dumps({"hosts": config.pop("hosts")}))
            config["inventory"] = str(inventory)
        stack = Stack(home / "checkout", "bench", config).create()
        found: dict[str, Any] = {"hosts": count}
        peak_mb = 0.0
        for name, arguments in (
            ("first up", UP),
            ("no-op up", UP),
            ("preview", _PREVIEW),
            ("change all", UP),
            ("refresh", _REFRESH),
        ):
            if name == "change all":
                stack.config["metrics"] = {"url": "http://mimir2.example.com/api/v1/push"}
                stack.write()
            process = stack.start(*arguments, stdin=subprocess.DEVNULL, **SAVED_ONCE)
            cost, output = cost_of(process)
            if process.returncode:
                raise RuntimeError(f"{name} of {count} hosts failed:\n{output[-4000:]}")
            found[name] = cost.seconds
            peak_mb = max(peak_mb, cost.peak_mb)
        state = sum(path.stat().st_size for path in (stack.directory / "state").rglob("stacks/**/*.json"))
        return {**found, "peak MB": peak_mb, "state bytes": state}


@contextmanager
def _hosts(directory: Path, count: int) -> Iterator[int]:
    (port,) = free_ports(1)
    arguments = [sys.executable, "-m", "bench.answering_hosts", str(directory), str(count), str(port)]
    process = subprocess.Popen(arguments, cwd=REPO, stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (directory / "ready").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the hosts of the benchmark did not start within 60 s")
            time.sleep(0.05)
        yield port
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait(20)
