"""A simulated machine as the text that the lab's NVML library reads (nvml.c): what a driver answers, in NVML's units and numbers.

The numbers of enumerations are those of nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.gpu.faults import THROTTLES
from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.fields import bus_id, clocks

Answers = Iterator[tuple[str, object]]

_DRIVER_ERRORS = {"not-loaded": 9, "version-mismatch": 18}  # nvmlReturn_t
_ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9}
_MIB = 1 << 20
_LOCATIONS_BEFORE_AMPERE, _LOCATIONS = (0, 1, 2, 3, 4), (2, 7)  # DRAM is 2, SRAM 7


def text(machine: Machine) -> str:
    return "".join(f"{key} {value}\n" for key, value in _machine(machine) if value is not None)


def _machine(machine: Machine) -> Answers:
    major, minor = str(machine.cuda).split(".")
    if machine.driver_problem:
        yield "init", f"!{_DRIVER_ERRORS[machine.driver_problem]}"
    yield "driver", machine.driver
    yield "nvml", f"{major}.{machine.driver}"
    yield "cuda", 1000 * int(major) + 10 * int(minor)
    yield "count", len(machine.gpus)
    for gpu in machine.gpus:
        answers = dict(_gpu(gpu)) | ({"handle": "!15"} if gpu.lost else {}) | gpu.faults["nvml"]
        for key, value in answers.items():
            yield f"{gpu.index}.{key}", value


def _gpu(gpu: Gpu) -> Answers:
    yield from _identity(gpu)
    yield from _readings(gpu)
    yield from _memory_errors(gpu)
    yield from _links(gpu)
    yield from _mig(gpu)


def _identity(gpu: Gpu) -> Answers:
    product = gpu.product
    firmware = product["firmware"]
    yield "name", product["name"]
    yield "uuid", f"GPU-{gpu.uuid}"
    yield "serial", gpu.serial
    yield "minor", gpu.index
    yield "brand", 2 if product["name"].startswith("Tesla") else 14
    yield "architecture", _ARCHITECTURES[product["architecture"]]
    yield "compute_capability.major", product["compute_cap"].split(".")[0]
    yield "compute_capability.minor", product["compute_cap"].split(".")[1]
    yield "board.multi_gpu", 0
    yield "vbios", firmware["vbios"]
    yield "inforom.img", firmware["img"]
    yield "inforom.0", firmware["oem"]
    yield "inforom.1", firmware["ecc"]
    yield "inforom.2", firmware["pwr"]
    yield "pci.bus_id", bus_id(gpu)
    yield "pci.device_id", product["pci"]["device"]
    yield "pci.subsystem_id", product["pci"]["subsystem"]
    yield "pci.base_class", 3
    yield "pci.sub_class", product["pci"]["sub_class"]
    for key in ("pcie.gen", "pcie.gen.max", "pcie.gen.gpu_max", "pcie.gen.host_max"):
        yield key, product["pcie"]["gen"]
    for key in ("pcie.width", "pcie.width.max"):
        yield key, product["pcie"]["width"]
    yield "persistence", 1
    yield "display.mode", 0
    yield "display.active", 0
    yield "accounting.mode", 0
    yield "accounting.buffer_size", 4000
    yield "compute_mode", 0
    yield "virtualization", 0
    yield "gsp.version", gpu.machine.driver
    yield "gsp.mode", 1
    yield "gsp.default", 1


def _readings(gpu: Gpu) -> Answers:
    now, product, faults = gpu.now(), gpu.product, gpu.faults
    total, reserved = product["memory_mib"], product["reserved_mib"]
    used = round((total - reserved) * now.memory_used_ratio)
    for key, mib in (("total", total), ("reserved", reserved), ("used", used), ("free", total - reserved - used)):
        yield f"memory.{key}", mib * _MIB
    yield "memory.protected", 0
    yield "bar1.total", 1 << 37
    yield "bar1.used", 2 * _MIB
    if not gpu.mig:
        yield "utilization.gpu", round(100 * now.utilization)
        yield "utilization.memory", round(100 * now.memory_utilization)
        for unit in ("encoder", "decoder", *(("jpeg", "ofa") if gpu.has("media") else ())):
            yield f"utilization.{unit}", 0
        yield "utilization.period_us", 1_000_000
    yield "encoder.sessions", 0
    yield from _temperatures(gpu)
    power = product["power_w"]
    yield "power.management", 1
    yield "power.draw", round(1000 * now.power_w)
    for key in ("limit", "enforced", "default", "max"):
        yield f"power.{key}", 1000 * power["limit"]
    yield "power.min", 1000 * power["min_limit"]
    if gpu.has("row_remap"):
        yield "field.185.0", round(1000 * now.power_w)
        yield "field.186.0", round(1000 * now.power_w) - 370
    yield "energy", round(1000 * now.energy_j)
    sm, memory, video = clocks(gpu, now)
    for clock, mhz in enumerate((sm, sm, memory, video)):
        yield f"clock.{clock}", mhz
    for clock, name in enumerate(("sm", "sm", "memory", "video")):
        yield f"clock.max.{clock}", product["clocks_mhz"][name]
        if name in ("sm", "memory"):
            yield f"clock.applications.{clock}", product["clocks_mhz"][name]
    yield "pstate", 0 if now.busy or gpu.links else 8
    yield "reasons.supported", 0x1FF
    yield "reasons", (0 if now.busy else 1) | sum(THROTTLES[reason] for reason in faults["throttle"])
    yield "pcie.throughput.0", 1000 * now.pcie_tx_mb_s
    yield "pcie.throughput.1", 1000 * now.pcie_rx_mb_s
    yield "pcie.replays", faults["pcie_replays"]
    yield "field.94.0", faults["pcie_replays"]
    yield "field.95.0", 0
    yield "field.226.0", int(faults["recovery_action"] == "GPU Reset")  # undocumented: reset_status, in 535 and 550
    yield "field.227.0", int(faults["recovery_action"] == "Drain and Reset")


def _temperatures(gpu: Gpu) -> Answers:
    now, limit = gpu.now(), gpu.product["temperature_c"]["limit"]
    yield "temperature.0", now.temperature_c
    if now.memory_temperature_c is not None:
        yield "field.82.0", now.memory_temperature_c
    if gpu.has("temperature_margins"):  # as nvidia-smi -q of an H100 shows them
        yield "temperature.margin", limit - now.temperature_c
        for field, margin in ((193, -8), (194, -2), (196, 0), *(((195, 0),) if now.memory_temperature_c is not None else ())):
            yield f"field.{field}.0", margin
    else:
        for which, celsius in ((0, limit + 5), (1, limit), (3, limit - 4)):
            yield f"temperature.limit.{which}", celsius


def _memory_errors(gpu: Gpu) -> Answers:
    faults = gpu.faults
    if gpu.has("ecc"):
        yield "ecc.mode", 1
        yield "ecc.pending", 1
        for kind, count in enumerate((faults["ecc_corrected"], faults["ecc_uncorrected"])):
            for counter in (0, 1):
                yield f"ecc.{kind}.{counter}.total", count
                for location in _LOCATIONS_BEFORE_AMPERE if gpu.has("retired_pages") else _LOCATIONS:
                    yield f"ecc.{kind}.{counter}.{location}", count if location == 2 else 0
    if gpu.has("sram_ecc"):
        yield "ecc.sram.parity", 0
        yield "ecc.sram.threshold_exceeded", 0
    if gpu.has("retired_pages"):
        yield "retired.0", faults["retired_sbe"]
        yield "retired.1", faults["retired_dbe"]
        yield "retired.pending", int(faults["retire_pending"])
    if gpu.has("row_remap") and not gpu.mig:
        for key in ("correctable", "uncorrectable"):
            yield f"remapped.{key}", faults[f"remapped_{key}"]
        yield "remapped.pending", int(faults["remap_pending"])
        yield "remapped.failure", int(faults["remap_failed"])
    if banks := gpu.product.get("row_remap_banks"):
        touched = min(faults["remapped_correctable"] + faults["remapped_uncorrectable"], 8)
        none = int(faults["remap_failed"])
        for key, count in (("max", banks - touched - none), ("high", touched), ("partial", 0), ("low", 0), ("none", none)):
            yield f"remapped.banks.{key}", count


def _links(gpu: Gpu) -> Answers:
    if gpu.has("fabric"):
        yield "fabric.state", 3
        yield "fabric.status", 0
        yield "fabric.clique", 0
        yield "fabric.cluster", "00000000-0000-0000-0000-000000000000"
    if gpu.has("c2c"):
        yield "c2c", 0
    if not gpu.links or gpu.mig:
        return
    yield "field.91.0", gpu.links
    mbit_s = round(float(gpu.product["nvlink"]["gbytes_per_s"]) * 1000)
    for link in range(gpu.links):
        up = link not in gpu.faults["links_down"]
        yield f"field.165.{link}", int(up)
        errors = gpu.faults["link_errors"].get(str(link), {"replay": 0, "recovery": 0, "crc": 0})
        for field, kind in ((161, "replay"), (162, "recovery"), (163, "crc")):
            yield f"field.{field}.{link}", errors[kind]
        if up:
            sent, received = gpu.now().link_kib[link]
            yield f"field.138.{link}", sent
            yield f"field.139.{link}", received
            yield f"field.164.{link}", mbit_s


def _mig(gpu: Gpu) -> Answers:
    if not gpu.has("mig"):
        return
    yield "mig.mode", int(bool(gpu.mig))
    yield "mig.pending", int(bool(gpu.mig))
    yield "mig.max", 7
    for part in gpu.mig:
        at = f"mig.{part['device']}"
        used = round(part["memory_mib"] * gpu.now().memory_used_ratio)
        yield f"{at}.name", f"{gpu.product['name']} MIG {part['profile']}"
        yield f"{at}.uuid", f"MIG-{part['uuid']}"
        yield f"{at}.gpu_instance", part["gi"]
        yield f"{at}.compute_instance", part["ci"]
        yield f"{at}.multiprocessors", part["sms"]
        yield f"{at}.slices", part["slices"]
        yield f"{at}.memory_mib", part["memory_mib"]
        yield f"{at}.memory.total", part["memory_mib"] * _MIB
        yield f"{at}.memory.reserved", 0
        yield f"{at}.memory.used", used * _MIB
        yield f"{at}.memory.free", (part["memory_mib"] - used) * _MIB
        yield f"{at}.bar1.total", part["bar1_mib"] * _MIB
        yield f"{at}.bar1.used", 0
