"""Queries of the dev commands to Mimir, Loki and the receiver. An unreachable server counts as empty."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

LABELS = ("datacenter", "cluster", "instance", "exporter_mode")


def get(url: str, **parameters: str) -> Any:
    if parameters:
        url += "?" + urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  always http to loopback
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError, ValueError, ConnectionError):
        return None


def metrics(mimir: str, promql: str) -> list[dict[str, Any]]:
    answer = get(f"{mimir}/prometheus/api/v1/query", query=promql)
    return answer["data"]["result"] if answer else []


def labelled_utilization(mimir: str) -> list[dict[str, Any]]:
    """The series of GPU utilization with all four labels, one per GPU."""
    return [series for series in metrics(mimir, "gpu:utilization:ratio") if all(series["metric"].get(label) for label in LABELS)]


def kernel_lines(loki: str, *, xid: int, since_s: int = 3600) -> list[str]:
    return log_lines(loki, f'{{job="kernel", xid="{xid}"}}', since_s=since_s)


def log_lines(loki: str, query: str, *, since_s: int = 3600) -> list[str]:
    answer = get(
        f"{loki}/loki/api/v1/query_range",
        query=query,
        start=str(time.time_ns() - since_s * 10**9),
        limit="100",
    )
    return [line for stream in answer["data"]["result"] for _, line in stream["values"]] if answer else []


def received_alerts(receiver: str) -> list[dict[str, Any]]:
    return get(f"{receiver}/alerts") or []


def active_alerts(alertmanager: str) -> list[dict[str, Any]]:
    return get(f"{alertmanager}/api/v2/alerts", active="true") or []
