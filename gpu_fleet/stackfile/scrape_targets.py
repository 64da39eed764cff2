"""The section about further exporters on the hosts, such as those of model servers, which Alloy scrapes beside ours."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.monitoring import has_gpus
from gpu_fleet.stackfile.patterns import expand
from gpu_fleet.stackfile.values import JobName, Label, LabelText, MetricPattern, Section, Texts, WebUrl, duration, duration_s

_LONGEST_TIMEOUT_S = 10
_INTERVAL_S = 30  # unless hosts are scraped less often


class ScrapeTarget(Section):
    """An exporter that listens on hosts of this stack."""

    url: WebUrl = Field(examples=["http://127.0.0.1:8000/metrics"])
    """Where it answers, as seen from the host. Default path: /metrics."""
    hosts: Annotated[tuple[str, ...], Texts] = Field(default=(), examples=[["gpu-node-[001:008]"]])
    """Hosts or patterns of hosts that have it. Default: all GPU hosts."""
    interval: Annotated[str, *duration("5s", "10m", "30s")] | None = None
    """How often it is scraped. Default: 30s, or gpu-fleet:scrapeInterval where that is longer."""
    keep: Annotated[tuple[MetricPattern, ...], Texts] = Field(default=(), examples=[["vllm:*", "process_*"]])
    """Names of the metrics that are sent, `*` for any characters. Default: all."""
    labels: dict[Label, LabelText] = Field(default={}, examples=[{"model": "llama-70b"}])
    """Labels added to its series."""


Targets = dict[JobName, ScrapeTarget]


def on_host(target: ScrapeTarget, host: HostSpec) -> bool:
    if not target.hosts:
        return has_gpus(host)
    return any(host.name in expand(pattern) for pattern in target.hosts)


def settings(targets: Targets, interval_s: int) -> dict[str, str]:
    """As collect_targets.alloy reads them: targets of Prometheus as JSON, and the series that are kept, as `job;name`.

    `interval_s`: at which the hosts' own exporters are scraped."""
    return {
        "SCRAPE_TARGETS": json.dumps([_target(job, target, interval_s) for job, target in sorted(targets.items())]),
        "SCRAPE_KEEP": "|".join(_kept(job, target) for job, target in sorted(targets.items())),
    }


def _target(job: str, target: ScrapeTarget, interval_s: int) -> dict[str, str]:
    parts = urlsplit(target.url)
    interval = target.interval or f"{max(_INTERVAL_S, interval_s)}s"
    timeout_s = min(duration_s(interval) or 0, _LONGEST_TIMEOUT_S)
    return {
        **target.labels,
        "job": job,
        "__scheme__": parts.scheme,
        "__address__": parts.netloc,
        "__metrics_path__": parts.path or "/metrics",
        "__scrape_interval__": interval,
        "__scrape_timeout__": f"{timeout_s:g}s",
    }


def _kept(job: str, target: ScrapeTarget) -> str:
    names = [pattern.replace("*", ".*") for pattern in target.keep] or [".*"]
    return f"{job};(up|scrape_.*|{'|'.join(names)})"
