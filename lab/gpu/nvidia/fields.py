"""What a simulated GPU answers to each field of `nvidia-smi --query-gpu`. A value of None prints as [N/A]."""

from __future__ import annotations

import time

from lab.gpu.faults import THROTTLES
from lab.gpu.machine import Gpu, Reading

DEPRECATED = "[Requested functionality has been deprecated]"
NO_FABRIC = "N/A"  # printed without brackets by the real one


class Answers:
    """What one GPU answers. `fields[name]` is a value without its unit, or None."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.reading = gpu.now()
        self._values = _values(gpu, self.reading)

    def __getitem__(self, name: str) -> str | None:
        if name.startswith("ecc.errors."):
            return _ecc(self.gpu, name)
        if name.startswith(("clocks_event_reasons", "clocks_throttle_reasons")):
            return _clock_reason(self.gpu, name.split(".")[0].endswith("counters"), name.split(".", 1)[1], self.reading.busy)
        return self._values.get(name)


def bus_id(gpu: Gpu) -> str:
    return f"00000000:{gpu.bus:02X}:{gpu.device:02X}.0"


def clocks(gpu: Gpu, reading: Reading) -> tuple[int, int, int]:
    """SM, memory and video clock in MHz."""
    ends = gpu.product["clocks_mhz"]
    sm = round(ends["sm_idle"] + (ends["sm"] - ends["sm_idle"]) * reading.clock_ratio)
    video = round(ends["video_idle"] + (ends["video"] - ends["video_idle"]) * reading.clock_ratio)
    return sm, ends["memory"], video


def _values(gpu: Gpu, now: Reading) -> dict[str, str | None]:
    product, faults, mig = gpu.product, gpu.faults, bool(gpu.mig)
    power, pci, firmware, pcie = product["power_w"], product["pci"], product["firmware"], product["pcie"]
    total, reserved = product["memory_mib"], product["reserved_mib"]
    used = round((total - reserved) * now.memory_used_ratio)
    sm, memory_clock, video = clocks(gpu, now)
    at = gpu.machine.at_s
    remaps = gpu.has("row_remap") and not mig
    retires = gpu.has("retired_pages")
    fabric = gpu.has("fabric")

    def percent(ratio: float) -> str | None:
        return None if mig else str(round(100 * ratio))

    def yes(fact: bool) -> str:
        return "Yes" if fact else "No"

    return {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}",
        "driver_version": gpu.machine.driver,
        "kmd_version": gpu.machine.driver,
        "count": str(len(gpu.machine.gpus)),
        "name": product["name"],
        "serial": gpu.serial,
        "uuid": f"GPU-{gpu.uuid}",
        "pci.bus_id": bus_id(gpu),
        "pci.domain": "0x0000",
        "pci.bus": f"0x{gpu.bus:02X}",
        "pci.device": f"0x{gpu.device:02X}",
        "pci.baseClass": "0x3",
        "pci.subClass": pci["sub_class"],
        "pci.device_id": pci["device"],
        "pci.sub_device_id": pci["subsystem"],
        "pcie.link.gen.current": str(pcie["gen"]),
        "pcie.link.gen.gpucurrent": str(pcie["gen"]),
        "pcie.link.gen.max": str(pcie["gen"]),
        "pcie.link.gen.gpumax": str(pcie["gen"]),
        "pcie.link.width.current": str(pcie["width"]),
        "pcie.link.width.max": str(pcie["width"]),
        "index": str(gpu.index),
        "display_mode": DEPRECATED if gpu.machine.driver_major >= 580 else "Disabled",
        "display_attached": "Yes" if gpu.has("row_remap") else "No",
        "display_active": "Disabled",
        "persistence_mode": "Enabled",
        "addressing_mode": "None",
        "accounting.mode": "Disabled",
        "accounting.buffer_size": "4000",
        "vbios_version": firmware["vbios"],
        "inforom.img": firmware["img"],
        "inforom.oem": firmware["oem"],
        "inforom.ecc": firmware["ecc"],
        "inforom.pwr": firmware["pwr"],
        "inforom.checksum_validation": "valid",
        "gpu_recovery_action": faults["recovery_action"],
        "reset_status.reset_required": yes(faults["recovery_action"] == "GPU Reset"),
        "reset_status.drain_and_reset_recommended": yes(faults["recovery_action"] == "Drain and Reset"),
        "pstate": "P0" if now.busy or gpu.links else "P8",
        "memory.total": str(total),
        "memory.reserved": str(reserved),
        "memory.used": str(used),
        "memory.free": str(total - reserved - used),
        "compute_mode": "Default",
        "compute_cap": product["compute_cap"],
        "utilization.gpu": percent(now.utilization),
        "utilization.memory": percent(now.memory_utilization),
        "utilization.encoder": percent(0),
        "utilization.decoder": percent(0),
        "utilization.jpeg": percent(0) if gpu.has("media") else None,
        "utilization.ofa": percent(0) if gpu.has("media") else None,
        "encoder.stats.sessionCount": "0",
        "encoder.stats.averageFps": "0",
        "encoder.stats.averageLatency": "0",
        "ecc.mode.current": "Enabled" if gpu.has("ecc") else None,
        "ecc.mode.pending": "Enabled" if gpu.has("ecc") else None,
        "retired_pages.single_bit_ecc.count": str(faults["retired_sbe"]) if retires else None,
        "retired_pages.double_bit.count": str(faults["retired_dbe"]) if retires else None,
        "retired_pages.pending": yes(faults["retire_pending"]) if retires else None,
        "remapped_rows.correctable": str(faults["remapped_correctable"]) if remaps else None,
        "remapped_rows.correctable_inactive": "0" if remaps else None,
        "remapped_rows.uncorrectable": str(faults["remapped_uncorrectable"]) if remaps else None,
        "remapped_rows.uncorrectable_inactive": "0" if remaps else None,
        "remapped_rows.pending": yes(faults["remap_pending"]) if remaps else None,
        "remapped_rows.failure": yes(faults["remap_failed"]) if remaps else None,
        **_remap_histogram(gpu),
        "temperature.gpu": str(now.temperature_c),
        "temperature.gpu.tlimit": str(product["temperature_c"]["limit"] - now.temperature_c)
        if gpu.has("temperature_margins")
        else None,
        "temperature.memory": "N/A" if now.memory_temperature_c is None else str(now.memory_temperature_c),
        "power.management": DEPRECATED if gpu.machine.driver_major >= 580 else "Enabled",
        "power.draw": f"{now.power_w:.2f}",
        "power.draw.average": f"{now.power_w:.2f}" if gpu.has("row_remap") else None,
        "power.draw.instant": f"{now.power_w - 0.37:.2f}",
        "power.limit": f"{power['limit']:.2f}",
        "enforced.power.limit": f"{power['limit']:.2f}",
        "power.default_limit": f"{power['limit']:.2f}",
        "power.min_limit": f"{power['min_limit']:.2f}",
        "power.max_limit": f"{power['limit']:.2f}",
        "edpp_multiplier": "100.00" if gpu.has("edpp") else None,
        "clocks.current.graphics": str(sm),
        "clocks.current.sm": str(sm),
        "clocks.current.memory": str(memory_clock),
        "clocks.current.video": str(video),
        **_application_clocks(gpu),
        "clocks.max.graphics": str(product["clocks_mhz"]["sm"]),
        "clocks.max.sm": str(product["clocks_mhz"]["sm"]),
        "clocks.max.memory": str(memory_clock),
        "mig.mode.current": ("Enabled" if mig else "Disabled") if gpu.has("mig") else None,
        "mig.mode.pending": ("Enabled" if mig else "Disabled") if gpu.has("mig") else None,
        "gsp.mode.current": "Enabled",
        "gsp.mode.default": "Enabled",
        "c2c.mode": "Disabled" if gpu.has("c2c") else None,
        "protected_memory.total": "0",
        "protected_memory.used": "0",
        "protected_memory.free": "0",
        "fabric.state": "Completed" if fabric else NO_FABRIC,
        "fabric.status": "Success" if fabric else NO_FABRIC,
        "fabric.cliqueId": "0" if fabric else NO_FABRIC,
        "fabric.clusterUuid": "00000000-0000-0000-0000-000000000000" if fabric else NO_FABRIC,
        "fabric.health.summary": NO_FABRIC,
        "fabric.health.bandwidth": NO_FABRIC,
        "fabric.health.route_recovery_in_progress": NO_FABRIC,
        "fabric.health.route_unhealthy": NO_FABRIC,
        "fabric.health.access_timeout_recovery": NO_FABRIC,
        "fabric.health.incorrect_configuration": NO_FABRIC,
        "fabric.health.partition_assigned": NO_FABRIC,
        "platform.chassis_serial_number": "",
        "platform.slot_number": "0",
        "platform.tray_index": "0",
        "platform.host_id": "1",
        "platform.peer_type": "Direct Connected",
        "platform.module_id": str(gpu.index + 1),
        "platform.gpu_fabric_guid": "0x0000000000000000",
    }


def _remap_histogram(gpu: Gpu) -> dict[str, str | None]:
    """Memory banks by how many spare rows they have left. They are read also with MIG on."""
    banks = gpu.product.get("row_remap_banks")
    if banks is None:
        return {}
    touched = gpu.faults["remapped_correctable"] + gpu.faults["remapped_uncorrectable"]
    used_up = 1 if gpu.faults["remap_failed"] else 0
    return {
        "remapped_rows.histogram.max": str(banks - min(touched, 8) - used_up),
        "remapped_rows.histogram.high": str(min(touched, 8)),
        "remapped_rows.histogram.partial": "0",
        "remapped_rows.histogram.low": "0",
        "remapped_rows.histogram.none": str(used_up),
    }


def _application_clocks(gpu: Gpu) -> dict[str, str]:
    clocks_mhz, gone = gpu.product["clocks_mhz"], gpu.machine.driver_major >= 580
    graphics, memory = (DEPRECATED, DEPRECATED) if gone else (str(clocks_mhz["sm"]), str(clocks_mhz["memory"]))
    return {
        "clocks.applications.graphics": graphics,
        "clocks.applications.memory": memory,
        "clocks.default_applications.graphics": graphics,
        "clocks.default_applications.memory": memory,
    }


def _ecc(gpu: Gpu, name: str) -> str | None:
    """All simulated errors are in the DRAM. Source of what is answered at all: recorded H100, L40S and T4 outputs."""
    _, _, kind, _, unit = name.split(".", 4)
    if not gpu.has("ecc"):
        return None
    if unit in ("register_file", "l1_cache", "l2_cache", "texture_memory", "cbu"):
        return None
    if unit == "sram.thresholdExceeded":
        return "No" if gpu.has("sram_ecc") else None
    if unit.startswith("sram."):
        return "0" if gpu.has("sram_ecc") else None
    return "0" if unit == "sram" else str(gpu.faults[f"ecc_{kind}"])


def _clock_reason(gpu: Gpu, counter: bool, name: str, busy: bool) -> str:
    active = gpu.faults["throttle"]
    if counter:
        ended = gpu.faults["throttled_us"].get(name, 0)
        running = (gpu.machine.at_s - active[name]) * 1e6 if name in active else 0
        return str(int(ended + max(0, running)))
    if name == "supported":
        return "0x00000000000001FF"
    if name == "active":
        return f"0x{(0 if busy else 1) | sum(THROTTLES[reason] for reason in active):016X}"
    if name == "gpu_idle":
        return "Not Active" if busy else "Active"
    return "Active" if name in active else "Not Active"
