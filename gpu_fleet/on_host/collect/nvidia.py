"""All NVIDIA GPUs, from one nvidia-smi run.

A cell that is not a number ([N/A], [Not Supported], [Unknown Error], ERR!) gives no sample: a GPU without a temperature reading
has no series, not 0. A GPU of which nothing is read counts as unreadable. For a GPU without a handle (lost, or in need of a
reset), nvidia-smi prints a line of text in place of its row, so rows are recognized by their index. Until driver 555 at least
that line is all that it prints, and the other GPUs are read only when they are asked for by -i.

What a driver does not know of OPTIONAL is left out: it refuses a query with an unknown field, at once and by the field's name.

The temperature limits are in no field of a query: a second run prints them, as temperatures (GPU Slowdown Temp) or, from Hopper
on, as margins (T.Limit: degrees up to a limit, which is lower by the slowdown's own margin).
"""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence

from ..metrics import Metrics
from ..nvidia_smi import NO_HANDLE, only_readable
from ..tools import CollectError, Tools

# As long as the interval allows: a driver without persistence mode is slow, which is no failure; one that hangs is.
PATIENCE_S = 16
AGAIN_PATIENCE_S = 4  # of each run that is needed only when a GPU has no handle, which nvidia-smi says at once
LIMITS_PATIENCE_S = 2
FIELDS = (
    *("index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "memory.used"),
    *("utilization.gpu", "temperature.gpu", "power.draw", "power.limit"),
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
)
# Signals of a failure, under their names from newer to older drivers, which have them in this query since R560. A GPU without the
# feature has [N/A].
OPTIONAL = (
    ("gpu_recovery_action", "reset_status.reset_required"),
    ("remapped_rows.failure",),
    ("remapped_rows.pending",),
)
_METRICS = {
    "gpu_recovery_action": "recovery_action",
    "reset_status.reset_required": "recovery_action",
    "remapped_rows.failure": "row_remap_failed",
    "remapped_rows.pending": "row_remap_pending",
}
# NVML's nvmlDeviceGpuRecoveryAction_t, by what is in the cell: older drivers do not say whose reset or reboot it is, and how R615
# writes its new ones is not recorded.
_RECOVERY = (("imex", 5), ("bus", 6), ("system", 7), ("reboot", 2), ("p2p", 3), ("drain", 4), ("reset", 1), ("yes", 1))
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_BYTES_PER_MIB = 2**20


class Gpu(NamedTuple):
    """One row. `values`: metric -> number, of the cells that are numbers."""

    number: str
    uuid: str
    model: str
    pci: str
    driver: str
    values: dict[str, float]

    @property
    def is_readable(self) -> bool:
        return any(name in self.values for name in READINGS)


READINGS = ("memory_used_bytes", "utilization_percent", "temperature_celsius", "power_draw_watts")


class Query(NamedTuple):
    """`gpus`: those with an identity. `unreadable`: GPUs without any reading. `said`: the first line that is no row."""

    gpus: list[Gpu]
    unreadable: int
    said: str


def collect(tools: Tools, metrics: Metrics) -> None:
    """Raises CollectError when no GPU could be read."""
    nvidia_smi = tools.find("nvidia-smi")
    only: list[str] = []
    text, optional = _ask(tools, nvidia_smi)
    if not text[:1].isdigit() and NO_HANDLE in text:
        listing = tools.ask(AGAIN_PATIENCE_S, [nvidia_smi, "-L"]).text
        only = only_readable(listing)
        if only:
            text = listing + tools.ask(AGAIN_PATIENCE_S, [nvidia_smi, *only, *query_of(optional)]).text
    query = parse_query(text, optional)
    if not query.gpus:
        said = query.said or f"no answer within {PATIENCE_S} s"
        raise CollectError(f"nvidia-smi reported no GPU: {said}", query.unreadable)
    for gpu in query.gpus:
        metrics.add("info", 1, gpu.number, gpu.uuid, gpu.model, gpu.pci, gpu.driver)
        for name, value in gpu.values.items():
            metrics.add(name, value, gpu.number)
    metrics.add("unreadable", query.unreadable)
    for name in ("ecc_uncorrected_total", *(_METRICS[field] for field in optional)):
        metrics.add("collector_asks", 1, "nvidia", name)
    is_read = any(gpu.is_readable for gpu in query.gpus)
    metrics.part("nvidia", "readings", works=is_read)
    if not is_read:
        metrics.said.append(f"the GPUs are listed, but none of their values: {query.said or _last_line(text)}")
    limits = tools.ask(LIMITS_PATIENCE_S, [nvidia_smi, *only, "-q", "-d", "TEMPERATURE"], with_stderr=False).text
    at = {gpu.pci: gpu.number for gpu in query.gpus}
    for pci, values in parse_temperatures(limits).items():
        for name, value in values.items():
            if pci in at:
                metrics.add(name, value, at[pci])


def query_of(optional: Sequence[str]) -> tuple[str, str]:
    return "--query-gpu=" + ",".join((*FIELDS, *optional)), "--format=csv,noheader,nounits"


def _ask(tools: Tools, nvidia_smi: str) -> tuple[str, tuple[str, ...]]:
    """The answer, and the optional fields that it has."""
    names = [list(of_one) for of_one in OPTIONAL]
    while True:
        asked = tuple(of_one[0] for of_one in names)
        text = tools.ask(PATIENCE_S, [nvidia_smi, *query_of(asked)]).text
        refused = _REFUSED.search(text)
        if not refused or refused[1] not in asked:
            return text, asked
        names = [left for of_one in names if (left := [name for name in of_one if name != refused[1]])]


def parse_query(text: str, optional: Sequence[str] = ()) -> Query:
    """Only the rows matter, and the lines about GPUs without a handle."""
    gpus, unreadable, said = [], 0, ""
    for line in text.splitlines():
        cells = re.split(r" *, *", line)
        is_row = len(cells) in (len(FIELDS), len(FIELDS) + len(optional))
        if not is_row or not cells[0].isdigit():
            unreadable += is_row or NO_HANDLE in line
            said = said or line
            continue
        gpu = _gpu(cells[: len(FIELDS)])
        for name, cell in zip(optional, cells[len(FIELDS) :]):
            code = _code(name, cell.strip().lower())
            if code is not None:
                gpu.values[_METRICS[name]] = code
        unreadable += not gpu.is_readable
        # One that was just lost has [GPU is lost] in each column.
        if gpu.uuid:
            gpus.append(gpu)
    return Query(gpus, unreadable, said)


def _code(field: str, cell: str) -> int | None:
    if cell in ("none", "no"):
        return 0
    if _METRICS[field] != "recovery_action":
        return 1 if cell == "yes" else None
    return next((code for word, code in _RECOVERY if word in cell), None)


def _gpu(cells: list[str]) -> Gpu:
    index, uuid, model, address, driver, total, used, utilization, temperature, draw, limit, corrected, uncorrected = cells
    pci = kernels_address(address)
    values = {
        "memory_total_bytes": _number(total, _BYTES_PER_MIB),
        "memory_used_bytes": _number(used, _BYTES_PER_MIB),
        "utilization_percent": _number(utilization),
        "temperature_celsius": _number(temperature),
        "power_draw_watts": _number(draw),
        "power_limit_watts": _number(limit),
        "ecc_corrected_total": _number(corrected),
        "ecc_uncorrected_total": _number(uncorrected),
    }
    return Gpu(
        number=index,
        uuid=uuid if uuid.startswith("GPU-") else pci,  # known by its address where its UUID cannot be read
        model=_words(model),
        pci=pci,
        driver=_words(driver),
        values={name: value for name, value in values.items() if value is not None},
    )


def kernels_address(bus_id: str) -> str:
    """00000000:4B:00.0 is 0000:4b:00 in the kernel log. Empty for what is no address."""
    address = re.sub(r"\.[0-9]$", "", re.sub("^0000", "", bus_id.strip().lower()))
    return address if re.match("[0-9a-f]+:", address) else ""


def parse_temperatures(text: str) -> dict[str, dict[str, float]]:
    """PCI address -> metric -> degrees, of `nvidia-smi -q -d TEMPERATURE`."""
    found: dict[str, dict[str, float]] = {}
    seen: dict[str, float] = {}
    for line in text.splitlines():
        header = re.match(r"GPU ([0-9A-Fa-f]+:\S+)", line)
        if header:
            seen = found.setdefault(kernels_address(header[1]), {})
            continue
        value = re.fullmatch(r" +([A-Za-z.][^:]*?) *: +(-?[0-9]+) C\s*", line)
        if value:
            seen[value[1]] = float(value[2])
    return {pci: _limits(values) for pci, values in found.items()}


def _limits(seen: dict[str, float]) -> dict[str, float]:
    """A limit, or a margin added to the temperature of the same run. Since 610 the margin has another name."""
    limits = {}
    margin = seen.get("GPU Current T.Limit Temp", seen.get("GPU T.Limit Temp"))
    if "GPU Slowdown Temp" in seen:
        limits["temperature_limit_celsius"] = seen["GPU Slowdown Temp"]
    elif "GPU Current Temp" in seen and margin is not None:
        limits["temperature_limit_celsius"] = seen["GPU Current Temp"] + margin - seen.get("GPU Slowdown T.Limit Temp", 0)
    for metric, name in (
        ("memory_temperature_celsius", "Memory Current Temp"),
        ("memory_temperature_limit_celsius", "Memory Max Operating Temp"),
    ):
        if name in seen:
            limits[metric] = seen[name]
    return limits


def _number(cell: str, factor: float = 1) -> float | None:
    cell = cell.strip()
    return float(cell) * factor if _NUMBER.fullmatch(cell) else None


def _words(cell: str) -> str:
    return "" if cell.startswith("[") or "!" in cell else cell.strip()


def _last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]
