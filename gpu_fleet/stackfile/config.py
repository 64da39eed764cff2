"""The one reader of stack configuration: everything is read, checked and filled in here, and all errors are reported at once.

Pure but for looking at the files that the stack file names. Not done here: asking Pulumi for the stack's configuration
(components/stack.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gpu_fleet.stackfile.alerts import Alerts
from gpu_fleet.stackfile.custom import CustomDirectory, files_of
from gpu_fleet.stackfile.defaults import completed
from gpu_fleet.stackfile.evidence import Evidence
from gpu_fleet.stackfile.hostlist import HostList, entries_of
from gpu_fleet.stackfile.hosts import Ssh
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.jobs import Jobs
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.monitoring import Monitoring, monitoring_hosts, server_url
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import (
    ConfigErrors,
    Location,
    Problem,
    explain,
    first_causes,
    is_secret_key,
    listed,
    nearest,
    shown,
    unknown_key,
)
from gpu_fleet.stackfile.readiness import Readiness
from gpu_fleet.stackfile.rollout import Rollout
from gpu_fleet.stackfile.schema import stack_file_schema
from gpu_fleet.stackfile.scrape import Scrape
from gpu_fleet.stackfile.scrape_targets import Targets
from gpu_fleet.stackfile.sections import (
    SECRETS,
    Artifacts,
    Backend,
    Dcgm,
    Grafana,
    Logs,
    Metrics,
    Pull,
    Rulers,
    StackFile,
)
from gpu_fleet.stackfile.validation import check_all
from gpu_fleet.stackfile.validation.subject import Stack
from gpu_fleet.stackfile.values import duration_s, local_path

__all__ = [
    "ROOT",
    "ConfigErrors",
    "HostList",
    "HostSpec",
    "StackConfig",
    "environments_of",
    "given_otherwise",
    "hosts_of",
    "keys_of_file",
]

ROOT = Path(__file__).parents[2]  # where Pulumi.yaml is


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A stack's configuration, checked: whoever holds one need not check it again. It holds no secret."""

    datacenter: str  # empty where the stack has neither hosts nor a Kubernetes cluster
    cluster: str
    ssh: Ssh
    hosts: Mapping[str, HostSpec]  # by name, patterns and inventories expanded
    rollout: Rollout | None
    monitoring: Monitoring | None
    metrics: Metrics | None
    logs: Logs | None
    scrape_interval_s: int
    scrape: Scrape | None
    scrape_targets: Targets | None
    artifacts: Artifacts
    pull: Pull | None
    dcgm: Dcgm
    readiness: Readiness | None
    jobs: Jobs | None
    evidence: Evidence | None
    kubernetes: Kubernetes | None
    grafana: Grafana | None
    rulers: Rulers | None
    alerts: Alerts | None
    custom: CustomDirectory | None
    backend: Backend | None
    base: Path  # the directory of Pulumi.yaml, where relative paths of a stack file start
    warnings: tuple[str, ...]  # what is accepted and probably not meant

    @classmethod
    def load(cls, raw: Mapping[str, object], base: Path, secrets_set: Set[str] = frozenset()) -> StackConfig:
        """Reads the keys of a stack file.

        `raw`: the plain keys, without their `gpu-fleet:`, values as YAML gives them. `base`: the directory of Pulumi.yaml,
        where relative paths start. `secrets_set`: names of the keys whose values are encrypted. Raises ConfigErrors.
        """
        base = base.resolve()
        file, broken, listing = _read(raw, base, secrets_set)
        problems = listing.problems
        file = completed(file, listing.hosts, broken)
        has_hosts = any(raw.get(key) or key in secrets_set for key in ("hosts", "inventory"))
        problems += check_all(Stack(file, listing, broken, secrets_set | set(SECRETS) & set(raw), has_hosts))
        if problems:
            raise ConfigErrors(problems)
        return cls(
            datacenter=file.datacenter or "",
            cluster=file.cluster or "",
            ssh=listing.ssh,
            hosts=listing.hosts,
            rollout=file.rollout,
            monitoring=file.monitoring,
            metrics=file.metrics,
            logs=file.logs,
            scrape_interval_s=round(duration_s(file.scrape_interval) or 0),
            scrape=file.scrape,
            scrape_targets=file.scrape_targets,
            artifacts=file.artifacts,
            pull=file.pull,
            dcgm=file.dcgm,
            readiness=file.readiness,
            jobs=file.jobs,
            evidence=file.evidence,
            kubernetes=file.kubernetes,
            grafana=file.grafana,
            rulers=file.rulers,
            alerts=file.alerts,
            custom=file.custom,
            backend=file.backend,
            base=base,
            warnings=tuple(dict.fromkeys(listing.warnings)),
        )

    @classmethod
    def from_file(cls, path: Path, base: Path = ROOT) -> StackConfig:
        """Reads a stack file without Pulumi, secrets staying encrypted. Raises ConfigErrors."""
        raw, secrets_set = keys_of_file(path)
        return cls.load(raw, base, secrets_set | given_otherwise(raw))

    @property
    def ssh_values(self) -> dict[str, Any]:
        """The `ssh` section as the provider takes it. Paths are as the stack file writes them: the provider resolves them, so
        that the state is the same from every checkout."""
        values = self.ssh.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"idle_timeout"})
        return values if self.ssh.idle_s is None else {**values, "idleSeconds": self.ssh.idle_s}

    def pem(self, text: str | None) -> str:
        """The content of a certificate file of the stack file; empty without one."""
        return "" if text is None else self.local_path(text).read_text()

    def custom_files(self, kind: str) -> tuple[Path, ...]:
        """Files of the stack's own. `kind`: rules, loki or dashboards."""
        return files_of(self.local_path(self.custom.directory), kind) if self.custom else ()

    @property
    def monitoring_host(self) -> HostSpec | None:
        """The host that is the stack's monitoring server."""
        return next(iter(monitoring_hosts(self.hosts)), None)

    @property
    def monitoring_url(self) -> str:
        """URL of the monitoring server; empty where the stack has none."""
        host = self.monitoring_host
        return server_url(self.monitoring, host) if self.monitoring and host else ""

    def local_path(self, text: str) -> Path:
        """A path of this machine as the stack file writes it: relative to Pulumi.yaml, absolute, or with ~."""
        return local_path(self.base, text)


def hosts_of(raw: Mapping[str, object], base: Path, secrets_set: Set[str] = frozenset()) -> HostList:
    """The hosts alone, for commands that work before `StackConfig.load` accepts the stack: without their host keys, say.
    Arguments as there. Raises ConfigErrors for errors within a section."""
    _, _, listing = _read(raw, base.resolve(), secrets_set)
    if listing.problems:
        raise ConfigErrors(listing.problems)
    return listing


def _read(raw: Mapping[str, object], base: Path, secrets_set: Set[str]) -> tuple[StackFile, set[str], HostList]:
    """The sections that are well-formed, the names of those that are not, and the hosts with every problem found on the way."""
    problems: list[Problem] = []
    file, broken = _sections(raw, secrets_set, problems)
    listing = HostList(file.ssh or Ssh(), base, problems, warnings=[])
    if "hosts" not in broken:
        _list_hosts(raw.get("hosts"), file, listing)
    return file, broken, listing


def _place(location: Location) -> str:
    """A location as people and `pulumi config set --path` write it: gpu-fleet:alerts.routes[0].receiver."""
    text = f"{PROJECT}:{location[0]}"
    for step in location[1:]:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f'["{step}"]' if "." in step else f".{step}"
    return text


def _sections(raw: Mapping[str, object], secrets_set: Set[str], problems: list[Problem]) -> tuple[StackFile, set[str]]:
    """The sections that are well-formed, and the names of those that are not; hosts are left to HostList."""
    known = {field.alias or name for name, field in StackFile.model_fields.items()}
    broken: set[str] = set()
    for key in sorted(secrets_set & known):
        broken.add(key)
        fix = f"{_secret_hint(key)}; then write this section without it"
        problems.append(Problem(_place((key,)), "holds an encrypted value, and a secret is a key of its own", fix=fix))
    for key in raw:
        if key in SECRETS:
            fix = (
                f"`pulumi config set --secret {PROJECT}:{key}` encrypts it; change the secret too, it was in a file in clear text"
            )
            problems.append(Problem(_place((key,)), "a secret in clear text", "an encrypted value", fix))
        elif key in known and raw[key] in ("", None):  # Pulumi hands an empty section out as ""
            broken.add(key)
            problems.append(Problem(_place((key,)), "is empty", fix="fill it in, or remove it"))
        elif key not in known:
            problems.append(unknown_key(_place((key,)), key, known | set(SECRETS), _fix_of_unknown(key)))
            broken.add(nearest(key, known) or key)  # the section that was meant is not missing
    given = {key: value for key, value in raw.items() if key in known - broken - {"hosts"}}
    try:
        return StackFile.model_validate(given), broken
    except ValidationError as error:
        for detail in first_causes(error):
            section = str(detail["loc"][0])
            broken.add(section)
            problems.append(explain(detail, stack_file_schema(), _place, _secret_hint(section)))
        return StackFile.model_validate({key: value for key, value in given.items() if key not in broken}), broken


def _fix_of_unknown(key: str) -> str:
    return "secrets of receivers are read only when a receiver names them and they are encrypted" if is_secret_key(key) else ""


# Where the secret belongs that somebody wrote into a section.
_SECRETS_OF_SECTION = {
    "ssh": ("sshPrivateKey", "sudoPassword", "sudoPasswords"),
    "inventory": ("sshPrivateKey", "sudoPassword", "sudoPasswords"),
    "metrics": ("metricsPassword", "metricsBearerToken", "metricsClientKey"),
    "logs": ("logsPassword", "logsBearerToken", "logsClientKey"),
    "scrape": ("scrapePassword",),
    "kubernetes": ("kubeconfig", "operatorGrafanaPassword"),
    "grafana": ("grafanaAuth",),
    "rulers": ("rulersPassword", "rulersBearerToken", "rulersClientKey"),
    "monitoring": ("monitoringKey",),
    "alerts": ("NAME",),
}


def _secret_hint(section: str) -> str:
    commands = [f"`pulumi config set --secret {PROJECT}:{key}`" for key in _SECRETS_OF_SECTION.get(section, ())]
    hint = f"set it with {listed(commands)}" if commands else "write the value in clear text"
    return hint + (", and write NAME as the receiver's urlSecret or similar key" if section == "alerts" else "")


def _list_hosts(section: object, file: StackFile, listing: HostList) -> None:
    if section is not None and not isinstance(section, Mapping):
        fix = "write one line per host: `gpu-node-001: {address: 10.0.1.1}`; a file of hosts goes into gpu-fleet:inventory"
        listing.problems.append(Problem(_place(("hosts",)), f"found {shown(section)}", "a mapping of hosts", fix))
        return
    if section and file.inventory:
        fix = "move the hosts into the inventory, or the other way round"
        listing.problems.append(Problem(_place(("inventory",)), "the stack has hosts too", "hosts or inventory", fix))
    listing.add_all(entries_of(section or {}, lambda location: _place(("hosts", *location)), listing.problems))
    if file.inventory:
        from gpu_fleet.stackfile.inventory_file import read_inventory  # with Ansible's ways, which few stacks need

        listing.add_all(read_inventory(file.inventory, (file.datacenter, file.cluster), listing))


def given_otherwise(raw: Mapping[str, object]) -> set[str]:
    """Secrets that a provider takes from the environment by itself, which is how CI often gives them."""
    return {"grafanaAuth"} if "grafana" in raw and os.environ.get("GRAFANA_AUTH") else set()


def keys_of_file(path: Path, project: Path | None = None) -> tuple[dict[str, object], set[str]]:
    """The keys of a stack file in clear text, and the names of those that hold something encrypted.

    `project`: Pulumi.yaml, whose `config` gives every stack the keys that its own file does not have; default: the one beside the
    stack file. Not here: Pulumi ESC environments (`environments_of`).
    """
    project = path.with_name("Pulumi.yaml") if project is None else project
    shared = _mapping_of(project) if project.is_file() else {}
    config = {**_values_of_project(shared), **(_mapping_of(path).get("config") or {})}
    prefix = f"{PROJECT}:"
    values = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    secrets_set = {key for key, value in values.items() if _holds_secure(value)}
    return {key: value for key, value in values.items() if key not in secrets_set}, secrets_set


def _values_of_project(project: Mapping[str, Any]) -> dict[str, object]:
    """`key: value`, or `key: {value: ...}` or `{type: ..., default: ...}` (pulumi 3.259.0, pkg/workspace/config.go)."""
    found: dict[str, object] = {}
    for key, entry in (project.get("config") or {}).items():
        name = key if ":" in key else f"{project.get('name')}:{key}"
        if not isinstance(entry, Mapping):
            found[name] = entry
        elif "value" in entry or "default" in entry:
            found[name] = entry.get("value", entry.get("default"))
    return found


def _mapping_of(path: Path) -> dict[str, Any]:
    """With libyaml, which takes what Pulumi takes; PyYAML's own scanner knows no tab after a colon."""
    return yaml.load(path.read_text(), yaml.CSafeLoader) or {}


def environments_of(path: Path) -> str:
    """The Pulumi ESC environments that a stack file imports, for a message; empty: none. Only Pulumi Cloud knows their values."""
    given = _mapping_of(path).get("environment")
    imports = given.get("imports") or ["written in the file"] if isinstance(given, Mapping) else given
    names = [
        next(iter(one)) if isinstance(one, Mapping) else str(one)
        for one in ([imports] if isinstance(imports, str) else imports or [])
    ]
    return ", ".join(names)


def _holds_secure(value: object) -> bool:
    if isinstance(value, Mapping):
        return set(value) == {"secure"} or any(_holds_secure(item) for item in value.values())
    return isinstance(value, list) and any(_holds_secure(item) for item in value)
