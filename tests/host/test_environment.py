"""Whatever the environment is in which our programs are started, what they print and write is the same.

The hostile one is made of what hosts really have: a locale with a decimal comma, variables that change how tools read their
options and what they print, a proxy for everything, and neither HOME nor a usual umask.
"""

from __future__ import annotations

import functools
import http.server
import io
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alerts.readiness import table
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.evidence import Evidence
from gpu_fleet.host.parts.jobs import Jobs
from gpu_fleet.host.parts.readiness import Readiness
from gpu_fleet.toolchain.upstream import extract
from tests.host.hosts import SimulatedHost, page
from tests.host.parts.places import defaults, parts_of, place
from tests.host.parts.textfiles import PYTHON, tool

LIBEXEC = "opt/gpu-fleet/libexec"
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]

# Answers in the forms that nvidia-smi, amd-smi and rocm-smi print, with fractions wherever these have them.
NVIDIA_SMI = {
    "-L": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)\n",
    "--version": "DRIVER version      : 590.48.01\nCUDA Version        : 13.1\n",
    "--help-query-gpu": 'List of valid properties to query:\n\n"uuid"\nUnique.\n\n"power.draw"\nPower.\n',
    "--query-gpu=index,uuid": (
        "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 00000000:4B:00.0, 590.48.01, 81559, 1024, 93, 61, 651.42, 700.00, 3, 1\n"
        "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 00000000:5D:00.0, 590.48.01, 81559, 0, [N/A], 33, 70.55, 700.00, [N/A], [N/A]\n"
    ),
    "-q -d TEMPERATURE": (
        "GPU 00000000:4B:00.0\n"
        "        GPU Current Temp                  : 61 C\n"
        "        GPU T.Limit Temp                  : 26 C\n"
        "        GPU Slowdown T.Limit Temp         : -2 C\n"
    ),
    "nvlink -gt d": "GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n\t Link 0: Data Tx: 20000000001 KiB\n\t Link 0: Data Rx: 3 KiB\n",
    "nvlink -s": "GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n",
    "dmon -s t -c 1": "# gpu  rxpci  txpci \n# Idx   MB/s   MB/s \n    0     51     14 \n",
}
ROCM_SMI = {
    "--showproductname": (
        '{"card0": {"Unique ID": "0xabc", "Temperature (Sensor junction) (C)": "44.5", "PCI Bus": "0000:05:00.0",'
        ' "Max Graphics Package Power (W)": "750.5", "Current Socket Graphics Package Power (W)": "132.25", "GPU use (%)": "7",'
        ' "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297000960", "Card Series": "MI300X"}}\n'
    )
}
AMD_SMI = {
    "metric": (
        '[{"gpu": 0, "usage": {"gfx_activity": {"value": 3.5, "unit": "%"}}, "power": {"socket_power": {"value": 132.75,'
        ' "unit": "W"}}, "temperature": {"hotspot": {"value": 44, "unit": "C"}}, "mem_usage": {"total_vram": {"value": 196592.5,'
        ' "unit": "MB"}, "used_vram": {"value": 283.25, "unit": "MB"}}}]\n'
    ),
    "static": '[{"gpu": 0, "asic": {"market_name": "MI300X", "asic_serial": "0xabc"}, "bus": {"bdf": "0000:05:00.0"}}]\n',
}


@dataclass
class Machine:
    """A host below a directory, in one of two environments."""

    directory: Path
    environment: Mapping[str, str]
    umask: int
    shell: tuple[str, ...] = ("sh",)
    programs: Path | None = None  # ahead of the PATH
    said: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> Path:
        return self.directory / "host"

    def run(self, *command: object, **variables: str) -> None:
        """What it prints is kept."""
        path = f"{self.programs}:/usr/bin:/bin" if self.programs else "/usr/bin:/bin"
        done = subprocess.run(
            [*self.shell, *map(str, command)],
            env={**self.environment, "PATH": path, "GPU_FLEET_PREFIX": str(self.prefix), **variables},
            umask=self.umask,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.said.append(f"{done.returncode}\n{done.stdout}\n{done.stderr}")

    def result(self) -> dict[str, str]:
        """What it printed, and content and mode of each file. Without what differs from one run to the next."""
        found = {"printed": "\n".join(self.said)}
        for file in sorted(path for path in self.prefix.rglob("*") if path.is_file()):
            found[str(file.relative_to(self.prefix))] = f"{file.stat().st_mode:o} {file.read_text()}"
        varying = re.compile(r"(_(?:timestamp|duration)_seconds(?:\{[^}]*\})?) [\d.]+|at_s\":[\d.]+|incoming\.\w+")
        return {name: varying.sub(r"\1", text.replace(str(self.directory), "DIR")) for name, text in found.items()}


@pytest.fixture(scope="session")
def comma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LOCPATH with de_DE.UTF-8."""
    directory = tmp_path_factory.mktemp("locales")
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", directory / "de_DE.UTF-8"], check=True)
    shown = subprocess.run(
        ["/usr/bin/printf", "%.1f", "1,5"],
        env={"LOCPATH": str(directory), "LC_ALL": "de_DE.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "1,5", "the locale works"
    return directory


@pytest.fixture
def hostile(comma: Path, tmp_path: Path) -> dict[str, str]:
    rc = tmp_path / "rc"
    rc.write_text("echo from-a-startup-file\n")
    return {
        **{name: "de_DE.UTF-8" for name in ("LANG", "LC_ALL", "LC_NUMERIC", "LANGUAGE")},
        "LOCPATH": str(comma),
        "TZ": "Asia/Kathmandu",
        "POSIXLY_CORRECT": "1",
        "CDPATH": f"/:{tmp_path}",
        "IFS": "a1.",
        "ENV": str(rc),
        "BASH_ENV": str(rc),
        "BASH_FUNC_awk%%": "() { echo from-a-function; }",
        "PS4": "$(echo from-a-prompt >&2)",
        "TMPDIR": str(tmp_path / "missing"),
        "TAR_OPTIONS": "--totals",
        "GREP_OPTIONS": "--color=always",
        "GREP_COLORS": "mt=01;31",
        "BLOCKSIZE": "human-readable",
        "TIME_STYLE": "full-iso",
        "AWKPATH": "/nonexistent",
        "CLICOLOR_FORCE": "1",
        "COLUMNS": "1",
        "PYTHONPATH": "/nonexistent",
        **{name: "http://127.0.0.1:1" for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY")},
    }


@pytest.fixture(params=SHELLS)
def machines(request: pytest.FixtureRequest, tmp_path: Path, hostile: dict[str, str]) -> list[Machine]:
    shell = (shutil.which(request.param), *(["sh"] if request.param == "busybox" else []))
    clean = Machine(tmp_path / "clean", {"HOME": str(tmp_path)}, 0o022, shell)
    return [clean, Machine(tmp_path / "hostile", hostile, 0o077, shell)]


def collected(machine: Machine, facts: Mapping[str, str], tools: Mapping[str, Mapping[str, str]]) -> None:
    bin = machine.directory / "bin"
    for name, answers in tools.items():
        # What the tool itself sees: amd-smi is a Python program, and nvidia-smi prints numbers in the user's locale.
        script = tool(bin, name, answers)
        script.write_text(script.read_text().replace("#!/bin/sh\n", '#!/bin/sh\n[ "$LC_ALL$TZ${LANG-}" = CUTC0 ] || exit 9\n'))
    place(parts_of(facts), machine.prefix)
    program = machine.prefix / LIBEXEC / "start-textfile"
    machine.run(program, GPU_FLEET_TOOL_PATH=str(bin), **PYTHON, **facts)
    assert "node_gpu_collector_success" in "".join(machine.result().values())


def nvidia(machine: Machine) -> None:
    collected(machine, {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}, {"nvidia-smi": NVIDIA_SMI})


def rocm_smi(machine: Machine) -> None:
    collected(machine, {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "amd"}, {"rocm-smi": ROCM_SMI})


def amd_smi(machine: Machine) -> None:
    collected(machine, {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "amd"}, {"amd-smi": AMD_SMI})


def probes(machine: Machine) -> None:
    bin = machine.directory / "bin"
    tool(bin, "nvidia-smi", NVIDIA_SMI)
    facts = {
        "GPU_FLEET_TOOL_PATH": str(bin),
        "GPU_FLEET_ROOT": str(machine.prefix),
        "GPU_FLEET_GPU_EXPORTER_LISTEN": "127.0.0.1:1",
    }
    facts |= {"GPU_FLEET_NODE_EXPORTER_LISTEN": "127.0.0.1:1", "GPU_FLEET_ADOPT": "yes", "GPU_FLEET_GPUS": "2"}
    facts |= {"GPU_FLEET_MIN_DRIVER": "590.9", "GPU_VENDOR": "nvidia", "GPU_FLEET_REPLACE_OLD_COLLECTOR": "yes"}
    (machine.prefix / "etc/cron.d").mkdir(parents=True)
    (machine.prefix / "etc/cron.d/metrics").write_text("* * * * * root /usr/local/bin/get_gpu_metrics.sh\n")
    (machine.prefix / "proc/1").mkdir(parents=True)
    (machine.prefix / "proc/1/cgroup").write_text("0::/kubepods/besteffort/pod1\n")
    parts = [part for part in parts_of({"GPU_FLEET_KERNEL_LOG_SOURCE": "journal"}) if part.probe]
    assert {part.probe for part in parts} >= {"python", "driver", "exporter", "kernel_log", "old_collector", "adoption"}
    envelope = machine.directory / "envelope"
    with tarfile.open(fileobj=io.BytesIO(Bundle.of(parts).tar)) as tar:
        extract(tar, envelope / "bundle")
    (envelope / "settings").write_text("".join(f"{name}={value}\n" for name, value in facts.items()))
    machine.run(envelope / "bundle/converge", "plan", "--prefix", machine.prefix, "--envelope", envelope)
    assert all(said.startswith("0\n") for said in machine.said), machine.said
    machine.said[:] = [re.sub('"settings_digest":"[^"]*"', "", said) for said in machine.said]  # of settings with directories


def started(machine: Machine) -> None:
    """The programs that service managers start, each a script that prints its arguments and environment."""
    facts = {"GPU_VENDOR": "nvidia", "GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", "GPU_FLEET_MODE": "push"}
    parts = parts_of(facts)
    place(parts, machine.prefix)
    bin = machine.prefix / "opt/gpu-fleet/bin"
    # Variables of the shells themselves, and the proxy and HOME, which stay as they are.
    own = "^(_|PWD|OLDPWD|SHLVL|HOME|GPU_FLEET_NVIDIA_SMI_[A-Z]*|.*_proxy|.*_PROXY)="
    for name in ("node_exporter", "nvidia_gpu_exporter", "alloy"):
        (bin / name).write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\"\nenv | grep -vE '{own}' | sort\numask\n")
        (bin / name).chmod(0o755)
    tool(machine.directory / "tools", "nvidia-smi", NVIDIA_SMI)
    settings = defaults(parts) | {"GPU_FLEET_TOOL_PATH": str(machine.directory / "tools"), "GPU_FLEET_INSTANCE": "a 'b'"}
    (machine.prefix / "etc/gpu-fleet").mkdir(parents=True, exist_ok=True)
    quoted = {name: value.replace("'", "'\\''") for name, value in settings.items()}
    (machine.prefix / "etc/gpu-fleet/gpu-fleet.env").write_text("".join(f"{name}='{quoted[name]}'\n" for name in quoted))
    for program in ("node-exporter", "nvidia-gpu-exporter", "alloy"):
        machine.run(machine.prefix / LIBEXEC / "run", program)


def asked(machine: Machine) -> None:
    """An exporter on loopback, where there is no other client. A proxy would refuse."""
    (machine.directory / "page").mkdir(parents=True)
    (machine.directory / "page/metrics").write_text("up 1\n")
    place(parts_of({}), machine.prefix)
    bin = machine.directory / "bin"
    bin.mkdir()
    for program in ("sh", "timeout"):
        (bin / program).symlink_to(str(shutil.which(program)))
    handler = functools.partial(_Quiet, directory=str(machine.directory / "page"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        machine.run(machine.prefix / LIBEXEC / "fetch-metrics", f"127.0.0.1:{server.server_address[1]}", PATH=str(bin))
        server.shutdown()
    assert machine.said == ["0\nup 1\n\n"], machine.said


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def maintenance(machine: Machine) -> None:
    place(parts_of({"GPU_FLEET_MODE": "push"}), machine.prefix)
    program = machine.prefix / "opt/gpu-fleet/bin/gpu-fleet-maintenance"
    machine.run(program, "status")
    machine.run(program, "start", "new fan")
    machine.run(program, "status")


def jobs(machine: Machine) -> None:
    """As slurmd calls prolog and epilog, the timer the sweep, and a person the command."""
    _with_settings(machine, jobs=Jobs())
    machine.programs = machine.directory / "programs"
    listed = "PID      JOBID    STEPID   LOCALID GLOBALID\n1        4711     batch    0       0\n"
    script = tool(machine.programs, "scontrol", {"listpids": listed})
    script.write_text(script.read_text().replace("#!/bin/sh\n", '#!/bin/sh\n[ "$LC_ALL$TZ${LANG-}" = CUTC0 ] || exit 9\n'))
    command = machine.prefix / "opt/gpu-fleet/bin/gpu-fleet-jobs"
    machine.run(command, "prolog", SLURM_JOB_ID="4711", SLURM_JOB_USER="alice", SLURM_JOB_GPUS="1,3", SLURMD_NODENAME="n")
    store = machine.prefix / "run/gpu-fleet/jobs/jobs.json"
    assert '"user": "alice"' in store.read_text()
    machine.run(machine.prefix / LIBEXEC / "start-jobs")
    machine.run(command)
    machine.run(command, "late", machine.programs)
    assert "has no records of NCCL's Inspector" in machine.said[-1]
    machine.run(command, "ranks", "/dev/null")
    assert "no answer of NCCL's RAS" in machine.said[-1]
    machine.run(command, "epilog", SLURM_JOB_ID="4711")
    assert "alice" not in store.read_text()


def readiness(machine: Machine) -> None:
    _with_settings(machine, readiness=Readiness(table=table()), evidence=Evidence())
    machine.run(machine.prefix / LIBEXEC / "start-ready")
    machine.run(machine.prefix / "opt/gpu-fleet/bin/gpu-fleet-ready")
    report = machine.prefix / "var/lib/gpu-fleet/ready/ready.json"
    assert '"state": "unknown"' in report.read_text()
    report.unlink()  # it has the time


def _with_settings(machine: Machine, **options: object) -> None:
    parts = parts_of({"GPU_FLEET_MODE": "push"}, **options)
    place(parts, machine.prefix)
    settings = defaults(parts) | PYTHON | {"GPU_FLEET_ROOT": str(machine.prefix), "GPU_FLEET_EXPORTER_MODE": "textfile"}
    (machine.prefix / "etc/gpu-fleet").mkdir(parents=True, exist_ok=True)
    (machine.prefix / "etc/gpu-fleet/gpu-fleet.env").write_text("".join(f"{name}='{settings[name]}'\n" for name in settings))
    (machine.prefix / "var/lib/gpu-fleet/textfile").mkdir(parents=True, exist_ok=True)


WHAT: list[Callable[[Machine], None]] = [nvidia, rocm_smi, amd_smi, probes, started, asked, maintenance, jobs, readiness]


@pytest.mark.parametrize("what", WHAT, ids=lambda what: what.__name__)
def test_a_hostile_environment_changes_nothing(what: Callable[[Machine], None], machines: list[Machine]) -> None:
    for machine in machines:
        what(machine)
    clean, hostile = (machine.result() for machine in machines)
    assert hostile == clean


def test_a_host_is_converged_in_a_hostile_environment(tmp_path: Path, hostile: dict[str, str]) -> None:
    """The same events, files and modes."""
    results = []
    for name, environment in (("clean", {}), ("hostile", hostile)):
        host = SimulatedHost.below(tmp_path / name, environment=environment)
        said = [host.run(verb, [page()]).stdout for verb in ("plan", "apply", "apply", "check")]
        files = {path: str(found).replace(str(host.prefix), "PREFIX") for path, found in host.snapshot().items()}
        results.append((said, files))
        assert host.remove().code == 0
    (clean, clean_files), (hostile_said, hostile_files) = results
    assert hostile_said == clean
    assert hostile_files == clean_files


@pytest.mark.parametrize("name", ["gpu-fleet-evidence", "gpu-fleet-jobs", "gpu-fleet-ready"])
def test_who_asks_a_command_for_help_gets_it_and_nothing_is_done(name: str) -> None:
    done = subprocess.run([ROOTFS / "opt/gpu-fleet/bin" / name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode > 1 and done.stderr.startswith(f"usage: {name}") and not done.stdout
