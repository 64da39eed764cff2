"""Builds a program from the Go module proxy, for machines that reach package registries but not upstream.

The result is the same program: the modules are pinned by go/*/go.sum, -mod=readonly keeps it that way. Not done here: choosing
this source (install.py), and Go itself, which the user installs.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_fleet.toolchain.cache import Cache
from gpu_fleet.toolchain.errors import ToolchainError
from gpu_fleet.toolchain.programs import GoBuild, Program
from gpu_fleet.toolchain.progress import Step

TAIL_LINES = 15  # of a failed build's log: enough for Go's last error and the import chain above it


def go_trouble(modules: Iterable[Path]) -> str:
    """Why this machine's Go cannot build all of `modules` (not empty), with what to do; empty when it can."""
    needed = max((_needed_go(module) for module in modules), key=_version)
    remedy = "install it as https://go.dev/doc/install says (distributions are often too old) and put it on the PATH"
    if shutil.which("go") is None:
        return f"Go {needed} or newer is missing: {remedy}"
    # Not in the module's directory, where an old Go prints nothing but an error.
    done = subprocess.run(["go", "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", capture_output=True, text=True, check=False)
    version, _, toolchain = done.stdout.strip().removeprefix("go").partition("\n")
    fetches_newer = toolchain not in ("", "local") and _version(version) >= (1, 21)
    if _version(version) < _version(needed) and not fetches_newer:
        return f"Go is {version or 'there but does not run'}, {needed} or newer is needed: {remedy}"
    return ""


def build(program: Program, cache: Cache, into: Path, step: Step) -> None:
    """Builds `program` into the new directory `into`. Raises ToolchainError with the end of the log."""
    go = program.go
    if go is None:
        raise ValueError(f"{program.name} has no Go build")
    into.mkdir()
    environment = _environment(go, cache, into.parent)
    # Without debug information, which the linker drops anyway: a tenth less time, measured with kwok.
    command = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"]
    if go.embeds:
        command += ["-overlay", str(_overlay(go, environment, into.parent))]
    command += ["-tags", go.tags, "-ldflags", f"-s -w {go.ldflags}".strip(), "-o", str(into / program.name), go.package]
    log = cache.log(program.name)
    code = _run(command, cwd=go.module, env=environment, log=log, step=step)
    if code != 0:
        tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        if any("no space left on device" in line for line in tail):
            raise OSError(errno.ENOSPC, "No space left on device")  # reported like every other full disk
        raise ToolchainError(
            f"{program.title}: `go build` failed (exit {code}), whole log: {log}\n" + "\n".join(f"  {line}" for line in tail)
        )


def _environment(go: GoBuild, cache: Cache, scratch: Path) -> dict[str, str]:
    return {
        **os.environ,
        "GOMODCACHE": str(cache.go_modules),
        "GOCACHE": str(cache.go_builds),
        "GOTMPDIR": str(scratch),  # a small /tmp in memory is a common reason for a failed build
        "GOFLAGS": "-modcacherw",  # without it nobody can remove the module cache with plain rm; replaces the user's flags
        "GOWORK": "off",
        "CGO_ENABLED": "1" if go.needs_c else "0",
    }


def _overlay(go: GoBuild, environment: dict[str, str], scratch: Path) -> Path:
    """A file for `go build -overlay` that puts what the main package embeds beside it. Raises ToolchainError."""
    found = {}
    for file in go.embeds:
        package, _, name = file.rpartition("/")
        # -e: the package itself cannot be built, for want of what is generated for upstream's own build.
        command = ["go", "list", "-mod=readonly", "-find", "-e", "-f", "{{.Dir}}", package]
        done = subprocess.run(command, cwd=go.module, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not done.stdout.strip():
            raise ToolchainError(f"`go list {package}` failed (exit {done.returncode}):\n{done.stderr.strip()}")
        found[str(go.module / name)] = str(Path(done.stdout.strip(), name))
    overlay = scratch / "overlay.json"
    overlay.write_text(json.dumps({"Replace": found}))
    return overlay


def _run(command: list[str], *, cwd: Path, env: dict[str, str], log: Path, step: Step) -> int:
    """Runs to the end, with its output in `log` and the last line of it in `step`. Ends with us, compilers included."""
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


def _needed_go(module: Path) -> str:
    line = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    if line is None:
        raise ToolchainError(f"{module}/go.mod has no `go` line")
    return line[1]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0])[:3])
