"""The objects of a Helm release as they should be, compared with those on the cluster. Knows no Pulumi.

What a manifest means only its API server knows (defaults, quantities, order of lists), so the server is asked what it would make
of it now: a dry-run creation under another name. That answer and the live object must be the same, which also finds what was
added by hand. Changes nothing but in `repair`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from provider.kubernetes import ClusterApi, Manifest, object_path

# Their name is part of what they are, so none can be tried under another; Helm itself leaves CRDs alone after installation.
_NOT_COMPARED: Final = frozenset({"CustomResourceDefinition", "APIService", "Job"})
_EXISTENCE_ONLY: Final = frozenset({"Secret"})  # a manifest for people to read does not hold what is in them
# Given by the cluster, filled in by controllers, or of no meaning: last steps of their paths.
_GIVEN: Final = frozenset(
    {
        *("clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort", "caBundle", "volumeName", "secrets"),
        "kubectl.kubernetes.io/restartedAt",  # a restart is no change
        "checksum/secret",  # of what a chart makes up anew each time it is rendered
    }
)
_LONGEST_SHOWN: Final = 160  # an image with its digest
_TRIAL: Final = "gpu-fleet-check"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`path` is empty when the object is missing."""

    object: str  # DaemonSet dcgm-exporter
    path: str = ""
    found: Any = None
    expected: Any = None

    def __str__(self) -> str:
        if not self.path:
            return f"{self.object}: is missing"
        return f"{self.object}: {self.path}: {_shown(self.found)} instead of {_shown(self.expected)}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (Mapping, list)):
        return "something else" if value else "nothing"
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN and "\n" not in text else "another text"


class Objects:
    """The objects of one release. `manifests`: as rendered, each a whole object."""

    def __init__(self, api: ClusterApi, release: str, namespace: str, manifests: list[Manifest]):
        self._api = api
        self._release, self._namespace = release, namespace
        self._manifests = manifests
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    def differences(self) -> list[Difference]:
        """How the cluster differs from the manifests. Raises what ClusterApi raises."""
        return [difference for manifest in self._manifests for difference in self._compare(manifest)]

    def repair(self) -> list[Difference]:
        """Makes what is missing anew and sets back what was changed; what it found. Raises what ClusterApi raises."""
        found = []
        for manifest in self._manifests:
            if differences := list(self._compare(manifest)):
                found += differences
                self._set_back(manifest)
        return found

    def _compare(self, manifest: Manifest) -> Iterator[Difference]:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        title = f"{kind} {name}"
        if kind in _NOT_COMPARED:
            return
        path = self._path(manifest)
        live = self._api.find(f"{path}/{name}") if path else None
        if live is None:
            yield Difference(object=title)
        elif kind not in _EXISTENCE_ONLY:
            yield from _differences(title, manifest, self._meant(manifest, path), live)

    def _path(self, manifest: Manifest) -> str:
        """Where objects of its kind are; empty when the cluster does not know the kind."""
        api_version = manifest["apiVersion"]
        if api_version not in self._kinds:
            self._kinds[api_version] = self._api.resources(api_version)
        resource, namespaced = self._kinds[api_version].get(manifest["kind"], ("", False))
        namespace = manifest["metadata"].get("namespace") or self._namespace
        return object_path(resource, namespaced, api_version, namespace) if resource else ""

    def _meant(self, manifest: Manifest, path: str) -> Manifest:
        """What the server makes of it now."""
        trial = copy.deepcopy(dict(manifest))
        trial["metadata"] = {**trial["metadata"], "name": _TRIAL}
        # A wished address or port is taken, by the object itself; any will do.
        spec = trial.get("spec")
        if trial["kind"] == "Service" and isinstance(spec, dict):
            if spec.get("clusterIP") != "None":
                spec.pop("clusterIP", None)
            for port in spec.get("ports", ()):
                port.pop("nodePort", None)
        return self._api.create(path, trial, dry_run=True)

    def _set_back(self, manifest: Manifest) -> None:
        name, path = manifest["metadata"]["name"], self._path(manifest)
        owned = self._owned(manifest)
        live = self._api.find(f"{path}/{name}")
        if live is None:
            self._api.create(path, owned)
            return
        meant = copy.deepcopy(dict(self._meant(manifest, path)))
        for key, value in live.items():
            if key in ("metadata", "status"):
                meant[key] = value
        _keep_given(meant, live)
        for part in ("labels", "annotations"):
            meant["metadata"][part] = {**(meant["metadata"].get(part) or {}), **(owned["metadata"].get(part) or {})}
        self._api.replace(f"{path}/{name}", meant)

    def _owned(self, manifest: Manifest) -> dict[str, Any]:
        """With the marks by which Helm knows its own."""
        owned = copy.deepcopy(dict(manifest))
        metadata = owned["metadata"]
        marks = {"meta.helm.sh/release-name": self._release, "meta.helm.sh/release-namespace": self._namespace}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **marks}
        metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
        return owned


def _differences(title: str, manifest: Manifest, meant: Manifest, live: Manifest) -> Iterator[Difference]:
    for part in ("labels", "annotations"):  # the server and controllers add some of their own
        expected, found = manifest["metadata"].get(part) or {}, live["metadata"].get(part) or {}
        for key in sorted(expected):
            if found.get(key) != expected[key]:
                path = f"metadata.{part}[{key}]"
                yield Difference(object=title, path=path, found=found.get(key), expected=expected[key])
    for key in sorted({*meant, *live} - {"apiVersion", "kind", "metadata", "status"}):
        yield from _values(title, key, meant.get(key), live.get(key))


def _values(title: str, path: str, expected: Any, found: Any) -> Iterator[Difference]:
    if expected == found:
        return
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found} - _GIVEN):
            yield from _values(title, f"{path}.{key}", expected.get(key), found.get(key))
    elif isinstance(expected, list) and isinstance(found, list) and (names := _names(expected, found)):
        by_name = [{item["name"]: item for item in items} for items in (expected, found)]
        for name in names:
            yield from _values(title, f"{path}[{name}]", by_name[0].get(name), by_name[1].get(name))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _values(title, f"{path}[{index}]", one, other)
    else:
        yield Difference(object=title, path=path, found=found, expected=expected)


def _names(*lists: list[Any]) -> list[str]:
    """The names in lists of named things, in order; empty when the lists are of something else, or a name is there twice."""
    names: list[str] = []
    for items in lists:
        own = [item["name"] for item in items if isinstance(item, Mapping) and item.get("name") is not None]
        if len(set(own)) != len(items):
            return []
        names += [name for name in own if name not in names]
    return names


def _keep_given(meant: Any, live: Any) -> None:
    """Takes over what only the cluster decides, at every depth."""
    if isinstance(meant, dict) and isinstance(live, Mapping):
        for key in _GIVEN & {*meant, *live}:
            if key in live:
                meant[key] = live[key]
            else:
                meant.pop(key)
        for key in meant.keys() & live.keys() - _GIVEN:
            _keep_given(meant[key], live[key])
    elif isinstance(meant, list) and isinstance(live, list):
        for one, other in zip(meant, live, strict=False):
            _keep_given(one, other)
