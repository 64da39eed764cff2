"""Programs that print without end, as a broken tool does: what they print is bounded, and so is our memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpu_fleet.host.part import ON_HOST

MOST_MIB = 120  # of a run's whole address space that was touched; Python itself takes 10 to 20
ENDLESS = "#!/bin/sh\nexec yes 0123456789012345678901234567890123456789012345678901234567890123456789\n"
CALLS = {
    "a collector's tool": "from on_host.tools import Tools; print(Tools(None).ask(5, ['yes'], most=1 << 20))",
    "a collector's tool, as it is": "from on_host.tools import Tools; print(Tools(None).ask(5, ['yes']))",
    "Slurm's": "from on_host import slurm_tools; slurm_tools._MOST_BYTES = 1 << 20; slurm_tools.run('scontrol', within_s=5)",
    "a container engine": "from on_host.dcgm_container import DOCKER; raise OSError(DOCKER.ask('pull'))",
    "the list of containers": "from on_host.converge.gpu_containers import _names; assert _names() == {}; raise OSError('MiB')",
}


def _python(code: str, path: Path, within_s: float = 60) -> tuple[subprocess.CompletedProcess[str], int]:
    """What it says, and its largest memory in MiB: VmHWM, since ru_maxrss begins with that of the process which started it."""
    measured = "\nfinally:\n print('KiB', [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    program = f"try:\n{textwrap.indent(code, ' ')}{measured}"
    environment = {"PATH": f"{path}:/usr/bin:/bin", "PYTHONPATH": str(ON_HOST.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=within_s, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )  # fmt: skip
    return done, int(done.stdout.rpartition("KiB ")[2]) >> 10


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    for name in ("scontrol", "docker", "podman", "getent", "useradd"):
        (tmp_path / name).write_text(ENDLESS)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_program_that_prints_without_end_is_ended_early_and_fills_no_memory(call: str, endless: Path) -> None:
    began = time.monotonic()
    done, mib = _python(call, endless)
    assert done.returncode == 1 and "MiB" in done.stderr, done.stderr
    assert mib < MOST_MIB
    assert time.monotonic() - began < 5, "it is ended at the bound, and not when its time is over"


def test_what_is_cut_is_the_beginning_where_a_part_is_enough(endless: Path) -> None:
    ask = "answer = Tools(None).ask(5, ['docker'], most=1 << 20, cut=True)"
    done, mib = _python(f"from on_host.tools import Tools; {ask}; print(len(answer.text), answer.status)", endless)
    assert done.stdout.splitlines()[0] == f"{1 << 20} None"
    assert mib < MOST_MIB


def test_a_program_that_changes_the_host_is_not_ended_and_its_output_is_not_kept(endless: Path) -> None:
    (endless / "useradd").write_text("#!/bin/sh\nhead -c 300M /dev/zero\nexit 9\n")
    done, mib = _python("from on_host.converge.programs import run; print(run('useradd').code)", endless)
    assert done.stdout.splitlines()[0] == "9", "a useradd that is cut off leaves an account by half"
    assert mib < 2 * MOST_MIB + 64


def test_what_a_tool_leaves_running_keeps_nobody_waiting(endless: Path) -> None:
    (endless / "docker").write_text("#!/bin/sh\nsleep 30 &\necho done\n")
    began = time.monotonic()
    done, _ = _python("from on_host.tools import Tools; print(Tools(None).ask(20, ['docker']).text)", endless)
    assert done.stdout.splitlines()[0] == "done"
    assert time.monotonic() - began < 10
