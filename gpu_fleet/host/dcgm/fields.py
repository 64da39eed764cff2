"""Which fields the pinned dcgm-exporter knows. It exits on a counter that it does not know, so lists are checked beforehand.

fields.csv is the table of the DCGM version in the pinned image (gpu_fleet/toolchain/versions.yaml); a new pin needs a new table.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("fields.csv")

# The exporter's own, derived from DCGM's; the totals were added in 4.8.3. Source: its default-counters.csv of 4.8.4 and the
# release notes of 4.8.3, read 2026-11-21.
EXPORTER_FIELDS = (
    "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_EXP_XID_ERRORS_TOTAL",
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    "DCGM_EXP_CLOCK_EVENTS_TOTAL",
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "DCGM_EXP_P2P_STATUS",
)

# Number -> what to use instead. DCGM 4.7 dropped them, and an exporter whose list names one exits.
# Source: netdata PR #23964 (seen with dcgm-exporter 4.9), read 2026-11-21.
REMOVED_IN_4_7: Mapping[int, str] = {200: "DCGM_FI_PROF_PCIE_TX_BYTES", 201: "DCGM_FI_PROF_PCIE_RX_BYTES"}

# On GB200 neither is read when one list has both. Source: NVIDIA/DCGM issue 265, dcgm-exporter issue 581 (open), read 2026-11-21.
ECC_SINGLE_BIT = frozenset({310, 312})
NVLINK_COUNTS = frozenset(range(1200, 1220))


@cache
def known_fields() -> Mapping[str, int]:
    """Every name that the pinned exporter accepts -> the field's number: both generations of names, and a number below 0 for each
    of the exporter's own."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    own = {name: -1 - index for index, name in enumerate(EXPORTER_FIELDS)}
    return own | {row[name]: int(row["id"]) for row in rows for name in ("name", "old_name") if row[name]}
