"""A program built from the Go module proxy, for machines that reach package registries but not the makers.

The result is the same program: the modules are pinned by go/*/go.sum, -mod=readonly keeps it that way. Not done here: choosing
this way (install.py), and Go itself, which the person installs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.toolchain.cache import Cache
from lab.toolchain.errors import ToolchainError
from lab.toolchain.programs import GoBuild, Program
from lab.toolchain.progress import Progress, Step

# Debian's name and Fedora's; the compiler itself and its C library's headers come first.
PACKAGES = {"debian": ("gcc", "libc6-dev", "libsystemd-dev"), "rhel": ("gcc", "glibc-devel", "systemd-devel")}
TAIL_LINES = 15  # of a failed build's log: enough for Go's last error and the import chain above it


@dataclass(frozen=True)
class Missing:
    """What a build cannot do without: `what`, and `remedy`, a command or a sentence."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} is missing: {self.remedy}"


def missing(build: GoBuild) -> list[Missing]:
    """What this machine lacks to build it; empty when it can."""
    lacks = []
    if reason := _go_trouble(build.module):
        lacks.append(
            Missing(
                reason,
                "install Go as https://go.dev/doc/install says (distributions are often too old) and put it on the PATH",
            )
        )
    if build.needs_c:
        lacks += _c_trouble(build.headers)
    return lacks


def install_packages_as_root(lacks: Sequence[Missing], progress: Progress) -> bool:
    """On a Debian where we are root, gets the C compiler and headers by apt-get; True when something was installed."""
    if os.geteuid() != 0 or _family() != "debian" or not any(lack.remedy == _package_command() for lack in lacks):
        return False
    packages = PACKAGES["debian"]
    progress.say(f"Running as root on Debian: apt-get install {' '.join(packages)} (Alloy reads the journal with it)")
    apt = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], apt):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            progress.say(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
            return False
    return True


def build(program: Program, cache: Cache, into: Path, step: Step) -> None:
    """Builds `program` into the new directory `into`. Raises ToolchainError with the end of the log."""
    go = program.go
    if go is None:
        raise ValueError(f"{program.name} has no Go build")
    into.mkdir()
    command = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    command += ["-tags", go.tags, "-ldflags", f"-s -w {go.ldflags}".strip(), "-o", str(into / program.name), go.package]
    log = cache.log(program.name)
    code = _run(command, cwd=go.module, env=_environment(go, cache, into.parent), log=log, step=step)
    if code != 0:
        tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        if any("no space left on device" in line for line in tail):
            raise OSError(28, "No space left on device")  # told like every other full disk
        raise ToolchainError(
            f"{program.title}: `go build` failed (exit {code}), whole log: {log}\n" + "\n".join(f"  {line}" for line in tail)
        )


def _environment(go: GoBuild, cache: Cache, scratch: Path) -> dict[str, str]:
    return {
        **os.environ,
        "GOMODCACHE": str(cache.go_modules),
        "GOCACHE": str(cache.go_builds),
        "GOTMPDIR": str(scratch),  # a small /tmp in memory is a common reason for a failed build
        "GOFLAGS": "-modcacherw",  # without it nobody can remove the module cache with plain rm; replaces the person's flags
        "GOWORK": "off",
        "CGO_ENABLED": "1" if go.needs_c else "0",
    }


def _run(command: list[str], *, cwd: Path, env: dict[str, str], log: Path, step: Step) -> int:
    """Runs to the end, what it prints going to `log` and the last line into `step`. Ends with us, compilers included."""
    with log.open("w") as output:
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            while (code := child.poll()) is None:
                time.sleep(0.2)
                step.detail = _last_line(log)
            return code
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 400))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    return lines[-1].removeprefix("go: ") if lines else ""


def _go_trouble(module: Path) -> str:
    """What is wrong with the machine's Go, as a thing that is missing; empty when it can build the module."""
    needed = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    if needed is None:
        raise ToolchainError(f"{module}/go.mod has no `go` line")
    if shutil.which("go") is None:
        return f"Go {needed[1]} or newer"
    # Outside the module, where an old Go would refuse to say anything about itself.
    asked = subprocess.run(["go", "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", capture_output=True, text=True, check=False)
    version, _, toolchain = asked.stdout.strip().removeprefix("go").partition("\n")
    fetches_newer = toolchain not in ("", "local") and _version(version) >= (1, 21)
    if _version(version) < _version(needed[1]) and not fetches_newer:
        return f"Go {needed[1]} or newer (there is {version or 'one that does not run'})"
    return ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0])[:3])


def _c_trouble(headers: Sequence[str]) -> list[Missing]:
    compiler = os.environ.get("CC") or "gcc"
    if shutil.which(compiler) is None:
        return [Missing(f"a C compiler ({compiler}), with the headers {', '.join(headers)}", _package_command())]
    lacks = []
    for header in headers:
        check = [compiler, "-E", "-x", "c", "-include", header, "/dev/null"]
        if subprocess.run(check, capture_output=True, check=False).returncode != 0:
            lacks.append(Missing(f"the C header {header}", _package_command()))
    return lacks


def _package_command() -> str:
    family = _family()
    if family == "debian":
        return f"sudo apt-get install {' '.join(PACKAGES['debian'])}"
    if family == "rhel":
        return f"sudo dnf install {' '.join(PACKAGES['rhel'])}"
    return f"install your distribution's packages of {', '.join(PACKAGES['debian'])}"


def _family() -> str:
    """debian, rhel, or empty for another."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return ""
    ids = set(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)"?$', text, re.MULTILINE))
    words = {word for value in ids for word in value.split()}
    return "debian" if words & {"debian", "ubuntu"} else "rhel" if words & {"rhel", "fedora", "centos"} else ""
