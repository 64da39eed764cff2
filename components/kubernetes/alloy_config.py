"""Alloy's configuration on a Kubernetes cluster: files of hosts for what a node shares with a host, and its own for the rest.

The same on every node: values that differ come from the pod's environment, passwords from a mounted Secret, as on hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.scrape_interval import DEFAULT_S, scraped_every
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.sections import Logs, Metrics

OURS = Path(__file__).with_name("alloy")
HOSTS = ROOTFS / "etc/gpu-fleet/alloy"


def alloy_files(
    section: Kubernetes, metrics: Metrics | None, logs: Logs | None, *, has_readiness: bool = False
) -> tuple[Path, ...]:
    """The files that make up the configuration of this cluster, in the order in which they are read."""
    return tuple(_files(section, metrics, logs, has_readiness))


def alloy_config(
    section: Kubernetes,
    metrics: Metrics | None,
    logs: Logs | None,
    *,
    has_readiness: bool = False,
    scrape_interval_s: int = DEFAULT_S,
) -> str:
    """The whole configuration as one file, for Alloy's chart."""
    text = "\n".join(file.read_text() for file in alloy_files(section, metrics, logs, has_readiness=has_readiness))
    return scraped_every(text, scrape_interval_s)


def _files(section: Kubernetes, metrics: Metrics | None, logs: Logs | None, has_readiness: bool) -> Iterator[Path]:
    # Where the operator scrapes, it scrapes Alloy too: the Prometheus that evaluates the rules has to see the XID counters.
    pushes = section.prometheus_operator == "none"
    if pushes:
        yield HOSTS / "discover.alloy"
        yield HOSTS / "collect_agent.alloy"
    if section.prometheus_operator == "none" or section.pod_logs:
        yield OURS / "discover_pods.alloy"
    if section.prometheus_operator == "none":
        yield OURS / "collect_dcgm.alloy"
        yield OURS / "collect_kubelet.alloy"
        if section.node_exporter != "none":
            yield OURS / "collect_nodes.alloy"
        if section.kube_state_metrics != "none":
            yield OURS / "collect_state.alloy"
        if has_readiness:
            yield OURS / "collect_readiness.alloy"
    yield HOSTS / "collect_kernel_journal.alloy"
    yield HOSTS / "process_kernel.alloy"
    if section.pod_logs:
        yield OURS / "collect_pod_logs.alloy"
    if pushes:
        assert metrics is not None, "validated: without an operator Alloy needs a store"
        yield HOSTS / ("export_metrics_login.alloy" if metrics.username else "export_metrics.alloy")
    if logs is None:
        yield HOSTS / "export_no_logs.alloy"
    else:
        yield HOSTS / ("export_logs_login.alloy" if logs.username else "export_logs.alloy")
