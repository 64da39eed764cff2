"""A small fleet with an hour of history, in a real Mimir and a real Loki, to view and test dashboards.

It has every exporter mode. The simulators of lab/gpu render the exporter output of each host for the last hour, Mimir evaluates
the project's own rules over it, and Loki has the kernel and container log lines. The hour ends with incidents; until half an hour
before its end everything was healthy. Nothing waits for time to pass.

Not done here: agents and rulers at work (make dev has both).
"""

from __future__ import annotations

from lab.showcase.fleet import HOSTS, MODES, Host, Mode
from lab.showcase.showcase import Showcase

__all__ = ["HOSTS", "MODES", "Host", "Mode", "Showcase"]
