"""`nvidia-smi -q`, as text and as XML (-x): what a GPU says of itself, in the order and wording of driver 590.

A subset: the sections that people and collectors read. Older drivers' wordings are not kept apart here.
"""

from __future__ import annotations

import time

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import Refused, processes
from lab.gpu.nvidia.field_list import known
from lab.gpu.nvidia.fields import Answers, bus_id

# indentation is depth; "XML tag | label | value". A value is the name of a --query-gpu field, "=text", or one of _OWN.
_TREE = """
product_name | Product Name | name
product_brand | Product Brand | =NVIDIA
product_architecture | Product Architecture | @architecture
display_mode | Display Mode | display_mode
display_attached | Display Attached | display_attached
display_active | Display Active | display_active
persistence_mode | Persistence Mode | persistence_mode
addressing_mode | Addressing Mode | addressing_mode
mig_mode | MIG Mode
  current_mig | Current | mig.mode.current
  pending_mig | Pending | mig.mode.pending
accounting_mode | Accounting Mode | accounting.mode
accounting_mode_buffer_size | Accounting Mode Buffer Size | accounting.buffer_size
serial | Serial Number | serial
uuid | GPU UUID | uuid
minor_number | Minor Number | index
vbios_version | VBIOS Version | vbios_version
multigpu_board | MultiGPU Board | =No
inforom_version | Inforom Version
  img_version | Image Version | inforom.img
  oem_object | OEM Object | inforom.oem
  ecc_object | ECC Object | inforom.ecc
  pwr_object | Power Management Object | inforom.pwr
c2c_mode | GPU C2C Mode | c2c.mode
gpu_recovery_action | GPU Recovery Action | gpu_recovery_action
gsp_firmware_version | GSP Firmware Version | driver_version
pci | PCI
  pci_bus | Bus | pci.bus
  pci_device | Device | pci.device
  pci_domain | Domain | pci.domain
  pci_device_id | Device Id | pci.device_id
  pci_bus_id | Bus Id | pci.bus_id
  pci_sub_system_id | Sub System Id | pci.sub_device_id
  pci_gpu_link_info | GPU Link Info
    pcie_gen | PCIe Generation
      max_link_gen | Max | pcie.link.gen.max
      current_link_gen | Current | pcie.link.gen.current
      device_current_link_gen | Device Current | pcie.link.gen.gpucurrent
      max_device_link_gen | Device Max | pcie.link.gen.gpumax
      max_host_link_gen | Host Max | pcie.link.gen.hostmax
    link_widths | Link Width
      max_link_width | Max | @width
      current_link_width | Current | @width
  replay_counter | Replays Since Reset | @replays
  replay_rollover_counter | Replay Number Rollovers | =0
  tx_util | Tx Throughput | @tx
  rx_util | Rx Throughput | @rx
fan_speed | Fan Speed | fan.speed
performance_state | Performance State | pstate
clocks_event_reasons | Clocks Event Reasons
  clocks_event_reason_gpu_idle | Idle | clocks_event_reasons.gpu_idle
  clocks_event_reason_applications_clocks_setting | Applications Clocks Setting | =Not Active
  clocks_event_reason_sw_power_cap | SW Power Cap | clocks_event_reasons.sw_power_cap
  clocks_event_reason_hw_slowdown | HW Slowdown | clocks_event_reasons.hw_slowdown
  clocks_event_reason_hw_thermal_slowdown |     HW Thermal Slowdown | clocks_event_reasons.hw_thermal_slowdown
  clocks_event_reason_hw_power_brake_slowdown |     HW Power Brake Slowdown | clocks_event_reasons.hw_power_brake_slowdown
  clocks_event_reason_sync_boost | Sync Boost | clocks_event_reasons.sync_boost
  clocks_event_reason_sw_thermal_slowdown | SW Thermal Slowdown | clocks_event_reasons.sw_thermal_slowdown
clocks_event_reasons_counters | Clocks Event Reasons Counters
  clocks_event_reasons_counters_sw_power_cap | SW Power Capping | clocks_event_reasons_counters.sw_power_cap
  clocks_event_reasons_counters_sync_boost | Sync Boost | clocks_event_reasons_counters.sync_boost
  clocks_event_reasons_counters_sw_therm_slowdown | SW Thermal Slowdown | clocks_event_reasons_counters.sw_thermal_slowdown
  clocks_event_reasons_counters_hw_therm_slowdown | HW Thermal Slowdown | clocks_event_reasons_counters.hw_thermal_slowdown
  clocks_event_reasons_counters_hw_power_brake | HW Power Braking | clocks_event_reasons_counters.hw_power_brake_slowdown
fb_memory_usage | FB Memory Usage
  total | Total | memory.total
  reserved | Reserved | memory.reserved
  used | Used | memory.used
  free | Free | memory.free
compute_mode | Compute Mode | compute_mode
utilization | Utilization
  gpu_util | GPU | utilization.gpu
  memory_util | Memory | utilization.memory
  encoder_util | Encoder | utilization.encoder
  decoder_util | Decoder | utilization.decoder
  jpeg_util | JPEG | utilization.jpeg
  ofa_util | OFA | utilization.ofa
ecc_mode | ECC Mode
  current_ecc | Current | ecc.mode.current
  pending_ecc | Pending | ecc.mode.pending
ecc_errors | ECC Errors
  volatile | Volatile
    sram_correctable | SRAM Correctable | ecc.errors.corrected.volatile.sram
    sram_uncorrectable_parity | SRAM Uncorrectable Parity | ecc.errors.uncorrected.volatile.sram.parity
    sram_uncorrectable_secded | SRAM Uncorrectable SEC-DED | ecc.errors.uncorrected.volatile.sram.secded
    dram_correctable | DRAM Correctable | ecc.errors.corrected.volatile.dram
    dram_uncorrectable | DRAM Uncorrectable | ecc.errors.uncorrected.volatile.dram
  aggregate | Aggregate
    sram_correctable | SRAM Correctable | ecc.errors.corrected.aggregate.sram
    sram_uncorrectable_parity | SRAM Uncorrectable Parity | ecc.errors.uncorrected.aggregate.sram.parity
    sram_uncorrectable_secded | SRAM Uncorrectable SEC-DED | ecc.errors.uncorrected.aggregate.sram.secded
    dram_correctable | DRAM Correctable | ecc.errors.corrected.aggregate.dram
    dram_uncorrectable | DRAM Uncorrectable | ecc.errors.uncorrected.aggregate.dram
    sram_threshold_exceeded | SRAM Threshold Exceeded | ecc.errors.uncorrected.aggregate.sram.thresholdExceeded
retired_pages | Retired Pages
  multiple_single_bit_retirement.retired_count | Single Bit ECC | retired_pages.single_bit_ecc.count
  double_bit_retirement.retired_count | Double Bit ECC | retired_pages.double_bit.count
  pending_blacklist | Pending Page Blacklist | retired_pages.pending
remapped_rows | Remapped Rows
  remapped_row_corr | Correctable Error | remapped_rows.correctable
  remapped_row_unc | Uncorrectable Error | remapped_rows.uncorrectable
  remapped_row_pending | Pending | remapped_rows.pending
  remapped_row_failure | Remapping Failure Occurred | remapped_rows.failure
temperature | Temperature
  gpu_temp | GPU Current Temp | temperature.gpu
  gpu_temp_tlimit | GPU T.Limit Temp | temperature.gpu.tlimit
  memory_temp | Memory Current Temp | temperature.memory
gpu_power_readings | GPU Power Readings
  average_power_draw | Average Power Draw | power.draw.average
  instant_power_draw | Instantaneous Power Draw | power.draw.instant
  current_power_limit | Current Power Limit | enforced.power.limit
  requested_power_limit | Requested Power Limit | power.limit
  default_power_limit | Default Power Limit | power.default_limit
  min_power_limit | Min Power Limit | power.min_limit
  max_power_limit | Max Power Limit | power.max_limit
clocks | Clocks
  graphics_clock | Graphics | clocks.current.graphics
  sm_clock | SM | clocks.current.sm
  mem_clock | Memory | clocks.current.memory
  video_clock | Video | clocks.current.video
max_clocks | Max Clocks
  graphics_clock | Graphics | clocks.max.graphics
  sm_clock | SM | clocks.max.sm
  mem_clock | Memory | clocks.max.memory
fabric | Fabric
  state | State | fabric.state
  status | Status | fabric.status
  cliqueId | CliqueId | fabric.cliqueId
  clusterUuid | ClusterUUID | fabric.clusterUuid
"""

# -d names -> the sections they keep.
_DISPLAYS = {
    "MEMORY": ("fb_memory_usage",),
    "UTILIZATION": ("utilization",),
    "ECC": ("ecc_mode", "ecc_errors"),
    "TEMPERATURE": ("temperature",),
    "POWER": ("gpu_power_readings",),
    "CLOCK": ("clocks", "max_clocks"),
    "PERFORMANCE": ("performance_state", "clocks_event_reasons", "clocks_event_reasons_counters"),
    "PAGE_RETIREMENT": ("retired_pages",),
    "ROW_REMAPPER": ("remapped_rows",),
    "PIDS": (),
}
_COLON_AT = 55
_PROCESS_COLON_AT = 42

_UNITS = {"temperature.gpu": "C", "temperature.gpu.tlimit": "C", "temperature.memory": "C"}  # of -q alone

_OWN = {
    "@architecture": lambda gpu, answers: gpu.product["architecture"],
    "@width": lambda gpu, answers: f"{gpu.product['pcie']['width']}x",
    "@replays": lambda gpu, answers: str(gpu.faults["pcie_replays"]),
    "@tx": lambda gpu, answers: f"{answers.reading.pcie_tx_mb_s * 1000} KB/s",
    "@rx": lambda gpu, answers: f"{answers.reading.pcie_rx_mb_s * 1000} KB/s",
}


class _Node:
    def __init__(self, tag: str, label: str, value: str | None) -> None:
        self.tag, self.label, self.value = tag, label, value
        self.children: list[_Node] = []


def _tree() -> list[_Node]:
    roots: list[_Node] = []
    path: list[list[_Node]] = [roots]
    for line in _TREE.strip("\n").split("\n"):
        depth = (len(line) - len(line.lstrip())) // 2
        tag, _, rest = line.strip().partition(" | ")
        label, _, value = rest.partition(" | ")
        node = _Node(tag, label, value or None)
        path[depth : depth + 2] = [path[depth], node.children]
        path[depth].append(node)
    return roots


def text(machine: Machine, gpus: list[Gpu], display: str | None) -> str:
    kept = None
    if display is not None:
        for name in display.split(","):
            if name.upper() not in _DISPLAYS:
                raise Refused(f"Display type \"{name}\" is not recognized. Please run 'nvidia-smi -h' for help.")
        kept = {section for name in display.split(",") for section in _DISPLAYS[name.upper()]}
    stamp = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(machine.at_s))
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [
        _line(0, "Timestamp", stamp),
        _line(0, "Driver Version", machine.driver),
        _line(0, "CUDA Version", str(machine.cuda)),
        "",
    ]
    lines += [_line(0, "Attached GPUs", str(len(machine.gpus)))]
    units = known(machine.driver_major)
    for gpu in gpus:
        answers = Answers(gpu)
        lines.append(f"GPU {bus_id(gpu)}")
        for node in _tree():
            if kept is None or node.tag in kept:
                lines += _text_of(node, 1, gpu, answers, units)
        if kept is None or "PIDS" in str(display).upper():
            lines += _processes(gpu, answers)
        lines.append("")
    return "\n".join(lines)


def _line(depth: int, label: str, value: str, colon_at: int = _COLON_AT) -> str:
    return f"{'    ' * depth + label:<{colon_at}}: {value}"


def _text_of(node: _Node, depth: int, gpu: Gpu, answers: Answers, units: dict[str, str]) -> list[str]:
    if node.value is not None:
        return [_line(depth, node.label, _value(node.value, gpu, answers, units))]
    lines = ["    " * depth + node.label]
    for child in node.children:
        lines += _text_of(child, depth + 1, gpu, answers, units)
    return lines


def _value(source: str, gpu: Gpu, answers: Answers, units: dict[str, str]) -> str:
    if source.startswith("="):
        return source[1:]
    if source.startswith("@"):
        return _OWN[source](gpu, answers)
    value = answers[source]
    if value is None:
        return "N/A"
    unit = _UNITS.get(source) or units.get(source, "")
    return f"{value} {unit}" if unit and value[:1] not in "[N" else value.strip("[]")


def _processes(gpu: Gpu, answers: Answers) -> list[str]:
    running = processes(gpu, answers)
    if not running:
        return [_line(1, "Processes", "None")]
    lines = ["    Processes"]
    for pid, name, used in running:
        for depth, label, value in (
            (2, "GPU instance ID", "N/A"),
            (2, "Compute instance ID", "N/A"),
            (2, "Process ID", str(pid)),
            (3, "Type", "C"),
            (3, "Name", name),
            (3, "Used GPU Memory", f"{used} MiB"),
        ):
            lines.append(_line(depth, label, value, _PROCESS_COLON_AT))
    return lines


def xml(machine: Machine, gpus: list[Gpu]) -> str:
    stamp = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(machine.at_s))
    lines = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">', "<nvidia_smi_log>"]
    lines += [f"\t<timestamp>{stamp}</timestamp>", f"\t<driver_version>{machine.driver}</driver_version>"]
    lines += [f"\t<cuda_version>{machine.cuda}</cuda_version>", f"\t<attached_gpus>{len(machine.gpus)}</attached_gpus>"]
    units = known(machine.driver_major)
    for gpu in gpus:
        answers = Answers(gpu)
        lines.append(f'\t<gpu id="{bus_id(gpu)}">')
        for node in _tree():
            lines += _xml_of(node, 2, gpu, answers, units)
        lines += [*_xml_processes(gpu, answers), "\t</gpu>"]
    return "\n".join([*lines, "</nvidia_smi_log>"])


def _xml_of(node: _Node, depth: int, gpu: Gpu, answers: Answers, units: dict[str, str]) -> list[str]:
    tabs = "\t" * depth
    if node.value is not None:
        value = _value(node.value, gpu, answers, units)
        outer, _, inner = node.tag.rpartition(".")
        if node.tag.startswith("pci_"):
            value = value.removeprefix("0x")
        leaf = f"<{inner}>{value}</{inner}>"
        return [f"{tabs}<{outer}>", f"{tabs}\t{leaf}", f"{tabs}</{outer}>"] if outer else [f"{tabs}{leaf}"]
    lines = [f"{tabs}<{node.tag}>"]
    for child in node.children:
        lines += _xml_of(child, depth + 1, gpu, answers, units)
    return [*lines, f"{tabs}</{node.tag}>"]


def _xml_processes(gpu: Gpu, answers: Answers) -> list[str]:
    lines = ["\t\t<processes>"]
    for pid, name, used in processes(gpu, answers):
        lines += [
            "\t\t\t<process_info>",
            "\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>",
            "\t\t\t\t<compute_instance_id>N/A</compute_instance_id>",
            f"\t\t\t\t<pid>{pid}</pid>",
            "\t\t\t\t<type>C</type>",
            f"\t\t\t\t<process_name>{name}</process_name>",
            f"\t\t\t\t<used_memory>{used} MiB</used_memory>",
            "\t\t\t</process_info>",
        ]
    return [*lines, "\t\t</processes>"]
