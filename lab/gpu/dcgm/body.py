"""The /metrics body: one family per counter, one line per GPU or GPU instance, labels in the exporter's order."""

from __future__ import annotations

from lab.gpu.dcgm.counters import Counter
from lab.gpu.dcgm.fields import Source, Value, known
from lab.gpu.dcgm.pods import Labels, Pods
from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.fields import bus_id

XID_NAMES = {
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors -- Most likely to see when running multiple cuda applications and "
    "hitting a DBE",
    48: "Double Bit ECC Error",
    62: "Internal micro-controller halt (newer drivers)",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
}
# Clock events as the exporter labels them.
_CLOCK_EVENTS = {
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
}
# What DCGM's health check watches on a GPU; ALL carries the XIDs that end a whole GPU (79, 95).
_WATCHES = ("PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER", "ALL")
_PASS, _WARNING, _FAILURE = 0, 10, 20


class Renderer:
    """`started_s`: events before it are not counted by the *_TOTAL fields. `window_ms`: of the *_COUNT fields.

    `pods`: whose GPUs these are on Kubernetes; None elsewhere.
    """

    def __init__(
        self,
        counters: list[Counter],
        generation: tuple[int, ...],
        *,
        started_s: float,
        window_ms: int = 300_000,
        hostname: bool = True,
        pods: Pods | None = None,
    ) -> None:
        self.metrics = [counter for counter in counters if counter.kind != "label"]
        self.labels = [counter.name for counter in counters if counter.kind == "label"]
        self.fields = known(generation)
        self.host_label = "hostname" if generation >= (4, 8, 3) else "Hostname"
        self.started_s = started_s
        self.window_ms = window_ms
        self.hostname = hostname
        self.pods = pods
        self._pod_labels: dict[int, tuple[Labels, Labels]] = {}

    def render(self, machine: Machine) -> str:
        sources = [Source(gpu) for gpu in machine.gpus]
        self._pod_labels = self.pods.labels() if self.pods else {}
        lines = []
        for counter in self.metrics:
            samples = [sample for source in sources for sample in self._samples(counter, source)]
            if samples:
                lines += [f"# HELP {counter.name} {counter.help}", f"# TYPE {counter.name} {counter.kind}", *samples]
        return "".join(f"{line}\n" for line in lines)

    def _samples(self, counter: Counter, source: Source) -> list[str]:
        """A lost GPU reads blank, all but its last XID."""
        gpu = source.gpu
        if counter.name.startswith("DCGM_EXP_"):
            return [self._line(counter, source, value, extra) for value, extra in self._own(counter.name, source)]
        value = self.fields[counter.name](source)
        is_xid = counter.name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
        if value is None or (gpu.lost and not is_xid):
            return []
        attributes = {"err_code": str(value), "err_msg": XID_NAMES.get(int(value), "Unknown Error")} if is_xid else {}
        if gpu.mig and not is_xid:
            return [self._line(counter, source, value, {}, part) for part in gpu.mig]
        return [self._line(counter, source, value, attributes)]

    def _own(self, name: str, source: Source) -> list[tuple[Value, dict[str, str]]]:
        """The exporter's own metrics. A series of the *_COUNT fields is there at 0 while nothing happened."""
        at_s, window = source.gpu.machine.at_s, {"window_size_in_ms": str(self.window_ms)}
        if name == "DCGM_EXP_XID_ERRORS_COUNT":
            recent = _count(str(event["code"]) for event in source.xids if at_s - event["at"] <= self.window_ms / 1000)
            return [(count, {**window, "xid": xid}) for xid, count in recent.items()] or [(0, window)]
        if name == "DCGM_EXP_XID_ERRORS_TOTAL":
            seen = _count(str(event["code"]) for event in source.xids if event["at"] >= self.started_s)
            return [(count, {"xid": xid}) for xid, count in seen.items()]
        if name in ("DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL"):
            events = [_CLOCK_EVENTS[reason] for reason in source.gpu.faults["throttle"]] + (
                [] if source.now.busy else ["gpu_idle"]
            )
            extra = window if name.endswith("COUNT") else {}
            return [(1, {"clock_event": event, **extra}) for event in events] or ([(0, extra)] if extra else [])
        if name == "DCGM_EXP_GPU_HEALTH_STATUS":
            return _health(source.gpu)
        return []

    def _line(self, counter: Counter, source: Source, value: Value, attributes: dict[str, str], part: dict | None = None) -> str:
        gpu = source.gpu
        labels = [
            ("gpu", str(gpu.index)),
            ("UUID", f"GPU-{gpu.uuid}"),
            ("pci_bus_id", bus_id(gpu)),
            ("device", f"nvidia{gpu.index}"),
            ("modelName", gpu.product["name"]),
        ]
        if part:
            labels += [("GPU_I_PROFILE", part["profile"]), ("GPU_I_ID", str(part["gi"]))]
        if self.hostname:
            labels.append((self.host_label, gpu.machine.hostname))
        named = {name: str(text) for name in self.labels if (text := self.fields[name](source)) is not None}
        own, identity = self._pod_labels.get(gpu.index, ([], []))
        named |= dict(own)
        attributes = {**attributes, **dict(identity)}
        if counter.name.startswith("DCGM_EXP_"):
            labels += sorted({**named, **attributes}.items())
        else:
            labels += [*sorted(named.items()), *sorted(attributes.items())]
        inner = ",".join(f'{key}="{text}"' for key, text in labels)
        return f"{counter.name}{{{inner}}} {f'{value:f}' if isinstance(value, float) else value}"


def _count(keys) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return counts


def _health(gpu: Gpu) -> list[tuple[Value, dict[str, str]]]:
    """One series per watch."""
    incidents = {}
    if gpu.lost:
        incidents["ALL"] = (_FAILURE, "DCGM_FR_FALLEN_OFF_BUS")
    if gpu.faults["ecc_uncorrected"]:
        incidents["MEM"] = (_FAILURE, "DCGM_FR_VOLATILE_DBE_DETECTED")
    if gpu.faults["links_down"]:
        incidents["NVLINK"] = (_FAILURE, "DCGM_FR_NVLINK_DOWN")
    if "hw_thermal_slowdown" in gpu.faults["throttle"]:
        incidents["THERMAL"] = (_WARNING, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
    states = [(watch, *incidents.get(watch, (_PASS, "DCGM_FR_OK"))) for watch in _WATCHES]
    return [(state, {"health_watch": watch, "health_error_code": error}) for watch, state, error in states]
