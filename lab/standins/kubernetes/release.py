"""kubernetes:helm.sh/v3:Release: a chart in a cluster, by the real helm.

As in the official plugin the chart is rendered in the check: a preview tells that it is not there, or that its schema refuses the
values. A checksum of what was rendered makes every change of it one of the resource. A refresh sees other values, another version
or another status; it does not look at the objects.
Source: provider/pkg/provider/helm_release.go of pulumi/pulumi-kubernetes, read November 2026.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from lab.standins.kubernetes.client import Client
from lab.standins.kubernetes.helm import Helm, HelmError, documents, flags
from lab.standins.plugin import Call, Failure, Incomplete, Refusal, ResourceType, autoname
from lab.standins.properties import ASSET, SIGNATURE, UNKNOWN, Properties, has_unknown, plain
from lab.standins.schema import ListOf, MapOf, Mistake, Object, Property

TIMEOUT_S = 300
REPOSITORY = Object(
    "kubernetes:helm.sh/v3:RepositoryOpts",
    {
        "repo": Property(),
        "username": Property(),
        "password": Property(secret=True),
        "caFile": Property(),
        "certFile": Property(),
        "keyFile": Property(),
    },
)
STATUS = Object(
    "kubernetes:helm.sh/v3:ReleaseStatus",
    {
        "status": Property(required=True),
        "appVersion": Property(),
        "chart": Property(),
        "name": Property(),
        "namespace": Property(),
        "revision": Property(type="integer"),
        "version": Property(),
    },
)
SWITCHES = (
    *("allowNullValues", "atomic", "cleanupOnFail", "createNamespace", "dependencyUpdate", "devel", "disableCRDHooks"),
    *("disableOpenapiValidation", "disableWebhooks", "forceUpdate", "lint", "recreatePods", "renderSubchartNotes", "replace"),
    *("resetValues", "reuseValues", "skipAwait", "skipCrds", "verify", "waitForJobs"),
)
INPUTS = {
    "chart": Property(required=True),
    "version": Property(),
    "repositoryOpts": Property(type=REPOSITORY),
    "name": Property(replaces=True),
    "namespace": Property(replaces=True),
    "values": Property(type=MapOf("any")),
    "valueYamlFiles": Property(type=ListOf("asset")),
    "timeout": Property(type="integer"),
    "maxHistory": Property(type="integer"),
    "description": Property(),
    "keyring": Property(),
    "postrender": Property(),
    "compat": Property(),
    "manifest": Property(type=MapOf("any")),
    "resourceNames": Property(type=MapOf(ListOf("string"))),
    **{name: Property(type="boolean") for name in SWITCHES},
}
OUTPUTS = {"status": Property(type=STATUS, required=True)}
# The rendered chart's; in no schema, as in the official plugin.
CHECKSUM = "checksum"
BOTH = (
    ("atomic", "--atomic"),
    ("dependencyUpdate", "--dependency-update"),
    ("disableOpenapiValidation", "--disable-openapi-validation"),
    ("renderSubchartNotes", "--render-subchart-notes"),
)
INSTALL = (*BOTH, ("createNamespace", "--create-namespace"), ("replace", "--replace"), ("skipCrds", "--skip-crds"))
INSTALL = (*INSTALL, ("disableWebhooks", "--no-hooks"))
UPGRADE = (
    *BOTH,
    ("cleanupOnFail", "--cleanup-on-fail"),
    ("disableCRDHooks", "--no-hooks"),
    ("forceUpdate", "--force"),
    ("resetValues", "--reset-values"),
    ("reuseValues", "--reuse-values"),
)


@dataclass(frozen=True)
class Found:
    """A release as helm has it: `about` is what `helm get metadata` says."""

    about: Mapping[str, Any]
    values: Properties
    manifest: str
    status: str


class Release(ResourceType):
    type_name = "kubernetes:helm.sh/v3:Release"
    inputs = INPUTS
    outputs = OUTPUTS

    def __init__(self, client: Client) -> None:
        self._client = client

    def unfit(self, inputs: Properties) -> Iterator[Mistake]:
        return super().unfit({name: value for name, value in inputs.items() if name != CHECKSUM})

    def filled(self, call: Call, inputs: Properties, olds: Properties) -> Properties:
        inputs = {**inputs}
        inputs.setdefault("name", olds.get("name") or autoname(call.name))
        inputs.setdefault("namespace", self._client.namespace)
        if not plain(inputs.get("skipAwait")):
            inputs.setdefault("timeout", TIMEOUT_S)
        if has_unknown(inputs) or not self._client.is_usable:
            return inputs
        try:
            rendered = self._rendered(call, plain(inputs))
        except HelmError as error:
            raise Refusal(Mistake("chart", f"{error}; check the chart name and repository configuration.")) from None
        return {**inputs, CHECKSUM: hashlib.sha256(rendered.encode()).hexdigest(), "resourceNames": _names(rendered)}

    def preview_create(self, inputs: Properties) -> Properties:
        return {"status": UNKNOWN}

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        return {"status": UNKNOWN}

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        id = f"{inputs['namespace']}/{inputs['name']}"
        history = [f"--description={inputs['description']}"] if inputs.get("description") else []
        try:
            self._change(call, "install", inputs, [*flags(inputs, INSTALL), *history])
        except HelmError as error:
            if (found := self._found(call, inputs)) is None:
                raise Failure(str(error)) from None
            reason = (
                f'Helm release "{id}" was created, but failed to initialize completely. Use Helm CLI to investigate.: {error}'
            )
            raise Incomplete(reason, id, self._kept(inputs, found)) from None
        return id, self._outputs(call, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        more = [*flags(news, UPGRADE), f"--history-max={news.get('maxHistory', 0)}"]
        more += [f"--description={news['description']}"] if news.get("description") else []
        try:
            self._change(call, "upgrade", news, more)
        except HelmError as error:
            found = self._found(call, news)
            reason = f'Helm release "{id}" failed to initialize completely. Use Helm CLI to investigate.: {error}'
            raise (Failure(str(error)) if found is None else Incomplete(reason, id, self._kept(news, found))) from None
        return self._outputs(call, news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        namespace, _, name = id.rpartition("/")
        found = self._found(call, {"name": name, "namespace": namespace})
        if found is None:
            return None
        live = {**inputs} if inputs else {"chart": found.about["chart"], "name": name, "namespace": namespace}
        if found.values or inputs.get("values"):
            live["values"] = found.values
        if inputs.get("version"):
            live["version"] = found.about["version"]
        return live, self._kept(live, found)

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        """As with the official plugin, a release that is gone already is an error until a refresh has seen that it is."""
        if not self._client.is_usable and self._client.settings.get("deleteUnreachable"):
            return
        waits = outputs.get("atomic") or not outputs.get("skipAwait")
        waiting = ["--wait", f"--timeout={outputs.get('timeout') or TIMEOUT_S}s"] if waits else []
        try:
            with self._helm(call) as helm:
                helm.run("uninstall", outputs["name"], "--namespace", outputs["namespace"], *waiting)
        except HelmError as error:
            raise Failure(str(error)) from None

    @contextmanager
    def _helm(self, call: Call) -> Iterator[Helm]:
        with Helm.of(self._client.kubeconfig_text, self._client.settings.get("helmReleaseSettings") or {}, call) as helm:
            yield helm

    def _rendered(self, call: Call, inputs: Properties) -> str:
        more = [] if inputs.get("skipCrds") else ["--include-crds"]
        more += flags(inputs, [("disableWebhooks", "--no-hooks"), ("dependencyUpdate", "--dependency-update")])
        with self._helm(call) as helm, helm.chart(inputs) as chart:
            if inputs.get("lint"):
                helm.run("lint", chart, values=_values(inputs))
            return helm.run("template", inputs["name"], chart, "--namespace", inputs["namespace"], *more, values=_values(inputs))

    def _change(self, call: Call, verb: str, inputs: Properties, more: list[str]) -> None:
        if not inputs.get("skipAwait"):
            more += ["--wait", *flags(inputs, [("waitForJobs", "--wait-for-jobs")])]
        more += [f"--timeout={inputs.get('timeout') or TIMEOUT_S}s"]
        more += [f"--post-renderer={inputs['postrender']}"] if inputs.get("postrender") else []
        with self._helm(call) as helm, helm.chart(inputs) as chart:
            helm.run(verb, inputs["name"], chart, "--namespace", inputs["namespace"], *more, values=_values(inputs))

    def _outputs(self, call: Call, inputs: Properties) -> Properties:
        found = self._found(call, inputs)
        if found is None:
            raise Failure(f"Helm release {inputs['namespace']}/{inputs['name']} is gone")
        return self._kept(inputs, found)

    def _found(self, call: Call, inputs: Properties) -> Found | None:
        """The last revision; None when there is no such release."""
        which = [inputs["name"], "--namespace", inputs["namespace"], "--output", "json"]
        try:
            with self._helm(call) as helm:
                kept = json.loads(helm.run("status", *which))
                about = json.loads(helm.run("get", "metadata", *which))
        except HelmError as error:
            if "not found" in str(error):
                return None
            raise Failure(str(error)) from None
        return Found(about=about, values=kept.get("config") or {}, manifest=kept["manifest"], status=kept["info"]["status"])

    def _kept(self, inputs: Properties, found: Found) -> Properties:
        same = ("appVersion", "chart", "name", "namespace", "revision", "version")
        status = {"status": found.status, **{name: found.about[name] for name in same if name in found.about}}
        return {**inputs, "version": found.about["version"], "resourceNames": _names(found.manifest), "status": status}


def _values(inputs: Properties) -> Properties:
    """The files' values below those that are given; a null takes a value away where nulls are allowed."""
    merged: Properties = {}
    for file in inputs.get("valueYamlFiles") or []:
        merged = _merged(merged, yaml.safe_load(_text(file)) or {})
    merged = _merged(merged, inputs.get("values") or {})
    return merged if inputs.get("allowNullValues") else _without_nulls(merged)


def _text(asset: Properties) -> str:
    if asset.get(SIGNATURE) != ASSET or ("text" not in asset and "path" not in asset):
        raise Failure("valueYamlFiles takes files and strings as assets")
    if "text" in asset:
        return asset["text"]
    with open(asset["path"]) as file:  # noqa: PTH123 - a path of the program's, as it is
        return file.read()


def _merged(below: Properties, above: Properties) -> Properties:
    result = {**below}
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = _merged(result[name], value) if both else value
    return result


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nulls(item) for name, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value if item is not None]
    return value


def _names(manifest: str) -> dict[str, list[str]]:
    """Kind and apiVersion (`DaemonSet.apps/apps/v1`) to the names of the objects, with their namespace where they have one."""
    names: dict[str, list[str]] = {}
    for each in documents(manifest):
        group, _, _ = each["apiVersion"].rpartition("/")
        kind = f"{each['kind']}.{group}/{each['apiVersion']}" if group else f"{each['kind']}/{each['apiVersion']}"
        metadata = each.get("metadata") or {}
        names.setdefault(kind, []).append("/".join(filter(None, [metadata.get("namespace"), metadata.get("name", "")])))
    return {kind: sorted(found) for kind, found in sorted(names.items())}
