"""The environment file of a host, as far as the stack file decides it. Not here: defaults of parts, and what the host finds."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpu_fleet.stackfile import scrape_targets
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.hosts import PYTHON_WORDS, HostEntry
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.jobs import asking
from gpu_fleet.stackfile.monitoring import is_server
from gpu_fleet.stackfile.sections import Server


def host_settings(host: HostSpec, stack: StackConfig) -> dict[str, str]:
    """All settings of one host."""
    # The stack is named with the host, so that what is removed from it knows whose it was.
    own = {"STACK": f"{stack.datacenter}/{stack.cluster}", "INSTANCE": host.name}
    # Only there: a changed retention restarts nothing on the GPU hosts.
    server = _of_monitoring(stack) if is_server(host) else {}
    return _named({**own, **_of_stack(stack), **_of_host(host), **_targets_of(host, stack), **server, **_jobs_of(host, stack)})


def shared_settings(stack: StackConfig) -> dict[str, str]:
    """The settings of a host of which the stack file says nothing but that it exists."""
    everywhere = {job: target for job, target in (stack.scrape_targets or {}).items() if not target.hosts}
    targets = scrape_targets.settings(everywhere, stack.scrape_interval_s) if stack.scrape_targets else {}
    return _named({**_of_stack(stack), **_of_host(HostEntry()), **targets})


def _targets_of(host: HostSpec, stack: StackConfig) -> dict[str, str]:
    if not stack.scrape_targets:
        return {}
    here = {job: target for job, target in stack.scrape_targets.items() if scrape_targets.on_host(target, host)}
    return scrape_targets.settings(here, stack.scrape_interval_s)


def _jobs_of(host: HostSpec, stack: StackConfig) -> dict[str, str]:
    return {"SLURM_QUEUE": "yes"} if stack.jobs and host.name in asking(stack.jobs) else {}


def _of_stack(stack: StackConfig) -> dict[str, str]:
    metrics, logs = stack.metrics, stack.logs
    return {
        "DATACENTER": stack.datacenter,
        "CLUSTER": stack.cluster,
        "METRICS_URL": metrics.url if metrics else "",
        "METRICS_TENANT": (metrics and metrics.tenant) or "",
        "METRICS_USERNAME": (metrics and metrics.username) or "",
        "METRICS_HEADERS": http_headers(metrics),
        "LOGS_URL": logs.url if logs else "",
        "LOGS_TENANT": (logs and logs.tenant) or "",
        "LOGS_USERNAME": (logs and logs.username) or "",
        "LOGS_HEADERS": http_headers(logs),
    }


def http_headers(server: Server | None) -> str:
    """Further headers as Alloy's `http_headers` takes them: JSON, a list of values each."""
    return json.dumps({name: [value] for name, value in (server.headers if server else {}).items()})


def _of_monitoring(stack: StackConfig) -> dict[str, str]:
    section = stack.monitoring
    if section is None:
        return {}
    late_s = (stack.metrics.outage_s if stack.metrics else 0) + 2 * 3600
    return {
        "MONITORING_URL": stack.monitoring_url,
        "MONITORING_PORT": str(section.port),
        "MONITORING_METRICS_LATE": f"{late_s}s",
        "MONITORING_METRICS_RETENTION": section.retention.metrics,
        "MONITORING_LOGS_RETENTION": section.retention.logs,
    }


def _of_host(host: HostSpec | HostEntry) -> dict[str, str]:
    return {
        "ROLE": host.role,
        "EXPORTER": host.exporter,
        "VENDOR": host.vendor,
        "ADOPT": "yes" if host.adopt else "no",
        "REPLACE_OLD_COLLECTOR": "yes" if host.replace_old_collector else "no",
        "GPUS": "" if host.gpus is None else str(host.gpus),
        "MIN_DRIVER": host.min_driver or "",
        "TOOL_PATH": ":".join(host.tool_path),
        "SERVICE_MANAGER": host.service_manager,
        "SUPERVISORD": host.supervisord or "",
        "KERNEL_LOG": host.kernel_log,
        **_of_python(host.python),
        "GPU_EXPORTER_LISTEN": f"127.0.0.1:{host.ports.gpu_exporter}",
        "NODE_EXPORTER_LISTEN": f"127.0.0.1:{host.ports.node_exporter}",
        "ALLOY_LISTEN": f"127.0.0.1:{host.ports.alloy}",
    }


def _of_python(python: str) -> dict[str, str]:
    """Nothing by default: hosts of earlier releases have no such setting, and a new one restarts their services."""
    if python in PYTHON_WORDS:
        return {"PYTHON_INSTALL": "no"} if python == "present" else {}
    return {"PYTHON": python}


def _named(values: Mapping[str, str]) -> dict[str, str]:
    return {f"GPU_FLEET_{name}": value for name, value in values.items()}
