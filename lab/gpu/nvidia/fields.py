"""The fields of `nvidia-smi --query-gpu`: names, units, other spellings, and what a simulated GPU answers.

Names and their order are those of drivers 590, 595 and 610 (`--help-query-gpu` and CSV headers as recorded); drivers before
535 know the shorter list with clocks_throttle_reasons. A value of None prints as [N/A].
"""

from __future__ import annotations

import time

from lab.gpu.faults import THROTTLES
from lab.gpu.machine import Gpu, Reading

DEPRECATED = "[Requested functionality has been deprecated]"
NO_FABRIC = "N/A"  # printed without brackets by the real one

# Other spellings that the driver takes in a query. It answers with its own name.
ALIASES = {
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr",
    "gpu_operation_mode.current": "gom.current",
    "gpu_operation_mode.pending": "gom.pending",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
    "gpu.power.draw.average": "power.draw.average",
    "gpu.power.draw.instant": "power.draw.instant",
    "gpu.power.requested_limit": "power.limit",
    "gpu.power.current_limit": "enforced.power.limit",
    "gpu.power.default_limit": "power.default_limit",
    "gpu.power.min_limit": "power.min_limit",
    "gpu.power.max_limit": "power.max_limit",
    "module.power.requested_limit": "module.power.limit",
    "module.power.current_limit": "module.enforced.power.limit",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.default_applications.gr": "clocks.default_applications.graphics",
    "clocks.default_applications.mem": "clocks.default_applications.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}

# One field per line in the order of the real list: name, unit. "+" before a name: drivers from 535 on; "465+" and so on are
# other branches, "-595" is gone in that branch and back in 610. Between the recorded lists (450, 590, 595, 610) the branch
# is known for few fields; the others are taken to have come with 535.
_TABLE = """
timestamp
driver_version
595+ kmd_version
+ vgpu_driver_capability.heterogenous_multivGPU
count
name
serial
uuid
pci.bus_id
pci.domain
pci.bus
pci.device
+ pci.baseClass
+ pci.subClass
pci.device_id
pci.sub_device_id
+ vgpu_device_capability.fractional_multiVgpu
+ vgpu_device_capability.heterogeneous_timeSlice_profile
+ vgpu_device_capability.heterogeneous_timeSlice_sizes
+ vgpu_device_capability.homogeneous_placements
+ vgpu_device_capability.mig_timeSlicing
+ vgpu_device_capability.mig_timeSlicing_mode
pcie.link.gen.current
+ pcie.link.gen.gpucurrent
pcie.link.gen.max
+ pcie.link.gen.gpumax
+ pcie.link.gen.hostmax
pcie.link.width.current
pcie.link.width.max
index
display_mode
+ display_attached
display_active
persistence_mode
+ addressing_mode
accounting.mode
accounting.buffer_size
driver_model.current
driver_model.pending
vbios_version
inforom.img
inforom.oem
inforom.ecc
inforom.pwr
+ inforom.checksum_validation
+ gpu_recovery_action
gom.current
gom.pending
fan.speed %
pstate
clocks_event_reasons.supported
clocks_event_reasons.active
clocks_event_reasons.gpu_idle
clocks_event_reasons.applications_clocks_setting
clocks_event_reasons.sw_power_cap
clocks_event_reasons.hw_slowdown
clocks_event_reasons.hw_thermal_slowdown
clocks_event_reasons.hw_power_brake_slowdown
clocks_event_reasons.sw_thermal_slowdown
clocks_event_reasons.sync_boost
+ clocks_event_reasons_counters.sw_power_cap us
+ clocks_event_reasons_counters.sync_boost us
+ clocks_event_reasons_counters.sw_thermal_slowdown us
+ clocks_event_reasons_counters.hw_thermal_slowdown us
+ clocks_event_reasons_counters.hw_power_brake_slowdown us
memory.total MiB
510+ memory.reserved MiB
memory.used MiB
memory.free MiB
compute_mode
465+ compute_cap
utilization.gpu %
utilization.memory %
+ utilization.encoder %
+ utilization.decoder %
+ utilization.jpeg %
+ utilization.ofa %
encoder.stats.sessionCount
encoder.stats.averageFps
encoder.stats.averageLatency
+ dramEncryption.mode.current
+ dramEncryption.mode.pending
ecc.mode.current
ecc.mode.pending
ecc.errors.corrected.volatile.*
ecc.errors.corrected.aggregate.*
ecc.errors.uncorrected.volatile.*
ecc.errors.uncorrected.aggregate.*
+ ecc.errors.uncorrected.volatile.sram.parity
+ ecc.errors.uncorrected.volatile.sram.secded
+ ecc.errors.uncorrected.aggregate.sram.parity
+ ecc.errors.uncorrected.aggregate.sram.secded
+ ecc.errors.uncorrected.aggregate.sram.thresholdExceeded
+ ecc.errors.uncorrected.aggregate.sram.l2
+ ecc.errors.uncorrected.aggregate.sram.sm
+ ecc.errors.uncorrected.aggregate.sram.mcu
+ ecc.errors.uncorrected.aggregate.sram.pcie
+ ecc.errors.uncorrected.aggregate.sram.other
retired_pages.single_bit_ecc.count
retired_pages.double_bit.count
retired_pages.pending
+ remapped_rows.correctable
595+ remapped_rows.correctable_inactive
+ remapped_rows.uncorrectable
595+ remapped_rows.uncorrectable_inactive
+ remapped_rows.pending
+ remapped_rows.failure
+ remapped_rows.histogram.max
+ remapped_rows.histogram.high
+ remapped_rows.histogram.partial
+ remapped_rows.histogram.low
+ remapped_rows.histogram.none
temperature.gpu
+ temperature.gpu.tlimit
temperature.memory
power.management
power.draw W
+ power.draw.average W
+ power.draw.instant W
power.limit W
enforced.power.limit W
power.default_limit W
power.min_limit W
power.max_limit W
+ module.power.draw.average W
+ module.power.draw.instant W
+ module.power.limit W
+ module.enforced.power.limit W
+ module.power.default_limit W
+ module.power.min_limit W
+ module.power.max_limit W
610+ gpu.base.current W
610+ gpu.base.requested W
610+ gpu.base.default W
610+ gpu.base.min W
610+ gpu.base.max W
610+ power_smoothing.tmp_floor W
610+ power_smoothing.tmp_ceil W
610+ power_smoothing.hw_lifetime_remaining_percent %
610+ power_smoothing.enabled
-595 power_smoothing.delayed_power_smoothing_supported
610+ power_smoothing.soc_power_smoothing_enabled
610+ power_smoothing.priv_level
610+ power_smoothing.imm_ramp_down
610+ power_smoothing.max_percent_tmp_floor %
610+ power_smoothing.min_percent_tmp_floor %
-595 power_smoothing.primary_power_floor W
-595 power_smoothing.secondary_power_floor W
-595 power_smoothing.min_primary_floor_activation_offset W
-595 power_smoothing.min_primary_floor_activation_point W
-595 power_smoothing.window_multiplier ms
610+ power_smoothing.num_preset_profiles
610+ power_smoothing.curr_profile.percent_tmp_floor %
610+ power_smoothing.curr_profile.ramp_up_rate W/s
610+ power_smoothing.curr_profile.ramp_down_rate W/s
610+ power_smoothing.curr_profile.ramp_down_hysteresis ms
-595 power_smoothing.curr_profile.secondary_power_floor W
-595 power_smoothing.curr_profile.primary_floor_act_window_multiplier
-595 power_smoothing.curr_profile.primary_floor_tar_window_multiplier
-595 power_smoothing.curr_profile.primary_floor_act_offset W
610+ power_smoothing.active_profile
610+ power_smoothing.admin_override.percent_tmp_floor %
610+ power_smoothing.admin_override.ramp_up_rate W/s
610+ power_smoothing.admin_override.ramp_down_rate W/s
610+ power_smoothing.admin_override.ramp_down_hysteresis ms
-595 power_smoothing.admin_override.secondary_power_floor W
-595 power_smoothing.admin_override.primary_floor_act_window_multiplier
-595 power_smoothing.admin_override.primary_floor_tar_window_multiplier
-595 power_smoothing.admin_override.primary_floor_act_offset W
+ edpp_multiplier %
clocks.current.graphics MHz
clocks.current.sm MHz
clocks.current.memory MHz
clocks.current.video MHz
clocks.applications.graphics MHz
clocks.applications.memory MHz
clocks.default_applications.graphics MHz
clocks.default_applications.memory MHz
clocks.max.graphics MHz
clocks.max.sm MHz
clocks.max.memory MHz
mig.mode.current
mig.mode.pending
+ gsp.mode.current
+ gsp.mode.default
+ c2c.mode
+ protected_memory.total MiB
+ protected_memory.used MiB
+ protected_memory.free MiB
+ fabric.state
+ fabric.status
+ fabric.cliqueId
+ fabric.clusterUuid
+ fabric.health.summary
+ fabric.health.bandwidth
+ fabric.health.route_recovery_in_progress
+ fabric.health.route_unhealthy
+ fabric.health.access_timeout_recovery
+ fabric.health.incorrect_configuration
595+ fabric.health.partition_assigned
+ platform.chassis_serial_number
+ platform.slot_number
+ platform.tray_index
+ platform.host_id
+ platform.peer_type
+ platform.module_id
+ platform.gpu_fabric_guid
+ hostname
610+ bbx.time_run seconds
"""
_ECC_UNITS = ("device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram", "total")


def known(driver_major: int) -> dict[str, str]:
    """Field -> unit ("" for none) of a driver branch, in the order of its own list."""
    fields = {}
    for line in _TABLE.split("\n"):
        words = line.split()
        since = words.pop(0) if words and words[0][0] in "+-0123456789" else ""
        if not words or not _is_in(since, driver_major):
            continue
        name, unit = words[0], words[1] if len(words) > 1 else ""
        if driver_major < 535:
            name = name.replace("clocks_event_reasons", "clocks_throttle_reasons")
        for spelled in [name[:-1] + part for part in _ECC_UNITS] if name.endswith("*") else [name]:
            fields[spelled] = unit
    return fields


def _is_in(since: str, driver_major: int) -> bool:
    if since == "-595":
        return 535 <= driver_major < 595 or driver_major >= 610
    return driver_major >= (0 if not since else 535 if since == "+" else int(since[:-1]))


def own_name(asked: str, driver_major: int) -> str:
    """The driver's name for what was asked."""
    asked = ALIASES.get(asked, asked)
    if driver_major >= 535:
        return asked.replace("clocks_throttle_reasons", "clocks_event_reasons")
    return asked


def header(name: str, unit: str) -> str:
    return f"{name} [{unit}]" if unit else name


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
        "temperature.gpu.tlimit": str(product["temperature_c"]["limit"] - now.temperature_c) if gpu.has("row_remap") else None,
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
