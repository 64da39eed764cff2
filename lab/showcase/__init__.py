"""A small fleet with a past, in a real Mimir and a real Loki: what dashboards are looked at and tested with.

Every exporter mode is there. The simulators of lab/gpu render what each host's exporter would have said during the last hour,
the project's own rules are evaluated over it by Mimir, and the kernel's and containers' lines lie in Loki. The hour ends with
incidents; half an hour before its end all was well. Nothing waits for time to pass.

Not done here: agents and rulers at work (make dev has both).
"""

from __future__ import annotations

from lab.showcase.fleet import HOSTS, MODES, Host, Mode
from lab.showcase.showcase import Showcase

__all__ = ["HOSTS", "MODES", "Host", "Mode", "Showcase"]
