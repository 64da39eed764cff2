"""GPU metrics through node_exporter's textfile collector: all of them if it is the exporter, link traffic on every NVIDIA host.

The metrics of the collectors, and those of the two programs that they replace:

    Debian textfile guide, get_gpu_metrics.sh (seed 001)     the same names and the same label `gpu`
        node_gpu_memory_total_bytes, node_gpu_memory_used_bytes, node_gpu_utilization_percent,
        node_gpu_temperature_celsius, node_gpu_power_draw_watts, node_gpu_power_limit_watts
    prometheus_nvlink_exporter (seed 003)                    units in bytes, counters named _total
        gpu_nvlink_tx_kbytes{GPUID, LinkID}                  node_gpu_nvlink_transmit_bytes_total{gpu, link}
        gpu_nvlink_rx_kbytes{GPUID, LinkID}                  node_gpu_nvlink_receive_bytes_total{gpu, link}
        gpu_pci_tx_mb_per_s{GPUID}                           node_gpu_pcie_transmit_bytes_per_second{gpu}
        gpu_pci_rx_mb_per_s{GPUID}                           node_gpu_pcie_receive_bytes_per_second{gpu}
    new here
        node_gpu_{temperature_limit,memory_temperature,memory_temperature_limit}_celsius{gpu},
        node_gpu_ecc_{corrected,uncorrected}_total{gpu} (AMD),
        node_gpu_nvlinks_active{gpu}, node_gpu_nvlink_speed_bytes_per_second{gpu},
        node_gpu_fabric_info{gpu, cluster_uuid, clique},
        node_gpu_info{gpu, uuid, model, pci, driver_version}, node_gpu_unreadable,
        node_gpu_partitions{gpu} (AMD), node_gpu_recovery_action{gpu}, node_gpu_row_remap_{failed,pending}{gpu},
        node_gpu_rdma_ports, node_gpu_passed_through{pci},
        node_gpu_collector_{success,duration_seconds,timestamp_seconds}{collector},
        node_gpu_collector_part_success{collector, part}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_fleet.host.part import Directory, File, FileCheck, Part, Unit, User
from gpu_fleet.host.parts.exporter_choice import TEXTFILE

START = "/opt/gpu-fleet/libexec/start-textfile"
MODULES = tuple(f"on_host/{name}" for name in ("collect/__init__", "maintenance", "metrics", "slurm_tools", "textfile"))
DIRECTORY = "/var/lib/gpu-fleet/textfile"
MAINTENANCE = "/opt/gpu-fleet/bin/gpu-fleet-maintenance"  # writes its state there, for the alerts
USER = "gpu-fleet-textfile"


@dataclass(frozen=True, kw_only=True)
class Textfile:
    def parts(self) -> tuple[Part, ...]:
        """The timer that runs all installed collectors every 15 s, and the collectors, of which a host needs those for its GPUs.

        Link traffic has no check: not every GPU reports it, and a host works without it. A metric has the result.
        """
        return (
            _collector("links", {"GPU_VENDOR": ("nvidia",)}),
            Part(
                name="textfile",
                # These groups own AMD's devices, and NVIDIA's where an administrator restricted access.
                users=(User(name=USER, groups=("video", "render")),),
                # Root writes there too (drift.py), and owns it, because a directory's owner may delete any file in it.
                directories=(Directory(path=DIRECTORY, mode=0o775, group=USER, contents="runtime"),),
                files=(File.from_rootfs(START), File.from_rootfs(MAINTENANCE), *(File.python(module) for module in MODULES)),
                units=(Unit(name="gpu-fleet-textfile", restart_on=("settings", START)),),
            ),
            _exporter("nvidia"),
            _exporter("amd"),
        )


def _exporter(vendor: str) -> Part:
    """A collector that is its host's GPU exporter, so it must read the GPUs; it runs at most 15 s after it was placed."""
    part = _collector(vendor, {"GPU_FLEET_EXPORTER_MODE": (TEXTFILE,), "GPU_VENDOR": (vendor,)})
    contains = f'node_gpu_collector_part_success{{collector="{vendor}",part="readings"}} 1'
    return replace(part, checks=(FileCheck(path=f"{DIRECTORY}/gpu_{vendor}.prom", contains=contains),))


def _collector(name: str, when: Mapping[str, tuple[str, ...]]) -> Part:
    return Part(name=f"textfile-{name}", when=when, files=(File.python(f"on_host/collect/{name}"),))
