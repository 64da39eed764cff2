"""Tapes: reading and checking them. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

HERE: Final = Path(__file__).parent / "tapes"

# A page for something that the driver writes to the kernel log.
EVENT_S: Final = 20

Severity = Literal["page", "warning", "none"]


@dataclass(frozen=True)
class Mode:
    """A way to read a host's GPUs. `label`: its exporter_mode. `body`: of lab.showcase.exporters, None: only textfiles."""

    label: str
    vendor: str
    body: str | None
    collectors: tuple[str, ...]  # textfile collectors of such a host


MODES: Final[Mapping[str, Mode]] = {
    "dcgm": Mode("dcgm-exporter", "nvidia", "dcgm-4.8", ("links",)),
    "smi": Mode("nvidia_gpu_exporter", "nvidia", "smi-exec", ("links",)),
    "textfile": Mode("textfile", "nvidia", None, ("nvidia", "links")),
    "amd": Mode("amd-device-metrics-exporter", "amd", "amd-exporter", ()),
    "amd-textfile": Mode("textfile", "amd", None, ("amd",)),
}
SCENARIOS: Final = {"nvidia": "h100x4", "amd": "mi300x4"}

# What an operator has to do, and how a rule set that has no label `action` with one of these names words it. Where a notification
# has the label, that decides.
ACTIONS: Final[Mapping[str, str]] = {
    "reboot": r"reboot|power.?cycle|restart (the|this) (node|host|machine|vm)",
    "reset": r"\breset",
    "drain_and_reset": r"drain.*reset|reset.*drain|when (its )?jobs end.*reset|let .*jobs .*end.*reset",
    "restart_app": r"restart (the |this )?(affected )?(job|app|workload|program|pod)|check (the|your) (app|program|code)",
    "reload_driver": r"reload .*driver|(un)?load .*driver|driver",
    "check_fabric": r"fabric ?manager|nvlink|nvswitch|imex|cable|baseboard",
    "check_mechanicals": r"reseat|power cable|mechanical|riser|slot",
    "check_network": r"cable|transceiver|switch port|infiniband|ibstat|link",
    "check_cooling": r"fan|cool|air ?flow|temperature|thermal",
    "check_power": r"power (suppl|feed)|psu|power",
    "check_host": r"systemctl|log ?in|console|bmc|ssh|uplink|journalctl|curl|\bd[uf] |disk|chrony|ntp|clock",
    "replace": r"replace|rma|return the board|field diag|service",
    "contact_support": r"support|bug.?report|vendor",
    "update_software": r"update|upgrade",
    "none": r"no action|watch|nothing|observe",
    "any": r"",
}
# Values of the label `action` that mean one of them.
ACTION_LABELS: Final[Mapping[str, frozenset[str]]] = {
    "reboot": frozenset({"reboot", "reboot_node", "restart_vm"}),
    "reset": frozenset({"reset", "reset_gpu"}),
    "drain_and_reset": frozenset({"drain_and_reset"}),
    "restart_app": frozenset({"restart_app", "check_app"}),
    "replace": frozenset({"replace", "plan_replacement", "field_diagnostic"}),
    "none": frozenset({"none", "watch"}),
}


class BadTape(ValueError):
    """The text names the file, the tape and the key."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """`since_s`: when the fault begins. `over_s`: when it is over; None: never within the tape.

    `stays`: the notification must be firing until then; False for an event that leaves no state behind.
    `count`: notifications, one per incident. `actions`: any of them is right. `gpu`: the index of the GPU that the notification
    has to name, or what it has to name (an address that the host's tools do not list); None: it is not about one GPU.
    """

    severity: Severity
    actions: tuple[str, ...] = ("any",)
    within_s: float = EVENT_S
    since_s: float = 0
    over_s: float | None = None
    end_within_s: float = 300
    stays: bool = True
    count: int = 1
    gpu: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class Tape:
    """`kind`: its file. `read`: the day on which the source was read. `driver`: instead of the scenario's. `is_listed`: the
    stack's inventory has the host."""

    name: str
    kind: str
    what: str
    source: str
    read: str
    vendor: str
    scenario: str
    modes: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]
    length_s: float
    expected: Expected
    driver: str | None = None
    is_listed: bool = True


def read(directory: Path = HERE) -> list[Tape]:
    """Every tape, by file and place. Raises BadTape."""
    files = sorted(directory.glob("*.yaml"))
    tapes = [tape for file in files for tape in _file(file)]
    names = [tape.name for tape in tapes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadTape(f"{', '.join(file.name for file in files)}: more than one tape is named {', '.join(twice)}")
    return tapes


def selected(tapes: Sequence[Tape], pattern: str, modes: Sequence[str]) -> list[tuple[Tape, str]]:
    """Tapes whose name matches one of the comma-separated shell patterns, with each of their modes."""
    patterns = pattern.split(",")
    return [
        (tape, mode)
        for tape in tapes
        if any(fnmatch.fnmatchcase(tape.name, each) for each in patterns)
        for mode in tape.modes
        if not modes or mode in modes
    ]


def _file(file: Path) -> list[Tape]:
    try:
        document = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise BadTape(f"{file.name}: not YAML: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("tapes"), list):
        raise BadTape(f"{file.name}: expected a mapping with a list `tapes`")
    entries = [each for entry in document["tapes"] for each in _variants(entry)]
    return [_tape(file, each, document, number) for number, each in enumerate(entries)]


def _variants(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """One tape per item of `variants`: $name in any text is the item's value, and a text of nothing else becomes that value."""
    variants = entry.get("variants", [{}])
    template = {key: value for key, value in entry.items() if key != "variants"}
    return (_filled(template, variant) for variant in variants)


def _filled(value: Any, variant: Mapping[str, Any]) -> Any:
    match value:
        case dict():
            return {_filled(key, variant): _filled(one, variant) for key, one in value.items()}
        case list():
            return [_filled(one, variant) for one in value]
        case str() if value.startswith("$") and value[1:] in variant:
            return variant[value[1:]]
        case str():
            return re.sub(r"\$(\w+)", lambda found: str(variant.get(found[1], found[0])), value)
    return value


_KEYS: Final = {
    "name",
    "what",
    "source",
    "read",
    "vendor",
    "scenario",
    "driver",
    "modes",
    "steps",
    "expect",
    "expect_in",
    "length",
    "listed",
}
_EXPECT: Final = {"severity", "action", "within", "since", "over", "end_within", "stays", "count", "gpu"}
VERBS: Final = frozenset(
    {
        "inject",
        "kernel",
        "node",
        "rate",
        "value",
        "stop",
        "start",
        "restart",
        "down",
        "up",
        "reboot",
        "crash",
        "power_off",
        "rotate_log",
        "nothing",
    }
)
# How a kernel line begins in a file: by `dmesg`, rsyslog's two formats, Talos, and where nothing is put before it; by
# `journalctl` and `dmesg -T` in other languages, `dmesg -r`, and netconsole with the kernel's release.
FORMS: Final = ("dmesg", "syslog", "rfc3339", "talos", "bare", "journal-fr", "dmesg-ja", "dmesg-raw", "netconsole")


def _tape(file: Path, entry: Mapping[str, Any], document: Mapping[str, Any], number: int) -> Tape:
    where = f"{file.name}: tape {entry.get('name')}"
    if unknown := set(entry) - _KEYS:
        raise BadTape(f"{where}: unknown key {', '.join(sorted(unknown))}; expected {', '.join(sorted(_KEYS))}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", str(entry.get("name"))):
        raise BadTape(f"{where}: a name has lower-case letters, digits and hyphens")
    vendor = entry.get("vendor", document.get("vendor", "nvidia"))
    modes = tuple(entry.get("modes", document.get("modes", [name for name, mode in MODES.items() if mode.vendor == vendor])))
    if document.get("rotate") and "modes" not in entry:
        modes = (modes[number % len(modes)],)
    for mode in modes:
        if mode not in MODES or MODES[mode].vendor != vendor:
            raise BadTape(f"{where}: mode {mode}: expected one of {', '.join(n for n, m in MODES.items() if m.vendor == vendor)}")
    source, read = (entry.get(key, document.get(key)) for key in ("source", "read"))
    if not source or not read:
        raise BadTape(f"{where}: no source, or no day on which it was read (`read`), neither of the tape nor of the file")
    if missing := {"name", "what", "steps", "expect"} - set(entry):
        raise BadTape(f"{where}: without {', '.join(sorted(missing))}")
    steps = tuple(_step(where, step) for step in _flat(entry["steps"]))
    expected = _expected(where, entry["expect"], steps)
    return Tape(
        name=entry["name"],
        kind=file.stem,
        what=entry["what"],
        source=source,
        read=str(read),
        vendor=vendor,
        scenario=entry.get("scenario", document.get("scenario", SCENARIOS[vendor])),
        modes=modes,
        steps=steps,
        length_s=float(entry.get("length", _length(expected))),
        expected=expected,
        driver=entry.get("driver"),
        is_listed=entry.get("listed", True),
    )


def _length(expected: Expected) -> float:
    """Without `length`: as long as a second notification of the same event takes."""
    if expected.over_s is not None:
        return expected.over_s + expected.end_within_s
    return expected.since_s + (180 if expected.severity == "none" else expected.within_s + 120)


def _flat(steps: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Steps; lists among them are events that several tapes share."""
    for step in steps:
        if isinstance(step, list):
            yield from step
        else:
            yield step


def _step(where: str, step: Mapping[str, Any]) -> Mapping[str, Any]:
    verbs = set(step) & VERBS
    if "at" not in step or len(verbs) != 1:
        raise BadTape(f"{where}: step {dict(step)}: expected `at` and one of {', '.join(sorted(VERBS))}")
    if step.get("form", "dmesg") not in FORMS:
        raise BadTape(f"{where}: step {dict(step)}: form {step['form']}: expected one of {', '.join(FORMS)}")
    return step


def _expected(where: str, given: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Expected:
    if unknown := set(given) - _EXPECT:
        raise BadTape(f"{where}: expect: unknown key {', '.join(sorted(unknown))}; expected {', '.join(sorted(_EXPECT))}")
    severity = given.get("severity")
    if severity not in ("page", "warning", "none"):
        raise BadTape(f"{where}: expect.severity is {severity!r}; expected page, warning or none")
    actions = given.get("action", "any")
    actions = tuple(actions) if isinstance(actions, list) else (actions,)
    if unknown_actions := set(actions) - set(ACTIONS):
        raise BadTape(f"{where}: expect.action {', '.join(sorted(unknown_actions))}: expected {', '.join(ACTIONS)}")
    over = given.get("over")
    return Expected(
        severity=severity,
        actions=actions,
        within_s=float(given.get("within", EVENT_S if severity == "page" else 90)),
        since_s=float(given.get("since", max(0.0, min(float(step["at"]) for step in steps)))),
        over_s=None if over is None else float(over),
        end_within_s=float(given.get("end_within", 300)),
        stays=given.get("stays", severity == "page" or over is not None),
        count=int(given.get("count", 0 if severity == "none" else 1)),
        gpu=given.get("gpu", _only_gpu(steps)),
    )


def _only_gpu(steps: Sequence[Mapping[str, Any]]) -> int | None:
    """The GPU that the steps are about, where it is one."""
    named = {int(found) for step in steps for found in re.findall(r"\{(?:pci|PCI)(\d+)\}", str(step.get("kernel", "")))}
    named |= {step["gpu"] for step in steps if "gpu" in step}
    return named.pop() if len(named) == 1 else None
