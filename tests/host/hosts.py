"""A host below a temporary prefix, converged by the real program under a real shell, and parts small enough to read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Directory, File, HttpCheck, Part, Unit
from gpu_fleet.toolchain.upstream import extract

# Modules of on_host/probe/ that the bundles of these tests have besides the real ones (conftest.py): name in the zip -> content.
SCRIPTED: dict[str, bytes] = {}
_SCRIPTED = """
import subprocess
from .host import Refusal
def probe(host, *arguments):
    command = ["sh", "-c", {script!r}, "sh", *arguments]
    done = subprocess.run(command, env=host.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        raise Refusal(done.returncode, done.stderr.rstrip())
    return dict(line.split("=", 1) for line in done.stdout.splitlines())
"""
# In the process of the program, before it: `kill -9` of the whole run at the Nth change of the file system, N from a file; counts
# the changes, and writes what is flushed to disk and what is renamed, in order.
_DEADLY = """
import atexit, os, signal, sys
directory = {directory!r}
at, count, calls, fsync = int(open(f"{{directory}}/at").read()), 0, [], os.fsync
def flush(descriptor):
    calls.append("sync " + os.readlink(f"/proc/self/fd/{{descriptor}}"))
    fsync(descriptor)
os.fsync = flush
changes = {{"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}}
def watch(event, arguments):
    global count
    if event == "os.rename":
        calls.append(f"rename {{arguments[0]}} -> {{arguments[1]}}")
    if event in changes or (event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        count += 1
        if count == at:
            os.killpg(0, signal.SIGKILL)
atexit.register(lambda: print(count, file=open(f"{{directory}}/count", "w")))
atexit.register(lambda: print(*calls, sep="\\n", file=open(f"{{directory}}/calls", "w")))
sys.addaudithook(watch)
"""
_RUN = """
import os, runpy, sys
sys.argv[:] = sys.argv[1:]
runpy.run_path(os.path.dirname(sys.argv[0]) + "/lib/converge.pyz", run_name="__main__")
"""
SUPERVISORD = Path(sys.executable).parent / "supervisord"
GOLDEN = Path(__file__).parent / "golden"


@dataclass
class Run:
    """What one run of the program said and did."""

    code: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def result(self) -> dict:
        assert self.events[-1]["event"] == "result", self.stdout + self.stderr
        return self.events[-1]

    @property
    def facts(self) -> dict[str, str]:
        return next(event["facts"] for event in self.events if event["event"] == "facts")

    @property
    def statuses(self) -> dict[str, str]:
        return {event["part"]: event["status"] for event in self.events if event["event"] == "part"}

    def part(self, name: str) -> dict:
        return next(event for event in self.events if event.get("part") == name)

    def error(self, name: str) -> dict:
        return self.part(name)["error"]

    def drift(self, name: str) -> list[str]:
        return self.part(name).get("drift", [])

    def changes(self, name: str) -> list[str]:
        return self.part(name).get("changes", [])


@dataclass
class SimulatedHost:
    """One prefix. `shell` is the command that reads the program; `path` replaces the PATH it runs with. `artifacts`: None before
    the host was asked what it lacks."""

    directory: Path
    prefix: Path
    shell: tuple[str, ...] = ("sh",)
    path: str = os.environ["PATH"]
    settings: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, bytes] | None = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def below(cls, directory: Path, prefix: str = "host", **kwargs: object) -> SimulatedHost:
        host = cls(directory=directory, prefix=directory / prefix, **kwargs)  # type: ignore[arg-type]
        host.prefix.mkdir(parents=True)
        host.settings = {"GPU_FLEET_SUPERVISORD": str(SUPERVISORD), **host.settings}
        return host

    def bundle(self, parts: Sequence[Part]) -> Bundle:
        return Bundle.of(parts, rootfs=self.directory / "rootfs")

    def envelope(self, parts: Sequence[Part]) -> Path:
        bundle = self.bundle(parts)
        envelope = self.directory / "envelope"
        shutil.rmtree(envelope, ignore_errors=True)
        (envelope / "secrets").mkdir(parents=True)
        (envelope / "bundle.tar").write_bytes(bundle.tar)
        with tarfile.open(fileobj=io.BytesIO(bundle.tar)) as tar:
            extract(tar, envelope / "bundle")
        (envelope / "settings").write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        for name, value in self.secrets.items():
            (envelope / "secrets" / name).write_text(value)
        if self.artifacts is not None:
            (envelope / "artifacts").mkdir()
            for name, content in self.artifacts.items():
                (envelope / "artifacts" / name).write_bytes(content)
        return envelope

    def command(self, verb: str, parts: Sequence[Part] | None = None) -> list[str]:
        """With parts the program comes from an envelope, without from what the last apply left on the host."""
        if parts is None:
            program = self.prefix / "var/lib/gpu-fleet/current/converge"
            return [*self.shell, str(program), verb, "--prefix", str(self.prefix)]
        envelope = self.envelope(parts)
        return [*self.shell, str(envelope / "bundle/converge"), verb, "--prefix", str(self.prefix), "--envelope", str(envelope)]

    def run(self, verb: str, parts: Sequence[Part] | None = None, *arguments: str) -> Run:
        process = subprocess.run(
            [*self.command(verb, parts), *arguments],
            env={"PATH": self.path, **self.environment},
            capture_output=True,
            text=True,
            timeout=600,
            start_new_session=True,
        )
        return Run(process.returncode, process.stdout, process.stderr)

    def apply(self, parts: Sequence[Part]) -> Run:
        """An apply that has to succeed."""
        run = self.run("apply", parts)
        assert run.code == 0, run.stdout + run.stderr
        return run

    def check(self) -> Run:
        return self.run("check")

    def remove(self) -> Run:
        return self.run("remove")

    def run_first(self, source: str) -> None:
        """The next runs begin with this, in the process of the program: something that happens at an instant of its work."""
        start = self.directory / "start.py"
        start.write_text(source + _RUN)
        self.shell = (sys.executable, "-I", "-S", "-B", str(start))

    def kill_at(self, directory: Path, change: int) -> None:
        """The next runs end at this change of the file system; 0: at none."""
        self.run_first(deadly(directory, change))

    def at(self, path: str) -> Path:
        return self.prefix / path.lstrip("/")

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Everything below the prefix, except the program's own records: path -> kind, mode, content."""
        return snapshot(self.prefix, without="var/lib/gpu-fleet")

    def stop(self) -> None:
        """Ends what still runs below the prefix, however the test ended."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"GPU_FLEET_PREFIX={self.prefix}".encode() in variables:
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(int(process.name), signal.SIGKILL)


def deadly(directory: Path, change: int) -> str:
    """Source that a run begins with: it ends at this change of the file system; 0: at none. `directory` has what it did."""
    directory.mkdir(exist_ok=True)
    (directory / "at").write_text(str(change))
    return _DEADLY.format(directory=str(directory))


def scripted(name: str, script: str) -> str:
    """The name of a probe that prints NAME=value, as a script of sh."""
    SCRIPTED[f"on_host/probe/{name}.py"] = _SCRIPTED.format(script=script).encode()
    return name


def path_without(directory: Path, *programs: str) -> str:
    """A PATH with all that this machine's has but these."""
    directory.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            (directory / program.name).unlink(missing_ok=True)
            (directory / program.name).symlink_to(program)
    for program in programs:
        (directory / program).unlink(missing_ok=True)
    return str(directory)


def snapshot(root: Path, without: str = "-") -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name == without or name.startswith(without + "/"):
            continue
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", oct(path.stat().st_mode))
        else:
            found[name] = ("file", oct(path.stat().st_mode), path.read_bytes() if path.is_file() else None)
    return found


def page(text: str = "hello\n", **kwargs: object) -> Part:
    """A part of files alone: a page in a directory that is the part's own."""
    return Part(
        **{  # type: ignore[arg-type]
            "name": "page",
            "directories": (Directory(path="/etc/page", contents="placed"),),
            "files": (
                File(path="/etc/page/index.html", content=text.encode()),
                File(path="/opt/gpu-fleet/libexec/greet", content=b"#!/bin/sh\necho hello\n", mode=0o755),
            ),
            "settings": {"PAGE_COLOUR": "green"},
            **kwargs,
        }
    )


SERVER = r"""
import http.server, os, sys
with open(os.environ["GPU_FLEET_PREFIX"] + "/etc/gpu-fleet/gpu-fleet.env") as lines:
    environment = dict(line.rstrip("\n").split("=", 1) for line in lines if "=" in line)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{sys.argv[1]} answers as process {os.getpid()}\n".encode())
    def log_message(self, *_):
        pass
print("starting", sys.argv[1], flush=True)
port = int(environment["WEB_PORT"].strip('"')) if len(sys.argv) < 3 else int(sys.argv[2])
http.server.HTTPServer.allow_reuse_address = True
http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


def web(host: SimulatedHost, greeting: str = "web", name: str = "web", port: int | None = None, **kwargs: object) -> Part:
    """A part with one real service: it answers with the greeting, and ends at once when that is `broken`."""
    unit = f"gpu-fleet-{name}"
    program = f"/opt/gpu-fleet/libexec/{name}"
    rootfs = host.directory / "rootfs"
    for path, text in {
        f"etc/systemd/system/{unit}.service": f"[Service]\nExecStart={program}\n[Install]\nWantedBy=multi-user.target\n",
        f"etc/gpu-fleet/supervisor.d/{unit}.conf": (
            f"[program:{unit}]\n"
            f'command = sh "%(ENV_GPU_FLEET_PREFIX)s{program}"\n'
            "redirect_stderr = true\n"
            "startretries = 1\n"
            "stdout_logfile = %(ENV_GPU_FLEET_PREFIX)s/var/log/gpu-fleet/%(program_name)s.log\n"
        ),
    }.items():
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text(text)
    own_port = "" if port is None else f" {port}"
    start = f'#!/bin/sh\nexec {sys.executable} "$GPU_FLEET_PREFIX/opt/gpu-fleet/libexec/{name}.py" {greeting}{own_port}\n'
    if greeting == "broken":  # at once: supervisor calls a program that lives for a second a running one
        start = "#!/bin/sh\necho starting broken\necho the configuration is broken >&2\nexit 1\n"
    return Part(
        **{  # type: ignore[arg-type]
            "name": name,
            "files": (
                File(path=program, content=start.encode(), mode=0o755),
                File(path=f"{program}.py", content=SERVER.encode()),
            ),
            "units": (Unit(name=unit, restart_on=("settings", program, f"{program}.py")),),
            "checks": (HttpCheck(url=f"http://127.0.0.1:{port or '${WEB_PORT}'}/", contains=greeting, within_s=60),),
            **kwargs,
        }
    )


def golden(name: str, runs: Mapping[str, Run], *, regen: bool) -> None:
    """Compares what the program printed, run by run, with tests/host/golden/NAME; sums and ports are not compared."""
    text = "".join(f"# {title}, exit {run.code}\n{_stable(run.stdout)}" for title, run in runs.items())
    path = GOLDEN / name
    if regen:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; if the new output is right, run pytest --regen and review the diff"


def _stable(text: str) -> str:
    return re.sub(r"[0-9a-f]{64}", "SHA256", text)
