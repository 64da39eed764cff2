"""What the rulers of Mimir and Loki evaluate: recording rules and alerts as rule groups, and Mimir's Alertmanager configuration.

Not done here: what the rules say (alerts/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pulumi

from components.rulers.resources import AlertmanagerConfig, Backend, RuleGroup, RulerServer
from gpu_fleet.stackfile.naming import type_token


class Group(Protocol):
    """A rule group as alerts/ gives it; `yaml` is the group as a rule file writes it."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def yaml(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class RulersArgs:
    """`alertmanager`: Mimir's Alertmanager configuration as YAML, with the secrets of its receivers; None leaves it alone.

    `alertmanager_templates`: the template files that it names, file name to content.
    """

    mimir: RulerServer | None = None
    mimir_groups: Sequence[Group] = ()
    loki: RulerServer | None = None
    loki_groups: Sequence[Group] = ()
    alertmanager: pulumi.Input[str] | None = None
    alertmanager_templates: Mapping[str, str] = field(default_factory=dict)


class Rulers(pulumi.ComponentResource):
    """Every rule group of a stack, as one resource each, so that a preview shows which rule changes."""

    def __init__(self, name: str, args: RulersArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("rulers", "Rulers"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        sources: tuple[tuple[Backend, RulerServer | None, Sequence[Group]], ...] = (
            ("mimir", args.mimir, args.mimir_groups),
            ("loki", args.loki, args.loki_groups),
        )
        for backend, server, groups in sources:
            if server is None:
                continue
            for group in groups:
                RuleGroup(
                    f"{name}-{backend}-{group.namespace}-{group.name}",
                    backend=backend,
                    server=server,
                    namespace=group.namespace,
                    group=group.name,
                    rules=group.yaml,
                    opts=child,
                )
        if args.mimir and args.alertmanager is not None:
            AlertmanagerConfig(
                f"{name}-alertmanager",
                server=args.mimir,
                config=args.alertmanager,
                templates=args.alertmanager_templates,
                opts=child,
            )
        self.register_outputs({})
