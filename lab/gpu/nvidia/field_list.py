"""Which fields `nvidia-smi --query-gpu` has: names, units and other spellings per driver branch.

Names and their order are those of drivers 590, 595 and 610 (`--help-query-gpu` and CSV headers as recorded); drivers before
535 know the shorter list with clocks_throttle_reasons.
"""

from __future__ import annotations

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
# other branches, "535-560" were gone in 560, "-595" came after 555, is gone in 595 and back in 610. The lists of 535, 550 and 555
# are those of the real programs, 450, 590, 595 and 610 are recorded; what came in between is taken to have come with 560.
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
550+ pci.baseClass
550+ pci.subClass
pci.device_id
pci.sub_device_id
+ vgpu_device_capability.fractional_multiVgpu
+ vgpu_device_capability.heterogeneous_timeSlice_profile
+ vgpu_device_capability.heterogeneous_timeSlice_sizes
560+ vgpu_device_capability.homogeneous_placements
560+ vgpu_device_capability.mig_timeSlicing
560+ vgpu_device_capability.mig_timeSlicing_mode
pcie.link.gen.current
+ pcie.link.gen.gpucurrent
pcie.link.gen.max
+ pcie.link.gen.gpumax
+ pcie.link.gen.hostmax
pcie.link.width.current
pcie.link.width.max
index
display_mode
560+ display_attached
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
560+ inforom.checksum_validation
535-560 reset_status.reset_required
535-560 reset_status.drain_and_reset_recommended
560+ gpu_recovery_action
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
560+ clocks_event_reasons_counters.sw_power_cap us
560+ clocks_event_reasons_counters.sync_boost us
560+ clocks_event_reasons_counters.sw_thermal_slowdown us
560+ clocks_event_reasons_counters.hw_thermal_slowdown us
560+ clocks_event_reasons_counters.hw_power_brake_slowdown us
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
560+ dramEncryption.mode.current
560+ dramEncryption.mode.pending
ecc.mode.current
ecc.mode.pending
ecc.errors.corrected.volatile.*
ecc.errors.corrected.aggregate.*
ecc.errors.uncorrected.volatile.*
ecc.errors.uncorrected.aggregate.*
560+ ecc.errors.uncorrected.volatile.sram.parity
560+ ecc.errors.uncorrected.volatile.sram.secded
560+ ecc.errors.uncorrected.aggregate.sram.parity
560+ ecc.errors.uncorrected.aggregate.sram.secded
560+ ecc.errors.uncorrected.aggregate.sram.thresholdExceeded
560+ ecc.errors.uncorrected.aggregate.sram.l2
560+ ecc.errors.uncorrected.aggregate.sram.sm
560+ ecc.errors.uncorrected.aggregate.sram.mcu
560+ ecc.errors.uncorrected.aggregate.sram.pcie
560+ ecc.errors.uncorrected.aggregate.sram.other
retired_pages.single_bit_ecc.count
retired_pages.double_bit.count
retired_pages.pending
560+ remapped_rows.correctable
595+ remapped_rows.correctable_inactive
560+ remapped_rows.uncorrectable
595+ remapped_rows.uncorrectable_inactive
560+ remapped_rows.pending
560+ remapped_rows.failure
560+ remapped_rows.histogram.max
560+ remapped_rows.histogram.high
560+ remapped_rows.histogram.partial
560+ remapped_rows.histogram.low
560+ remapped_rows.histogram.none
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
560+ module.power.draw.average W
560+ module.power.draw.instant W
560+ module.power.limit W
560+ module.enforced.power.limit W
560+ module.power.default_limit W
560+ module.power.min_limit W
560+ module.power.max_limit W
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
560+ edpp_multiplier %
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
550+ c2c.mode
+ protected_memory.total MiB
+ protected_memory.used MiB
+ protected_memory.free MiB
+ fabric.state
+ fabric.status
560+ fabric.cliqueId
560+ fabric.clusterUuid
560+ fabric.health.summary
560+ fabric.health.bandwidth
560+ fabric.health.route_recovery_in_progress
560+ fabric.health.route_unhealthy
560+ fabric.health.access_timeout_recovery
560+ fabric.health.incorrect_configuration
595+ fabric.health.partition_assigned
560+ platform.chassis_serial_number
560+ platform.slot_number
560+ platform.tray_index
560+ platform.host_id
560+ platform.peer_type
560+ platform.module_id
560+ platform.gpu_fabric_guid
560+ hostname
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
        return 560 <= driver_major < 595 or driver_major >= 610
    first, dash, gone = since.partition("-")
    if dash:
        return int(first) <= driver_major < int(gone)
    return driver_major >= (0 if not since else 535 if since == "+" else int(since[:-1]))


def own_name(asked: str, driver_major: int) -> str:
    """The driver's name for what was asked."""
    asked = ALIASES.get(asked, asked)
    if driver_major >= 535:
        return asked.replace("clocks_throttle_reasons", "clocks_event_reasons")
    return asked


def header(name: str, unit: str) -> str:
    return f"{name} [{unit}]" if unit else name
