"""Checks that a host has the expected GPUs, before anything is placed: without a driver no exporter works."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import Part
from gpu_fleet.host.parts.launch import HAS_GPUS


@dataclass(frozen=True, kw_only=True)
class DriverCheck:
    """Facts: GPU_VENDOR (nvidia, amd), GPU_COUNT, GPU_MODELS, GPU_DRIVER_VERSION, CUDA_VERSION or ROCM_VERSION, GPU_GUESTS."""

    def part(self) -> Part:
        return Part(
            name="driver-check",
            when=HAS_GPUS,
            probe="driver",
            fatal=True,
            settings={"GPU_FLEET_VENDOR": "auto", "GPU_FLEET_GPUS": "", "GPU_FLEET_MIN_DRIVER": ""},
        )
