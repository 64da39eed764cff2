"""The grafana package: of version 2.44.0 of the official plugin the resource types that this project uses."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lab.standins import plugin
from lab.standins.grafana.client import Grafana
from lab.standins.grafana.contact_point import ContactPoint
from lab.standins.grafana.dashboard import Dashboard
from lab.standins.grafana.data_source import DataSource
from lab.standins.grafana.folder import Folder, FolderPermission
from lab.standins.grafana.message_template import MessageTemplate
from lab.standins.grafana.mute_timing import MuteTiming
from lab.standins.grafana.notification_policy import NotificationPolicy
from lab.standins.grafana.rule_group import RuleGroup
from lab.standins.properties import Properties
from lab.standins.schema import ListOf, MapOf, Property

RESOURCES = (
    Folder,
    FolderPermission,
    Dashboard,
    DataSource,
    RuleGroup,
    ContactPoint,
    NotificationPolicy,
    MuteTiming,
    MessageTemplate,
)
CONFIG = {
    "url": Property(),
    "auth": Property(secret=True),
    "orgId": Property(type="integer"),
    "httpHeaders": Property(type=MapOf("string"), secret=True),
    "caCert": Property(),
    "insecureSkipVerify": Property(type="boolean"),
    "retries": Property(type="integer"),
    "retryWait": Property(type="integer"),
    "retryStatusCodes": Property(type=ListOf("string")),
}
# By which variables the official plugin takes what the configuration does not give.
VARIABLES = {"url": "GRAFANA_URL", "auth": "GRAFANA_AUTH", "caCert": "GRAFANA_CA_CERT"}


def main(arguments: Sequence[str]) -> int:
    grafana = Grafana()

    def configure(config: Properties) -> None:
        from_environment = {name: os.environ[variable] for name, variable in VARIABLES.items() if variable in os.environ}
        grafana.configure({**from_environment, **config})

    resources = [resource(grafana) for resource in RESOURCES]
    return plugin.main(arguments, plugin.Plugin("grafana", "2.44.0", resources, config=CONFIG, configure=configure))
