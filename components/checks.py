"""What the sections of a stack file must be together, with its secrets, and with the files that it names."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from components.hosts import HostList
from components.inventory import KnownHosts
from components.naming import PROJECT
from components.problems import Problem, listed, nearest, unknown_key, why_unreadable
from components.stackfile.alerts import Alerts, Receiver
from components.stackfile.sections import SECRETS, Section, StackFile

_HOSTS_NAMED = 5  # a message names so many hosts and counts the others


@dataclass(frozen=True)
class Checks:
    """The checks between sections. A section that is broken already (`broken`) is neither missing nor contradicted."""

    file: StackFile
    listing: HostList
    broken: Set[str]
    secrets_set: Set[str]

    def run(self) -> None:
        self._check_names()
        self._check_hosts()
        self._check_basic_auth()
        self._check_ssh_secrets()
        self._check_known_hosts()
        self._check_private_keys()
        self._check_artifacts()
        self._check_counters()
        self._check_backend()
        self._check_grafana()
        if self.file.alerts:
            self._check_alerts(self.file.alerts)
        self._check_unused_secrets()

    def _problem(self, where: str, what: str, allowed: str = "", fix: str = "") -> None:
        self.listing.problems.append(Problem(f"{PROJECT}:{where}", what, allowed, fix))

    def _is_absent(self, section: str) -> bool:
        return section not in self.broken and getattr(self.file, section) is None

    @property
    def _has_hosts(self) -> bool:
        return bool(self.listing.hosts)

    def _check_names(self) -> None:
        if not self._has_hosts:
            return
        for key, example in {"datacenter": "us-west", "cluster": "training"}.items():
            if self._is_absent(key):
                self._problem(key, "is missing, and the stack has hosts", "", f"`pulumi config set {PROJECT}:{key} {example}`")

    def _check_hosts(self) -> None:
        if self._has_hosts and self._is_absent("metrics"):
            fix = "add `gpu-fleet:metrics: {url: https://mimir.example.com/api/v1/push}`"
            self._problem("metrics", "is missing, and the stack has hosts: their metrics would go nowhere", "", fix)
        first_with: dict[tuple[object, ...], str] = {}
        for name, host in self.listing.hosts.items():
            if host.lost:
                continue
            if host.connection == "local":
                key = ("local", host.prefix)
                said = f"host {name} is this machine, prefix {host.prefix or 'none'}, like host"
                fix, keys = "give each a `prefix` of its own", ("prefix",)
            else:
                key = (host.address, host.port, host.bastion.host if host.bastion else None)
                said = f"host {name} has address {host.address}, port {host.port}, like host"
                fix, keys = "one of them is a slip: each would undo the other's work", ("address",)
            other = first_with.setdefault(key, name)
            if other != name:
                where = self.listing.places[name](keys)
                self.listing.problems.append(Problem(where, f"{said} {other}", "each host once", fix))
        self._check_local_ports()

    def _check_local_ports(self) -> None:
        """Hosts on this machine, and the embedded backend, share its loopback ports."""
        taken: dict[int, str] = {}
        if self.file.backend:
            for path, port in _ports(self.file.backend):
                where = f"backend.{path}"
                if port in taken:
                    self._problem(
                        where, f"{port} is the port of {taken[port]} too", "a port of its own for each", "change one of them"
                    )
                taken.setdefault(port, f"{PROJECT}:{where}")
        for name, host in self.listing.hosts.items():
            if host.connection != "local":
                continue
            mine = {}
            for path, port in _ports(host.ports):
                if port in taken:
                    where = self.listing.places[name](("ports", path))
                    what = f"{port} is the port of {taken[port]} too, on the same machine"
                    self.listing.problems.append(Problem(where, what, "a port of its own for each", "change one of them"))
                mine[port] = self.listing.places[name](("ports", path))
            taken |= mine

    def _check_basic_auth(self) -> None:
        pairs = [("metrics", self.file.metrics, "metricsPassword"), ("logs", self.file.logs, "logsPassword")]
        for section, value, secret in pairs:
            if section in self.broken:
                continue
            username = value.username if value else None
            self._check_pair(f"{section}.username", username, secret, value.url if value else "")
        if "rulers" in self.broken:
            return
        rulers = [(name, ruler) for name in ("mimir", "loki") if self.file.rulers and (ruler := getattr(self.file.rulers, name))]
        users = [(name, ruler) for name, ruler in rulers if ruler.username]
        if not users:
            self._check_pair("rulers.mimir.username", None, "rulersPassword", "")
        for name, ruler in users:
            self._check_pair(f"rulers.{name}.username", ruler.username, "rulersPassword", ruler.url)

    def _check_pair(self, path: str, username: str | None, secret: str, url: str) -> None:
        """A user name and a password belong together, and both belong on an encrypted connection."""
        if username and secret not in self.secrets_set:
            self._problem(
                secret, f"is missing: {PROJECT}:{path} is {username}", "", f"`pulumi config set --secret {PROJECT}:{secret}`"
            )
        if not username and secret in self.secrets_set:
            self._problem(
                path, f"is missing: {PROJECT}:{secret} is set", "", f"add the user name, or `pulumi config rm {PROJECT}:{secret}`"
            )
        if username and _is_in_clear(url):
            self.listing.warnings.append(f"{PROJECT}:{path.split('.')[0]}: the password travels in clear to {url}; use https")

    def _check_ssh_secrets(self) -> None:
        ssh_hosts = [host for host in self.listing.hosts.values() if host.connection == "ssh" and not host.lost]
        if "hosts" in self.broken or "inventory" in self.broken:
            return
        if "sshPrivateKey" in self.secrets_set:
            if any(host.private_key_file for host in ssh_hosts):
                self._problem(
                    "sshPrivateKey",
                    "is set, and a private key file is named too",
                    "one of the two",
                    "remove privateKeyFile, or the secret",
                )
            elif not ssh_hosts:
                self._problem(
                    "sshPrivateKey", "is set, and no host is reached by SSH", "", f"`pulumi config rm {PROJECT}:sshPrivateKey`"
                )
        if "sudoPassword" in self.secrets_set and not any(host.sudo for host in ssh_hosts):
            self._problem(
                "sudoPassword",
                "is set, and sudo is used on no host",
                "",
                f"`pulumi config rm {PROJECT}:sudoPassword`, or set sudo: true",
            )

    def _check_known_hosts(self) -> None:
        """Host keys are always verified, so a host without one is refused now and not after the others were changed."""
        hosts = [host for host in self.listing.hosts.values() if host.connection == "ssh" and not host.lost and not host.host_key]
        if not hosts or "ssh" in self.broken:
            return
        where, collect = "ssh.knownHostsFile", "`make known-hosts STACK=…` collects the keys for review"
        name = self.listing.ssh.known_hosts_file
        if name is None:
            self._problem(
                where, f"is missing, and {_counted(hosts)} no hostKey", "", f"{collect}; write for example inventory/known_hosts"
            )
            return
        try:
            known = KnownHosts(Path(self.listing.local_path(name)).read_text())
        except (OSError, UnicodeDecodeError) as error:
            self._problem(where, f"{name} {why_unreadable(error)}", "a known_hosts file", collect)
            return
        except ValueError as error:
            self._problem(where, f"{name}: {error}", "lines as ssh-keyscan prints them", f"correct the line; {collect}")
            return
        without = [hosts[index] for index in known.missing([(host.address, host.port) for host in hosts])]
        if without:
            self._problem(
                where,
                f"{name} has no key for {_some([host.name for host in without])}",
                "a key or a certificate authority for each",
                collect,
            )
        bastions = {(host.bastion.host, host.bastion.port) for host in hosts if host.bastion and not host.bastion.host_key}
        for index in known.missing(list(bastions)):
            self._problem(where, f"{name} has no key for the bastion {sorted(bastions)[index][0]}", "a key for each", collect)

    def _check_private_keys(self) -> None:
        """As OpenSSH does: a key that others can read is no key."""
        named: dict[str, str] = {}
        for name, host in self.listing.hosts.items():
            if host.private_key_file and not host.lost and host.private_key_file not in named:
                is_own = host.private_key_file != (
                    self.listing.ssh.private_key_file and self.listing.local_path(self.listing.ssh.private_key_file)
                )
                named[host.private_key_file] = (
                    self.listing.places[name](("privateKeyFile",)) if is_own else f"{PROJECT}:ssh.privateKeyFile"
                )
        for file, where in named.items():
            if problem := _private_key_problem(Path(file)):
                self.listing.problems.append(Problem(where, *problem))

    def _check_artifacts(self) -> None:
        artifacts = self.file.artifacts
        if "artifacts" in self.broken:
            return
        if artifacts.source == "mirror" and not artifacts.url:
            self._problem(
                "artifacts.url",
                "is missing with `source: mirror`",
                "the URL of the mirror",
                "add `url: https://mirror.example.com`",
            )
        if artifacts.source != "mirror" and artifacts.url:
            self._problem(
                "artifacts.url", f"has no meaning with `source: {artifacts.source}`", "", "write `source: mirror`, or remove url"
            )
        if artifacts.source != "controller" and artifacts.directory:
            fix = "write `source: controller`, or remove directory"
            self._problem("artifacts.directory", f"has no meaning with `source: {artifacts.source}`", "", fix)

    def _check_counters(self) -> None:
        counters = self.file.dcgm.counters
        if "dcgm" in self.broken or counters in ("standard", "profiling"):
            return
        allowed = "standard, profiling, or the path of a .csv file"
        if not counters.endswith(".csv"):
            meant = nearest(counters, ["standard", "profiling"])
            self._problem(
                "dcgm.counters", f'found "{counters}"', allowed, f"did you mean {meant}?" if meant else "write one of them"
            )
        elif not Path(self.listing.local_path(counters)).is_file():
            self._problem("dcgm.counters", f"{counters} does not exist", allowed, "write its path, relative to the stack file")

    def _check_backend(self) -> None:
        """The embedded backend takes pushes on loopback without credentials; anything else was meant for another stack."""
        if self.file.backend and self.file.metrics and self.file.metrics.username and _is_loopback(self.file.metrics.url):
            self._problem(
                "metrics.username", "has no meaning with the embedded backend, which asks for none", "", "remove username"
            )

    def _check_grafana(self) -> None:
        if self.file.grafana and not self.file.backend and "backend" not in self.broken and "grafanaAuth" not in self.secrets_set:
            self._problem(
                "grafanaAuth", f"is missing: {PROJECT}:grafana is set", "", f"`pulumi config set --secret {PROJECT}:grafanaAuth`"
            )
        if "grafanaAuth" in self.secrets_set and self._is_absent("grafana"):
            self._problem(
                "grafana",
                f"is missing: {PROJECT}:grafanaAuth is set",
                "",
                f"add the section, or `pulumi config rm {PROJECT}:grafanaAuth`",
            )

    def _check_alerts(self, alerts: Alerts) -> None:
        for target, section in {"ruler": "rulers", "grafana": "grafana"}.items():
            if target in alerts.targets and self._is_absent(section):
                self._problem(
                    "alerts.targets",
                    f"holds {target}, and {PROJECT}:{section} is missing",
                    "",
                    f"add {PROJECT}:{section}, or remove {target}",
                )
        if len(set(alerts.targets)) < len(alerts.targets):
            self._problem("alerts.targets", "names a target twice", "each once", "remove one")
        names = list(alerts.receivers)
        if alerts.receiver is None and len(names) > 1:
            self._problem(
                "alerts.receiver",
                f"is missing: there are {len(names)} receivers",
                listed(sorted(names)),
                "name the one for all other alerts",
            )
        if alerts.receiver is not None:
            self._check_reference("alerts.receiver", alerts.receiver, names, "alerts.receivers")
        for name, receiver in alerts.receivers.items():
            self._check_receiver(name, receiver)
        for index, route in enumerate(alerts.routes):
            self._check_reference(f"alerts.routes[{index}].receiver", route.receiver, names, "alerts.receivers")
            for position, timing in enumerate(route.mute_timings):
                path = f"alerts.routes[{index}].muteTimings[{position}]"
                self._check_reference(path, timing, list(alerts.mute_timings), "alerts.muteTimings")
        for name, timing in alerts.mute_timings.items():
            path = f"alerts.muteTimings.{name}"
            if timing.location not in available_timezones():
                meant = nearest(timing.location, available_timezones())
                self._problem(
                    f"{path}.location",
                    f'"{timing.location}" is no time zone',
                    "a name such as Europe/Berlin",
                    f"did you mean {meant}?" if meant else "",
                )
            if not (timing.weekdays or timing.times or timing.days_of_month):
                self._problem(path, "has no condition and would be silent for ever", "weekdays, times or daysOfMonth", "add one")
            for index, times in enumerate(timing.times):
                if times.start >= times.end:
                    what = f"runs from {times.start} to {times.end}"
                    self._problem(
                        f"{path}.times[{index}]",
                        what,
                        "an end after the start",
                        "write two ranges for a time that crosses midnight",
                    )

    def _check_reference(self, path: str, name: str, known: list[str], section: str) -> None:
        if name in known:
            return
        meant = nearest(name, known)
        fix = f"did you mean {meant}?" if meant else f"add it to {PROJECT}:{section}"
        self._problem(path, f'"{name}" is not in {PROJECT}:{section}', listed(sorted(known)) if known else "", fix)

    def _check_receiver(self, name: str, receiver: Receiver) -> None:
        path = f"alerts.receivers.{name}"
        channels = [(kind, channel) for kind in Receiver.model_fields if (channel := getattr(receiver, kind))]
        if not channels:
            self._problem(path, "names no way to tell anybody", listed(Receiver.model_fields), "add one of them")
        for kind, channel in channels:
            for key, secret in _secret_names(channel):
                if secret in SECRETS or secret not in self.secrets_set:
                    what = f"the secret {PROJECT}:{secret} is not set"
                    if secret in SECRETS:
                        what = f"{PROJECT}:{secret} is the {SECRETS[secret]}"
                    self._problem(
                        f"{path}.{kind}.{key}",
                        what,
                        "the name of a secret of its own",
                        f"`pulumi config set --secret {PROJECT}:NAME`",
                    )
        if webhook := receiver.webhook:
            if bool(webhook.url) == bool(webhook.url_secret):
                what = "has url and urlSecret" if webhook.url else "has neither url nor urlSecret"
                self._problem(f"{path}.webhook", what, "one of them", "keep url; urlSecret is for a URL that is itself a secret")
            if bool(webhook.username) != bool(webhook.password_secret):
                self._problem(f"{path}.webhook", "has only one of username and passwordSecret", "both or none", "add the other")
            if webhook.username and webhook.authorization_secret:
                self._problem(
                    f"{path}.webhook",
                    "has a password and a bearer token",
                    "one of them",
                    "remove username, or authorizationSecret",
                )
        if (email := receiver.email) and bool(email.username) != bool(email.password_secret):
            self._problem(f"{path}.email", "has only one of username and passwordSecret", "both or none", "add the other")

    def _check_unused_secrets(self) -> None:
        """A secret that nobody reads is a slip of its name, or one to take back."""
        if "alerts" in self.broken:
            return
        receivers = self.file.alerts.receivers.values() if self.file.alerts else ()
        used = {
            secret
            for receiver in receivers
            for kind in Receiver.model_fields
            for _, secret in _secret_names(getattr(receiver, kind))
        }
        sections = {field.alias or name for name, field in StackFile.model_fields.items()}
        for key in sorted(self.secrets_set - used - set(SECRETS) - sections):
            fix = f"correct the name, let a receiver use it, or `pulumi config rm {PROJECT}:{key}`"
            self.listing.problems.append(unknown_key(f"{PROJECT}:{key}", key, used | set(SECRETS) | sections, fix))


def _secret_names(channel: Section | None) -> Iterator[tuple[str, str]]:
    """(key, name of the secret) of what a channel needs."""
    for name, field in type(channel).model_fields.items() if channel else ():
        if name.endswith("_secret") and (secret := getattr(channel, name)):
            yield field.alias or name, secret


def _ports(section: Section, path: str = "") -> Iterator[tuple[str, int]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _ports(value, f"{path}{field.alias}.")
        elif isinstance(value, int):
            yield f"{path}{field.alias}", value


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _is_in_clear(url: str) -> bool:
    return url.startswith("http://") and not _is_loopback(url)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_HOSTS_NAMED])
    return shown if len(names) <= _HOSTS_NAMED else f"{shown} and {len(names) - _HOSTS_NAMED} more hosts"


def _counted(hosts: list[object]) -> str:
    return "1 host has" if len(hosts) == 1 else f"{len(hosts)} hosts have"


def _private_key_problem(file: Path) -> tuple[str, str, str] | None:
    """(what, allowed, fix), or None when the key can be used without asking anybody."""
    import asyncssh  # here because it takes 0.2 s to load, and a stack without key files does not need it

    allowed = "a private key without passphrase that you alone can read"
    try:
        mode = file.stat().st_mode
        if mode & 0o077:
            return f"{file} can be read by others (mode {mode & 0o777:04o})", allowed, f"`chmod 600 {file}`"
        asyncssh.import_private_key(file.read_bytes())
    except OSError as error:
        return f"{file} {why_unreadable(error)}", allowed, "correct the path, or remove the key to use the ssh-agent"
    except asyncssh.KeyEncryptionError:
        return f"{file} has a passphrase", allowed, "load it into the ssh-agent (`ssh-add`) and remove the key here"
    except asyncssh.KeyImportError:
        return f"{file} is not a private key", allowed, "write the path of the private half, without .pub"
    return None
