"""NVIDIA's messages in the kernel log when a fault occurs.

Message forms are those of recorded lines (drivers 525 to 590; for codes without a recording, the driver's own sources and
the catalogue's short name). Codes 144 to 150 are the NVLink 5 ones with unit, severity, link and status words.
Not done here: the effect of the event on the GPU (inject.py).
"""

from __future__ import annotations

# Codes that the driver follows with a 154 line, and from which driver branch on.
# Source: NVIDIA XID catalogue r610, "154 accompanies".
_RECOVERY_SINCE = {
    **dict.fromkeys((48, 62, 63, 64, 74, 79, 94, 95, 110, 120, 136, *range(144, 151), 155, 156), 565),
    109: 570,
    **dict.fromkeys((143, 160, 161), 575),
    **dict.fromkeys((158, 159), 590),
}
# The recovery action in that line; "GPU Reset" if none is listed here.
_RECOVERY_ACTIONS = {79: "Node Reboot", 48: "Drain and Reset", 63: "Drain and Reset", 94: "Drain and Reset", 158: "Node Reboot"}
_ACTION_IN_LOG = {
    "GPU Reset": "0x1 (GPU Reset Required)",
    "Node Reboot": "0x2 (Node Reboot Required)",
    "Drain and Reset": "0x4 (Drain and Reset)",
}

# Who caused it. Drivers before 470 leave out the name (recorded in 2021), those from 570 on leave out a process that they do not
# know (open-gpu-kernel-modules, kernel_rc.c, 550.54.14 and 570.86.15).
_UNKNOWN = "{unknown}"
_PROCESS = "{known}"

_MESSAGES = {
    8: _PROCESS + "Ch 00000008",
    13: _UNKNOWN + "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
    31: _PROCESS + "channel 0x00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC5 GPCCLIENT_T1_4 faulted @ 0x7f1e_2a400000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    32: _PROCESS + "Channel ID 0000000d intr0 00040000",
    43: _PROCESS + "Ch 00000008",
    45: _PROCESS + "Ch 00000008",
    48: _UNKNOWN + "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x7fdf0de80 "
    "partition 5, subpartition 1",
    61: _UNKNOWN + "0cd8(31c4) 00000000 00000000",
    62: _UNKNOWN + "0c83(1870) 00000000 00000000",
    63: _PROCESS + "Row Remapper: New row (0x000000022ebc4100) marked for remapping, reset gpu to activate.",
    64: _UNKNOWN + "Row Remapper Error: (0x000000022ebc4100) - All reserved rows for bank are remapped",
    69: _PROCESS + "Class Error: ChId 0008, Class 0000cbc0, Offset 00000184, Data ffffffff, ErrorCode 00000004",
    74: _UNKNOWN + "NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: _UNKNOWN + "GPU has fallen off the bus.",
    92: _UNKNOWN + "SM SBE interrupt storm detected",
    94: _PROCESS + "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: _PROCESS + "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    109: _PROCESS + "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
    119: _PROCESS + "Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20801348 0x410).",
    120: _PROCESS + "GSP task exception: load access fault",
    140: _UNKNOWN + "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, PCIE:0",
    144: "SAW_MVB Fatal XC0 i0 Link {link:02d} (0x00000001 0x00000002 0x00000000 0x00000000 0x00000000 0x00000000)",
    145: "RLW_SRC_TRACK Fatal XC0 i0 Link {link:02d} (0x00000007 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
    146: "TLW_CTRL Fatal XC0 i0 Link {link:02d} (0x00000009 0x00000004 0x00000000 0x00000000 0x00000000 0x00000000)",
    147: "TREX Nonfatal XC0 i0 Link {link:02d} (0x0000000e 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
    148: "NVLPW_CTRL/NVLPW Nonfatal XC0 i0 Link {link:02d} (0x0000000f 0x80000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link {link:02d} (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    150: "MSE_WATCHDOG Fatal XC0 i0 Link {link:02d} (0x00000000 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    156: "Retiring TPC 4 from GPC 2 with a spare from the same GPC.",
    157: "Unable to retire TPC 7 from GPC 3 as there are no spare TPCs available.",
    160: "Marking Channel 0 in FBPA 12 along with its pair for repair. Perform GPU reset to activate repair.",
    161: "Repairing Channel failed as there are no more spare channels.",
    171: "Double Bit ECC Error in FBPA 4 subpartition 1",
    172: "Uncorrectable SRAM error",
    177: "Bank Remapper: New bank marked for remapping, reset gpu to activate.",
}
_ANY_OTHER = _UNKNOWN + "Ch 00000008"

_NVLINK_5 = range(144, 151)

# NVSwitch events: severity and text. Recorded ones, and the fatal ones of an H100 baseboard.
_SXID_MESSAGES = {
    12028: ("Non-fatal", "Link {link} egress non-posted PRIV error (First)"),
    20009: ("Non-fatal", "Link {link:02d} RX Short Error Rate"),
    20034: ("Fatal", "Link {link} LTSSM Fault Up"),
    22013: ("Non-fatal", "Link {link} Minion Link DLREQ interrupt"),
    24007: ("Fatal", "Link {link} sourcetrack timeout error (First)"),
    28006: ("Non-fatal", "Link {link} MC TS crumbstore MCTO (First)"),
}
SXID_CODES = tuple(_SXID_MESSAGES)


def stamp(since_boot_s: float, text: str) -> str:
    return f"[{since_boot_s:12.6f}] {text}"


def xid_lines(code: int, *, pci: str, gpu: int, pid: int, process: str, link: int, driver_major: int) -> list[str]:
    """The line of the XID, and of a lost GPU the one that follows it without a code."""
    known = f"pid={pid}, name={process}, " if driver_major >= 470 else f"pid={pid}, "
    unknown = "pid='<unknown>', name=<unknown>, " if driver_major < 570 else ""
    text = _MESSAGES.get(code, _ANY_OTHER).format(known=known, unknown=unknown, gpu=gpu, link=link)
    if code in _NVLINK_5 and driver_major < 595:
        text = _in_columns(text)
    line = f"NVRM: Xid (PCI:{pci}): {code}, {text}"
    return [line, f"NVRM: GPU {pci}.0: GPU has fallen off the bus."] if code == 79 else [line]


def _in_columns(text: str) -> str:
    """`NETIR_LINK_EVT  Fatal   XC0`, as recorded on GB200. Other recordings have single spaces; none names its driver."""
    unit, severity, rest = text.split(" ", 2)
    return f"{unit:<15} {severity:<7} {rest}"


def recovery_action(code: int, driver_major: int) -> str | None:
    """The recovery action that the driver logs after this XID, or None if it logs no 154."""
    if driver_major < _RECOVERY_SINCE.get(code, 10_000):
        return None
    return _RECOVERY_ACTIONS.get(code, "GPU Reset")


def recovery_line(*, pci: str, before: str, after: str) -> str:
    names = {"None": "0x0 (None)", "Drain P2P": "0x3 (Drain P2P)", **_ACTION_IN_LOG}
    return f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from {names[before]} to {names[after]}"


def sxid_lines(code: int, *, switch: int, pci: str, link: int) -> list[str]:
    """The three lines of one event, as the switch driver writes them."""
    severity, text = _SXID_MESSAGES[code]
    start = f"nvidia-nvswitch{switch}: SXid (PCI:{pci}): {code}, "
    return [
        start + f"{severity}, {text.format(link=link)}",
        start + f"Severity {1 if severity == 'Fatal' else 0} Engine instance {link:02d} Sub-engine instance 00",
        start
        + "Data {0x0000002b, 0x0000002b, 0x00000000, 0x0000002b, 0x80005302, 0x00000000, 0x00000000, 0x00000000, 0x00000000}",
    ]
