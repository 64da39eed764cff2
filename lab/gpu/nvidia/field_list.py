"""Which fields `nvidia-smi --query-gpu` has: names, units and other spellings per driver branch.

Names and their order are those of drivers 590, 595 and 610 (`--help-query-gpu` and CSV headers as recorded); drivers before
535 know the shorter list with clocks_throttle_reasons.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
# Other spellings that the driver takes in a query. It answers with its own name.
ALIASES = dict(line.split() for line in (_HERE / "spellings.txt").read_text(encoding="utf-8").splitlines())

# fields.txt: one field per line in the order of the real list: name, unit. "+" before a name: drivers from 535 on; "465+" and so
# on are other branches, "535-560" were gone in 560, "-595" came after 555, is gone in 595 and back in 610. The lists of 535, 550
# and 555 are those of the real programs, 450, 590, 595 and 610 are recorded; what came in between is taken to have come with 560.
_TABLE = (_HERE / "fields.txt").read_text(encoding="utf-8").splitlines()
_ECC_UNITS = ("device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram", "total")


def known(driver_major: int) -> dict[str, str]:
    """Field -> unit ("" for none) of a driver branch, in the order of its own list."""
    fields = {}
    for line in _TABLE:
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
