"""kubernetes:helm.sh/v3:Release: a chart in a cluster, by the real helm.

As in the official plugin the check loads the chart and renders nothing: a preview shows that the chart is not there, and never
what its schema or a template refuses. Inputs that do not exist are dropped, those that are not given get the empty value of their
type. What counts as a change are the inputs: a chart that changed under its version is none. A refresh keeps the inputs, and puts
values, version and status of the last revision into the outputs; it does not look at the objects.
Source: provider/pkg/provider/helm_release.go of pulumi/pulumi-kubernetes 4.32.0, read 2026-11-22.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from lab.standins.differences import differences
from lab.standins.kubernetes.client import Client
from lab.standins.kubernetes.helm import Helm, HelmError, documents, flags
from lab.standins.kubernetes.shape import like
from lab.standins.plugin import Call, Failure, Incomplete, Refusal, ResourceType, autoname
from lab.standins.properties import ASSET, SIGNATURE, UNKNOWN, Properties, has_unknown, plain, with_secrets_of
from lab.standins.schema import ListOf, MapOf, Object, Problem, Property, problems

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
# What the official plugin's Go type makes of inputs that are not given; null is none there.
EMPTY: Properties = {
    **dict.fromkeys(SWITCHES, False),
    **dict.fromkeys(("version", "description", "keyring", "postrender"), ""),
    "timeout": 0,
    "values": {},
}
# Inputs of the schema that this type lacks or, as the files of values, takes into others.
NOT_KEPT = ("valueYamlFiles", "compat", "manifest", "resourceNames")
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
    keeps_nulls = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def unfit(self, inputs: Properties) -> Iterator[Problem]:
        """Nothing: an input that does not exist is dropped, one of another type fails the check itself."""
        return iter(())

    def filled(self, call: Call, inputs: Properties, olds: Properties) -> Properties:
        inputs = _known(inputs, INPUTS)
        if wrong := next(problems(INPUTS, {"chart": "", **inputs}, self.type_name), None):
            raise Failure(f"decoding failure: {wrong.reason}")
        inputs.setdefault("name", olds.get("name") or autoname(call.name))
        inputs.setdefault("namespace", self._client.namespace)
        if not plain(inputs.get("skipAwait")):
            inputs.setdefault("timeout", TIMEOUT_S)
        is_known = not has_unknown(inputs)
        if inputs.get("valueYamlFiles"):
            inputs["values"] = with_secrets_of(inputs.get("values"), _values(plain(inputs)))
        inputs = {**EMPTY, **{name: value for name, value in inputs.items() if name not in NOT_KEPT}}
        if isinstance(inputs.get("repositoryOpts"), dict):
            inputs["repositoryOpts"] = {**dict.fromkeys(REPOSITORY.properties, ""), **inputs["repositoryOpts"]}
        if not is_known:
            return inputs
        try:
            return {**inputs, "version": self._version_of_chart(call, plain(inputs))}
        except HelmError as error:
            raise Refusal(Problem("chart", f"{error}; check the chart name and repository configuration.")) from None

    def changes(self, olds: Properties, news: Properties, outputs: Properties) -> Mapping[str, int]:
        """As a three-way merge patch: what was given before or is given now, as it was last seen, against what is given now."""
        return differences(like(_merged(olds, news), {**olds, **outputs}), news)

    def preview_create(self, inputs: Properties) -> Properties:
        return {"status": UNKNOWN, "resourceNames": UNKNOWN}

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        return {"status": UNKNOWN, "resourceNames": UNKNOWN}

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
        if inputs:
            return inputs, self._kept({**inputs, **outputs}, found)
        live = {**EMPTY, "chart": found.about["chart"], "name": name, "namespace": namespace, "timeout": TIMEOUT_S}
        live |= {"values": found.values, "version": found.about["version"]}
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

    def _version_of_chart(self, call: Call, inputs: Properties) -> str:
        """The chart is fetched for it; its cluster need not answer."""
        settings = self._client.settings.get("helmReleaseSettings") or {}
        with Helm.of("", settings, call) as helm, helm.chart(inputs) as chart:
            return yaml.safe_load(helm.run("show", "chart", chart))["version"]

    def _change(self, call: Call, verb: str, inputs: Properties, more: list[str]) -> None:
        if not inputs.get("skipAwait"):
            more += ["--wait", *flags(inputs, [("waitForJobs", "--wait-for-jobs")])]
        more += [f"--timeout={inputs.get('timeout') or TIMEOUT_S}s"]
        more += [f"--post-renderer={inputs['postrender']}"] if inputs.get("postrender") else []
        with self._helm(call) as helm, helm.chart(inputs) as chart:
            if inputs.get("lint") and verb == "upgrade":
                helm.run("lint", chart, values=_values(inputs))
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
        values = _merged(inputs.get("values") or {}, found.values)
        of_revision = {"values": values, "version": found.about["version"], "resourceNames": _names(found.manifest)}
        return {**inputs, **of_revision, "status": status}


def _known(inputs: Properties, properties: Mapping[str, Property]) -> Properties:
    known = {name: value for name, value in inputs.items() if name in properties}
    if isinstance(known.get("repositoryOpts"), dict):
        known["repositoryOpts"] = _known(known["repositoryOpts"], REPOSITORY.properties)
    return known


def _values(inputs: Properties) -> Properties:
    """The files' values below those that are given. Helm takes a value away for a null, and so nulls stay."""
    merged: Properties = {}
    for file in inputs.get("valueYamlFiles") or []:
        merged = _merged(merged, yaml.safe_load(_text(file)) or {})
    return _merged(merged, inputs.get("values") or {})


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


def _names(manifest: str) -> dict[str, list[str]]:
    """Kind and apiVersion (`DaemonSet.apps/apps/v1`) to the names of the objects, with their namespace where they have one."""
    names: dict[str, list[str]] = {}
    for each in documents(manifest):
        group, _, _ = each["apiVersion"].rpartition("/")
        kind = f"{each['kind']}.{group}/{each['apiVersion']}" if group else f"{each['kind']}/{each['apiVersion']}"
        metadata = each.get("metadata") or {}
        names.setdefault(kind, []).append("/".join(filter(None, [metadata.get("namespace"), metadata.get("name", "")])))
    return {kind: sorted(found) for kind, found in sorted(names.items())}
