"""What the monitoring server of a stack needs to let others in: Caddy's users, and the secrets that only this host gets."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from components.fleet.fleet import Fleet
from components.fleet.scrape import check_password, password_hash
from components.stack import LoadedConfig
from gpu_fleet.host.parts.monitoring import GRAFANA_PASSWORD, PROXY_KEY, PROXY_LOGINS
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.naming import PROJECT


def server_secrets(loaded: LoadedConfig) -> dict[str, pulumi.Output[str]]:
    """By the name of the file on the monitoring server; empty where the stack has none."""
    config, secrets = loaded.config, loaded.secrets
    if config.monitoring is None:
        return {}
    users = _users(config)
    passwords = pulumi.Output.all(**{key: secrets[key] for key, _ in users.values() if key in secrets})
    found = {PROXY_KEY: secrets["monitoringKey"], PROXY_LOGINS: passwords.apply(lambda known: logins(config, known))}
    if config.monitoring.grafana:
        if "grafanaAuth" not in secrets:
            raise pulumi.RunError(
                f"{PROJECT}:grafanaAuth: must be a secret of the stack where it has a monitoring server: {_ADMIN}"
            )
        found[GRAFANA_PASSWORD] = secrets["grafanaAuth"].apply(_admin_password)
    return found


_ADMIN = f"`pulumi config set --secret {PROJECT}:grafanaAuth`, admin:PASSWORD"


def _admin_password(auth: str) -> str:
    user, _, password = auth.strip().partition(":")
    if user != "admin" or not password:
        raise pulumi.RunError(f"{PROJECT}:grafanaAuth: expected the login of the monitoring server's Grafana: {_ADMIN}")
    return password


def _users(config: StackConfig) -> dict[str, tuple[str, str | None]]:
    """Login of the Caddyfile -> key of the password, and user; no user where the stack sends that elsewhere."""
    here, rulers = config.monitoring_url, config.rulers
    metrics, logs, mimir = config.metrics, config.logs, rulers.mimir if rulers else None
    return {
        "metrics_login": ("metricsPassword", metrics.username if metrics and metrics.url.startswith(f"{here}/") else None),
        "logs_login": ("logsPassword", logs.username if logs and logs.url.startswith(f"{here}/") else None),
        "rules_login": ("rulersPassword", mimir.username if mimir and mimir.url == here else None),
    }


def logins(config: StackConfig, passwords: Mapping[str, str]) -> str:
    """Caddy's snippets with the users, by the names that the Caddyfile imports. Raises RunError."""
    text = ""
    for name, (key, user) in _users(config).items():
        if user is None or key not in passwords:
            text += f"({name}) {{\n\trespond 403\n}}\n"
            continue
        password = passwords[key].rstrip("\r\n")
        check_password(key, password)
        hashed = password_hash(f"{config.datacenter}/{config.cluster}", user, password)
        text += f"({name}) {{\n\tbasic_auth {{\n\t\t{user} {hashed}\n\t}}\n}}\n"
    return text


def once_serving(fleet: Fleet | None, config: StackConfig, url: str) -> pulumi.Input[str]:
    """The URL; if it is one of the monitoring server, known only once that server is there: whatever uses it waits for that.

    By the id of the host, which an update does not change: a preview of a new bundle shows no rule group as changed.
    """
    if fleet is None or fleet.server is None or not url.startswith(config.monitoring_url):
        return url
    return fleet.server.id.apply(lambda _: url)
