"""May work start on this host? `gpu-fleet-ready` answers from what exporters, collectors and the kernel log said last.

Every 30 s the service evaluates and writes ready.json, and a metric. The command reads that file alone, so it answers at once,
also while a driver hangs; what is older than a minute is unknown, and unknown is never pass.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import AbstractSet, Any, Iterator, Mapping, NamedTuple, Sequence

from . import loop, page
from .files import replace, text_of
from .metrics import READINESS, Metrics
from .samples import Sample, parse

PASS, WARN, FAIL, UNKNOWN = "pass", "warn", "fail", "unknown"
STATES = (PASS, WARN, FAIL, UNKNOWN)  # the number of a state is its metric's value and the exit status
OLD_S = 60
INTERVAL_S = 30
WITHIN_S = 10  # nvidia_gpu_exporter runs nvidia-smi when it is asked
MOST_REASONS = 32
BLANK = 1e6  # from here on a code or a count is a library's word for "no value"
TABLE = Path(__file__).with_name("ready_table.json")
_KERNEL = r"gpu_fleet_(xid|sxid|amd_event|nic|nvlink_error|pcie_error)_last_timestamp_seconds"
_TEXTFILES = r"node_gpu_\w+|gpu_fleet_maintenance\w*"


class Reason(NamedTuple):
    """`code`: one word, for metrics. `gpu`: its index, or the PCI address of what the kernel log names; empty: the host's."""

    state: str
    code: str
    gpu: str
    text: str


class Facts(NamedTuple):
    """`expected`: GPUs, those of guests too; 0: not known. `problems`: what could not be
    asked, and why."""

    expected: int
    samples: Sequence[Sample]
    kernel: Sequence[Sample]
    says: str = ""
    problems: Sequence[str] = ()


def state_of(reasons: Sequence[Reason]) -> str:
    """A failure that is known counts more than what is not known."""
    found = {reason.state for reason in reasons}
    return next((state for state in (FAIL, UNKNOWN, WARN) if state in found), PASS)


def evaluated(facts: Facts, table: Mapping[str, Any]) -> list[Reason]:
    """`table`: alerts/readiness.py makes it."""
    reasons = [Reason(UNKNOWN, "not_asked", "", problem) for problem in facts.problems]
    values = {sample.name: sample.value for sample in facts.samples if not sample.labels}
    for sample in facts.samples:
        if sample.name == "gpu_fleet_maintenance" and sample.value == 1:
            reasons.append(Reason(WARN, "maintenance", "", f"in maintenance: {sample.labels.get('reason', '')}"))
    named: dict[str, list[Sample]] = {}
    for sample in facts.samples:
        named.setdefault(sample.name, []).append(sample)
    of_guests = {sample.labels.get("pci", "") for sample in named.get("node_gpu_passed_through", ())}
    reasons += [Reason(WARN, "passed_through", pci, f"GPU {pci} is given to a guest (vfio-pci)") for pci in sorted(of_guests)]
    facts = facts._replace(expected=facts.expected - len(of_guests))
    reasons += _of_listing(facts, set(_by_gpu(named, table["identity"])), values)
    events = {_event(sample.labels)[0] for sample in facts.kernel}
    for signal in table["signals"]:
        for gpu, value in _by_gpu(named, signal["metrics"]).items():
            fails = value in signal["values"] if signal["values"] else 0 < value < BLANK
            if fails and events.isdisjoint(signal["unless"]):
                text = signal["texts"].get(f"{value:g}", signal["text"])
                reasons.append(Reason(signal["state"], signal["code"], gpu, f"GPU {gpu}: {text}"))
    return [*reasons, *_of_nvlinks(named, table), *_of_kernel(facts.kernel, table, values)]


def _of_listing(facts: Facts, listed: AbstractSet[str], values: Mapping[str, float]) -> Iterator[Reason]:
    hangs = re.search(r"# says: (.*the driver hangs.*)", facts.says)
    if hangs:
        yield Reason(FAIL, "driver_hangs", "", hangs[1])
    if values.get("node_gpu_unreadable", 0) > 0:
        yield Reason(FAIL, "unreadable", "", f"{values['node_gpu_unreadable']:g} GPUs cannot be read")
    if not listed and not facts.problems and not hangs:
        yield Reason(UNKNOWN, "no_gpus", "", "no GPU is listed")
    if listed and len(listed) < facts.expected:
        yield Reason(FAIL, "gpus_missing", "", f"{len(listed)} of {facts.expected} GPUs are listed")


def _by_gpu(named: Mapping[str, Sequence[Sample]], metrics: Sequence[str]) -> dict[str, float]:
    """The highest value of each GPU, which several instances and pods may share. nvidia_gpu_exporter has only the uuid."""
    indices = {s.labels["uuid"]: s.labels["index"] for s in named.get("nvidia_smi_gpu_info", ()) if "uuid" in s.labels}
    found: dict[str, float] = {}
    for labels, value in [(s.labels, s.value) for name in metrics for s in named.get(name, ())]:
        uuid = labels.get("uuid", "")
        gpu = labels.get("gpu") or labels.get("gpu_id") or indices.get(uuid, uuid)
        found[gpu] = max(found.get(gpu, value), value)
    return found


def _of_nvlinks(named: Mapping[str, Sequence[Sample]], table: Mapping[str, Any]) -> Iterator[Reason]:
    """GPUs of products that all have as many links as each other, with fewer than the best one of the host."""
    texts = {text for name in table["identity"] for sample in named.get(name, ()) for text in sample.labels.values()}
    product = max(
        (links for model, links in table["nvlinks"].items() if any(re.fullmatch(model, text) for text in texts)), default=0
    )
    active = _by_gpu(named, ["node_gpu_nvlinks_active"])
    for gpu, links in active.items():
        if links < min(product, max(active.values())):
            yield Reason(FAIL, "nvlinks_down", gpu, f"GPU {gpu}: only {links:g} NVLinks are active")


def _event(labels: Mapping[str, str]) -> tuple[str, str, str]:
    """Of a line of the kernel: its key in the table, its name in words, and what it is about."""
    pci = labels.get("pci", "")
    if "xid" in labels:
        return labels["xid"], f"XID {labels['xid']}", f"GPU {pci}"
    if "sxid" in labels:
        return f"sxid_{labels['sxid']}", f"SXid {labels['sxid']}", f"NVSwitch {pci}"
    if "nic_event" in labels:
        return labels["nic_event"], labels["nic_event"], f"network adapter {labels.get('nic', '')}"
    if "nvlink_event" in labels:
        return "nvlink_error", "NVLinks that the driver could not set up", "NVIDIA's driver"
    return labels.get("event", "pcie_error"), labels.get("event", "uncorrectable PCIe error"), f"GPU {pci}"


def _of_kernel(kernel: Sequence[Sample], table: Mapping[str, Any], values: Mapping[str, float]) -> Iterator[Reason]:
    """Lines since the last maintenance ended, which confirms that what was before is over; a reboot ends all."""
    over, ends = values.get("gpu_fleet_maintenance_end_timestamp_seconds", 0), table["ends"]
    over = 0 if is_ahead(over) else over  # it would excuse all that comes until then
    resets = {s.labels.get("pci"): s.value for s in kernel if s.labels.get("event") == ends["event"]}
    for sample in kernel:
        labels = sample.labels
        code, name, about = _event(labels)
        repaired = resets.get(labels.get("pci"), 0) if "event" in labels and code not in ends["not"] else 0
        if sample.value <= max(over, repaired):
            continue
        classes = table["kernel"].get(code, table["kernel"]["sxid"] if "sxid" in labels else {})
        kind = labels["sxid_severity"] if "sxid_severity" in labels else _class(labels.get("detail", ""))
        state, action = classes.get(kind, classes.get("", (PASS, "")))
        if state != PASS:
            where = labels.get("pci") or labels.get("nic", "")
            yield Reason(state, f"xid_{code}" if "xid" in labels else code, where, f"{about}: {name}: {action}")


def _class(detail: str) -> str:
    """As in the rule gpu:xid_reported:timestamp_seconds."""
    if re.fullmatch(r"(?i)0x5 .*bus.*", detail):
        return "0x6"
    action = re.fullmatch(r"(0x[0-9a-fA-F]+)( .*)?", detail)
    if action:
        return action[1]
    severity = re.fullmatch(r"(?i).* (non-?fatal|(?:link[ -]?)?fatal)", detail)
    return "" if not severity else "nonfatal" if severity[1].lower().startswith("non") else "fatal"


def is_ahead(at: float) -> bool:
    """Written by a clock that was ahead, and has been set back since."""
    return at > time.time() + OLD_S


# --- on a host ----------------------------------------------------------------------------------------------------------------


def read_facts(prefix: str, environment: Mapping[str, str], remembered: Path) -> Facts:
    mode = environment.get("GPU_FLEET_EXPORTER_MODE", "")
    given = (environment.get(name, "") for name in ("GPU_FLEET_GPUS", "GPU_COUNT", "GPU_GUESTS"))
    of_stack, listed, of_guests = (int(text) if text.isdigit() else 0 for text in given)
    textfiles = Path(prefix + "/var/lib/gpu-fleet/textfile")
    texts = {path.name: text_of(path) for path in sorted(textfiles.glob("*.prom"))}
    samples = [sample for text in texts.values() for sample in parse(text, _TEXTFILES)]
    problems = []
    if mode in ("dcgm-exporter", "nvidia_gpu_exporter"):
        names = r"DCGM_\w+" if mode == "dcgm-exporter" else r"nvidia_smi_\w+"
        text, problem = _asked("the GPU exporter", environment.get("GPU_FLEET_GPU_EXPORTER_LISTEN", ""))
        samples += parse(text, f"{names}|(amd_)?gpu_\\w+")
        problems += problem
    elif not _is_fresh(samples):
        problems.append("the collectors have not read the GPUs within a minute")
    text, problem = _asked("Alloy, which reads the kernel log,", environment.get("GPU_FLEET_ALLOY_LISTEN", ""))
    kernel = _remembered(remembered, list(parse(text, _KERNEL)))
    says = "".join(text for name, text in texts.items() if name.startswith("gpu_"))
    return Facts(of_stack or listed + of_guests, samples, kernel, says, (*problems, *problem))


def _asked(what: str, listen: str) -> tuple[str, list[str]]:
    try:
        return page.metrics(listen, WITHIN_S), []
    except (OSError, ValueError) as error:
        return "", [f"{what} does not answer: {error}"]


def _is_fresh(samples: Sequence[Sample]) -> bool:
    """Of the collector that reads the GPUs; that of links is on every host."""
    works = {s.labels.get("collector") for s in samples if s.name == "node_gpu_collector_success" and s.value == 1} - {"links"}
    read = [s.value for s in samples if s.name == "node_gpu_collector_timestamp_seconds" and s.labels.get("collector") in works]
    return any(time.time() - at <= OLD_S for at in read if not is_ahead(at))


def _remembered(file: Path, said: Sequence[Sample]) -> Sequence[Sample]:
    """With what was said since the host booted: Alloy forgets it when it is started again."""
    boot = text_of(Path("/proc/sys/kernel/random/boot_id")).strip()
    try:
        stored = json.loads(file.read_text())
        before = [Sample(*one) for one in stored["said"]] if stored["boot"] == boot else []
    except (OSError, ValueError, KeyError, TypeError):
        before = []
    latest = {(sample.name, *sorted(sample.labels.items())): sample for sample in (*before, *said)}
    kept = list(latest.values())[-1000:]
    replace(file, json.dumps({"boot": boot, "said": kept}), 0o640)
    return kept


def service(prefix: str, environment: Mapping[str, str]) -> int:
    """One evaluation, written for the command and for Prometheus."""
    directory = Path(prefix + "/var/lib/gpu-fleet/ready")
    facts = read_facts(prefix, environment, directory / "kernel.json")
    reasons = evaluated(facts, json.loads(TABLE.read_text()))[:MOST_REASONS]
    now = time.time()
    report = {"state": state_of(reasons), "time": int(now), "reasons": [reason._asdict() for reason in reasons]}
    replace(directory / "ready.json", json.dumps(report))
    replace(Path(prefix + "/var/lib/gpu-fleet/textfile/ready.prom"), metrics(report))
    return 0


def metrics(report: Mapping[str, Any]) -> str:
    found = Metrics(known=READINESS, prefix="gpu_fleet_")
    found.add("ready_state", STATES.index(report["state"]))
    found.add("ready_timestamp_seconds", report["time"])
    unique = {(one["code"], one["gpu"]): STATES.index(one["state"]) for one in report["reasons"]}
    for labels, state in unique.items():
        found.add("ready_reason", state, *labels)
    return found.render()


def current(prefix: str) -> dict[str, Any]:
    """The last evaluation; unknown when it is older than a minute, or none."""
    try:
        report: dict[str, Any] = json.loads(Path(prefix + "/var/lib/gpu-fleet/ready/ready.json").read_text())
        age_s = time.time() - report["time"]
    except (OSError, ValueError, KeyError, TypeError):
        return _unknown(0, "nothing has been evaluated since the host was set up: systemctl status gpu-fleet-ready")
    if age_s > OLD_S or is_ahead(report["time"]):
        return _unknown(report["time"], f"the last evaluation was {age_s:.0f} s ago: systemctl status gpu-fleet-ready")
    return report


def _unknown(when: int, text: str) -> dict[str, Any]:
    return {"state": UNKNOWN, "time": when, "reasons": [Reason(UNKNOWN, "old", "", text)._asdict()]}


def main(arguments: list[str]) -> int:
    """`[--json]`: the last evaluation; the exit status is its number. `service`: evaluates once, `loop`: every 30 s."""
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    if arguments == ["service"]:
        return service(prefix, os.environ)
    if arguments == ["loop"]:
        loop.every(INTERVAL_S, lambda: service(prefix, os.environ), ["ready", "loop"], lambda: False)
    report = current(prefix)
    if arguments == ["--json"]:
        print(json.dumps(report, indent=2))
    else:
        print(report["state"])
        for one in report["reasons"]:
            print(f"  {one['state']}: {one['text']}")
    return STATES.index(report["state"])
