"""Checks that a host has the expected GPUs, before anything is placed: without a driver no exporter works."""

from __future__ import annotations

from dataclasses import dataclass

from host.part import File, Part

PROBE = "/opt/gpu-fleet/libexec/check-driver"


@dataclass(frozen=True, kw_only=True)
class DriverCheck:
    """Facts: GPU_VENDOR (nvidia, amd), GPU_COUNT, GPU_MODELS, GPU_DRIVER_VERSION, CUDA_VERSION or ROCM_VERSION."""

    def part(self) -> Part:
        return Part(
            name="driver-check",
            when={"GPU_FLEET_ROLE": ("gpu",)},
            probe=PROBE,
            fatal=True,
            files=(File.from_rootfs(PROBE),),
            settings={"GPU_FLEET_VENDOR": "auto", "GPU_FLEET_GPUS": "", "GPU_FLEET_MIN_DRIVER": ""},
        )
