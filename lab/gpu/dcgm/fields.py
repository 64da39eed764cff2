"""DCGM fields of a simulated GPU, under the names of DCGM before 4.7 and of 4.7 (dcgm-exporter 4.9).

Sources: NVIDIA's field header of DCGM 4.6.0 (names, aliases), the 4.7.0 Field Identifiers (base-unit fields 1600 to 1650)
and recorded /metrics bodies. A value of None is DCGM's blank: the exporter leaves the series out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.gpu.faults import RECOVERY_ACTIONS, THROTTLES
from lab.gpu.machine import Gpu, Reading
from lab.gpu.work import IDLE_PART

Value = int | float | str | None
MIB = 1024 * 1024


class Source:
    """One GPU at one time, with what several fields need."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.now: Reading = gpu.now()
        product = gpu.product
        ends = product["clocks_mhz"]
        self.sm_mhz = round(ends["sm_idle"] + (ends["sm"] - ends["sm_idle"]) * self.now.clock_ratio)
        self.memory_mhz = ends["memory"]
        self.fb_total_mib = product["memory_mib"]
        self.fb_reserved_mib = product["reserved_mib"]
        self.fb_used_mib = round((self.fb_total_mib - self.fb_reserved_mib) * self.now.memory_used_ratio)
        self.nvlink_bytes_s = int(gpu.links * 9_420_800_000 * self.now.traffic) if gpu.links else None
        self.xids = [event for event in gpu.machine.xids if event["gpu"] == gpu.index]

    def link_errors(self, kind: str) -> int | None:
        if not self.gpu.links:
            return None
        return sum(errors[kind] for errors in self.gpu.faults["link_errors"].values())

    def throttled_ns(self, *reasons: str) -> int:
        active, ended = self.gpu.faults["throttle"], self.gpu.faults["throttled_us"]
        running = sum(max(0.0, self.gpu.machine.at_s - active[reason]) for reason in reasons if reason in active)
        return int(running * 1e9) + sum(int(ended.get(reason, 0) * 1000) for reason in reasons)

    def remapped(self, key: str) -> Value:
        return int(self.gpu.faults[key]) if self.gpu.has("row_remap") and not self.gpu.mig else None

    def retired(self, key: str) -> Value:
        return int(self.gpu.faults[key]) if self.gpu.has("retired_pages") else None

    def ecc(self, key: str) -> Value:
        return int(self.gpu.faults[key]) if self.gpu.has("ecc") else None

    def busy_share(self, part: str, share: float) -> float:
        """Profiling ratios in proportion to the traffic, as a training step shows them; those of a load test while one runs."""
        if self.now.test_parts is not None:
            return self.now.test_parts.get(part, IDLE_PART)
        return round(self.now.traffic * share, 6)


Read = Callable[[Source], Value]

# Old name -> reading.
_BEFORE_4_7: dict[str, Read] = {
    "DCGM_FI_DEV_SM_CLOCK": lambda s: s.sm_mhz,
    "DCGM_FI_DEV_MEM_CLOCK": lambda s: s.memory_mhz,
    "DCGM_FI_DEV_MEMORY_TEMP": lambda s: s.now.memory_temperature_c,
    "DCGM_FI_DEV_GPU_TEMP": lambda s: s.now.temperature_c,
    "DCGM_FI_DEV_MEM_MAX_OP_TEMP": lambda s: None if s.now.memory_temperature_c is None else 95,
    "DCGM_FI_DEV_SLOWDOWN_TEMP": lambda s: s.gpu.product["temperature_c"]["limit"],
    "DCGM_FI_DEV_POWER_USAGE": lambda s: float(round(s.now.power_w, 3)),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": lambda s: float(s.gpu.product["power_w"]["limit"]),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": lambda s: float(s.gpu.product["power_w"]["limit"]),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda s: int(s.now.energy_j * 1000),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": lambda s: s.gpu.faults["pcie_replays"],
    "DCGM_FI_DEV_PCIE_LINK_GEN": lambda s: s.gpu.product["pcie"]["gen"],
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": lambda s: s.gpu.product["pcie"]["width"],
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": lambda s: s.gpu.product["pcie"]["gen"],
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": lambda s: s.gpu.product["pcie"]["width"],
    "DCGM_FI_DEV_GPU_UTIL": lambda s: None if s.gpu.mig else round(100 * s.now.utilization),
    "DCGM_FI_DEV_MEM_COPY_UTIL": lambda s: None if s.gpu.mig else round(100 * s.now.memory_utilization),
    "DCGM_FI_DEV_ENC_UTIL": lambda s: None if s.gpu.mig else 0,
    "DCGM_FI_DEV_DEC_UTIL": lambda s: None if s.gpu.mig else 0,
    "DCGM_FI_DEV_XID_ERRORS": lambda s: s.xids[-1]["code"] if s.xids else None,
    "DCGM_FI_DEV_POWER_VIOLATION": lambda s: s.throttled_ns("sw_power_cap", "hw_power_brake_slowdown"),
    "DCGM_FI_DEV_THERMAL_VIOLATION": lambda s: s.throttled_ns("sw_thermal_slowdown", "hw_thermal_slowdown"),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": lambda s: s.throttled_ns("sync_boost"),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": lambda s: 0,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": lambda s: 0,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": lambda s: 0,
    "DCGM_FI_DEV_FB_TOTAL": lambda s: s.fb_total_mib,
    "DCGM_FI_DEV_FB_FREE": lambda s: s.fb_total_mib - s.fb_reserved_mib - s.fb_used_mib,
    "DCGM_FI_DEV_FB_USED": lambda s: s.fb_used_mib,
    "DCGM_FI_DEV_FB_RESERVED": lambda s: s.fb_reserved_mib,
    "DCGM_FI_DEV_MIG_MODE": lambda s: int(bool(s.gpu.mig)) if s.gpu.has("mig") else None,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": lambda s: s.ecc("ecc_corrected"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda s: s.ecc("ecc_uncorrected"),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": lambda s: s.ecc("ecc_corrected"),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": lambda s: s.ecc("ecc_uncorrected"),
    "DCGM_FI_DEV_THRESHOLD_SRM": lambda s: 0 if s.gpu.has("sram_ecc") else None,
    "DCGM_FI_DEV_RETIRED_SBE": lambda s: s.retired("retired_sbe"),
    "DCGM_FI_DEV_RETIRED_DBE": lambda s: s.retired("retired_dbe"),
    "DCGM_FI_DEV_RETIRED_PENDING": lambda s: s.retired("retire_pending"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": lambda s: s.remapped("remapped_uncorrectable"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": lambda s: s.remapped("remapped_correctable"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": lambda s: s.remapped("remap_failed"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": lambda s: s.remapped("remap_pending"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": lambda s: s.link_errors("crc"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": lambda s: s.link_errors("crc"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": lambda s: s.link_errors("replay"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": lambda s: s.link_errors("recovery"),
    "DCGM_FI_DEV_NVLINK_ERROR_DL_CRC": lambda s: s.link_errors("crc"),
    "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY": lambda s: s.link_errors("replay"),
    "DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY": lambda s: s.link_errors("recovery"),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": lambda s: None if s.nvlink_bytes_s is None else s.nvlink_bytes_s // 1_024_000,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": lambda s: (
        None if s.nvlink_bytes_s is None else s.nvlink_bytes_s // s.gpu.links // 1_024_000
    ),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": lambda s: 0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda s: (
        (0 if s.now.busy else 1) | sum(THROTTLES[name] for name in s.gpu.faults["throttle"])
    ),
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": lambda s: 3 if s.gpu.has("fabric") else 0,
    "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": lambda s: 0,
    "DCGM_FI_DEV_FABRIC_HEALTH_MASK": lambda s: 0,
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": lambda s: RECOVERY_ACTIONS.index(s.gpu.faults["recovery_action"]),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": lambda s: s.busy_share("engine", 0.99),
    "DCGM_FI_PROF_SM_ACTIVE": lambda s: s.busy_share("sm", 0.86),
    "DCGM_FI_PROF_SM_OCCUPANCY": lambda s: s.busy_share("occupancy", 0.31),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda s: s.busy_share("tensor", 0.44),
    "DCGM_FI_PROF_DRAM_ACTIVE": lambda s: s.busy_share("dram", 0.52),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": lambda s: s.busy_share("fp64", 0.0),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": lambda s: s.busy_share("fp32", 0.12),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": lambda s: s.busy_share("fp16", 0.05),
    "DCGM_FI_PROF_PCIE_TX_BYTES": lambda s: s.now.pcie_tx_mb_s * 1_000_000,
    "DCGM_FI_PROF_PCIE_RX_BYTES": lambda s: s.now.pcie_rx_mb_s * 1_000_000,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": lambda s: None if s.nvlink_bytes_s is None else s.nvlink_bytes_s // 2,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": lambda s: None if s.nvlink_bytes_s is None else s.nvlink_bytes_s // 2,
    "DCGM_FI_DRIVER_VERSION": lambda s: s.gpu.machine.driver,
    "DCGM_FI_NVML_VERSION": lambda s: "13." + s.gpu.machine.driver,
    "DCGM_FI_PROCESS_NAME": lambda s: "/usr/bin/dcgm-exporter",
    "DCGM_FI_DEV_BRAND": lambda s: "Tesla" if "Tesla" in s.gpu.product["name"] else "NVIDIA",
    "DCGM_FI_DEV_SERIAL": lambda s: s.gpu.serial,
    "DCGM_FI_DEV_VBIOS_VERSION": lambda s: s.gpu.product["firmware"]["vbios"],
    "DCGM_FI_DEV_OEM_INFOROM_VER": lambda s: s.gpu.product["firmware"]["oem"],
    "DCGM_FI_DEV_ECC_INFOROM_VER": lambda s: s.gpu.product["firmware"]["ecc"],
    "DCGM_FI_DEV_POWER_INFOROM_VER": lambda s: s.gpu.product["firmware"]["pwr"],
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": lambda s: s.gpu.product["firmware"]["img"],
}

# New names for the same reading. DCGM 4.6 takes both.
_ALIASES = dict(line.split() for line in Path(__file__).with_name("aliases.txt").read_text(encoding="utf-8").splitlines())


def _bytes_of(old: str) -> Read:
    return lambda s: int(_BEFORE_4_7[old](s) or 0) * MIB


def _scaled(old: str, factor: float, kind: type = int) -> Read:
    def read(source: Source) -> Value:
        value = _BEFORE_4_7[old](source)
        return None if value is None else kind(value * factor)

    return read


# Fields that came with DCGM 4.7: the same readings in base units, under ids of their own.
_SINCE_4_7: dict[str, Read] = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": _scaled("DCGM_FI_DEV_SM_CLOCK", 1e6),
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": _scaled("DCGM_FI_DEV_MEM_CLOCK", 1e6),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": _scaled("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": _scaled("DCGM_FI_DEV_GPU_UTIL", 0.01, float),
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": _scaled("DCGM_FI_DEV_MEM_COPY_UTIL", 0.01, float),
    "DCGM_FI_DEV_ENC_UTIL_RATIO": _scaled("DCGM_FI_DEV_ENC_UTIL", 0.01, float),
    "DCGM_FI_DEV_DEC_UTIL_RATIO": _scaled("DCGM_FI_DEV_DEC_UTIL", 0.01, float),
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": _bytes_of("DCGM_FI_DEV_FB_TOTAL"),
    "DCGM_FI_DEV_FB_FREE_BYTES": _bytes_of("DCGM_FI_DEV_FB_FREE"),
    "DCGM_FI_DEV_FB_USED_BYTES": _bytes_of("DCGM_FI_DEV_FB_USED"),
    "DCGM_FI_DEV_FB_RESERVED_BYTES": _bytes_of("DCGM_FI_DEV_FB_RESERVED"),
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": lambda s: s.nvlink_bytes_s,
    "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": _scaled("DCGM_FI_DEV_POWER_VIOLATION", 1e-9, float),
    "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": _scaled("DCGM_FI_DEV_THERMAL_VIOLATION", 1e-9, float),
}

# In 4.6 the alias for "the percentage"; from 4.7 on a field of its own that is a ratio.
_RATIO_ALIAS_4_6 = {"DCGM_FI_DEV_GPU_UTIL_RATIO": "DCGM_FI_DEV_GPU_UTIL"}


def known(generation: tuple[int, ...]) -> dict[str, Read]:
    """Field name -> reading of a dcgm-exporter release, (4, 8, 2) and so on. Releases from 4.8.3 on carry DCGM 4.6,
    4.9 carries DCGM 4.7."""
    fields = dict(_BEFORE_4_7)
    if generation >= (4, 8, 3):
        fields |= {new: _BEFORE_4_7[old] for new, old in {**_ALIASES, **_RATIO_ALIAS_4_6}.items()}
    if generation >= (4, 9):
        fields |= _SINCE_4_7
    return fields


def current(generation: tuple[int, ...]) -> list[str]:
    """The numeric fields and the driver label under the names that the release itself uses."""
    if generation < (4, 9):
        return [name for name in known(generation) if name in _BEFORE_4_7 and _is_metric(name)]
    superseded = {*_ALIASES.values(), *_RATIO_ALIAS_4_6.values(), *_IN_BASE_UNITS}
    return [name for name in known(generation) if name not in superseded and _is_metric(name)]


def _is_metric(name: str) -> bool:
    """Not one of the texts; of those only the driver version is a label by default."""
    return name.endswith("DRIVER_VERSION") or not (
        name.endswith(_TEXTS) or name.startswith(("DCGM_FI_SYSTEM", "DCGM_FI_PROCESS"))
    )


_TEXTS = ("NVML_VERSION", "_BRAND", "_SERIAL", "VBIOS_VERSION", "INFOROM_VER", "INFOROM_IMAGE_VER")
_IN_BASE_UNITS = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEM_CLOCK",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_ENC_UTIL",
    "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_FB_TOTAL",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
)
