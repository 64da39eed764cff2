"""From the stack's configuration to the arguments of Rulers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi

import alerts
from alerts.alertmanager import alertmanager_config, templates
from alerts.model import to_yaml
from components import notifications
from components.backend.once_up import once_up
from components.custom import customization
from components.fleet.fleet import Fleet
from components.fleet.monitoring import once_serving
from components.inventory import inventory
from components.rulers.resources import RulerServer
from components.rulers.rulers import RulersArgs
from components.stack import LoadedConfig
from gpu_fleet.stackfile.sections import Ruler

if TYPE_CHECKING:
    from components.backend.backend import Backend


def rulers_args(loaded: LoadedConfig, backend: Backend | None, fleet: Fleet | None = None) -> RulersArgs:
    """What this stack gives to the rulers it names.

    The rules and receivers come from the stack that has an `alerts` section, one per ruler and tenant; where only Grafana
    evaluates alerts, the ruler still records what their queries need. Every stack with hosts adds the inventory it expects,
    under a name of its own.
    """
    config = loaded.config
    assert config.rulers is not None
    mimir, loki = config.rulers.mimir, config.rulers.loki
    section = config.alerts
    evaluates = section is not None and "ruler" in section.targets
    if section is None:
        mimir_groups, loki_groups = [], []
    elif evaluates:
        links, custom = notifications.links(config), customization(config)
        mimir_groups, loki_groups = (alerts.rule_groups(of, links, custom) for of in ("mimir", "loki"))
    else:
        mimir_groups, loki_groups = alerts.recording_groups(customization(config)), []
    return RulersArgs(
        mimir=_server(loaded, mimir, backend, fleet) if mimir else None,
        mimir_groups=[*mimir_groups, *inventory(config)],
        loki=_server(loaded, loki, backend, fleet) if loki else None,
        loki_groups=loki_groups,
        # Without receivers there is nobody to notify: the tenant's own configuration, if it has one, routes our alerts.
        alertmanager=_alertmanager(loaded) if section and section.receivers and evaluates else None,
        alertmanager_templates=templates(),
    )


def _server(loaded: LoadedConfig, ruler: Ruler, backend: Backend | None, fleet: Fleet | None) -> RulerServer:
    return RulerServer(
        url=once_up(backend, ruler.url) if backend else once_serving(fleet, loaded.config, ruler.url),
        tenant=ruler.tenant,
        username=ruler.username,
        bearer_token=ruler.bearer_token,
        headers=ruler.headers,
        ca=loaded.config.pem(ruler.tls.ca),
        certificate=loaded.config.pem(ruler.tls.certificate),
    )


def _alertmanager(loaded: LoadedConfig) -> pulumi.Output[str]:
    """Mimir's Alertmanager configuration, with the secrets of its receivers."""
    section = loaded.config.alerts
    assert section is not None
    secrets = pulumi.Output.all(**{name: loaded.secrets[name] for name in section.secret_names})
    return secrets.apply(lambda values: to_yaml(alertmanager_config(section, values)))
