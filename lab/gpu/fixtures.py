"""The project's fixtures, made by the simulators: /metrics bodies and kernel lines. `python -m lab.gpu fixtures` writes them
again; the clock is frozen, so the same code gives the same bytes.

Each exporter has three: healthy, faulty (a bit of everything, every GPU still answers) and with GPU 3 off the bus, which is
the end of nvidia_gpu_exporter's GPU series, since nvidia-smi exits with 15 then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from lab.gpu import inject, kernel, setup
from lab.gpu.amd import exporter as amd_exporter
from lab.gpu.dcgm import counters as dcgm_counters
from lab.gpu.dcgm import fields as dcgm_fields
from lab.gpu.dcgm.body import Renderer
from lab.gpu.machine import CLOCK_VARIABLE, KERNEL_LOG, STATE_VARIABLE, Machine

LIBEXEC = Path(__file__).parents[2] / "host/rootfs/opt/gpu-fleet/libexec"
FROZEN_AT_S = 1_780_000_000.0  # 2026-05-28
_XID_CODES = (8, 13, 31, 43, 45, 48, 61, 62, 63, 64, 69, 74, 92, 94, 95, 109, 119, 120, 140, *range(144, 151), 156, 160, 171, 79)


def write_fixtures(directory: Path) -> Iterator[Path]:
    with _frozen(FROZEN_AT_S):
        for name, (origin, body) in _bodies().items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# Made by `python -m lab.gpu fixtures`: {origin}\n{body}", encoding="utf-8")
            yield path


def _bodies() -> dict[str, tuple[str, str]]:
    files = {}
    for suffix, about, break_it in (
        ("", "healthy", _leave),
        ("-faulty", "with faults", _faulty),
        ("-gpu-lost", "GPU 3 lost", _lost),
    ):
        for backend in ("exec", "nvml"):
            files[f"metrics/nvidia_gpu_exporter-{backend}{suffix}.prom"] = (
                f"the stand-in of nvidia_gpu_exporter 1.14.0, backend {backend}, over 4 simulated H100, {about}.",
                _in_machine("h100x4", break_it, lambda state, backend=backend: _smi_exporter_body(state, backend)),
            )
        for release, generation in {"4.8": (4, 8, 2), "4.9": (4, 9, 0)}.items():
            files[f"metrics/dcgm-{release}{suffix}.prom"] = (
                f"the stand-in of dcgm-exporter {release} with every field it knows, over 4 simulated H100, {about}.",
                _in_machine("h100x4", break_it, lambda state, generation=generation: dcgm_body(state, generation)),
            )
    files |= _older_and_other_gpus()
    files["kernel/xid.log"] = (
        "the lines of the simulated driver 590.48.01, one XID after another.",
        _in_machine("h100x8", _all_xids, _log),
    )
    files["kernel/sxid.log"] = ("the lines of the simulated NVSwitch driver.", _in_machine("h100x8", _all_sxids, _log))
    files["kernel/gpu-lost-without-xid.log"] = ("a GPU that is gone without an XID.", _in_machine("h100x8", _silent_loss, _log))
    return files


def _older_and_other_gpus() -> dict[str, tuple[str, str]]:
    """What an H100 does not have: retired pages, throttle reasons under their old name, AMD's metrics; and the textfiles."""
    old = "over 2 simulated V100 of driver 525"
    files = {
        "metrics/nvidia_gpu_exporter-exec-v100.prom": (
            f"the stand-in of nvidia_gpu_exporter 1.14.0 {old}.",
            _in_machine("v100x2", _leave, lambda state: _smi_exporter_body(state, "exec")),
        ),
        "metrics/dcgm-4.8-v100.prom": (
            f"the stand-in of dcgm-exporter 4.8 with every field it knows, {old}.",
            _in_machine("v100x2", _leave, lambda state: dcgm_body(state, (4, 8, 2))),
        ),
        "metrics/dcgm-4.9-v100.prom": (
            f"the stand-in of dcgm-exporter 4.9 with every field it knows, {old}.",
            _in_machine("v100x2", _leave, lambda state: dcgm_body(state, (4, 9, 0))),
        ),
        "kernel/amdgpu.log": ("memory errors of AMD GPUs and one that is gone.", _in_machine("mi300x4", _faulty_amd, _log)),
    }
    for suffix, scenario, about, break_it in (
        ("", "mi300x4", "4 simulated MI300X, healthy", _leave),
        ("-faulty", "mi300x4", "4 simulated MI300X, with faults", _faulty_amd),
        ("-mi210", "mi210x2", "2 simulated MI210", _leave),
    ):
        files[f"metrics/amd-device-metrics-exporter{suffix}.prom"] = (
            f"the stand-in of AMD's device-metrics-exporter 1.5.2 over {about}.",
            _in_machine(scenario, break_it, _amd_body),
        )
    for vendor, scenario, collectors in (("nvidia", "h100x4", ("nvidia", "links")), ("amd", "mi300x4", ("amd",))):
        files[f"metrics/textfile-{vendor}.prom"] = (
            f"the project's textfile collectors over the simulated {scenario}.",
            _in_machine(scenario, _leave, lambda state, collectors=collectors: textfile_body(state, collectors)),
        )
    return files


def _leave(state: Path) -> None:
    pass


def _faulty(state: Path) -> None:
    inject.inject_xid(state, code=94, gpu=0)
    inject.inject_ecc(state, gpu=0, corrected=12)
    inject.inject_xid(state, code=43, gpu=1)
    inject.take_link_down(state, gpu=1, link=6)
    inject.make_hot(state, gpu=2)
    inject.throttle(state, gpu=2, reason="hw_power_brake_slowdown")
    inject.remap_row(state, gpu=3, failed=True)


def _faulty_amd(state: Path) -> None:
    inject.inject_ecc(state, gpu=0, corrected=12)
    inject.inject_ecc(state, gpu=1, uncorrected=1)
    inject.lose(state, gpu=3)


def _lost(state: Path) -> None:
    inject.inject_xid(state, code=79, gpu=3)


def _all_xids(state: Path) -> None:
    for place, code in enumerate(_XID_CODES):
        inject.inject_xid(state, code=code, gpu=place % 8, link=place % 18)


def _all_sxids(state: Path) -> None:
    for place, code in enumerate(kernel.SXID_CODES):
        inject.inject_sxid(state, code=code, switch=place % 4, link=20 + place)


def _silent_loss(state: Path) -> None:
    inject.lose(state, gpu=5)


def _in_machine(scenario: str, break_it: Callable[[Path], None], body: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        setup.init(state=state, scenario=scenario)
        break_it(state)
        return body(state)


def _log(state: Path) -> str:
    return (state / KERNEL_LOG).read_text(encoding="utf-8")


def dcgm_body(state: Path, generation: tuple[int, ...], *, started_s: float = FROZEN_AT_S) -> str:
    """With every counter of the release."""
    names = dcgm_fields.current(generation)
    own = [*dcgm_counters.EXPORTER_FIELDS, *(dcgm_counters.EXPORTER_FIELDS_SINCE_4_8_3 if generation >= (4, 8, 3) else ())]
    counters = [dcgm_counters.Counter(name, _kind(name), "Simulated.") for name in [*names, *own]]
    return Renderer(counters, generation, started_s=started_s).render(Machine.load(state))


def _kind(name: str) -> str:
    if name.endswith(("DRIVER_VERSION",)):
        return "label"
    return "counter" if name.endswith(("_TOTAL", "_CONSUMPTION", "_VIOLATION")) and "BANDWIDTH" not in name else "gauge"


def _smi_exporter_body(state: Path, backend: str) -> str:
    exporter = load_exporter()
    command = f"{sys.executable} -I -S {setup.PROGRAMS / 'nvidia-smi'}"
    os.environ[STATE_VARIABLE] = str(state)
    try:
        arguments = ["--collect.backend", backend, "--nvidia-smi-command", command, "--collect.compute-apps"]
        if backend == "nvml":
            arguments.append("--collect.pcie-throughput")
        return exporter.Exporter(exporter.parse(arguments)).scrape()
    finally:
        del os.environ[STATE_VARIABLE]


def _amd_body(state: Path) -> str:
    return amd_exporter.render(Machine.load(state), {"GPUConfig": {"Labels": ["GPU_UUID"]}})


def textfile_body(state: Path, collectors: tuple[str, ...]) -> str:
    """By the scripts that hosts run. Their clock is the host's own, so the times they write are replaced."""
    with tempfile.TemporaryDirectory() as directory:
        prefix, tools = Path(directory) / "host", Path(directory) / "bin"
        setup.place_tools(state=state, bin_directory=tools)
        shutil.copytree(LIBEXEC, prefix / "opt/gpu-fleet/libexec")
        for script in (prefix / "opt/gpu-fleet/libexec/collect").iterdir():
            if script.name not in collectors:
                script.unlink()
        written = prefix / "var/lib/gpu-fleet/textfile"
        written.mkdir(parents=True)
        environment = {"PATH": os.environ["PATH"], "GPU_FLEET_PREFIX": str(prefix), "GPU_FLEET_TOOL_PATH": str(tools)}
        environment[CLOCK_VARIABLE] = os.environ[CLOCK_VARIABLE]
        subprocess.run(["sh", prefix / "opt/gpu-fleet/libexec/start-textfile"], env=environment, check=True)
        body = "".join(path.read_text(encoding="utf-8") for path in sorted(written.glob("*.prom")))
    body = re.sub(r"^(node_gpu_collector_timestamp_seconds\{.*\}) .*$", rf"\1 {FROZEN_AT_S:.0f}", body, flags=re.MULTILINE)
    return re.sub(r"^(node_gpu_collector_duration_seconds\{.*\}) .*$", r"\1 0", body, flags=re.MULTILINE)


def load_exporter() -> ModuleType:
    """The exporter's one file as a module."""
    loader = SourceFileLoader("nvidia_gpu_exporter_stand_in", str(setup.PROGRAMS / "nvidia_gpu_exporter"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@contextmanager
def _frozen(at_s: float) -> Iterator[None]:
    before = os.environ.get(CLOCK_VARIABLE)
    os.environ[CLOCK_VARIABLE] = str(at_s)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CLOCK_VARIABLE]
        else:
            os.environ[CLOCK_VARIABLE] = before
