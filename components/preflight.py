"""What a run refuses before it makes any resource."""

from __future__ import annotations

import pulumi

import dashboards
import signals
from components.grafana.wiring import price
from stackfile.config import StackConfig


def check_signals(config: StackConfig) -> None:
    """Ends the program when a rule or a dashboard that this stack would bring somewhere is wrong, with every mistake at once."""
    if config.alerts is None and config.grafana is None and config.kubernetes is None:
        return
    try:
        signals.check_signals(signals.rule_files(), dashboards.models(price(config.grafana) if config.grafana else None))
    except signals.SignalErrors as errors:
        raise pulumi.RunError(str(errors)) from None
