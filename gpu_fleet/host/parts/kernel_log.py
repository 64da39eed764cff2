"""The source of a host's kernel messages: the journal, or a file where there is none. The rest of Alloy's pipeline is shared."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, Part


@dataclass(frozen=True, kw_only=True)
class KernelLog:
    """Facts: GPU_FLEET_KERNEL_LOG_SOURCE (journal, file, none) and GPU_FLEET_KERNEL_LOG_FILE."""

    def parts(self) -> tuple[Part, ...]:
        """Two parts, of which a host needs the one for its source, or none."""
        return (
            Part(
                name="kernel-log-journal",
                probe="kernel_log",
                fatal=True,
                when={"GPU_FLEET_KERNEL_LOG_SOURCE": ("journal",)},
                files=(File.from_rootfs("/etc/gpu-fleet/alloy/collect_kernel_journal.alloy"),),
                settings={"GPU_FLEET_KERNEL_LOG": "auto"},
            ),
            Part(
                name="kernel-log-file",
                when={"GPU_FLEET_KERNEL_LOG_SOURCE": ("file",)},
                files=(File.from_rootfs("/etc/gpu-fleet/alloy/collect_kernel_file.alloy"),),
            ),
        )
