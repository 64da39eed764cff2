"""The provider's configuration: a stack's logins and secrets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet.provider.host import IDLE_S
from gpu_fleet.provider.rollout import RolloutRules
from gpu_fleet.provider.ruler import Logins
from gpu_fleet.provider.schema import InputError, errors_of_config, schema
from gpu_fleet.provider.values import UNKNOWN, is_known

PLAN_VARIABLE = "PLAN"  # PLAN=hosts: previews run `plan` on the hosts


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`ssh`, `kubernetes`: as in the schema. Secrets are excluded from repr, so that no log can show them.

    Paths may start with ~; relative ones are resolved in the working directory: the engine starts a provider in the project's
    (pulumi 3.259.0, sdk/go/common/resource/plugin/provider_plugin.go: newPlugin(ctx, ctx.Pwd, …)).
    """

    ssh: Mapping[str, Any] = field(default_factory=dict)
    ssh_private_key: str | None = field(default=None, repr=False)
    sudo_password: str | None = field(default=None, repr=False)
    sudo_passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # by host
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ruler_logins: Logins = field(default_factory=Logins)
    take_over_rulers: bool = False
    kubernetes: Mapping[str, str] | None = None  # None: the stack has no Kubernetes cluster
    kubeconfig: str | None = field(default=None, repr=False)
    artifact_directory: Path | None = None
    lost_hosts: frozenset[str] = frozenset()
    rollout: RolloutRules = field(default_factory=RolloutRules)
    digest_key: str = field(default="", repr=False)
    is_known: bool = True  # False in a preview whose configuration depends on other resources
    plans_on_hosts: bool = False

    @property
    def idle_s(self) -> float:
        return float(self.ssh.get("idleSeconds") or IDLE_S)

    @classmethod
    def of(cls, config: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
        """From validated configuration."""
        values = {key: value for key, value in parse(config)[0].items() if is_known(value)}
        directory = values.get("artifactDirectory")
        return cls(
            ssh=values.get("ssh") or {},
            ssh_private_key=values.get("sshPrivateKey"),
            sudo_password=values.get("sudoPassword"),
            sudo_passwords=values.get("sudoPasswords") or {},
            secrets=values.get("secrets") or {},
            ruler_logins=Logins(
                password=values.get("rulerPassword"),
                bearer_token=values.get("rulerBearerToken"),
                client_key=values.get("rulerClientKey"),
            ),
            take_over_rulers=values.get("takeOverRulers", False),
            kubernetes=values.get("kubernetes"),
            kubeconfig=values.get("kubeconfig"),
            artifact_directory=Path(directory).expanduser().absolute() if directory else None,
            lost_hosts=frozenset(values.get("lostHosts") or ()),
            rollout=_rollout(values.get("rollout") or {}),
            digest_key=values.get("digestKey") or "",
            is_known=is_known(config),
            plans_on_hosts=environment.get(PLAN_VARIABLE) == "hosts",
        )

    def secrets_without(self, withheld: Collection[str]) -> dict[str, str]:
        """Those of a host that does not get these."""
        return {name: value for name, value in self.secrets.items() if name not in withheld}

    def secrets_digest(self, withheld: Collection[str]) -> Any:
        """Changes when a secret placed on the host changes; reveals nothing about it without the key."""
        if not self.is_known:
            return UNKNOWN
        if not (secrets_of_host := self.secrets_without(withheld)):
            return ""
        text = json.dumps(secrets_of_host, sort_keys=True)
        return hmac.new(self.digest_key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]

    def every_secret(self) -> frozenset[str]:
        """What no message may contain."""
        values = {
            *(self.ssh_private_key, self.sudo_password, self.kubeconfig, self.digest_key),
            *(self.ruler_logins.password, self.ruler_logins.bearer_token, self.ruler_logins.client_key),
            *self.sudo_passwords.values(),
            *self.secrets.values(),
            *secrets_of_kubeconfig(self.kubeconfig),
        }
        return frozenset(value for value in values if value)


_SECRET_KEYS = ("token", "password", "secret", "-key-data", "key")  # how the names of secrets in a kubeconfig end


def secrets_of_kubeconfig(text: str | None) -> set[str]:
    """The credentials of its users, also as they were before they were encoded. Empty when the text cannot be read."""
    try:
        users = yaml.safe_load(text or "")["users"]
    except (yaml.YAMLError, TypeError, KeyError):
        return set()
    found: set[str] = set()

    def collect(key: str, value: object) -> None:
        if isinstance(value, Mapping):
            if "name" in value and "value" in value:  # an environment variable of a credential plugin
                collect("secret", value["value"])
            for name, inner in value.items():
                collect(str(name), inner)
        elif isinstance(value, list):
            for inner in value:
                collect(key, inner)
        elif isinstance(value, str) and key.lower().endswith(_SECRET_KEYS):
            found.add(value)
            with contextlib.suppress(ValueError):
                found.add(base64.b64decode(value, validate=True).decode())

    collect("users", users)
    return found


def _rollout(values: Mapping[str, Any]) -> RolloutRules:
    return RolloutRules(
        has_canary=values.get("hasCanary", False),
        max_failures=values.get("maxFailures", 0),
        pause_s=values.get("pauseSeconds", 0),
    )


def parse(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[InputError]]:
    """The configuration with its objects and lists parsed: SDKs send them as JSON text."""
    values, errors = dict(config), []
    for name, definition in schema()["provider"]["inputProperties"].items():
        if definition.get("type") != "string" and isinstance(values.get(name), str):
            try:
                values[name] = json.loads(values[name])
            except ValueError:
                errors.append(InputError(name, "is not JSON"))
                del values[name]
    return values, errors + errors_of_config(values)


def digest_key(config: Mapping[str, Any], old: Mapping[str, Any]) -> Any:
    """The configured key, else the one from the state, else a new one."""
    return config.get("digestKey") or old.get("digestKey") or secrets.token_hex(16)
