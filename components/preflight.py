"""Checks that run before any resource is created."""

from __future__ import annotations

import pulumi

from gpu_fleet.host.artifacts import ArtifactsError
from gpu_fleet.stackfile.artifacts import permit_artifacts
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.stand_ins import StandInsRefused


def check_signals(config: StackConfig) -> None:
    """Ends the program with all errors in the rules and dashboards, if this stack would deploy any."""
    if config.alerts is None and config.grafana is None and config.kubernetes is None:
        return
    # Here because a stack of hosts alone needs neither.
    from components import custom
    from gpu_fleet import signals

    try:
        for warning in custom.check_signals(config):
            pulumi.log.warn(warning)
    except signals.SignalErrors as errors:
        raise pulumi.RunError(str(errors)) from None


def check_artifacts(config: StackConfig) -> None:
    """Ends the program when this stack would bring simulated programs to its hosts."""
    try:
        if warning := permit_artifacts(config, pulumi.get_stack()):
            pulumi.log.warn(warning)
    except (ArtifactsError, StandInsRefused) as error:
        raise pulumi.RunError(str(error)) from None
