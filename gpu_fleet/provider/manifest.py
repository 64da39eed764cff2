"""The objects of a Helm release as they should be, compared with those on the cluster. Knows no Pulumi.

Only the API server knows what a manifest expands to (defaults, quantities, list order). So each object is created as a dry run
under another name, and the answer must equal the live object, which also finds manual additions. Only `repair` changes anything.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_fleet.provider.kubernetes import ClusterApi, Manifest, object_path
from gpu_fleet.safetext.terminal import printable_line

# Their name is part of their meaning, so a dry run under another name is impossible; Helm itself never updates CRDs.
_NOT_COMPARED: Final = frozenset({"CustomResourceDefinition", "APIService", "Job"})
_EXISTENCE_ONLY: Final = frozenset({"Secret"})  # the rendered manifest shown to people omits their data
# Assigned by the cluster, filled in by controllers, or irrelevant: the last elements of their paths.
_ASSIGNED: Final = frozenset(
    {
        *("clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort", "caBundle", "volumeName", "secrets"),
        "kubectl.kubernetes.io/restartedAt",  # `kubectl rollout restart` is not drift
        "checksum/secret",  # of values that the chart generates again for each rendering
    }
)
_LONGEST_SHOWN: Final = 160  # an image with its digest
_TRIAL: Final = "gpu-fleet-check"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference. `path` is empty when the object is missing."""

    object: str  # DaemonSet dcgm-exporter
    path: str = ""
    found: Any = None
    expected: Any = None

    def __str__(self) -> str:
        if not self.path:
            return f"{self.object}: is missing"
        return printable_line(f"{self.object}: {self.path}: {_shown(self.found)} instead of {_shown(self.expected)}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (Mapping, list)):
        return "another value" if value else "nothing"
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN and "\n" not in text else "another text"


class Objects:
    """The objects of one release. `manifests`: as rendered, each a whole object."""

    def __init__(self, api: ClusterApi, release: str, namespace: str, manifests: list[Manifest]):
        self._api = api
        self._release, self._namespace = release, namespace
        self._manifests = manifests
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}
        self._is_stopped = False

    def differences(self) -> list[Difference]:
        """How the cluster differs from the manifests. Raises the exceptions of ClusterApi."""
        return [difference for manifest in self._manifests for difference in self._compare(manifest)]

    def repair(self) -> list[Difference]:
        """Recreates missing objects and reverts changed ones; returns what it found. Raises the exceptions of ClusterApi."""
        found = []
        for manifest in self._manifests:
            if self._is_stopped:
                break
            if differences := list(self._compare(manifest)):
                found += differences
                self._revert(manifest)
        return found

    def stop(self) -> None:
        """Ends `repair` after the object that it is at."""
        self._is_stopped = True

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
            yield from _differences(title, manifest, self._expected(manifest, path), live)

    def _path(self, manifest: Manifest) -> str:
        """The API path of objects of this kind; empty when the cluster does not know the kind."""
        api_version = manifest["apiVersion"]
        if api_version not in self._kinds:
            self._kinds[api_version] = self._api.resources(api_version)
        resource, namespaced = self._kinds[api_version].get(manifest["kind"], ("", False))
        namespace = manifest["metadata"].get("namespace") or self._namespace
        return object_path(resource, namespaced, api_version, namespace) if resource else ""

    def _expected(self, manifest: Manifest, path: str) -> Manifest:
        """The manifest as the server expands it now."""
        trial = copy.deepcopy(dict(manifest))
        trial["metadata"] = {**trial["metadata"], "name": _TRIAL}
        # A requested address or port is already used, by the object itself; any other will do.
        spec = trial.get("spec")
        if trial["kind"] == "Service" and isinstance(spec, dict):
            if spec.get("clusterIP") != "None":
                spec.pop("clusterIP", None)
            for port in spec.get("ports", ()):
                port.pop("nodePort", None)
        return self._api.create(path, trial, dry_run=True)

    def _revert(self, manifest: Manifest) -> None:
        name, path = manifest["metadata"]["name"], self._path(manifest)
        owned = self._owned(manifest)
        live = self._api.find(f"{path}/{name}")
        if live is None:
            self._api.create(path, owned)
            return
        expected = copy.deepcopy(dict(self._expected(manifest, path)))
        for key, value in live.items():
            if key in ("metadata", "status"):
                expected[key] = value
        _keep_assigned(expected, live)
        for part in ("labels", "annotations"):
            expected["metadata"][part] = {**(expected["metadata"].get(part) or {}), **(owned["metadata"].get(part) or {})}
        self._api.replace(f"{path}/{name}", expected)

    def _owned(self, manifest: Manifest) -> dict[str, Any]:
        """The manifest with the labels and annotations by which Helm recognizes its objects."""
        owned = copy.deepcopy(dict(manifest))
        metadata = owned["metadata"]
        marks = {"meta.helm.sh/release-name": self._release, "meta.helm.sh/release-namespace": self._namespace}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **marks}
        metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
        return owned


def _differences(title: str, manifest: Manifest, expected: Manifest, live: Manifest) -> Iterator[Difference]:
    for part in ("labels", "annotations"):  # the server and controllers add their own
        rendered, found = manifest["metadata"].get(part) or {}, live["metadata"].get(part) or {}
        for key in sorted(rendered):
            if found.get(key) != rendered[key]:
                path = f"metadata.{part}[{key}]"
                yield Difference(object=title, path=path, found=found.get(key), expected=rendered[key])
    for key in sorted({*expected, *live} - {"apiVersion", "kind", "metadata", "status"}):
        yield from _values(title, key, expected.get(key), live.get(key))


def _values(title: str, path: str, expected: Any, found: Any) -> Iterator[Difference]:
    if expected == found:
        return
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found} - _ASSIGNED):
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
    """The names in lists of named items, in order; empty when items lack names or a name is repeated."""
    names: list[str] = []
    for items in lists:
        own = [item["name"] for item in items if isinstance(item, Mapping) and item.get("name") is not None]
        if len(set(own)) != len(items):
            return []
        names += [name for name in own if name not in names]
    return names


def _keep_assigned(expected: Any, live: Any) -> None:
    """Copies what only the cluster assigns, at every depth."""
    if isinstance(expected, dict) and isinstance(live, Mapping):
        for key in _ASSIGNED & {*expected, *live}:
            if key in live:
                expected[key] = live[key]
            else:
                expected.pop(key)
        for key in expected.keys() & live.keys() - _ASSIGNED:
            _keep_assigned(expected[key], live[key])
    elif isinstance(expected, list) and isinstance(live, list):
        for one, other in zip(expected, live, strict=False):
            _keep_assigned(one, other)
