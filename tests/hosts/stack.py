"""A stack whose hosts are the lab's, worked on with the real pulumi and our plugin, as a person does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet import toolchain
from gpu_fleet.operations.deploy import FLAGS, SAVED_ONCE
from lab.hosts import Host, Site
from lab.standins import programs
from tests import checkout

DATACENTER, CLUSTER = "lab-west", "training"
# make's flags for fleets, without a confirmation prompt.
UP = ("up", "--yes", "--skip-preview", "--suppress-permalink", *FLAGS)


@dataclass(frozen=True)
class Backend:
    """As this machine reaches it (`mimir`, `loki`: base URLs), and as the hosts do (`metrics`, `logs`: push URLs)."""

    mimir: str
    loki: str
    metrics: str
    logs: str


@dataclass
class Stack:
    """`directory`: a copy of the checkout, with the state in it. `config`: the stack file's keys without `gpu-fleet:`; `write`
    makes a change of it known."""

    directory: Path
    name: str
    config: dict[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def create(self) -> Stack:
        checkout.copy_to(self.directory)
        (self.directory / "state").mkdir()
        self.pulumi("stack", "init", self.name)
        self.write()
        if self.secrets:  # planted ones: on the command line, all in one start of pulumi
            given = (("--secret", f"gpu-fleet:{key}={value}") for key, value in self.secrets.items())
            self.pulumi("config", "set-all", *(argument for pair in given for argument in pair))
        return self

    def write(self) -> None:
        """The stack file; its key and the secrets in it stay."""
        there = yaml.safe_load(self._file.read_text()) if self._file.exists() else {}
        kept = {key: value for key, value in there.get("config", {}).items() if isinstance(value, dict) and "secure" in value}
        there["config"] = {**{f"gpu-fleet:{key}": value for key, value in self.config.items()}, **kept}
        self._file.write_text(yaml.safe_dump(there, sort_keys=False))

    def start(self, *arguments: str, stdin: int | None = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(toolchain.find("pulumi")), "--non-interactive", *arguments],
            cwd=self.directory,
            env={**os.environ, **self._environment(), **environment},
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def pulumi(self, *arguments: str, ok: bool = True, stdin: str | None = None, **environment: str) -> str:
        """What it printed; it must succeed, or fail when not `ok`."""
        process = self.start(*arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **environment)
        output, _ = process.communicate(stdin, timeout=1200)
        assert (process.returncode == 0) == ok, f"pulumi {' '.join(arguments)} exited {process.returncode}:\n{output}"
        return output

    def operation(self, name: str, *arguments: str, ok: bool = True) -> str:
        """What `python -m gpu_fleet.operations.NAME` printed, as make starts it; it must succeed, or fail when not `ok`."""
        command = [sys.executable, "-m", f"gpu_fleet.operations.{name}", "--stack", self.name, *arguments]
        environment = {**os.environ, **self._environment()}
        done = subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout if ok else done.stdout + done.stderr

    def unlock(self) -> None:
        """After a kill. In a container, as tests may run in one, `make up` releases no lock; a kill while the backend was written
        is repaired as by make's targets."""
        code = "from gpu_fleet.operations.engine import pulumi; print(pulumi('cancel', '--yes').stderr)"
        environment = {**os.environ, **self._environment()}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.directory, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "error" not in done.stdout, done.stdout + done.stderr

    def up(self, *arguments: str, ok: bool = True, **environment: str) -> str:
        return self.pulumi(*UP, *arguments, ok=ok, **SAVED_ONCE, **environment)

    def previewed_up(self, *arguments: str) -> tuple[str, str]:
        """What one run printed of its preview, and of the update."""
        output = self.pulumi("up", "--yes", "--suppress-permalink", *FLAGS, *arguments, **SAVED_ONCE)
        preview, header, update = output.partition("\nUpdating (")
        assert header, output
        return preview, update

    def up_unchanged(self) -> str:
        """A refresh and an update in one run, in which neither changes anything."""
        log = self.directory / "state/events.json"
        output = self.up("--refresh", "--expect-no-changes", "--event-log", str(log), PULUMI_DEBUG_COMMANDS="true")
        assert_unchanged(log)
        return output

    def destroy(self) -> str:
        return self.pulumi("destroy", "--yes", "--skip-preview", *FLAGS, **SAVED_ONCE)

    def clear(self) -> None:
        """Destroys what a test left."""
        if self.resources():
            self.destroy()

    @property
    def state(self) -> Path:
        """The file that pulumi keeps, with what `stack export` prints."""
        return self.directory / f"state/.pulumi/stacks/gpu-fleet/{self.name}.json"

    def resources(self) -> list[dict[str, Any]]:
        """Of the state; secrets are encrypted."""
        return json.loads(self.state.read_text())["checkpoint"]["latest"].get("resources", [])

    @property
    def _file(self) -> Path:
        return self.directory / f"Pulumi.{self.name}.yaml"

    def _environment(self) -> dict[str, str]:
        return {
            **programs.environment(self.name),
            "PULUMI_BACKEND_URL": f"file://{self.directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "of the tests",
            "PULUMI_STACK": self.name,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }


def assert_unchanged(log: Path) -> None:
    """The log of events of an `up --refresh`, whose summary counts what the update changes and not what the refresh does."""
    steps = [event["resOutputsEvent"]["metadata"] for event in map(json.loads, log.open()) if "resOutputsEvent" in event]
    log.unlink()  # else the next run would write at its end
    refreshed = {step["urn"]: step for step in steps if step["op"] == "refresh"}
    assert refreshed and refreshed.keys() == {step["urn"] for step in steps if step["op"] == "same"}
    for urn, step in refreshed.items():
        assert step.get("new") and not step.get("detailedDiff"), f"{urn} has drifted: {step}"


def config_of(
    site: Site, hosts: Mapping[str, Mapping[str, Any]], artifacts: Path, backend: Backend, username: str | None = None
) -> dict[str, Any]:
    """A stack file's keys for some hosts of the site. `username`: of Mimir and Loki, which accept every login here."""
    for name in hosts.keys() & site.hosts.keys():
        _ = site.hosts[name]  # boots it
    login = {"username": username} if username else {}
    return {
        "datacenter": DATACENTER,
        "cluster": CLUSTER,
        "ssh": {"user": "ops", "privateKeyFile": str(site.key_file), "knownHostsFile": str(site.known_hosts_file)},
        "hosts": {name: dict(entry) for name, entry in hosts.items()},
        "artifacts": {"source": "controller", "directory": str(artifacts)},
        "metrics": {"url": backend.metrics, **login},
        "logs": {"url": backend.logs, **login},
    }


def logins(host: Host, user: str = "ops") -> int:
    """How often sshd has accepted the user since the host was created."""
    return sshd_log(host).count(f"Accepted publickey for {user} ")


def refusals(host: Host, user: str = "ops") -> int:
    """Connections that ended before the user was authenticated."""
    return len(re.findall(rf"(?:closed by|reset by|Disconnected from) authenticating user {user} ", sshd_log(host)))


def sshd_log(host: Host) -> str:
    """All that sshd has written by now: on its way are a socket of journald, or the console."""
    if host.variant.has_systemd:
        # Not by unit: journald does not know that of a process which has ended before it reads the line.
        # Since OpenSSH 9.8 a login's lines are those of sshd-session.
        programs = "--identifier sshd --identifier sshd-session"
        return host.ssh(f"journalctl --sync; journalctl {programs} --no-pager --output cat").stdout
    mark = f"read at {time.time_ns()}"
    host.ssh(f"echo {mark} >/dev/console")
    deadline = time.monotonic() + 120
    while mark not in (text := host.console.read_text(errors="replace")):
        assert time.monotonic() < deadline, f"{host.console}: {mark!r} not within 120 s"
        time.sleep(0.05)
    return text


# What a run may leave anywhere: files, accounts, units, processes. Logs and locks of the system are not ours. Content is compared
# for files that differ from the host's image, and for those below /etc, which tools rewrite without a change. A useradd that was
# killed leaves /etc/passwd.PID. Units are files too, also those below /run: `systemctl list-unit-files` takes 0.35 s of CPU to
# say what these files make of each unit. Owners by number: looking up their names would take three times the time of the rest.
_EVERYTHING = r"""
changed=$(mktemp)
# In one walk: there are forty thousand files, and the longest part of it is to compare each with what is left out.
find / -xdev \( -type d \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/tmp \
    -o -path /var/cache -o -path /var/log/journal -o -path /var/lib/systemd -o -path /var/lib/sudo -o -path /var/lib/docker \
    -o -path /var/lib/containerd -o -path /var/lib/gpu-lab -o -path /var/lib/rpm -o -path /var/lib/dnf \
    -o -path /usr/local/lib/gpu-lab-bin \) \
  -o ! -type d \( -path '/var/log/?tmp' -o -path /var/log/lastlog -o -path /var/log/faillog \
    -o -path '/etc/*' \( -name .pwd.lock -o -name '*-' -o -regex '/etc/[a-z]*\.\(lock\|[0-9]+\)' \) \) \) -prune \
  -o \( -type f -cnewer /etc/machine-id -fprint0 "$changed" -false \) \
  -o -type d -printf '%p %m %U:%G\n' -o ! -type d -printf '%p %y %m %U:%G %l\n'
{
  find /etc -xdev -type f ! -name .pwd.lock ! -name '*-' ! -regex '/etc/[a-z]*\.\(lock\|[0-9]+\)' -print0
  cat "$changed"
} |
  sort -zu | xargs -0 sha256sum
rm "$changed"
find /tmp /var/tmp /run -xdev -iname '*gpu?fleet*' ! -path '/run/systemd/propagate/*' # which systemd 249 leaves of any unit
getent passwd; getent group
for directory in system system.control transient generator generator.early generator.late; do
  [ ! -d "/run/systemd/$directory" ] || find "/run/systemd/$directory" -mindepth 1 -printf '%P %l\n'
done
ps -eo args | grep -E '[g]pu-fleet|[s]upervisord' || true
if command -v nvidia-smi >/dev/null; then nvidia-smi -L 2>&1 || true; fi
"""


def everything(hosts: Iterable[Host]) -> dict[str, set[str]]:
    """By host. Sessions come and go with every login."""
    with ThreadPoolExecutor() as pool:
        texts = pool.map(lambda host: host.ssh(_EVERYTHING).stdout, hosts)
        lines = [{line for line in text.splitlines() if not line.startswith("session-")} for text in texts]
    return {host.name: found for host, found in zip(hosts, lines, strict=True)}


@contextmanager
def left_as_found(*hosts: Host) -> Iterator[None]:
    """What happens inside leaves each host as it was."""
    before = everything(hosts)
    yield
    for name, after in everything(hosts).items():
        changes = [f"+ {line}" for line in sorted(after - before[name])] + [f"- {line}" for line in sorted(before[name] - after)]
        assert not changes, f"{name} is not as it was found:\n" + "\n".join(changes[:50])
