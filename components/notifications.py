"""The links of every alert, from the stack file. Pure."""

from __future__ import annotations

import dashboards
from alerts.links import GrafanaLinks, Links
from gpu_fleet.stackfile.config import StackConfig


def links(config: StackConfig) -> Links:
    """Of a stack with `alerts` and `grafana`: links to Grafana. Its runbooks are the default, because they need no server."""
    grafana = None
    if config.grafana:
        grafana = GrafanaLinks(
            url=config.grafana.url,
            incident=dashboards.uid("incident"),
            host=dashboards.uid("host"),
            cluster=dashboards.uid("cluster"),
            logs=config.grafana.logs_data_source or (dashboards.LOKI_UID if config.rulers and config.rulers.loki else None),
            runbooks=dashboards.runbook_paths(),
        )
    runbooks = config.alerts.runbook_url if config.alerts else None
    return Links(runbooks=runbooks, grafana=grafana, has_jobs=config.jobs is not None)
