"""AMD's own rocm-smi and amd-smi, from Debian's packages, over the sysfs of a simulated machine.

rocm-smi reads what amdgpu and amdkfd show below /sys. `use_real_tool` writes that of the machine as of now; the wrapper mounts it
over /sys in a mount namespace of its own, which needs root. amd-smi also opens devices, so it is run only without a driver.
"""

from __future__ import annotations

import platform
import shlex
import shutil
from pathlib import Path
from typing import Final

from lab.debian import NoPackages, Packages
from lab.gpu.amd.readings import Readings, present
from lab.gpu.amd.sysfs import CRITICAL
from lab.gpu.machine import Machine

_OF_AMD_SMI: Final = ("libamd-smi0", "libamd-smi-dev", "libdrm2", "libdrm-amdgpu1", "python3-yaml", "python3-argcomplete")
# By tool and release of ROCm. Debian had 6.1.2 and 7.2.4 in November 2026.
TOOLS: Final = {
    "rocm-smi 6.1": Packages(suite="trixie", component="main", names=("rocm-smi", "librocm-smi64-1")),
    "rocm-smi 7.2": Packages(suite="experimental", component="main", names=("rocm-smi", "librocm-smi64-7")),
    "amd-smi 6.1": Packages(suite="trixie", component="main", names=("amd-smi", *_OF_AMD_SMI)),
}
# What their libraries need, for machines whose own is older.
_LIBC: Final = Packages(suite="trixie", component="main", names=("libc6", "libgcc-s1", "libstdc++6"))
_LIBC_NEEDED: Final = (2, 38)
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


def lacks() -> str:
    """Gets all of it now; why it is not available here, or nothing."""
    try:
        for packages in (*TOOLS.values(), _LIBC):
            packages.ensure()
    except NoPackages as error:
        return str(error)
    return ""


def use_real_tool(tool: str, *, state: Path, bin_directory: Path, driver: bool = True) -> None:
    """One of TOOLS over the machine as it is now. `driver`: is amdgpu loaded? Raises NoPackages."""
    root = TOOLS[tool].ensure()
    name = tool.partition(" ")[0]
    libc = _LIBC.ensure() / _LIBRARIES
    sys = state / "sys"
    shutil.rmtree(sys, ignore_errors=True)
    write_sysfs(Machine.load(state), sys, driver=driver)
    has_libc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2]) >= _LIBC_NEEDED
    search = [root / _LIBRARIES] if has_libc else [root / _LIBRARIES, libc, Path("/usr/lib/x86_64-linux-gnu")]
    path = ":".join(map(str, search))
    start = (
        f"env LD_LIBRARY_PATH={shlex.quote(path)}"
        if has_libc
        else f"{libc}/ld-linux-x86-64.so.2 --library-path {shlex.quote(path)}"
    )
    wrapper = bin_directory / name
    wrapper.write_text(
        "#!/bin/sh\n"
        f"# AMD's {name} {TOOLS[tool].version} over a simulated machine.\n"
        f"export PYTHONPATH={shlex.quote(str(root / 'usr/lib/python3/dist-packages'))}\n"
        f'exec unshare --mount sh -c \'mount --bind "$0" /sys && exec {start} '
        f'/usr/bin/python3 -B {root}/usr/bin/{name} "$@"\' {shlex.quote(str(sys))} "$@"\n'
    )
    wrapper.chmod(0o755)


def write_sysfs(machine: Machine, sys: Path, *, driver: bool) -> None:
    """Source: rocm_smi_main.cc and rocm_smi_kfd.cc of rocm_smi_lib, the kernel's documentation of amdgpu."""
    nodes = sys / "class/kfd/kfd/topology/nodes"
    for place in (nodes / "0/io_links", nodes / "0/p2p_links", sys / "class/drm", sys / "module"):
        place.mkdir(parents=True)
    if not driver:
        return
    _write(sys / "module/amdgpu", {"initstate": "live", "version": machine.driver})
    _write(nodes / "0", {"name": "", "gpu_id": "0", "properties": "cpu_cores_count 2\nsimd_count 0\nvendor_id 0"})
    for number, gpu in enumerate(present(machine)):
        device = sys / "devices/pci0000:00" / gpu.bdf
        _write(device, _device(gpu))
        _write(device / f"hwmon/hwmon{number}", _sensors(gpu))
        for name in (f"card{number}", f"renderD{128 + number}"):
            (device / "drm" / name).mkdir(parents=True)
            (device / "drm" / name / "device").symlink_to("../..")
            (sys / "class/drm" / name).symlink_to(f"../../devices/pci0000:00/{gpu.bdf}/drm/{name}")
        node = nodes / str(number + 1)
        for links in ("io_links", "p2p_links"):
            (node / links).mkdir(parents=True)
        _write(node, {"name": "", "gpu_id": str(30000 + gpu.index), "properties": _node(gpu, number)})


def _write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")


def _device(gpu: Readings) -> dict[str, str]:
    product = gpu.product
    return {
        "uevent": f"DRIVER=amdgpu\nPCI_ID=1002:{product['card_model'][2:].upper()}\nPCI_SLOT_NAME={gpu.bdf}",
        "vendor": "0x1002",
        "device": product["card_model"],
        "subsystem_vendor": "0x1002",
        "subsystem_device": product["subsystem"],
        "revision": "0x00",
        "unique_id": gpu.unique_id.removeprefix("0x"),
        "gpu_busy_percent": str(gpu.busy_percent),
        "mem_busy_percent": str(gpu.memory_busy_percent),
        "mem_info_vram_total": str(gpu.vram_total),
        "mem_info_vram_used": str(gpu.vram_used),
        "vbios_version": product["vbios"],
    }


def _sensors(gpu: Readings) -> dict[str, str]:
    files = {"name": "amdgpu", "power1_average": str(1_000_000 * gpu.power_w)}
    files |= {name: str(1_000_000 * gpu.power_limit_w) for name in ("power1_cap", "power1_cap_max", "power1_cap_default")}
    readings = {"edge": gpu.edge_c, "junction": gpu.junction_c, "mem": gpu.memory_c}
    for number, (label, celsius) in enumerate(readings.items(), 1):
        if celsius is not None:
            files |= {f"temp{number}_label": label, f"temp{number}_input": str(1000 * celsius)}
            files |= {f"temp{number}_crit": str(CRITICAL[label])} if label in CRITICAL else {}
    return files


def _node(gpu: Readings, number: int) -> str:
    bus = int(gpu.bdf.split(":")[1], 16)
    version = {"gfx942": 90402, "gfx90a": 90010}[gpu.product["gfx_version"]]
    return "\n".join(
        (
            "cpu_cores_count 0",
            f"simd_count {4 * gpu.product['compute_units']}",
            "array_count 32",
            "simd_arrays_per_engine 1",
            "cu_per_simd_array 10",
            f"gfx_target_version {version}",
            "vendor_id 4098",
            f"device_id {int(gpu.product['card_model'], 16)}",
            f"location_id {bus << 8}",
            "domain 0",
            "hive_id 0",
            f"drm_render_minor {128 + number}",
            f"unique_id {int(gpu.unique_id, 16)}",
        )
    )
