"""All AMD GPUs, from rocm-smi, or from amd-smi where ROCm no longer includes rocm-smi.

The JSON of both has changed from release to release: keys are compared without case, a value may come with or without its unit,
and the list of GPUs may be wrapped. A value that is a word (N/A), or that no GPU can have, gives no sample.

Readings may be missing although the GPUs are listed: amd-smi has a command for each, of which one may fail. That is not the
failure of all, and the part "readings" says it.

A GPU in a partitioned mode (CPX, DPX) is listed once for each partition, at the functions of one PCI address; only the first has
the readings of the GPU. It counts as one GPU, with a number of partitions. Its memory is the driver's word alone: depending on
the release, the tools print that of the GPU, or the partition's share.

Memory errors (RAS) and temperature limits, where the tool does not print them, come from the driver in sysfs. amdgpu_ras.c and
amdgpu_pm.c of Linux have the files: ras/BLOCK_err_count has the lines "ue: N" and "ce: N", hwmon is in thousandths of a degree.
amdgpu_vram_mgr.c has mem_info_vram_total and _used, in bytes, of the whole device.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator, Sequence, Tuple

from ..files import text_of
from ..metrics import Metrics
from ..tools import CollectError, Tools

# As long as the interval allows; amd-smi is run twice. With 16 GPUs a query has taken 15 s (device-metrics-exporter, issue 565).
PATIENCE_S = 18
AMD_SMI_PATIENCE_S = 9
ROCM_SMI = (
    *("--showproductname", "--showuniqueid", "--showbus", "--showdriverversion", "--showmeminfo", "vram"),
    *("--showuse", "--showtemp", "--showpower", "--showmaxpower"),
)
# Without options both commands print everything, which takes seconds with many GPUs. Before 6.0 there were other options.
AMD_SMI = {
    "metric": ("--usage", "--power", "--temperature", "--ecc", "--mem-usage"),
    "static": ("--asic", "--bus", "--driver", "--limit"),
}
Flat = Sequence[Tuple[str, str]]  # path of the JSON, with its keys and positions joined by "/", and the value

_BYTES_PER_MB = 2**20  # amd-smi's
# Key -> metric and factor. Where several match, the later one that the tool prints is taken.
KEYS = (
    # rocm-smi
    (r"vram total memory \(b\)", "memory_total_bytes", 1),
    (r"vram total used memory \(b\)", "memory_used_bytes", 1),
    (r"gpu use \(%\)", "utilization_percent", 1),
    (r"temperature \(sensor junction\) \(c\)", "hottest", 1),
    (r"temperature \(sensor edge\) \(c\)", "edge", 1),
    (r"temperature \(sensor (?:memory|hbm 0)\) \(c\)", "memory_temperature_celsius", 1),
    (r"(?:average|current socket) graphics package power \(w\)", "power_draw_watts", 1),
    (r"max graphics package power \(w\)", "power_limit_watts", 1),
    # amd-smi
    (r"mem_usage/total_vram", "memory_total_bytes", _BYTES_PER_MB),
    (r"mem_usage/used_vram", "memory_used_bytes", _BYTES_PER_MB),
    (r"usage/gfx_activity", "utilization_percent", 1),
    (r"temperature/hotspot", "hottest", 1),
    (r"temperature/edge", "edge", 1),
    (r"temperature/mem", "memory_temperature_celsius", 1),
    (r"limit/slowdown_hotspot_temperature", "temperature_limit_celsius", 1),
    (r"limit/slowdown_vram_temperature", "memory_temperature_limit_celsius", 1),
    (r"ecc/total_correctable_count", "ecc_corrected_total", 1),
    (r"ecc/total_uncorrectable_count", "ecc_uncorrected_total", 1),
    (r"power/(?:average_|current_)?socket_power", "power_draw_watts", 1),
    (r"limit/(?:ppt0/)?(?:socket_power|socket_power_limit)", "power_limit_watts", 1),
    (r"limit/max_power", "power_maximum", 1),
)
IDENTITY = {
    **{"unique id": "uuid", "card series": "model", "pci bus": "pci"},
    **{"asic/asic_serial": "uuid", "asic/market_name": "model", "bus/bdf": "pci"},
}
_KEYS = tuple((re.compile(key), metric, factor) for key, metric, factor in KEYS)
# Values without a meaning: all bits set, or what a hung GPU answers (511 degrees).
MAXIMUM = {
    "utilization_percent": 100,
    **dict.fromkeys(("hottest", "edge", "memory_temperature_celsius"), 200),
    **dict.fromkeys(("power_draw_watts", "power_limit_watts", "power_maximum"), 10_000),
}
MEMORY = ("memory_total_bytes", "memory_used_bytes")
_LIMITS = {"junction": "temperature_limit_celsius", "mem": "memory_temperature_limit_celsius"}  # by the label of a sensor
READINGS = ("memory_used_bytes", "utilization_percent", "hottest", "edge", "power_draw_watts")
# What the file has, and from which values it is taken, the first that was printed.
SAMPLES = (
    *((name, (name,)) for name in (*MEMORY, "utilization_percent", "power_draw_watts", "memory_temperature_celsius")),
    *((name, (name,)) for name in ("temperature_limit_celsius", "memory_temperature_limit_celsius")),
    *((name, (name,)) for name in ("ecc_corrected_total", "ecc_uncorrected_total")),
    ("temperature_celsius", ("hottest", "edge")),
    ("power_limit_watts", ("power_limit_watts", "power_maximum")),
)


class Gpu:
    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.identity = {"uuid": "", "model": "", "pci": ""}

    @property
    def address(self) -> str:
        """Without the function, as in the kernel log."""
        return re.sub(r"\.[0-9]$", "", self.identity["pci"].lower())

    @property
    def is_readable(self) -> bool:
        return any(name in self.values for name in READINGS)


def collect(tools: Tools, metrics: Metrics) -> None:
    """Raises CollectError when no GPU was found."""
    flat = list(_ask(tools, metrics))
    driver, gpus = parse(flat)
    from_driver: dict[str, dict[str, float]] = {}
    for address, known in sysfs(Path(os.environ.get("GPU_FLEET_PREFIX", "") + "/sys/bus/pci/drivers/amdgpu")):
        from_driver.setdefault(address, {}).update(known)
    partitions: dict[str, list[str]] = {}  # by PCI address, the first function first
    for name in sorted(gpus, key=lambda name: gpus[name].identity["pci"].lower()):
        if gpus[name].address:
            partitions.setdefault(gpus[name].address, []).append(name)
    counted = [name for name, gpu in gpus.items() if not gpu.address or partitions[gpu.address][0] == name]
    if not counted:
        raise CollectError("no GPU was listed")
    for name in counted:
        gpu = gpus[name]
        count = len(partitions.get(gpu.address, ()))
        if count > 1:
            metrics.add("partitions", count, name)
        metrics.add("info", 1, name, gpu.identity["uuid"] or gpu.address, gpu.identity["model"], gpu.address, driver)
        printed = {key: value for key, value in gpu.values.items() if count <= 1 or key not in MEMORY}
        values = {**from_driver.get(gpu.address, {}), **printed}
        for metric, sources in SAMPLES:
            found = [values[source] for source in sources if source in values]
            if found:
                metrics.add(metric, found[0], name)
    metrics.add("collector_asks", 1, "amd", "ecc_uncorrected_total")
    readable = sum(gpus[name].is_readable for name in counted)
    metrics.part("amd", "readings", works=readable > 0)
    if readable:
        metrics.add("unreadable", len(counted) - readable)
    else:
        metrics.said.append("the GPUs are listed, but none of their values")


def _ask(tools: Tools, metrics: Metrics) -> Iterator[tuple[str, str]]:
    try:
        rocm_smi = tools.find("rocm-smi")
    except CollectError:
        amd_smi = tools.find("amd-smi", "rocm-smi")
        for command, options in AMD_SMI.items():
            found, ended = _json(tools, metrics, AMD_SMI_PATIENCE_S, amd_smi, command, *options)
            if not found and ended:
                found, _ = _json(tools, metrics, AMD_SMI_PATIENCE_S, amd_smi, command)
            yield from found
        return
    yield from _json(tools, metrics, PATIENCE_S, rocm_smi, *ROCM_SMI)[0]


def _json(tools: Tools, metrics: Metrics, patience_s: float, tool: str, *arguments: str) -> tuple[Flat, bool]:
    """The JSON of a tool, and whether it ended in time; what it printed beside it is kept as a reason."""
    answer = tools.ask(patience_s, [tool, *arguments, "--json"])
    found, beside = flatten(answer.text)
    metrics.said += beside
    asked = " ".join((Path(tool).name, *arguments))
    if answer.status is None:
        metrics.said.append(f"{asked}: no answer within {patience_s} s")
    elif answer.status:
        metrics.said.append(f"{asked}: exit status {answer.status}")
    return found, answer.status is not None


def parse(flat: Flat) -> tuple[str, dict[str, Gpu]]:
    """The driver's version (empty: unknown) and the GPUs by their number."""
    driver = ""
    gpus: dict[str, Gpu] = {}
    at: dict[str, str] = {}  # amd-smi: position in the list -> number of the GPU
    for path, value in flat:
        path = re.sub(r"^gpu_data/|/value$", "", path.lower())
        place, _, key = path.partition("/")
        if path == "system/driver version":
            driver = value
        card = re.fullmatch(r"card(\d+)", place)
        if card:
            number = card[1]
        elif not place.isdigit():
            continue
        elif key == "gpu":
            number = at[place] = value
        elif place in at:
            number = at[place]
        else:
            continue
        _keep(gpus.setdefault(number, Gpu()), key, value)
        if key == "driver/version" and re.fullmatch(r"[0-9][0-9.]*", value):  # some releases print the banner of the kernel here
            driver = value
    return driver, gpus


def _keep(gpu: Gpu, key: str, value: str) -> None:
    if key in IDENTITY:
        # A GPU that is newer than rocm-smi has a number for its series.
        if value not in ("", "N/A") and not (key == "card series" and value.startswith("0x")):
            gpu.identity[IDENTITY[key]] = value
        return
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return
    for pattern, metric, factor in _KEYS:
        if pattern.fullmatch(key) and float(value) <= MAXIMUM.get(metric, float("inf")):
            gpu.values[metric] = float(value) * factor


def sysfs(driver: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """PCI address without the function -> values that the driver itself knows."""
    for device in sorted(driver.glob("*:*")):
        values: dict[str, float] = {}
        for file in device.glob("ras/*_err_count"):
            for kind, count in re.findall(r"^(ue|ce): *(\d+)", text_of(file), re.MULTILINE):
                name = "ecc_uncorrected_total" if kind == "ue" else "ecc_corrected_total"
                values[name] = values.get(name, 0) + int(count)
        for name in MEMORY:
            text = text_of(device / f"mem_info_vram_{name.split('_')[1]}").strip()
            if text.isdigit():
                values[name] = int(text)
        for label in sorted(device.glob("hwmon/hwmon*/temp*_label")):
            metric = _LIMITS.get(text_of(label).strip())
            limit = text_of(label.with_name(label.name.replace("_label", "_crit"))).strip()
            if metric and limit.isdigit():
                values.setdefault(metric, int(limit) / 1000)
        yield device.name[:-2].lower(), values


_BEGINS = re.compile(r'[ \t]*([{[][ \t\r]*([\]\[{}"].*)?|,[ \t\r]*)')
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[\]\[{}:,]|[^\]\[{}:, \t\r"]+')


class _Level:
    """An object or list that is open: `key` is the key or position of the next value."""

    def __init__(self, bracket: str) -> None:
        self.is_object = bracket == "{"
        self.key = "" if self.is_object else "0"
        self.expects_key = self.is_object


def flatten(text: str) -> tuple[Flat, list[str]]:
    """The values of JSON by their paths, and the lines beside it. Unlike json, it reads what is cut, and several answers in one.

    Warnings outside of it may begin with a bracket. Strings keep their escapes.
    """
    values: list[tuple[str, str]] = []
    beside: list[str] = []
    levels: list[_Level] = []
    for line in text.splitlines():
        if not levels and not _BEGINS.fullmatch(line):
            beside += [line] if line.strip() else []
            continue
        for word in _WORD.findall(line):
            _take(word, levels, values)
    return values, beside


def _take(word: str, levels: list[_Level], values: list[tuple[str, str]]) -> None:
    level: _Level | None = levels[-1] if levels else None
    if word in "{[":
        levels.append(_Level(word))
    elif level is None:
        return
    elif word in "}]":
        levels.pop()
    elif word == ":":
        level.expects_key = False
    elif word == ",":
        level.expects_key = level.is_object
        if not level.is_object:
            level.key = str(int(level.key) + 1)
    else:
        text = word[1:-1] if word.startswith('"') else word
        if level.expects_key:
            level.key = text
        else:
            values.append(("/".join(level.key for level in levels), text))
