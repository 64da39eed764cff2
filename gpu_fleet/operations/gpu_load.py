"""`make gpu-load`: puts a known load on a GPU and checks that it reaches Mimir, which tests the whole pipeline at once.

    python -m gpu_fleet.operations.gpu_load --stack us-west-training [--test 1004] [--duration 45] [--host NAME]

On a cluster it is a Job that requests one GPU; on a host a container, or the program itself where it is installed. The tests are
numbered like DCGM's profiling fields: 1004 is FP16 on the tensor cores (NVIDIA: 98 % engine, 87 % tensor activity on a T4).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.kubernetes.load_job import IMAGE, PROGRAM, arguments, load_job
from gpu_fleet.operations.cluster import cluster_api
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.on_host import run_on_host
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import configuration, enter_project
from gpu_fleet.operations.table import table
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.toolchain.versions import image

# The series that each test drives up, beside that of the engine. Source: DCGM user guide, dcgmproftester; read 2026-11-21.
BUSY: Final = {
    1001: "gpu:graphics_engine_active:ratio",
    1002: "gpu:sm_active:ratio",
    1004: "gpu:tensor_active:ratio",
    1005: "gpu:dram_active:ratio",
    1006: "gpu:fp64_active:ratio",
    1007: "gpu:fp32_active:ratio",
    1008: "gpu:fp16_active:ratio",
}
_ENGINE: Final = ("gpu:graphics_engine_active:ratio", "gpu:utilization:ratio")  # the first needs profiling counters
_RISE: Final = 0.3  # least increase that counts as the load; idle GPUs vary by a few hundredths
_READING_S: Final = 45  # exporter 30 s, recording rule 15 s
_PULL_S: Final = 600  # of the image, on a host
_POLL_S: Final = 2.0


@dataclass(frozen=True)
class Reading:
    """One series before the load and its maximum since; None: no value."""

    series: str
    before: float | None
    peak: float | None

    @property
    def rose(self) -> bool:
        return self.peak is not None and self.peak - (self.before or 0.0) >= _RISE


def readings(mimir: Mimir, test: int, labels: str, since_s: int) -> list[Reading]:
    """The series with these labels in Mimir. `since_s`: seconds since the load began."""
    found = []
    for series in dict.fromkeys((*_ENGINE, BUSY.get(test, _ENGINE[0]))):
        before = mimir.highest(f"max(max_over_time({series}{{{labels}}}[1m] offset {since_s}s))")
        found.append(Reading(series, before, mimir.highest(f"max(max_over_time({series}{{{labels}}}[{since_s}s]))")))
    return found


def is_visible(test: int, found: Sequence[Reading]) -> bool:
    """Whether the utilization of the engine rose, and the series of the test too if it has values."""
    by_series = {reading.series: reading for reading in found}
    engine = any(by_series[series].rose for series in _ENGINE)
    busy = by_series.get(BUSY.get(test, ""))
    return engine and (busy is None or busy.peak is None or busy.rose)


def report(test: int, found: Sequence[Reading]) -> str:
    rows = [(one.series, _percent(one.before), _percent(one.peak)) for one in found]
    paragraphs = [table(("SERIES", "BEFORE", "PEAK"), rows)]
    if is_visible(test, found):
        paragraphs.append("The load reached Mimir: exporter, Alloy, Mimir and recording rules work.")
    else:
        paragraphs.append(
            "The load did not reach Mimir. If the GPU was busy before, repeat this with an idle one. Otherwise check the\n"
            "exporter (make check), Alloy (up{job=...}), and that some stack deploys the recording rules to Mimir's ruler\n"
            "(gpu-fleet:rulers and gpu-fleet:alerts)."
        )
    if any(one.peak is None for one in found):
        paragraphs.append("Series without a value need `gpu-fleet:dcgm: {counters: profiling}`.")
    return "\n\n".join(paragraphs)


def _percent(value: float | None) -> str:
    return "no value" if value is None else f"{value:.0%}"


# --- a cluster ----------------------------------------------------------------------------------------------------------


def load_cluster(api: ClusterApi, section: Kubernetes, job: dict[str, Any]) -> None:
    """Runs the Job to its end and removes it. Raises OperationError when it does not succeed."""
    name, namespace = job["metadata"]["name"], section.namespace
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    api.create(path, job)
    try:
        deadline = time.monotonic() + job["spec"]["activeDeadlineSeconds"] + 30
        while time.monotonic() < deadline:
            conditions = api.get(f"{path}/{name}").get("status", {}).get("conditions") or []
            states = {one["type"]: one for one in conditions if one["status"] == "True"}
            if "Complete" in states:
                return
            if "Failed" in states:
                why = states["Failed"].get("message") or states["Failed"].get("reason")
                raise OperationError(f"the Job {name} failed: {why}. {_pod_state(api, namespace, name)}")
            time.sleep(_POLL_S)
        raise OperationError(f"the Job {name} did not finish in time. {_pod_state(api, namespace, name)}")
    finally:
        api.delete(f"{path}/{name}?propagationPolicy=Background")


def _pod_state(api: ClusterApi, namespace: str, job: str) -> str:
    """The state of its pod and the reasons that the cluster gives."""
    for pod in api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"job-name={job}"):
        status = pod.get("status", {})
        reasons = [one.get("message") for one in status.get("conditions") or () if one.get("message")]
        for container in status.get("containerStatuses") or ():
            reasons += [state.get("message") or state.get("reason") for state in container.get("state", {}).values() if state]
        return f"Its pod is {status.get('phase', 'unknown')}: {'; '.join(filter(None, reasons)) or 'no reason given'}"
    return "It has no pod."


def _on_cluster(config: StackConfig, stack: str, options: argparse.Namespace) -> str:
    """Returns the labels of the loaded GPU."""
    section = config.kubernetes
    assert section is not None
    if why := unpinned():
        raise OperationError(why)
    api = cluster_api(config, stack, options.found)
    name = f"gpu-load-{int(time.time())}"
    job = load_job(
        section, name, test=options.test, duration_s=options.duration, resource=options.resource, node=options.host or None
    )
    what = f"runs test {options.test} for {options.duration} s on one {options.resource}"
    print(f"The Job {section.namespace}/{name} {what}.", flush=True)
    try:
        load_cluster(api, section, job)
    except (KubeconfigError, Unreachable, Refused) as error:
        raise OperationError(str(error)) from None
    return f'pod=~"{name}-.*"'


# --- a host -------------------------------------------------------------------------------------------------------------


def host_command(test: int, duration_s: int, tool_path: Sequence[str] = ()) -> list[str]:
    """The program where it is installed (package datacenter-gpu-manager), else in a container of Docker or Podman. `tool_path`:
    that of the host."""
    run = " ".join(map(shlex.quote, [PROGRAM, *arguments(test, duration_s)]))
    pinned = shlex.quote(image(IMAGE).reference)
    # As dcgm-exporter's container is started: start-dcgm-exporter.
    docker = f"docker run --rm --gpus all --cap-add SYS_ADMIN {pinned} {run}"
    podman = f"podman run --rm --device nvidia.com/gpu=all --security-opt label=disable --cap-add SYS_ADMIN {pinned} {run}"
    tools = "".join(f"{shlex.quote(directory)}:" for directory in tool_path)
    refused = (
        f"echo {shlex.quote(f'{PROGRAM} is not installed on this host, and {why}')} >&2; exit 127; "
        if (why := unpinned())
        else ""
    )
    script = (
        f"PATH={tools}$PATH; "
        f"if command -v {PROGRAM} >/dev/null; then exec {run}; fi; "
        f"{refused}"
        # podman-docker is a `docker` that takes no --gpus.
        f'case "$(docker --version 2>/dev/null)" in Docker*) exec {docker} ;; esac; '
        f"if command -v podman >/dev/null; then exec {podman}; fi; "
        f"echo 'this host has neither {PROGRAM} nor Docker nor Podman' >&2; exit 127"
    )
    return ["sh", "-c", script]


def unpinned() -> str:
    """Why the program's image is not pulled; empty if it is pinned."""
    wanted = image(IMAGE)
    if wanted.digest:
        return ""
    return (
        f"the image {wanted.repository}:{wanted.tag} has no digest in gpu_fleet/toolchain/versions.yaml (images.{IMAGE}), so "
        "nothing verifies it. Run `make pin` on a machine that reaches its registry and review the diff"
    )


def _on_host(config: StackConfig, stack: str, options: argparse.Namespace) -> str:
    """Returns the labels of the loaded GPUs."""
    hosts = {name: host for name, host in config.hosts.items() if not host.lost and host.vendor != "amd"}
    if options.host and options.host not in hosts:
        raise OperationError(f"the stack has no NVIDIA host {options.host}; it has {', '.join(list(hosts)[:10]) or 'none'}")
    name = options.host or next(iter(hosts), "")
    if not name:
        raise OperationError(f"the stack {stack} has no NVIDIA host and no Kubernetes cluster")
    print(f"{name} runs test {options.test} for {options.duration} s on its GPUs.", flush=True)
    command = host_command(options.test, options.duration, hosts[name].tool_path)
    run_on_host(
        hosts[name],
        command,
        config=config,
        stack=stack,
        found=options.found,
        what="the load",
        timeout_s=options.duration + _PULL_S,
    )
    return f"instance={json.dumps(name)}"


# --- the command --------------------------------------------------------------------------------------------------------


def run_test(mimir: Mimir, config: StackConfig, test: int, load: Callable[[], str]) -> list[Reading]:
    """Starts the load and waits until Mimir shows it, or until it should have arrived."""
    here = f"datacenter={json.dumps(config.datacenter)}, cluster={json.dumps(config.cluster)}"
    mimir.highest("vector(1)")  # fails now rather than after the load
    started = time.time()
    labels = f"{here}, {load()}"
    ended = time.monotonic()
    within_s = 2 * (_READING_S + config.scrape_interval_s)
    while True:
        found = readings(mimir, test, labels, int(time.time() - started) + 1)
        if is_visible(test, found) or time.monotonic() - ended > within_s:
            return found
        time.sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Exit status: 0 when the load reached Mimir."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.gpu_load", description="Put load on a GPU, look for it in Mimir."
    )
    parser.add_argument("--stack", required=True)
    parser.add_argument("--test", type=int, default=1004, help="number of a profiling field (1004)")
    parser.add_argument("--duration", type=int, default=45, help="seconds (45)")
    parser.add_argument("--host", default="", help="host or node; default: the first, or any with a free GPU")
    parser.add_argument("--resource", default="nvidia.com/gpu", help="of the pod, e.g. nvidia.com/mig-1g.10gb")
    options = parser.parse_args(arguments)
    try:
        enter_project()
        found_config = configuration(options.stack)
        config = found_config.load()
        options.found = found_config
        load = _on_cluster if config.kubernetes and options.host not in config.hosts else _on_host
        found = run_test(Mimir.of(config, options.stack), config, options.test, lambda: load(config, options.stack, options))
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{report(options.test, found)}")
    return int(not is_visible(options.test, found))


if __name__ == "__main__":
    run(main)
