"""The fleet's Grafana dashboards: pure Python, one file per dashboard. `python -m dashboards DIR` writes their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dashboards import (
    capacity,
    cluster,
    fleet_overview,
    gpu,
    host,
    incident,
    inference,
    jobs,
    pipeline,
    runbooks,
    slurm,
    workloads,
    xid,
)
from dashboards.capacity import Price
from dashboards.layout import uid, with_sources
from dashboards.panels import LOKI_UID, MIMIR_UID
from dashboards.runbooks import runbook_paths

__all__ = ["LOKI_UID", "MIMIR_UID", "Price", "all_dashboards", "models", "runbook_paths", "uid"]


def all_dashboards(
    price: Price | None = None,
    *,
    metrics_uid: str | None = None,
    logs_uid: str | None = None,
    custom: Iterable[Mapping[str, Any]] = (),
) -> dict[str, dict[str, Any]]:
    """Every dashboard's JSON model by its uid, which no two share: those with queries, and the runbooks. `price`: see models.
    `metrics_uid`, `logs_uid`: of the data sources that the dashboards open with; None: ours. `custom`: dashboards of a stack's
    own, which open with the same."""
    sources = {"datasource": metrics_uid or MIMIR_UID, "logs_datasource": logs_uid or LOKI_UID}
    boards = [*(with_sources(model, sources) for model in (*models(price), *custom)), runbooks.dashboard()]
    return {model["uid"]: model for model in boards}


def models(price: Price | None = None) -> list[dict[str, Any]]:
    """The JSON model of every dashboard with queries: Grafana's classic schema of the version in layout.SCHEMA_VERSION.

    `price`: of a GPU-hour, if the stack file has it; without a price there are no panels about cost.
    """
    return [
        fleet_overview.dashboard(),
        cluster.dashboard(),
        host.dashboard(),
        gpu.dashboard(),
        xid.dashboard(),
        incident.dashboard(),
        workloads.dashboard(),
        jobs.dashboard(),
        slurm.dashboard(),
        inference.dashboard(),
        capacity.dashboard(price),
        pipeline.dashboard(),
    ]
