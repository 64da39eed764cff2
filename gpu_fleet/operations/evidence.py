"""`make evidence`: what a broken host says, and an hour of its metrics, in a directory to send to a vendor or to keep.

    python -m gpu_fleet.operations.evidence --stack us-west-training --host gpu-node-017 [--to build/evidence]

The archive is made on the host (gpu_fleet/on_host/evidence.py) and stays there too. A host that does not answer leaves its
metrics alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from pathlib import Path

from gpu_fleet.host.parts.evidence import COMMAND, DIRECTORY
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.on_host import fetch_from_host, run_on_host
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import Configuration, configuration, enter_project
from gpu_fleet.stackfile.config import ConfigErrors, HostSpec, StackConfig

_COLLECTED_S = 150  # on the host 90, and the login
_FETCHED_S = 300
_HOUR_S, _STEP_S = 3600, 60
_METRICS = "gpu:.+|instance:gpu.+|host:.+|gpu_fleet_.+|up|node_load1|node_memory_MemAvailable_bytes|ALERTS"


def from_host(host: HostSpec, directory: Path, config: StackConfig, stack: str, found: Configuration) -> Path:
    """The archive. Raises OperationError, ConfigErrors."""
    command, what = [host.prefix + COMMAND, "make evidence"], "fetching the archive"
    path = run_on_host(host, command, config=config, stack=stack, found=found, what=COMMAND, timeout_s=_COLLECTED_S)
    if not re.fullmatch(rf"{re.escape(host.prefix + DIRECTORY)}/evidence-[A-Za-z0-9.-]+\.tar\.gz", path):
        raise OperationError(f"{host.name}: {COMMAND} printed no archive")
    to = directory / Path(path).name
    fetch_from_host(host, path, to, config=config, stack=stack, found=found, what=what, timeout_s=_FETCHED_S)
    return to


def metrics_of(host: str, config: StackConfig, stack: str, end: float) -> bytes:
    """The hour before, as Prometheus answers. Raises OperationError."""
    query = f'{{__name__=~"{_METRICS}", datacenter="{config.datacenter}", cluster="{config.cluster}", instance="{host}"}}'
    when = [("start", f"{end - _HOUR_S:.0f}"), ("end", f"{end:.0f}"), ("step", str(_STEP_S))]
    return json.dumps(Mimir.of(config, stack).get("/api/v1/query_range", [("query", query), *when])).encode()


def main(arguments: list[str]) -> int:
    """Exit status: 0 when the host's archive and its metrics are there."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.evidence", description="Collect what a broken host says."
    )
    parser.add_argument("--stack", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--to", type=Path, default=Path("build/evidence"))
    options = parser.parse_args(arguments)
    try:
        enter_project()
        found = configuration(options.stack)
        config = found.load()
        host = config.hosts.get(options.host)
        if host is None:
            raise OperationError(f"the stack {options.stack} has no host {options.host}")
        if host.connection == "pull":
            raise OperationError(f"{host.name} is in pull mode: run sudo {COMMAND} there")
        if config.evidence is None:
            raise OperationError("the stack file has no section gpu-fleet:evidence, so no host collects any: add `evidence: {}`")
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    began = time.time()
    directory = options.to / f"{host.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began))}"
    directory.mkdir(parents=True, mode=0o700)
    failures = []
    print(f"{host.name} collects evidence, which takes up to 90 seconds.", flush=True)
    try:
        from_host(host, directory, config, options.stack, found)
    except (OperationError, ConfigErrors) as error:
        failures.append(str(error))
    try:
        (directory / "metrics.json").write_bytes(metrics_of(host.name, config, options.stack, began))
    except OperationError as error:
        failures.append(f"an hour of its metrics: {error}")
    files = sorted(path for path in directory.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (directory / "SHA256SUMS").write_text(sums)
    for path in files:
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    for failure in failures:
        print(f"not collected: {failure}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    run(main)
