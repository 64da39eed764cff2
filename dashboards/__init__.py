"""The fleet's Grafana dashboards: pure Python, one file per dashboard. `python -m dashboards DIR` writes their JSON."""

from __future__ import annotations

from typing import Any

from dashboards import fleet_overview, gpu, host, pipeline, workloads, xid
from dashboards.panels import LOKI_UID, MIMIR_UID

__all__ = ["LOKI_UID", "MIMIR_UID", "all_dashboards"]

_DASHBOARDS = (fleet_overview, host, gpu, xid, workloads, pipeline)


def all_dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard's JSON model (Grafana's classic schema, as Grafana 11 and 12 read it) by its uid."""
    built = [module.dashboard() for module in _DASHBOARDS]
    by_uid = {model["uid"]: model for model in built}
    assert len(by_uid) == len(built), "two dashboards have the same uid"
    return by_uid
