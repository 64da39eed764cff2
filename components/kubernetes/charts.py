"""Helm charts on this machine: fetched once, checked, and rendered before anything reaches a cluster.

Uses the `helm` on the PATH (`make` installs it), with its logins to chart repositories and OCI registries. Contacts no cluster.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from gpu_fleet.stackfile.kubernetes import Chart as ChartSection
from gpu_fleet.toolchain import versions

# Rendering contacts no cluster, and helm's default version differs between builds. The newest that the lab runs.
_KUBERNETES = "1.36.3"
# The API of the Prometheus Operator: some charts render their monitors only when it exists.
MONITORS = ("monitoring.coreos.com/v1",)
_TYPO = 0.8  # of difflib: one or two letters of a key; timeoutSeconds and periodSeconds are at 0.74
_TIMEOUT_S = 120  # of one helm command; a repository's index can have 20 MB


class Loader(yaml.CSafeLoader):
    """YAML as Helm reads it: a bare `=` is text. In C, for the values of the largest chart take seconds otherwise."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:value"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class ChartError(Exception):
    """A chart that cannot be fetched or does not render; the text has the cause and the fix."""


class ChartNotFetched(ChartError):
    """The chart's repository does not answer, or does not have it."""


@dataclass(frozen=True, kw_only=True)
class ChartSource:
    """`reference`: a .tgz file, oci://…, or the chart's name in `repository`. `version` is empty for a file.

    `written`: the reference as the state keeps it: the same on every machine.
    """

    name: str  # ours: dcgm-exporter, alloy, …
    reference: str
    version: str
    repository: str = ""
    path: str = ""  # of a file, as the stack file has it
    sha256: str | None = None  # of the archive, where versions.yaml knows it

    @property
    def written(self) -> str:
        return self.path or self.reference

    @property
    def is_file(self) -> bool:
        return self.reference.endswith(".tgz") and not self.reference.startswith("oci://")

    @property
    def is_verified(self) -> bool:
        """Whether its content is known: of a file it is in the user's hands."""
        return self.is_file or self.sha256 is not None

    @property
    def described(self) -> str:
        where = f" of {self.repository}" if self.repository else ""
        return f"{self.reference}{f' {self.version}' if self.version else ''}{where}"


def chart_source(name: str, section: ChartSection, base: Path) -> ChartSource:
    """The chart that the stack file names, else the pinned upstream one. `base`: the directory of Pulumi.yaml."""
    pinned = versions.chart(name)
    version = section.version or pinned.version
    if section.chart is None:
        return ChartSource(
            name=name,
            reference=pinned.chart,
            version=version,
            repository=section.repository or pinned.repository,
            sha256=pinned.sha256 if version == pinned.version else None,  # a mirror serves the same archive
        )
    if section.chart.startswith("oci://"):
        return ChartSource(name=name, reference=section.chart, version=version)
    path = str(Path(section.chart).expanduser())
    return ChartSource(name=name, reference=str(base / path), version="", path=path)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart as a .tgz file of this machine."""

    source: ChartSource
    file: Path

    @cached_property
    def sha256(self) -> str:
        try:
            return hashlib.sha256(self.file.read_bytes()).hexdigest()
        except OSError as error:
            raise ChartError(f"{self.source.described}: {self.file} cannot be read: {error.strerror}") from None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        metadata: Mapping[str, Any] = _parsed(self._members["Chart.yaml"])
        return metadata

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """values.yaml, with those of its subcharts below the names that the chart gives them."""
        values = dict(_parsed(self._members.get("values.yaml", "")) or {})
        for dependency in self.metadata.get("dependencies") or ():
            text = self._members.get(f"charts/{dependency['name']}/values.yaml", "")
            name = dependency.get("alias") or dependency["name"]
            values[name] = _filled(values.get(name) or {}, _parsed(text) or {})
        return values

    @cached_property
    def schema(self) -> Mapping[str, Any] | None:
        text = self._members.get("values.schema.json")
        return json.loads(text) if text else None

    def crds(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the CustomResourceDefinitions that Helm installs with these values, and never removes."""
        filled, names = _filled(values, self.values), set()
        conditions = {one["name"]: one.get("condition", "") for one in self.metadata.get("dependencies") or ()}
        for path, text in self._members.items():
            if (match := re.match(r"(?:charts/([^/]+)/)?crds/", path)) and _holds(conditions.get(match[1], ""), filled):
                # Not parsed: they are megabytes of YAML that readers interpret differently.
                names.update(re.findall(r"^metadata:\n(?:  .*\n)*?  name: (\S+)$", text, re.MULTILINE))
        return tuple(sorted(names))

    @cached_property
    def _members(self) -> dict[str, str]:
        """The chart's own texts by path, the chart's folder left out."""
        wanted = re.compile(
            r"[^/]+/(Chart\.yaml|values\.yaml|values\.schema\.json|templates/.+|charts/[^/]+/values\.yaml|(.+/)?crds/[^/]+\.yaml)"
        )
        try:
            with tarfile.open(self.file) as archive:
                found = {}
                for member in archive:
                    if member.isfile() and (match := wanted.fullmatch(member.name)) and (data := archive.extractfile(member)):
                        found[match[1]] = data.read().decode()
        except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
            raise ChartError(f"{self.source.described}: {self.file} is not a chart: {error}") from None
        if "Chart.yaml" not in found:
            raise ChartError(f"{self.source.described}: {self.file} is not a chart: there is no Chart.yaml in it")
        return found

    def errors(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Values that the chart would refuse, or ignore although they read like one that it has; one `path: error` each."""
        for unread, meant in self.unread(values):
            if meant:
                yield f"{'.'.join(unread)}: the chart {self.metadata['name']} has no such value; did you mean {meant}?"
        yield from self._no_mappings(values, self.values, ())
        if self.schema is not None:
            validator = jsonschema.validators.validator_for(self.schema)(self.schema)
            for error in validator.iter_errors(_filled(values, self.values)):
                path = ".".join(str(step) for step in error.absolute_path)
                yield f"{path or 'the values'}: {error.message.splitlines()[0][:200]}"

    def unread(self, values: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
        """Path of each value that changes nothing that is rendered, and the key that it resembles, or an empty text.

        values.yaml does not say which mappings a template hands on whole (a container's securityContext takes every field of the
        API), so a value without a default is looked for in what Helm renders with it and without it."""
        unknown = list(self._unknown(values, self.values, ()))
        whole = self._rendered(values) if unknown else None
        return [(path, meant) for path, meant in unknown if whole is None or whole == self._rendered(_without(values, path))]

    def _unknown(
        self, values: Mapping[str, Any], known: Mapping[str, Any], above: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        for key, value in values.items():
            path, default = (*above, key), known.get(key)
            if key not in known:
                if not self._reads(path):
                    yield path, next(iter(difflib.get_close_matches(key, known, 1, _TYPO)), "")
            elif isinstance(default, Mapping) and default and isinstance(value, Mapping):  # an empty one accepts any value
                yield from self._unknown(value, default, path)

    def _no_mappings(self, values: Mapping[str, Any], known: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
        for key, value in values.items():
            default = known.get(key)
            if isinstance(default, Mapping) and default and value is not None:  # null removes the default
                if isinstance(value, Mapping):
                    yield from self._no_mappings(value, default, (*above, key))
                else:
                    yield f"{'.'.join((*above, key))}: is not a mapping; the chart has {', '.join(default)} there"

    def _rendered(self, values: Mapping[str, Any]) -> list[Any] | None:
        """The objects, without what charts generate again in each rendering; None where Helm does not render them."""
        try:
            documents = list(yaml.load_all(self.render("x", "default", values, MONITORS), Loader=Loader))
        except ChartError:
            return None
        return [_without_sums(document) for document in documents if document and document.get("kind") != "Secret"]

    def _reads(self, path: tuple[str, ...]) -> bool:
        """Whether the chart uses a value without a default: a template reads it, or values.yaml has it in a comment."""
        if path[0] == "global":
            return True
        read = re.compile(rf"\.Values\.{re.escape('.'.join(path))}\b")
        if any(read.search(text) for name, text in self._members.items() if name.startswith("templates/")):
            return True
        return bool(re.search(rf"^\s*#\s*{re.escape(path[-1])}:", self._members.get("values.yaml", ""), re.MULTILINE))

    def render(self, release: str, namespace: str, values: Mapping[str, Any], api_versions: Sequence[str] = ()) -> str:
        """The manifest that Helm would apply, hooks left out. Raises ChartError."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(dict(values), file)
            file.flush()
            options = ["--no-hooks", f"--kube-version={_KUBERNETES}", *(f"--api-versions={one}" for one in api_versions)]
            return _helm(
                ["template", release, str(self.file), "--namespace", namespace, "--values", file.name, *options],
                f"{self.source.described} does not render with these values",
            )


def fetched(source: ChartSource) -> Chart:
    """The chart, from the cache when it was fetched before, verified where its checksum is known. Raises ChartError."""
    if source.is_file:
        return Chart(source=source, file=Path(source.reference))
    cache = _cache() / re.sub(r"[^A-Za-z0-9.-]+", "-", f"{source.repository}-{source.reference}-{source.version}").strip("-")
    if not cache.is_dir():
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=cache.parent))
        try:
            repository = ["--repo", source.repository] if source.repository else []
            _pull(
                ["pull", source.reference, "--version", source.version, "--destination", str(partial), *repository],
                f"the chart {source.described} cannot be fetched (kubernetes.charts says where charts come from)",
            )
            with contextlib.suppress(OSError):  # another run was faster
                partial.rename(cache)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    files = list(cache.glob("*.tgz"))
    if len(files) != 1:
        raise ChartError(f"{cache} should hold one chart: remove it, and it is fetched again")
    chart = Chart(source=source, file=files[0])
    if source.sha256 and chart.sha256 != source.sha256:
        raise ChartError(
            f"the chart {source.described} is not the one that gpu_fleet/toolchain/versions.yaml pins: found sha256 "
            f"{chart.sha256}, expected {source.sha256}. Compare with the publisher's index; fix the mirror, or remove {cache} to "
            "fetch it again"
        )
    return chart


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-fleet" / "charts"


@cache
def _require_helm_3() -> None:
    """Pulumi's provider installs releases with Helm 3's library (pulumi-kubernetes 4.32.0, provider/go.mod, 2026-11-22), and
    what is rendered here must be what it installs. Raises ChartError."""
    try:
        done = subprocess.run(
            ["helm", "version", "--template", "{{.Version}}"], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the command itself says why
    if done.stdout.startswith("v") and not done.stdout.startswith("v3."):
        raise ChartError(
            f"helm on the PATH is {done.stdout.strip()}; expected Helm 3, which Pulumi's Kubernetes provider uses. "
            "`make preview` and `make shell` put the pinned one first on the PATH (docs/upgrading.md)"
        )


def _helm(arguments: list[str], what: str) -> str:
    _require_helm_3()
    try:
        done = subprocess.run(["helm", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise ChartError("helm is not on the PATH, and a Kubernetes cluster needs it: `make preview` installs its own") from None
    except subprocess.TimeoutExpired:
        raise ChartError(f"{what}: helm {arguments[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise ChartError(f"{what}: {done.stderr.strip().removeprefix('Error: ')}")
    return done.stdout


def _pull(arguments: list[str], what: str) -> None:
    try:
        _helm(arguments, what)
    except ChartError as error:
        raise ChartNotFetched(str(error)) from None


def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=Loader)  # noqa: S506 - a safe one


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether a subchart is enabled; as in Helm, it is when its condition names no value."""
    node: Any = values
    for step in condition.split(".") if condition else ():
        if not isinstance(node, Mapping) or step not in node:
            return True
        node = node[step]
    return node is not False


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in values.items() if key != head}
    return {**values, head: _without(values[head], rest)}


def _without_sums(document: Any) -> Any:
    """Annotations with sums of generated Secrets differ in each rendering."""
    if isinstance(document, Mapping):
        return {key: _without_sums(value) for key, value in document.items() if not str(key).startswith("checksum/")}
    return [_without_sums(item) for item in document] if isinstance(document, list) else document


def _filled(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their defaults; as in Helm, null removes a default."""
    result = dict(defaults)
    for key, value in values.items():
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = _filled(value, before)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
