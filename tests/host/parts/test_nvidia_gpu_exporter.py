"""nvidia_gpu_exporter as hosts start it: what its page has when nvidia-smi is late, slow, old, talks, or loses a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_fleet.on_host.nvidia_gpu_exporter import look
from gpu_fleet.on_host.tools import Tools
from gpu_fleet.toolchain.locate import located
from lab.gpu import inject
from lab.gpu.nvml.real import GENERATIONS
from lab.ports import free_ports
from tests.checkout import REPO
from tests.host.parts.places import defaults, parts_of, place
from tests.host.parts.real_machine import RealMachine

RULES = [*(REPO / "alerts/rules").glob("*.yaml"), *(REPO / "dashboards").rglob("*.py")]
# Of the exporter itself and of its other backend.
NOT_FIELDS = ("gpu_info", "last_collect_", "energy_joules", "pcie_throughput", "xid_")

# What each field answers, for a GPU of our own invention; names as `nvidia-smi --help-query-gpu` of driver 590 lists them.
CELLS = {
    "uuid": "GPU-aaaa-{gpu}", "name": "NVIDIA H100 80GB HBM3", "driver_model.current": "[N/A]", "driver_model.pending": "[N/A]",
    "vbios_version": "96.00", "driver_version": "590.48.01", "pci.bus_id": "00000000:0{gpu}:00.0", "serial": "165{gpu}",
    "compute_cap": "9.0", "pci.sub_device_id": "0x1", "index": "{gpu}", "utilization.gpu": "7 %", "utilization.memory": "1 %",
    "utilization.encoder": "0 %", "utilization.decoder": "0 %", "memory.total": "81559 MiB", "memory.used": "4 MiB",
    "memory.free": "81000 MiB", "memory.reserved": "555 MiB", "temperature.gpu": "3{gpu}", "temperature.gpu.tlimit": "55",
    "temperature.memory": "40", "power.draw": "70.55 W", "enforced.power.limit": "700.00 W", "clocks.current.sm": "1980 MHz",
    "clocks.current.memory": "2619 MHz", "clocks_event_reasons.hw_slowdown": "Not Active",
    "clocks_event_reasons.hw_thermal_slowdown": "Not Active", "clocks_event_reasons.hw_power_brake_slowdown": "Not Active",
    "clocks_event_reasons.sw_thermal_slowdown": "Not Active", "clocks_event_reasons.sw_power_cap": "Not Active",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "0 us", "clocks_event_reasons_counters.sw_power_cap": "5 us",
    "ecc.errors.corrected.volatile.total": "0", "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No", "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No", "remapped_rows.failure": "No", "retired_pages.pending": "[N/A]", "gpu_recovery_action": "None",
    "fabric.state": "Completed", "pcie.link.gen.current": "5", "pcie.link.gen.max": "5", "pcie.link.width.current": "16",
    "pcie.link.width.max": "16", "inforom.checksum_validation": "Valid", "remapped_rows.histogram.max": "640 bank(s)",
}  # fmt: skip

# It answers as the real one: a header with units, a row per GPU, exit status 15 beside a lost GPU, a refusal of unknown fields.
NVIDIA_SMI = """#!{python}
import sys, time
from pathlib import Path
here = Path(__file__).resolve().parent
with (here / "calls").open("a") as calls: calls.write(" ".join(sys.argv[1:]) + "\\n")
if not (here / "loaded").exists():
    print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."); sys.exit(9)
cells = {cells!r}
known = [name for name in cells if name not in {unknown!r}]
if sys.argv[1] == "--help-query-gpu":
    print("List of valid properties to query:" + "".join(f'\\n\\n"{{name}}"\\nText.' for name in known)); sys.exit()
if sys.argv[1] == "--version":
    print("DRIVER version      : 590.48.01\\nCUDA Version        : 13.1"); sys.exit()
asked = sys.argv[1].partition("=")[2].split(",")
for name in asked:
    if name not in known: print(f'Field "{{name}}" is not a valid field to query.\\n'); sys.exit(2)
slow = {slow!r}
time.sleep(slow.get("", 0) + sum(slow.get(name, 0) for name in asked))
print(*{before!r}, sep="", end="")
units = {{name: cells[name].partition(" ")[2] for name in asked}}
print(", ".join(f"{{name}} [{{units[name]}}]" if units[name] in ("MiB", "%", "W", "MHz", "us") else name for name in asked))
for gpu in range(2):
    if gpu == {lost!r}:
        print("Unable to determine the device handle for GPU1: 0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU")
    else: print(", ".join(cells[name].format(gpu=gpu) for name in asked))
print(*{after!r}, sep="", end="")
sys.exit(0 if {lost!r} is None else 15)
"""


@dataclass
class Exporter:
    """The exporter of one host, over an nvidia-smi whose behaviour `behaves` sets. `loaded`: whether the driver is."""

    prefix: Path
    tools: Path
    address: str = ""
    process: subprocess.Popen[bytes] | None = None

    def behaves(self, **behaviour: object) -> None:
        usual = {"cells": CELLS, "unknown": (), "slow": {}, "before": (), "after": (), "lost": None}
        program = self.tools / "nvidia-smi"
        new = self.tools / "new"
        new.write_text(NVIDIA_SMI.format(python=sys.executable, **usual | behaviour))
        new.chmod(0o755)
        new.replace(program)

    def load_driver(self) -> None:
        (self.tools / "loaded").touch()

    def unload_driver(self) -> None:
        (self.tools / "loaded").unlink()

    def start(self) -> None:
        facts = {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", "GPU_VENDOR": "nvidia"}
        parts = parts_of(facts)
        place(parts, self.prefix)
        program = self.prefix / "opt/gpu-fleet/bin/nvidia_gpu_exporter"
        program.symlink_to(located("nvidia_gpu_exporter") or REPO / "lab/gpu/bin/nvidia_gpu_exporter")
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        values = {
            "GPU_FLEET_PREFIX": str(self.prefix),
            "GPU_FLEET_TOOL_PATH": str(self.tools),
            "GPU_FLEET_GPU_EXPORTER_LISTEN": self.address,
        }
        self.process = subprocess.Popen(
            [self.prefix / "opt/gpu-fleet/libexec/run", "nvidia-gpu-exporter"],
            env={"PATH": os.environ["PATH"], **defaults(parts), **values},
            stdout=(self.prefix / "log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop(self) -> None:
        """As a service manager does it: the program that was started gets a signal, and what is left is killed."""
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=20)
            assert not self._session(), "the exporter ends with the script that runs it"

    def kill(self) -> None:
        if self.process:
            for pid in self._session():
                os.kill(pid, signal.SIGKILL)

    def _session(self) -> list[int]:
        found = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(line.split()[0]) for line in found.splitlines() if not line.split()[1].startswith("Z")]

    def page(self) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def wait_for(self, pattern: str, within_s: float = 60) -> str:
        deadline = time.monotonic() + within_s
        while not re.search(pattern, page := self.page(), re.MULTILINE):
            assert time.monotonic() < deadline, (pattern, page, (self.prefix / "log").read_text()[-3000:])
            time.sleep(0.2)
        return page


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path / "a host", tmp_path / "some tools")
    exporter.tools.mkdir()
    exporter.behaves()
    yield exporter
    exporter.kill()


def names(page: str) -> set[str]:
    return set(re.findall(r"^nvidia_smi_(\w+)", page, re.MULTILINE))


def temperatures(page: str) -> list[float]:
    return [float(value) for value in re.findall(r"^nvidia_smi_temperature_gpu\{[^}]*\} (\S+)$", page, re.MULTILINE)]


# What rules and dashboards read, as the exporter calls it.
USED = {
    name
    for file in RULES
    for name in re.findall(r"\bnvidia_smi_(\w+)", file.read_text())
    if not name.startswith(NOT_FIELDS) and "clocks_throttle_reasons" not in name  # the older name of clocks_event_reasons
} - {"retired_pages_pending"}  # [N/A] on this GPU


def test_an_exporter_that_starts_before_the_driver_has_all_signals_once_it_is_loaded(exporter: Exporter) -> None:
    exporter.start()
    page = exporter.wait_for("^nvidia_smi_last_collect_success 0$")
    assert not names(page) & {"gpu_info", "temperature_gpu"}, "the failure is seen, and nothing is made up"
    log = (exporter.prefix / "log").read_text()
    assert log.count("NVIDIA-SMI has failed") == 1, f"said at the start, and not again when the exporter asks:\n{log}"
    exporter.load_driver()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    assert names(page) >= USED, "recovery action, remapped rows and slowdown reasons among them"
    assert temperatures(page) == [30, 31]
    exporter.stop()


def test_while_an_nvidia_smi_cannot_be_killed_no_other_is_started(exporter: Exporter, tmp_path: Path) -> None:
    """Each would be one more process that waits in the kernel."""
    exporter.load_driver()
    record = tmp_path / "hanging"
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    record.write_text(f"{os.getpid()} {began} 0 nvidia-smi")  # this process stands for it
    tools = Tools(record, {"PATH": f"{exporter.tools}:{os.environ['PATH']}"})
    state = look(tools)
    assert "nvidia-smi" in state.fails and "the driver hangs" in state.fails
    assert not (exporter.tools / "calls").exists()
    record.unlink()
    state = look(tools)
    assert not state.fails
    record.write_text(f"{os.getpid()} {began} 0 nvidia-smi")
    (exporter.tools / "calls").unlink()
    assert "the driver hangs" in state.answer(tools, ["uuid"], ["--format=csv"]).rest[0]
    assert not (exporter.tools / "calls").exists()


@pytest.mark.parametrize("seconds", [9, 16])
def test_a_slow_nvidia_smi_is_no_failure(exporter: Exporter, seconds: int) -> None:
    """Without persistence mode each query wakes the GPUs up."""
    exporter.behaves(slow={"": seconds})
    exporter.load_driver()
    exporter.start()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{", within_s=120)
    assert names(page) >= USED


def test_fields_that_are_slow_or_harmful_are_not_asked_for(exporter: Exporter) -> None:
    exporter.behaves(slow={"inforom.checksum_validation": 30})
    exporter.load_driver()
    exporter.start()
    exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    calls = (exporter.tools / "calls").read_text()
    assert "inforom.checksum_validation" not in calls and "remapped_rows.histogram" not in calls


def test_a_driver_that_lacks_fields_is_asked_for_the_others(exporter: Exporter) -> None:
    """Of the 470 branch: the older name of the slowdown reasons, no recovery action, no compute capability."""
    cells = {name.replace("clocks_event_reasons.", "clocks_throttle_reasons."): cell for name, cell in CELLS.items()}
    exporter.behaves(cells=cells, unknown=("gpu_recovery_action", "fabric.state", "compute_cap", "memory.reserved"))
    exporter.load_driver()
    exporter.start()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    assert {"clocks_throttle_reasons_hw_slowdown", "remapped_rows_failure", "temperature_gpu"} <= names(page)
    assert "nvidia_smi_last_collect_success 1\n" in page


WARNING = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"


@pytest.mark.parametrize(
    ("behaviour", "read"),
    [
        ({"after": (WARNING,)}, [30, 31]),
        ({"before": (WARNING, "\n")}, [30, 31]),
        ({"before": ('Field "retired_pages.pending" is deprecated, and will be removed.\n',)}, [30, 31]),
        ({"lost": 1}, [30]),
        ({"lost": 1, "after": (", ".join(["[Unknown Error]"] * 46) + "\n",)}, [30]),
    ],
    ids=["a warning after the rows", "a warning before them", "a deprecated field", "a lost GPU", "a row of errors"],
)
def test_a_line_that_is_no_row_hides_no_gpu(exporter: Exporter, behaviour: dict[str, object], read: list[float]) -> None:
    exporter.behaves(**behaviour)
    exporter.load_driver()
    exporter.start()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    assert temperatures(page) == read
    assert len(re.findall(r"^nvidia_smi_gpu_info\{", page, re.MULTILINE)) == len(read), "no GPU is made up"
    assert "nvidia_smi_last_collect_success 1\n" in page


def test_another_driver_under_a_running_exporter_is_asked_for_what_it_knows(exporter: Exporter) -> None:
    """An upgrade: the files are new, the loaded module is not, until it is loaded again."""
    exporter.behaves(unknown=("gpu_recovery_action",))
    exporter.load_driver()
    exporter.start()
    exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    exporter.unload_driver()  # nvidia-smi fails: the library does not match
    exporter.behaves()
    exporter.wait_for("^nvidia_smi_last_collect_success 0$")
    exporter.load_driver()
    exporter.wait_for(r"^nvidia_smi_gpu_recovery_action\{")


# --- over NVIDIA's own nvidia-smi of three driver branches ---------------------------------------------------------------------

# Neither under this nor under another name in the help of 535, 550 and 555.
NOT_IN_THESE_BRANCHES = {
    "clocks_event_reasons_counters_hw_thermal_slowdown_seconds",
    "clocks_event_reasons_counters_sw_power_cap_seconds",
    "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded",
}


@pytest.fixture(params=GENERATIONS)
def real(request: pytest.FixtureRequest, tmp_path: Path, exporter: Exporter) -> RealMachine:
    machine = RealMachine(tmp_path, request.param)
    exporter.tools = machine.tools
    return machine


def by_index(page: str, name: str) -> dict[str, float]:
    """GPU -> value. The exporter names GPUs by their UUID; their index is in another series."""
    index = {
        uuid: gpu for gpu, uuid in re.findall(r'^nvidia_smi_gpu_info\{.*\bindex="(\d+)".*\buuid="([^"]+)"', page, re.MULTILINE)
    }
    found = re.findall(rf'^nvidia_smi_{name}\{{.*\buuid="([^"]+)".*\}} (\S+)$', page, re.MULTILINE)
    return {index[uuid]: float(value) for uuid, value in found}


def test_what_rules_read_is_found_under_the_older_names_too(exporter: Exporter, real: RealMachine) -> None:
    """Remapped rows are in a query of their own, and the recovery action was a reset status."""
    state = real.boot()
    inject.remap_row(state, gpu=1)
    inject.remap_row(state, gpu=2, failed=True)
    inject.answer(state, gpu=3, key="field.226.0", value="1")  # reset_status.reset_required
    exporter.start()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    assert USED - names(page) <= NOT_IN_THESE_BRANCHES | ({"gpu_recovery_action"} if real.branch == "555" else set())
    assert by_index(page, "remapped_rows_pending") == {"0": 0, "1": 1, "2": 0, "3": 0}
    assert by_index(page, "remapped_rows_failure") == {"0": 0, "1": 0, "2": 1, "3": 0}
    if real.branch != "555":  # which reads it by an undocumented function
        assert by_index(page, "gpu_recovery_action") == {"0": 0, "1": 0, "2": 0, "3": 1}
    assert set(by_index(page, "fabric_state").values()) == {3}, "Completed, of which these branches print more words"
    assert "nvidia_smi_last_collect_success 1\n" in page


@pytest.mark.parametrize(
    ("key", "error"),
    [("handle", 15), ("handle", 16), ("handle", 999), ("broken", 15)],
    ids=["lost", "reset", "unknown", "just lost"],
)
def test_gpus_that_cannot_be_read_hide_no_other(exporter: Exporter, real: RealMachine, key: str, error: int) -> None:
    state = real.boot()
    for gpu in (0, 2):
        inject.answer(state, gpu=gpu, key=key, value=f"!{error}")
    exporter.start()
    page = exporter.wait_for(r"^nvidia_smi_gpu_info\{")
    for name in ("temperature_gpu", "utilization_gpu_ratio", "remapped_rows_pending"):
        assert set(by_index(page, name)) == {"1", "3"}, name


@pytest.mark.parametrize("problem", ["not-loaded", "version-mismatch"])
def test_a_driver_that_does_not_answer_is_a_failure_until_it_does(exporter: Exporter, real: RealMachine, problem: str) -> None:
    state = real.boot()
    inject.break_driver(state, problem=problem)
    exporter.start()
    assert "gpu_info" not in names(exporter.wait_for("^nvidia_smi_last_collect_success 0$"))
    inject.clear(state)
    assert len(by_index(exporter.wait_for(r"^nvidia_smi_gpu_info\{"), "temperature_gpu")) == 4
