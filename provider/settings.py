"""The provider's configuration: logins and secrets of a stack."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provider.rollout import RolloutRules
from provider.schema import Mistake, mistakes_of_config, schema
from provider.values import UNKNOWN, is_known

PLAN_VARIABLE = "PLAN"  # PLAN=hosts: previews ask the hosts what would change there


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`ssh`, `kubernetes`: as in the schema. Secrets are left out of repr, so that no log can show them.

    Paths may start with ~, and relative ones start in the working directory: the engine starts a provider in the project's
    (pulumi 3.259.0, sdk/go/common/resource/plugin/provider_plugin.go: newPlugin(ctx, ctx.Pwd, …)).
    """

    ssh: Mapping[str, Any] = field(default_factory=dict)
    ssh_private_key: str | None = field(default=None, repr=False)
    sudo_password: str | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ruler_password: str | None = field(default=None, repr=False)
    kubernetes: Mapping[str, str] | None = None  # None: the stack has no cluster
    kubeconfig: str | None = field(default=None, repr=False)
    artifact_directory: Path | None = None
    lost_hosts: frozenset[str] = frozenset()
    rollout: RolloutRules = field(default_factory=RolloutRules)
    digest_key: str = field(default="", repr=False)
    is_known: bool = True  # False in a preview whose configuration waits for other resources
    plans_on_hosts: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
        """From checked configuration."""
        values = {key: value for key, value in parse(config)[0].items() if is_known(value)}
        directory = values.get("artifactDirectory")
        return cls(
            ssh=values.get("ssh") or {},
            ssh_private_key=values.get("sshPrivateKey"),
            sudo_password=values.get("sudoPassword"),
            secrets=values.get("secrets") or {},
            ruler_password=values.get("rulerPassword"),
            kubernetes=values.get("kubernetes"),
            kubeconfig=values.get("kubeconfig"),
            artifact_directory=Path(directory).expanduser().absolute() if directory else None,
            lost_hosts=frozenset(values.get("lostHosts") or ()),
            rollout=_rollout(values.get("rollout") or {}),
            digest_key=values.get("digestKey") or "",
            is_known=is_known(config),
            plans_on_hosts=environment.get(PLAN_VARIABLE) == "hosts",
        )

    def secrets_digest(self) -> Any:
        """Changes when a secret that hosts get changes, and tells nothing about it to whoever lacks the key."""
        if not self.is_known:
            return UNKNOWN
        if not self.secrets:
            return ""
        text = json.dumps(self.secrets, sort_keys=True)
        return hmac.new(self.digest_key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]

    def every_secret(self) -> frozenset[str]:
        """What no message may contain. Very short ones are left out: hiding "a" would hide every word."""
        values = {self.sudo_password, self.ruler_password, *self.secrets.values()}
        return frozenset(value for value in values if value and len(value) >= 4)


def _rollout(values: Mapping[str, Any]) -> RolloutRules:
    return RolloutRules(
        has_canary=values.get("hasCanary", False),
        max_failures=values.get("maxFailures", 0),
        pause_s=values.get("pauseSeconds", 0),
    )


def parse(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """The configuration with its objects and lists read: SDKs send them as JSON text."""
    values, mistakes = dict(config), []
    for name, definition in schema()["provider"]["inputProperties"].items():
        if definition.get("type") != "string" and isinstance(values.get(name), str):
            try:
                values[name] = json.loads(values[name])
            except ValueError:
                mistakes.append(Mistake(name, "is not JSON"))
                del values[name]
    return values, mistakes + mistakes_of_config(values)


def digest_key(config: Mapping[str, Any], old: Mapping[str, Any]) -> Any:
    """The configured key, else the one in the state, else a new one."""
    return config.get("digestKey") or old.get("digestKey") or secrets.token_hex(16)
