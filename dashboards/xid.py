"""XIDs and health: which GPU fails, since when, what does it mean and what is to be done?"""

from __future__ import annotations

from typing import Any

from alerts.xid import CATALOGUE
from dashboards import queries as q
from dashboards.layout import build
from dashboards.panels import Query, bars, log_counts, log_lines, log_table, one_number, states

# The driver's verdicts, see gpu:recovery_action:code.
VERDICTS = {
    0: ("fine", "green"),
    1: ("reset GPU", "orange"),
    2: ("reboot node", "red"),
    3: ("drain P2P", "yellow"),
    4: ("drain and reset", "red"),
}
IN_WORDS = {
    str(code): f"{code}: {xid.meaning}. {xid.action.text}" for code, xid in sorted(CATALOGUE.items()) if not xid.is_retired
}


def dashboard() -> dict[str, Any]:
    return build(
        "xid",
        "GPU fleet / XIDs and health",
        "Errors that NVIDIA's drivers logged, what they mean and ask for, and what the GPUs count against themselves.",
        variables=("datacenter", "cluster", "exporter_mode", "instance"),
        rows=(
            (
                "Now",
                (
                    one_number(
                        "Critical XIDs",
                        Query(q.firing_xids(q.CLUSTER, "critical"), "critical"),
                        description="GPUs with a critical XID within the last ten minutes.",
                        unit="short",
                        thresholds=((None, "green"), (1, "red")),
                        width=6,
                    ),
                    one_number(
                        "Warning XIDs",
                        Query(q.firing_xids(q.CLUSTER, "warning"), "warnings"),
                        description="GPUs with an XID that asks to restart a program, or to look, within the last ten minutes.",
                        unit="short",
                        thresholds=((None, "green"), (1, "yellow")),
                        width=6,
                    ),
                    one_number(
                        "GPUs that need an action",
                        Query(f"count({q.per_gpu('gpu:recovery_action:code', q.HOST)} > 0) or vector(0)", "GPUs"),
                        description="GPUs for which the driver asks for a reset, a drain or a reboot.",
                        unit="short",
                        thresholds=((None, "green"), (1, "red")),
                        width=6,
                    ),
                    one_number(
                        "GPUs with lost data",
                        Query(f"count({q.ecc_uncorrected(q.HOST)}) or vector(0)", "GPUs"),
                        description="GPUs with uncorrectable memory errors since their driver was loaded.",
                        unit="short",
                        thresholds=((None, "green"), (1, "red")),
                        width=6,
                    ),
                ),
            ),
            (
                "When and where",
                (
                    log_counts(
                        "XID lines by code",
                        Query(q.xid_lines_by_code(q.HOST), "XID {{xid}}"),
                        description="Kernel lines with an XID, by code. Several codes at one moment are mostly one incident.",
                        unit="short",
                        width=12,
                    ),
                    log_counts(
                        "XID lines by host",
                        Query(q.xid_lines_by_host(q.HOST), "{{instance}}"),
                        description="The ten hosts with most XID lines. One host alone points to its hardware, many to a job.",
                        unit="short",
                        width=12,
                    ),
                    log_table(
                        "What they mean and ask for",
                        q.xid_lines_by_gpu(q.HOST),
                        description="XIDs of the time range by GPU and code, with the catalogue's meaning and NVIDIA's action.",
                        width=24,
                        columns={
                            "xid": "XID: meaning and action",
                            "instance": "Host",
                            "pci": "GPU (PCI)",
                            "cluster": "Cluster",
                            "Value #A": "Lines",
                        },
                        words={"XID: meaning and action": IN_WORDS},
                    ),
                    states(
                        "What the driver asks for",
                        Query(q.recovery_actions(q.HOST), "{{instance}} GPU {{gpu}}"),
                        description="The driver's verdict over time, of GPUs that needed something. Empty is good.",
                        unit="short",
                        words=VERDICTS,
                        width=24,
                    ),
                ),
            ),
            (
                "Memory",
                (
                    bars(
                        "Uncorrectable memory errors",
                        Query(q.top(10, q.ecc_uncorrected(q.HOST)), "{{instance}} GPU {{gpu}}"),
                        description="Since the driver was loaded; a reset of the GPU sets them to 0. Empty is good.",
                        unit="short",
                        thresholds=((None, "red"),),
                        width=12,
                    ),
                    bars(
                        "Memory rows replaced",
                        Query(q.top(10, q.row_remaps(q.HOST)), "{{instance}} GPU {{gpu}}"),
                        description="Rows exchanged for spare ones in the GPU's life. A GPU that leads by far is wearing out.",
                        unit="short",
                        thresholds=((None, "yellow"),),
                        width=12,
                    ),
                ),
            ),
            (
                "Lines",
                (
                    log_lines(
                        "XID lines",
                        q.xid_lines(q.HOST),
                        description="The lines as the kernel wrote them. Open one for its GPU, process id and process.",
                        width=24,
                    ),
                ),
            ),
        ),
    )
