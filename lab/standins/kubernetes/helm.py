"""The helm program: charts are found, rendered, installed, upgraded and removed by it.

Values go by stdin, logins by files that only we can read: nothing secret is on a command line.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import toolchain
from lab.standins.plugin import Call, Failure
from lab.standins.properties import Properties

REPOSITORY = "of-the-release"  # what we call a chart's repository when it has a login


class HelmError(Exception):
    """What helm says, without the words in front that say that it failed."""


@dataclass(frozen=True)
class Helm:
    """For one operation. `directory` is private and ends with it."""

    directory: Path = field(repr=False)
    kubeconfig: str = field(repr=False)
    settings: Properties = field(repr=False)
    call: Call

    @classmethod
    @contextmanager
    def of(cls, kubeconfig: str, settings: Properties, call: Call) -> Iterator[Helm]:
        """`settings`: the provider's helmReleaseSettings."""
        with tempfile.TemporaryDirectory(prefix="pulumi-helm-") as directory:
            yield cls(Path(directory), kubeconfig, settings, call)

    @contextmanager
    def chart(self, release: Properties) -> Iterator[str]:
        """The path of the release's chart: its own where it is a local one, else of a download. Raises HelmError."""
        chart, repository = release["chart"], release.get("repositoryOpts") or {}
        if not repository.get("repo") and not chart.startswith("oci://"):
            path = Path(chart)
            if path.is_file() or (path / "Chart.yaml").is_file():
                yield str(path.resolve())
                return
            if path.is_absolute() or chart.startswith("."):
                raise HelmError(f'path "{chart}" not found')
        target = tempfile.mkdtemp(dir=self.directory)
        self.run("pull", *self._source(chart, repository), *_version(release), "--destination", target, *_verified(release))
        yield str(next(Path(target).glob("*.tgz")))

    def run(self, *arguments: str, values: Properties | None = None) -> str:
        """What it prints. Raises HelmError."""
        environment = {**os.environ, "KUBECONFIG": self._private("kubeconfig", self.kubeconfig), **self._places()}
        try:
            program = toolchain.find("helm")
        except toolchain.NotInstalled as error:
            raise Failure(str(error)) from None
        process = subprocess.Popen(
            [program, *arguments, *(["--values", "-"] if values is not None else [])],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Interrupted, helm itself rolls back what is atomic.
        with self.call.ending(process.terminate):
            printed, said = process.communicate(json.dumps(values) if values is not None else None)
        if process.returncode:
            raise HelmError(_reason(said))
        return printed

    def _source(self, chart: str, repository: Properties) -> list[str]:
        address = repository.get("repo", "")
        certificates = [
            f"{flag}={repository[name]}"
            for name, flag in (("caFile", "--ca-file"), ("certFile", "--cert-file"), ("keyFile", "--key-file"))
            if repository.get(name)
        ]
        if not repository.get("username"):
            return [chart, *([f"--repo={address}"] if address else []), *certificates]
        if chart.startswith("oci://"):
            login = base64.b64encode(f"{repository['username']}:{repository.get('password', '')}".encode()).decode()
            registry = urllib.parse.urlsplit(chart).netloc
            file = self._private("registry.json", json.dumps({"auths": {registry: {"auth": login}}}))
            return [chart, f"--registry-config={file}", *certificates]
        entry = {"name": REPOSITORY, "url": address, **{name: value for name, value in repository.items() if name != "repo"}}
        file = self._private("repositories.yaml", yaml.safe_dump({"apiVersion": "", "repositories": [entry]}))
        self.run("repo", "update", f"--repository-config={file}", f"--repository-cache={self.directory}")
        return [f"{REPOSITORY}/{chart}", f"--repository-config={file}", f"--repository-cache={self.directory}"]

    def _places(self) -> dict[str, str]:
        variables = {
            "HELM_DRIVER": "driver",
            "HELM_PLUGINS": "pluginsPath",
            "HELM_REGISTRY_CONFIG": "registryConfigPath",
            "HELM_REPOSITORY_CACHE": "repositoryCache",
            "HELM_REPOSITORY_CONFIG": "repositoryConfigPath",
        }
        return {variable: self.settings[name] for variable, name in variables.items() if self.settings.get(name)}

    def _private(self, name: str, text: str) -> str:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)


def _version(release: Properties) -> list[str]:
    if release.get("version"):
        return [f"--version={release['version']}"]
    return ["--devel"] if release.get("devel") else []


def _verified(release: Properties) -> list[str]:
    keyring = [f"--keyring={release['keyring']}"] if release.get("keyring") else []
    return ["--verify", *keyring] if release.get("verify") else []


def _reason(said: str) -> str:
    """Helm says `Error: INSTALLATION FAILED: reason`, after warnings."""
    _, _, reason = said.rpartition("Error: ")
    head, colon, rest = reason.partition(" FAILED: ")
    return (rest if colon and head.isupper() else reason).strip() or said.strip()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Takes a lone `=` for text, as YAML 1.2 and helm do; CRDs have it among their enums."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:value"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def documents(manifest: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart."""
    return [each for each in yaml.load_all(manifest, _Loader) if each]


def flags(release: Properties, names: Sequence[tuple[str, str]]) -> list[str]:
    """The flags of those switches that are on."""
    return [flag for name, flag in names if release.get(name)]
