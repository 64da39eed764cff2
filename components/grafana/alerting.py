"""Alerting by Grafana: alert rules, contact points, the notification policy and mute timings.

An organisation of Grafana has one notification policy, and whoever writes it owns all of it. It is written only for a stack that
names receivers; and the rules' folder has one fixed uid, which Grafana gives to one stack only: a second one is refused before it
touches the policy.

Not done here: the rules themselves (alerts/), the data sources that they query (dashboards.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pulumi
import pulumiverse_grafana as grafana

from alerts.channels import contact_point, grafana_template
from alerts.grafana_rules import ON_NO_DATA, GrafanaRule, GrafanaRuleGroup
from components.grafana import policy
from components.grafana.ownership import Owner
from gpu_fleet.stackfile.alerts import Alerts
from gpu_fleet.stackfile.naming import PROJECT, grafana_uid, type_token

FOLDER_UID: Final = f"{PROJECT}-alerts"


@dataclass(frozen=True, kw_only=True)
class AlertingArgs:
    """`folder`: title. `data_sources`: what a rule calls its source, to the uid in Grafana. `permissions`: see FolderPermission.

    `notifications`: the section with receivers; None leaves Grafana's existing policy as it is. `secrets`: those that they name.
    """

    folder: str
    permissions: Sequence[Mapping[str, str]] = ()
    data_sources: Mapping[str, str]
    groups: Sequence[GrafanaRuleGroup]
    owner: Owner
    notifications: Alerts | None = None
    secrets: Mapping[str, Any] = field(default_factory=dict)


class Alerting(pulumi.ComponentResource):
    """A folder with every rule group as one resource, and the notification policy with what it names."""

    def __init__(self, name: str, args: AlertingArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("grafana", "Alerting"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)  # the provider is inherited
        folder = grafana.oss.Folder(
            f"{name}-folder",
            title=args.folder,
            uid=FOLDER_UID,
            prevent_destroy_if_not_empty=True,  # others may have put rules and dashboards there
            opts=child,
        )
        if args.permissions:
            permissions = [grafana.oss.FolderPermissionPermissionArgs(**entry) for entry in args.permissions]
            grafana.oss.FolderPermission(f"{name}-folder-permissions", folder_uid=folder.uid, permissions=permissions, opts=child)
        for group in args.groups:
            grafana.alerting.RuleGroup(
                f"{name}-{group.name}",
                name=group.name,
                folder_uid=folder.uid,
                interval_seconds=group.interval_s,
                rules=[_rule(rule, args.data_sources[rule.source]) for rule in group.rules],
                opts=child,
            )
        if args.notifications:
            self._notify(name, args, policy.as_grafana_can(args.notifications), folder)
        self.register_outputs({})

    def _notify(self, name: str, args: AlertingArgs, section: Alerts, folder: grafana.oss.Folder) -> None:
        owner = args.owner

        def child(after: Sequence[pulumi.Resource], hooks: pulumi.ResourceHookBinding | None = None) -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(parent=self, depends_on=after, hooks=hooks)

        texts = grafana.alerting.MessageTemplate(
            f"{name}-texts",
            name=PROJECT,
            template=grafana_template(),
            opts=child([folder], owner.of_message_template(f"{name}-texts", PROJECT)),
        )
        named: list[pulumi.Resource] = []
        for called, receiver in section.receivers.items():
            resource = f"{name}-receiver-{called}"
            named.append(
                grafana.alerting.ContactPoint(
                    resource,
                    name=called,
                    **contact_point(receiver, args.secrets),
                    opts=child([texts], owner.of_contact_point(resource, called)),
                )
            )
        for called, timing in section.mute_timings.items():
            named.append(
                grafana.alerting.MuteTiming(
                    f"{name}-mute-{called}", name=called, intervals=[policy.mute_timing(timing)], opts=child([folder])
                )
            )
        grafana.alerting.NotificationPolicy(
            f"{name}-policy", **policy.policy(section), opts=child(named, owner.of_policy(f"{name}-policy"))
        )


def _rule(rule: GrafanaRule, data_source_uid: str) -> grafana.alerting.RuleGroupRuleArgsDict:
    return {
        "uid": grafana_uid("alert", rule.title),
        "name": rule.title,
        "condition": rule.condition,
        "datas": [_node(node) for node in rule.nodes(data_source_uid)],
        "for_": rule.for_,
        "keep_firing_for": rule.keep_firing_for,
        "no_data_state": ON_NO_DATA,
        "exec_err_state": rule.on_error,
        # A rule paused by hand is unpaused: Pulumi repairs only what the program sets.
        "is_paused": False,
        # An alert is over when its row is gone, as in a ruler, and not an evaluation later.
        "missing_series_evals_to_resolve": 1,
        "labels": dict(rule.labels),
        "annotations": dict(rule.annotations),
    }


def _node(node: Mapping[str, Any]) -> grafana.alerting.RuleGroupRuleDataArgsDict:
    times = node["relativeTimeRange"]
    return {
        "ref_id": node["refId"],
        "datasource_uid": node["datasourceUid"],
        "query_type": node["queryType"],
        "relative_time_range": {"from_": times["from"], "to": times["to"]},
        # Sorted and without spaces, as Grafana's plugin writes it into the state.
        "model": json.dumps(node["model"], sort_keys=True, separators=(",", ":")),
    }
