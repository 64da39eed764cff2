"""The simulated rocm-smi of ROCm 6: the switches our collectors and people use, as text, --json or --csv."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from lab.gpu.amd.readings import Readings, present
from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine

HELP = """This is a simulated rocm-smi of gpu-fleet's lab: a stand-in over simulated GPUs, no AMD driver.

usage: rocm-smi [-a] [-i] [--showproductname] [--showuniqueid] [--showbus] [--showdriverversion] [--showvbios]
                [--showmeminfo vram] [-u|--showuse] [--showmemuse] [-t|--showtemp] [-P|--showpower] [--showmaxpower]
                [-c|--showclocks] [--showserial] [-d N] [--json | --csv]
Without a switch: the table."""


def _id(gpu: Readings) -> dict[str, str]:
    return {
        "Device Name": gpu.product["name"],
        "Device ID": gpu.product["card_model"],
        "Device Rev": "0x00",
        "Subsystem ID": gpu.product["subsystem"],
        "GUID": str(30000 + gpu.index),
    }


def _temperature(gpu: Readings) -> dict[str, str]:
    sensors = {"edge": gpu.edge_c, "junction": gpu.junction_c, "memory": gpu.memory_c}
    return {f"Temperature (Sensor {name}) (C)": f"{value:.1f}" for name, value in sensors.items() if value is not None}


def _power(gpu: Readings) -> dict[str, str]:
    kind = "Average" if gpu.is_mi2xx else "Current Socket"
    return {f"{kind} Graphics Package Power (W)": f"{gpu.power_w:.1f}"}


def _clocks(gpu: Readings) -> dict[str, str]:
    return {
        "mclk clock speed:": f"({gpu.mclk_mhz}Mhz)",
        "mclk clock level:": "0",
        "sclk clock speed:": f"({gpu.sclk_mhz}Mhz)",
        "sclk clock level:": "S",
    }


def _memory_use(gpu: Readings) -> dict[str, str]:
    return {
        "GPU Memory Allocated (VRAM%)": str(gpu.vram_percent),
        "GPU Memory Read/Write Activity (%)": str(gpu.memory_busy_percent),
        "Memory Activity": "N/A",
        "Avg. Memory Bandwidth": "0",
    }


def _product(gpu: Readings) -> dict[str, str]:
    return {
        "Card Series": gpu.product["name"],
        "Card Model": gpu.product["card_model"],
        "Card Vendor": gpu.product["vendor"],
        "Card SKU": gpu.product["sku"],
        "Subsystem ID": gpu.product["subsystem"],
        "Device Rev": "0x00",
        "Node ID": str(gpu.index + 2),
        "GUID": str(30000 + gpu.index),
        "GFX Version": gpu.product["gfx_version"],
    }


# Switch -> title of its section, and its keys with their values.
_SECTIONS: dict[str, tuple[str, Callable[[Readings], dict[str, str]]]] = {
    "--showid": ("ID", _id),
    "--showuniqueid": ("Unique ID", lambda gpu: {"Unique ID": gpu.unique_id}),
    "--showvbios": ("VBIOS", lambda gpu: {"VBIOS version": gpu.product["vbios"]}),
    "--showtemp": ("Temperature", _temperature),
    "--showclocks": ("Current clock frequencies", _clocks),
    "--showmaxpower": ("Power Cap", lambda gpu: {"Max Graphics Package Power (W)": f"{gpu.power_limit_w:.1f}"}),
    "--showpower": ("Power Consumption", _power),
    "--showuse": ("% time GPU is busy", lambda gpu: {"GPU use (%)": str(gpu.busy_percent)}),
    "--showmemuse": ("Current Memory Use", _memory_use),
    "--showserial": ("Serial Number", lambda gpu: {"Serial Number": gpu.serial}),
    "--showbus": ("PCI Bus ID", lambda gpu: {"PCI Bus": gpu.bdf.upper()}),
    "--showmeminfo": (
        "Memory Usage (Bytes)",
        lambda gpu: {"VRAM Total Memory (B)": str(gpu.vram_total), "VRAM Total Used Memory (B)": str(gpu.vram_used)},
    ),
    "--showproductname": ("Product Info", _product),
}
_SHORT = {"-i": "--showid", "-t": "--showtemp", "-P": "--showpower", "-u": "--showuse", "-c": "--showclocks", "-v": "--showvbios"}
_WIDTH = 90


def main(arguments: list[str]) -> int:
    state = os.environ.get(STATE_VARIABLE)
    try:
        if not state:
            raise NoMachine(f"{STATE_VARIABLE} is not set; start it through the wrapper that lab.gpu.ensure makes")
        return _run(Machine.load(state), arguments)
    except NoMachine as missing:
        print(f"simulated rocm-smi: {missing}")
        print("ERROR: No AMD GPUs specified")
        return 1


def _run(machine: Machine, arguments: list[str]) -> int:
    wanted, form, driver, only = [], "text", False, None
    left = list(arguments)
    while left:
        argument = _SHORT.get(left[0], left[0])
        left.pop(0)
        if argument in ("-h", "--help"):
            print(HELP)
            return 0
        if argument in ("--json", "--csv"):
            form = argument[2:]
        elif argument in ("-a", "--showallinfo"):
            wanted, driver = list(_SECTIONS), True
        elif argument == "--showdriverversion":
            driver = True
        elif argument in ("-d", "--device") and left:
            only = int(left.pop(0))
        elif argument in _SECTIONS:
            wanted.append(argument)
            if argument == "--showmeminfo":
                while left and not left[0].startswith("-"):
                    left.pop(0)  # vram is all that an accelerator of the lab has
        else:
            print(f"usage: rocm-smi [-h] ...\nrocm-smi: error: unrecognized arguments: {argument}")
            return 2
    gpus = [gpu for gpu in present(machine) if only is None or gpu.index == only]
    if not gpus:
        print("ERROR: No AMD GPUs specified")
        return 1
    if form == "json":
        print(_json(machine, gpus, wanted, driver))
    elif form == "csv":
        print(_csv(machine, gpus, wanted, driver))
    elif wanted or driver:
        print(_text(machine, gpus, wanted, driver))
    else:
        print(_table(gpus))
    return 0


def _fields(gpu: Readings, wanted: list[str]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for switch in wanted:
        merged |= _SECTIONS[switch][1](gpu)
    return merged


def _json(machine: Machine, gpus: list[Readings], wanted: list[str], driver: bool) -> str:
    document = {f"card{gpu.index}": _fields(gpu, wanted) for gpu in gpus} if wanted else {}
    if driver:
        document["system"] = {"Driver version": machine.driver}
    return json.dumps(document)


def _csv(machine: Machine, gpus: list[Readings], wanted: list[str], driver: bool) -> str:
    lines = []
    if wanted:
        rows = [_fields(gpu, wanted) for gpu in gpus]
        lines = [",".join(["device", *rows[0]])]
        lines += [
            ",".join([f"card{gpu.index}", *(value.replace(",", "") for value in row.values())])
            for gpu, row in zip(gpus, rows, strict=True)
        ]
        lines.append("")
    if driver:
        lines += ["name, value", f'"Driver version", "{machine.driver}"', ""]
    return "\n".join(lines)


def _text(machine: Machine, gpus: list[Readings], wanted: list[str], driver: bool) -> str:
    lines = ["", _title("ROCm System Management Interface")]
    if driver:
        lines += [_title("Version of System Component"), f"Driver version: {machine.driver}", "=" * _WIDTH]
    for switch in wanted:
        title, fields = _SECTIONS[switch]
        lines.append(_title(title))
        lines += [f"GPU[{gpu.index}]\t\t: {key}: {value}" for gpu in gpus for key, value in fields(gpu).items()]
        lines.append("=" * _WIDTH)
    return "\n".join([*lines, _title("End of ROCm SMI Log"), ""])


def _title(text: str, width: int = _WIDTH) -> str:
    return f" {text} ".center(width, "=")


def _table(gpus: list[Readings]) -> str:
    width = 116
    lines = [
        "",
        _title("ROCm System Management Interface", width),
        _title("Concise Info", width),
        "Device  [Model : Revision]    Temp        Power     Partitions      SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%  ",
        "        Name (20 chars)       (Junction)  (Socket)  (Mem, Compute)" + " " * 50,
        "=" * width,
    ]
    for gpu in gpus:
        model, power, vram = f"[{gpu.product['card_model']} : 0x00]", f"{gpu.power_w:.1f}W", f"{gpu.vram_percent}%"
        sclk, mclk, busy = f"{gpu.sclk_mhz}Mhz", f"{gpu.mclk_mhz}Mhz", f"{gpu.busy_percent}%"
        lines += [
            f"{gpu.index:<8}{model:<22}{gpu.junction_c:.1f}°C      {power:<10}NPS1, SPX       {sclk:<8}{mclk:<8}0%   auto  "
            f"{gpu.power_limit_w:.1f}W  {vram:>4}   {busy:<6}",
            f"{'':8}{gpu.product['name'][:20]:<108}",
        ]
    return "\n".join([*lines, "=" * width, _title("End of ROCm SMI Log", width), ""])
