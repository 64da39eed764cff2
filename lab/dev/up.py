"""`make dev`: from a checkout to a datacenter that can be queried.

Every step prints what it does and how long it took. It can be interrupted and run again: each step only changes what differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from gpu_fleet import toolchain
from lab import gpu
from lab.dev import query, slurm
from lab.dev.workspace import (
    DEV,
    REPO,
    STACK,
    DevError,
    generated_secret,
    pulumi,
    relative,
    run,
    write_environment_file,
    write_stack_config,
)
from lab.standins.programs import gather

# An XID without a recommended action (severity info): it tests the log pipeline and raises no alert.
SELF_TEST_XID = 43


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    print(f"==> {text}", flush=True)
    start = time.monotonic()
    yield
    print(f"    {time.monotonic() - start:.1f} s", flush=True)


def up(*, jobs: bool = False) -> None:
    """`jobs`: with a real Slurm."""
    start = time.monotonic()
    (DEV / "state").mkdir(parents=True, exist_ok=True)
    with step("8 simulated GPUs (nvidia-smi and its kernel log)"):
        gpu.ensure(state=DEV / "gpus" / "state", bin_directory=DEV / "gpus" / "bin")
    if jobs:
        with step("a Slurm in a container, and jobs for these GPUs"):
            slurm.start()
    with step("binaries for the host"):
        gather(DEV / "artifacts", present={"alloy": str(toolchain.find("alloy").resolve())})
    with step(f"stack `{STACK}`: file backend, passphrase and secrets below {relative(DEV)}"):
        prepare_stack(jobs=jobs)
    endpoints = endpoints_of_stack()
    with step("pulumi up"):
        revive_backend()
        release_stale_lock()
        # --refresh: manual changes and crashes on the host are detected and repaired in the same run.
        pulumi("up", "--yes", "--skip-preview", "--refresh", "--suppress-progress")
    if not jobs:
        slurm.stop()  # of a run with JOBS=1
    write_endpoints(endpoints)
    with step("waiting for GPU metrics in Mimir and an XID line in Loki"):
        wait_for_signals(endpoints)
        if jobs:
            hint = f"look at {relative(DEV)}/host/var/log and {relative(slurm.DIRECTORY)}/log"
            arrived = lambda: bool(query.metrics(endpoints["MIMIR_URL"], "gpu:job:info"))  # noqa: E731
            wait_until("a GPU's job in Mimir", arrived, within_s=300, hint=hint)
    report(endpoints, time.monotonic() - start)


def prepare_stack(*, jobs: bool) -> None:
    if jobs:
        section = {"scheduler": "slurm", "queueHosts": [slurm.HOST]}
        write_stack_config({"jobs": section}, {"python": relative(slurm.PYTHON)})
    else:
        write_stack_config({}, {})
    known = json.loads(pulumi("stack", "ls", "--json", capture=True).stdout or "[]") if any((DEV / "state").iterdir()) else []
    if not any(stack["name"].rpartition("/")[2] == STACK for stack in known):
        # `stack init` knows no --config-file and writes the salt beside the Pulumi.yaml that it finds: the one in .dev.
        (DEV / "Pulumi.yaml").write_text((REPO / "Pulumi.yaml").read_text())
        pulumi("--cwd", str(DEV), "stack", "init", STACK, capture=True)
    config = yaml.safe_load((DEV / f"Pulumi.{STACK}.yaml").read_text())["config"]
    if "gpu-fleet:grafanaAuth" not in config:
        password = generated_secret("grafana-password").read_text()
        run(
            [str(toolchain.find("pulumi")), "config", "set", "--secret", "gpu-fleet:grafanaAuth"],
            capture=True,
            stdin=f"admin:{password}",
        )
    write_environment_file()


def endpoints_of_stack() -> dict[str, str]:
    ports = yaml.safe_load((REPO / f"Pulumi.{STACK}.yaml").read_text())["config"]["gpu-fleet:backend"]
    mimir = f"http://127.0.0.1:{ports['mimir']['port']}"
    return {
        "MIMIR_URL": mimir,
        "LOKI_URL": f"http://127.0.0.1:{ports['loki']['port']}",
        "ALERTMANAGER_URL": f"{mimir}/alertmanager",
        "RECEIVER_URL": f"http://127.0.0.1:{ports['receiver']['port']}",
        "GRAFANA_URL": f"http://127.0.0.1:{ports['grafana']['port']}",
    }


def write_endpoints(endpoints: dict[str, str]) -> None:
    (DEV / "endpoints.env").write_text("".join(f"{name}={url}\n" for name, url in endpoints.items()))


def revive_backend() -> None:
    """Restarts backend processes that died since the last run: their Commands have no Read, so the engine does not notice."""
    run(["sh", "components/backend/service.sh", "revive"], extra={"SERVICE_DIR": str(DEV / "backend")})


def release_stale_lock() -> None:
    """A killed `pulumi` leaves its lock in the file backend; no other process can hold it while we hold .dev/lock."""
    for lock in (DEV / "state" / ".pulumi" / "locks").rglob("*.json"):
        pid = json.loads(lock.read_text() or "{}").get("pid")
        if not pid or not Path(f"/proc/{pid}").exists():
            lock.unlink()


def wait_for_signals(endpoints: dict[str, str]) -> None:
    # Not the configured number: `make dev-xid XID=79` removes one.
    gpus = run([str(DEV / "gpus" / "bin" / "nvidia-smi"), "-L"], capture=True, check=False).stdout.count("UUID")
    wait_until(
        "GPU utilization in Mimir",
        lambda: len(query.labelled_utilization(endpoints["MIMIR_URL"])) >= gpus,
        within_s=300,
        hint=f"look at the agent: {relative(DEV)}/host/var/log, and at {endpoints['MIMIR_URL']}",
    )
    gpu.inject_xid(DEV / "gpus" / "state", code=SELF_TEST_XID, gpu=0)
    wait_until(
        f"the kernel line of XID {SELF_TEST_XID} in Loki",
        lambda: bool(query.kernel_lines(endpoints["LOKI_URL"], xid=SELF_TEST_XID)),
        within_s=300,
        hint=f"look at the agent: {relative(DEV)}/host/var/log, and at {endpoints['LOKI_URL']}",
    )


def wait_until(what: str, holds: Callable[[], bool], *, within_s: float, hint: str) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise DevError(f"{what} did not arrive within {within_s:.0f} s; {hint}")
        time.sleep(0.5)
    print(f"    {what}: found", flush=True)


def report(endpoints: dict[str, str], seconds: float) -> None:
    print(f"\nThe dev datacenter is up after {seconds:.0f} s ({resident_mb()} MB of memory).\n")
    for name, url in endpoints.items():
        print(f"  {name:17} {url}")
    print(f"  Grafana's login   admin, password in {relative(DEV / 'grafana-password')}")
    print("\nNext: make dev-xid XID=79 GPU=3     GPU 3 falls off the bus; shows the alert")
    print("      . .dev/env && pulumi preview  works on the stack manually;  make dev-down  removes everything")


def resident_mb() -> int:
    """Memory of every process with .dev in its command line or environment, in MB (RSS)."""
    total_kb = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if str(DEV).encode() in text and process.name != str(os.getpid()):
                status = (process / "status").read_text()
                total_kb += int(status.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in status else 0
    return total_kb // 1024
