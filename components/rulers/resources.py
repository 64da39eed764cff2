"""The resource types of the gpu-fleet provider for rulers, as Pulumi classes. What they do is in gpu_fleet/provider/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pulumi

Backend = Literal["mimir", "loki"]


@dataclass(frozen=True, kw_only=True)
class RulerServer:
    """One server with a ruler. `url`: its base URL. `tenant`: None sends no X-Scope-OrgID. `username`, `bearer_token`,
    `certificate` (PEM): the provider has the secret that belongs to each. `ca`: PEM; empty: the authorities of this machine."""

    url: pulumi.Input[str]
    tenant: str | None = None
    username: str | None = None
    bearer_token: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str = ""
    certificate: str = ""

    def inputs(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "tenant": self.tenant,
            "username": self.username,
            "bearerToken": self.bearer_token or None,
            "headers": dict(self.headers) or None,
            "ca": self.ca or None,
            "certificate": self.certificate or None,
        }


class RuleGroup(pulumi.CustomResource):
    """One rule group of a ruler. `rules`: the group as YAML; becomes the group as the ruler keeps it, in one fixed spelling."""

    rules: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        backend: Backend,
        server: RulerServer,
        namespace: str,
        group: str,
        rules: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"backend": backend, **server.inputs(), "namespace": namespace, "name": group, "rules": rules}
        super().__init__("gpu-fleet:ruler:RuleGroup", name, props, opts)


class AlertmanagerConfig(pulumi.CustomResource):
    """The Alertmanager configuration of a tenant of Mimir. `config`: YAML; always a secret, since receivers hold tokens."""

    def __init__(
        self,
        name: str,
        *,
        server: RulerServer,
        config: pulumi.Input[str],
        templates: Mapping[str, str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            **server.inputs(),
            "config": pulumi.Output.secret(config),
            "templates": dict(templates) if templates else None,
        }
        super().__init__("gpu-fleet:ruler:AlertmanagerConfig", name, props, opts)
