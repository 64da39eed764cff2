"""Services under systemd."""

from __future__ import annotations

import glob
import os
import re
from typing import Sequence

from .disk import Disk
from .errors import Failure, Pending
from .events import say
from .gpu_containers import OURS, GpuContainers
from .host import Host
from .programs import must, pause, read_or_empty, run
from .services import MOST_RESTARTS, End, Override, Services, Waiting, last_words

SINCE = 239  # RHEL 8, Debian 10. systemd-run has --collect since 236; older ones ignore most of what confines our services
_PROPERTIES = (
    *("LoadState", "UnitFileState", "ActiveState", "SubState", "NeedDaemonReload", "InvocationID", "DropInPaths", "WantedBy"),
    *("NRestarts", "ExecMainStatus"),  # the first: by systemd
)
_JOURNAL = ("journalctl", "--quiet", "--no-pager", "--output=cat")
# Links of /run, and links by another name: after a reboot such a unit stays stopped. Source: systemctl(1), read 2026-11-28.
_NOT_AT_BOOT = ("disabled", "enabled-runtime", "indirect")
_WANTED_BY = re.compile(r"^WantedBy=(.*)$", re.MULTILINE)
_OF_A_BOOT = {"multi-user.target", "timers.target"}
_ROOTS = (
    "/etc/systemd/system",
    "/etc/systemd/system.control",
    "/run/systemd/system",
    "/run/systemd/system.control",
    "/usr/local/lib/systemd/system",
)
_REMOVED = re.compile(r"(/etc/.*|/run/systemd/system[^/]*|/usr/local/lib/.*)/gpu-fleet-[^/]*\.d/.*")
_OF_US = re.compile(r"/gpu-fleet-[^/]*/[^/]*$")
_SETTING = re.compile(r"[ \t]*([A-Za-z]+)[ \t]*=")
_CHANGES_US = re.compile(
    "(Exec|Condition|Assert).*|"
    "(User|Group|SupplementaryGroups|DynamicUser|AmbientCapabilities|RootDirectory|RootImage|Type|Restart|RuntimeMaxSec|MemoryMax|"
    "MemoryHigh|MemoryLimit|CPUQuota|TasksMax|IPAddressDeny|StandardOutput|StandardError|OnCalendar|On[A-Za-z]*Sec)"
)


def _refuse_too_old() -> None:
    match = re.match(r"systemd (\d+)", run("systemctl", "--version").stdout)
    if match and int(match.group(1)) < SINCE:
        raise Failure(
            "unsupported", f"this host has systemd {match.group(1)}; {SINCE} or newer is needed: upgrade the distribution"
        )


class Systemd(Services):
    name = "systemd"

    def __init__(self, host: Host, disk: Disk, gpu_containers: GpuContainers) -> None:
        super().__init__()
        if host.verb in ("plan", "apply"):
            _refuse_too_old()
        self._host = host
        self._disk = disk
        self._gpu_containers = gpu_containers
        self._dropins: list[str] = []  # of the unit that `difference` asked for last
        self._known: set[tuple[str, str]] = set()  # units that systemd knew before this run changed them
        self._stopped: set[str] = set()

    def missing(self, changing: Sequence[str]) -> str:
        return ""

    def prepare(self) -> None:
        pass

    def definitions(self, units: Sequence[tuple[str, str]] = ()) -> None:
        """A unit that systemd does not know needs no reload: it reads the file when it starts the unit. Only of what another unit
        is to start it with, it then does not know."""
        unread = [unit for unit, type in units if self.has_read or self._is_unread(unit, type)]
        unlinked = [unit for unit, type in units if self._is_unlinked(unit, type)]
        left = [name for name in sorted(self._stopped) if self._properties(*name.rsplit(".", 1))["LoadState"] != "not-found"]
        if not unread and not unlinked and not left:
            return
        risk = self._gpu_containers.at_risk()
        if risk.containers and unread:
            raise Pending(
                "gpus-in-use",
                f"systemd has to read the changed unit file of {', '.join(unread)}, and `systemctl daemon-reload` would take the "
                f"GPUs from {risk}: the file is in place, and the service runs on as it was. Run `sudo systemctl daemon-reload` "
                "when they may lose them, or recreate them with CDI or --device, and then `up` again",
            )
        if risk.containers:
            names = ", ".join([*unlinked, *left])
            say(f"systemd learns what starts and stops {names} at its next reload, which would take the GPUs from {risk}")
            return
        must("systemd did not read the unit files", "systemctl", "daemon-reload")
        self._stopped.clear()
        self.has_read = True
        if risk.ours:
            run("systemctl", "try-restart", f"{OURS}.service")

    def _is_unread(self, unit: str, type: str) -> bool:
        """Does systemd know another definition than that on disk?"""
        for name in dict.fromkeys((type, "service")):  # of a timer also what it starts
            now = self._properties(unit, name)
            if now["LoadState"] != "loaded":  # masked until now; 245 does not look again for what another unit names
                return True
            if now["NeedDaemonReload"] == "yes" and not self._says_so_of_all():
                return True
            if now["NeedDaemonReload"] == "yes" and self.definitions_change and (unit, type) in self._known:
                return True
        return False

    def _is_unlinked(self, unit: str, type: str) -> bool:
        """Has systemd not read that another unit, beside the targets of a boot, wants it?"""
        name = f"{unit}.{type}"
        wanted = _WANTED_BY.search(read_or_empty(self._host.at(f"/etc/systemd/system/{name}")))
        others = set(wanted.group(1).split()) - _OF_A_BOOT if wanted else set()
        return bool(others) and not others <= set(self._properties(unit, type)["WantedBy"].split())

    def _says_so_of_all(self) -> bool:
        """255 and newer report all units as changed, also those without a file, once somebody has enabled one of them without a
        reload."""
        return self._properties("-", "slice")["NeedDaemonReload"] == "yes"

    def has_unread(self, units: Sequence[tuple[str, str]]) -> bool:
        return any(self._is_unread(*unit) for unit in units)

    def harm(self, units: Sequence[tuple[str, str]]) -> str:
        return str(self._gpu_containers.at_risk()) if self._known.intersection(units) else ""

    def _properties(self, unit: str, type: str) -> dict[str, str]:
        asked = [argument for name in _PROPERTIES for argument in ("-p", name)]
        lines = run("systemctl", "show", *asked, "--", f"{unit}.{type}").stdout.split("\n")
        return {**dict.fromkeys(_PROPERTIES, ""), **{line.partition("=")[0]: line.partition("=")[2] for line in lines if line}}

    def difference(self, unit: str, type: str) -> str:
        now = self._properties(unit, type)
        self._dropins = now["DropInPaths"].split()
        load, file = now["LoadState"], now["UnitFileState"]
        if load != "not-found":
            self._known.add((unit, type))
        found = ""
        if load == "masked" or file.startswith("masked"):
            found = "is masked"
        elif load == "not-found":
            return "is not set up"
        elif file in _NOT_AT_BOOT and self._state(unit, type) in _NOT_AT_BOOT:
            found = f"is {file}"
        elif now["NeedDaemonReload"] == "yes" and not self._says_so_of_all():
            found = "has a unit file that systemd has not read"
        if now["ActiveState"] not in ("active", "reloading"):
            found += f"{' and ' if found else ''}is not running{' (' + now['SubState'] + ')' if now['SubState'] else ''}"
        return found

    def is_running(self, unit: str, type: str) -> bool:
        return self._properties(unit, type)["ActiveState"] not in ("inactive", "failed", "")

    def _state(self, unit: str, type: str) -> str:
        """Its UnitFileState on disk: until the next reload, `show` repeats what it once said."""
        return run("systemctl", "is-enabled", f"{unit}.{type}").stdout.strip()

    def enable(self, unit: str, type: str) -> None:
        """With `--root=/` systemctl makes the links by itself. systemd would reload all unit files, or, from 255 on, report every
        unit of the host as changed on disk until somebody does."""
        self._flush_links()
        name = f"{unit}.{type}"
        if self._state(unit, type).startswith("masked"):
            run("systemctl", "--root=/", "unmask", name)
            run("systemctl", "--root=/", "unmask", "--runtime", name)
        run("systemctl", "reset-failed", name)  # a unit that failed too often is not started again before this
        must(f"{name} cannot be enabled", "systemctl", "--quiet", "--root=/", "enable", name)
        self._stopped.difference_update((name, f"{unit}.service"))

    def start(self, unit: str, type: str) -> None:
        must(f"{unit}.{type} did not start", "systemctl", "start", f"{unit}.{type}")

    def restart(self, unit: str, type: str) -> None:
        must(f"{unit}.{type} did not restart", "systemctl", "restart", f"{unit}.{type}")

    def reload(self, unit: str, type: str) -> None:
        if not run("systemctl", "reload-or-restart", f"{unit}.{type}").ok:
            raise Failure("service-failed", f"service {unit} did not accept its new configuration", self.log(unit))

    def _flush_links(self) -> None:
        """Those of enabled units."""
        for directory in ("/etc/systemd/system", *glob.glob("/etc/systemd/system/*.wants")):
            self._disk.will_flush(directory)

    def stop(self, unit: str, type: str) -> None:
        self._flush_links()
        run("systemctl", "--quiet", "--root=/", "disable", f"{unit}.{type}")
        run("systemctl", "--quiet", "stop", f"{unit}.{type}")
        self._stopped.update((f"{unit}.{type}", f"{unit}.service"))
        if type == "timer":  # its service may be running
            run("systemctl", "stop", f"{unit}.service")
        run("systemctl", "reset-failed", f"{unit}.service")

    def leave(self) -> None:
        self.definitions()

    def is_steady(self, unit: str, type: str, waiting: Waiting) -> bool:
        now = self._properties(unit, type)
        if now["ActiveState"] == "failed" or int(now["NRestarts"] or 0) >= MOST_RESTARTS:
            waiting.gave_up = True
        if now["ActiveState"] != "active" or type != "service":
            return now["ActiveState"] == "active"
        # systemd reports a program as active as soon as it runs, so one that exits immediately is detected only by a second look.
        pause()
        pause()  # one that exits later is detected by the part's own checks, or by its next restart
        later = self._properties(unit, type)
        return later["ActiveState"] == "active" and later["InvocationID"] == now["InvocationID"]

    def log(self, unit: str) -> list[str]:
        said = run(*_JOURNAL, "--lines=20", f"--unit={unit}.service")
        return said.stdout.rstrip("\n").split("\n") if said.stdout else []

    def end(self, unit: str) -> End:
        status = self._properties(unit, "service")["ExecMainStatus"]
        words = last_words(run(*_JOURNAL, "--lines=200", f"--unit={unit}.service", "_TRANSPORT=stdout").stdout)
        # 200 to 245: of systemd itself, which could not start the program: systemd.exec(5). What it said is of an earlier start.
        if re.fullmatch("2[0-3][0-9]|24[0-5]", status):
            words = self._end_before_start(unit, status)
        return End(status, words)

    def _end_before_start(self, unit: str, status: str) -> str:
        """What systemd says of a program that never ran."""
        why = how = ""
        said: str | None = None
        for line in self.log(unit):
            if line.startswith(f"{unit}.service: "):
                said = line[len(f"{unit}.service: ") :]
                if re.match("(Failed|Unable) to ", said) and not why:
                    why = f"{said} "
                if said.startswith("Main process exited"):
                    how = re.sub(".*status=", "status ", said)
        return f"{why}({how}){self._why_no_program_starts() if status == '203' else ''}"

    def _why_no_program_starts(self) -> str:
        """systemd's own words are `Permission denied`."""
        if "noexec" in run("findmnt", "-n", "-o", "OPTIONS", "-T", "/opt/gpu-fleet").stdout:
            return "; /opt/gpu-fleet is on a file system that is mounted noexec"
        starter = self._host.at("/opt/gpu-fleet/libexec/run")
        try:
            label = os.getxattr(starter, "security.selinux").decode().split(":")[2]
        except (OSError, IndexError):
            return ""
        if label == "bin_t":
            return ""
        return (
            f"; SELinux: {starter} has the label {label}, expected bin_t: restorecon -Rv /opt/gpu-fleet, after semanage fcontext "
            "where that is a link to another path"
        )

    def override_directories(self, unit: str, type: str) -> list[str]:
        """Also those for all units whose names begin as ours do, such as gpu-fleet-.service.d, and of a timer those of the
        service that it starts."""
        found: list[str] = []
        name = unit
        while True:
            for root in _ROOTS:
                found.append(f"{root}/{name}.{type}.d")
                if type != "service":
                    found.append(f"{root}/{name}.service.d")
            name = (name[:-1] if name.endswith("-") else name).rpartition("-")[0] + "-"
            if not name.startswith("gpu-fleet-"):
                return found

    def overrides(self, unit: str, type: str) -> list[Override]:
        """Drop-ins of packages (/usr/lib) and generators, which would place them again, and those for all services or timers. Of
        the latter only what makes another program of ours, stops it, or hides what it says: distributions change time limits in
        service.d (Fedora's 10-timeout-abort.conf), LXC what a container cannot confine (zzz-lxc-service.conf), sites the
        environment, of which `environment` keeps what we use."""
        paths = list(self._dropins)
        if type != "service":
            paths += self._properties(unit, "service")["DropInPaths"].split()
        # systemd names what a link leads to, and the link is removed.
        linked = {os.path.realpath(at) for at in map(self._host.at, self.override_directories(unit, type)) if os.path.islink(at)}
        found = []
        for path in paths:
            if _REMOVED.fullmatch(path) or os.path.dirname(path) in linked:
                continue
            settings: dict[str, None] = {}
            for line in read_or_empty(self._host.at(path)).split("\n"):
                match = _SETTING.match(line)
                if match and (_OF_US.search(path) or _CHANGES_US.fullmatch(match.group(1))):
                    settings[match.group(1)] = None
            if settings:
                found.append(Override(path, ", ".join(settings)))
        return found
