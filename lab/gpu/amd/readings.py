"""The readings of an AMD GPU of the machine, before any tool formats them. A lost GPU is missing completely."""

from __future__ import annotations

from lab.gpu.machine import Gpu, Machine


class Readings:
    def __init__(self, gpu: Gpu) -> None:
        now, product = gpu.now(), gpu.product
        clocks = product["clocks_mhz"]
        self.gpu = gpu
        self.index = gpu.index
        self.product = product
        self.serial = f"{int(gpu.serial):d}"
        self.unique_id = f"0x{gpu.uuid.replace('-', '')[:16]}"
        self.uuid = f"{gpu.uuid[:4]}{product['card_model'][2:]}-0000-1000-80{gpu.uuid[9:11]}-{gpu.uuid[-12:]}"
        self.bdf = f"{gpu.pci_kernel}.0"
        self.busy_percent = round(100 * now.utilization)
        self.memory_busy_percent = round(100 * now.memory_utilization)
        self.vram_total = product["memory_bytes"]
        self.vram_used = product["used_bytes_idle"] + int((self.vram_total - product["used_bytes_idle"]) * now.memory_used_ratio)
        self.vram_percent = round(100 * self.vram_used / self.vram_total)
        self.power_w = round(now.power_w)
        self.power_limit_w = product["power_w"]["limit"]
        self.junction_c = now.temperature_c
        self.memory_c = now.memory_temperature_c
        edge_below = product["temperature_c"].get("edge_below")
        self.edge_c = None if edge_below is None else now.temperature_c - edge_below
        self.is_mi2xx = product["architecture"] == "CDNA 2"  # reports average power and the edge temperature
        self.sclk_mhz = round(clocks["sclk_idle"] + (clocks["sclk"] - clocks["sclk_idle"]) * now.clock_ratio)
        self.mclk_mhz = clocks["mclk"] if now.busy else clocks["mclk_idle"]
        self.energy_uj = int(now.energy_j * 1e6)
        self.throttled = bool(gpu.slowdowns())


def present(machine: Machine) -> list[Readings]:
    return [Readings(gpu) for gpu in machine.gpus if not gpu.lost]
