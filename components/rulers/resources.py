"""The resource types of the gpu-fleet provider for rulers, as Pulumi classes. What they do is in provider/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pulumi

Backend = Literal["mimir", "loki"]


class RuleGroup(pulumi.CustomResource):
    """One rule group of a ruler. `rules`: the group as YAML; becomes the group as the ruler keeps it, in one fixed spelling.

    `url`: base URL of the server. `tenant`: None sends no X-Scope-OrgID. `username`: the provider's ruler_password belongs to it.
    """

    rules: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        backend: Backend,
        url: pulumi.Input[str],
        namespace: str,
        group: str,
        rules: pulumi.Input[str],
        tenant: str | None = None,
        username: str | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "backend": backend,
            "url": url,
            "tenant": tenant,
            "username": username,
            "namespace": namespace,
            "name": group,
            "rules": rules,
        }
        super().__init__("gpu-fleet:ruler:RuleGroup", name, props, opts)


class AlertmanagerConfig(pulumi.CustomResource):
    """The Alertmanager configuration of a tenant of Mimir. `config`: YAML; always a secret, since receivers hold tokens."""

    def __init__(
        self,
        name: str,
        *,
        url: pulumi.Input[str],
        config: pulumi.Input[str],
        templates: Mapping[str, str] | None = None,
        tenant: str | None = None,
        username: str | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "url": url,
            "tenant": tenant,
            "username": username,
            "config": pulumi.Output.secret(config),
            "templates": dict(templates) if templates else None,
        }
        super().__init__("gpu-fleet:ruler:AlertmanagerConfig", name, props, opts)
