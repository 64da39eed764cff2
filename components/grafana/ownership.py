"""Whether what Grafana has under a name of ours belongs to somebody else.

Grafana and its plugin refuse a second folder, data source, rule group, mute timing or dashboard (without `overwrite`), but
nothing else: a contact point of the same name gets another integration, and is deleted as a whole later; a template and the
notification policy, of which there is one, are overwritten. So these are looked up before they are created.
Source: terraform-provider-grafana 4.44.0, resource_alerting_contact_point.go, resource_alerting_message_template.go,
resource_alerting_notification_policy.go, read 2026-11-22.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pulumi

_TIMEOUT_S: Final = 20
_PROVISIONING: Final = "/api/v1/provisioning"
# Receivers of a policy that nobody changed. Source: Grafana 12.4, conf/defaults.ini and docs of the provisioning API.
_DEFAULT_RECEIVERS: Final = ("grafana-default-email", "empty")


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Refuses to create what somebody else has in Grafana. `auth`: a token, or user:password. `takes_over`: never refuses."""

    url: pulumi.Input[str]
    auth: pulumi.Input[str] | None
    takes_over: bool

    def of_contact_point(self, resource: str, name: str) -> pulumi.ResourceHookBinding | None:
        return self._refusing(resource, f"contact-points?name={quote(name, safe='')}", f'a contact point "{name}"')

    def of_message_template(self, resource: str, name: str) -> pulumi.ResourceHookBinding | None:
        return self._refusing(resource, f"templates/{quote(name, safe='')}", f'a notification template "{name}"')

    def of_policy(self, resource: str) -> pulumi.ResourceHookBinding | None:
        return self._refusing(resource, "policies", "a notification policy")

    def _refusing(self, resource: str, path: str, what: str) -> pulumi.ResourceHookBinding | None:
        if self.takes_over:
            return None

        async def refuse(_: pulumi.ResourceHookArgs) -> None:
            url = await pulumi.Output.from_input(self.url).future()
            auth = await pulumi.Output.from_input(self.auth).future() if self.auth is not None else None
            if url is None:
                return  # a preview of a stack whose own Grafana does not run yet
            found = await asyncio.to_thread(_get, f"{url.rstrip('/')}{_PROVISIONING}/{path}", auth)
            if found and not _is_default_policy(found):
                raise RuntimeError(
                    f"{url} has {what} that this stack did not create: nothing of it was changed. If a run was killed, "
                    f"`make up STACK={pulumi.get_stack()}` takes over what that run had created. To replace it, write "
                    "`takeOver: true` under gpu-fleet:grafana for one `up`. To keep it, remove `receivers` from "
                    "gpu-fleet:alerts: your policy then routes our alerts by their labels."
                )

        return pulumi.ResourceHookBinding(before_create=[pulumi.ResourceHook(f"{resource}-owner", refuse)])


def _is_default_policy(found: Any) -> bool:
    if not isinstance(found, dict) or "receiver" not in found:
        return False
    return not found.get("routes") and not found.get("provenance") and found["receiver"] in _DEFAULT_RECEIVERS


def _get(url: str, auth: str | None) -> Any:
    """The answer's JSON; None: there is no such thing, or Grafana does not answer, which the creation itself reports."""
    headers = {"Accept": "application/json"}
    if auth:
        user, colon, _ = auth.partition(":")
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}" if user and colon else f"Bearer {auth}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None
