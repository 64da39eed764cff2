"""`python -m lab.gpu`: the simulated GPU machine for people. See the package's docstring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lab.gpu import inject, setup
from lab.gpu.faults import DRIVER_PROBLEMS, THROTTLES
from lab.gpu.inject import CannotInject
from lab.gpu.machine import NoMachine
from lab.gpu.scenario import ScenarioError, available
from lab.gpu.status import render

# Fault -> what it does, its function, and its arguments beside the state; "gpu" and so on are those of the function.
_FAULTS: dict[str, tuple[str, Callable[..., list[str]], tuple[str, ...]]] = {
    "xid": ("an XID, with what it damages", inject.inject_xid, ("code", "gpu")),
    "sxid": ("an NVSwitch error", inject.inject_sxid, ("code", "switch")),
    "ecc": ("memory errors", inject.inject_ecc, ("gpu", "corrected", "uncorrected")),
    "hot": ("pinned at a temperature", inject.make_hot, ("gpu", "temperature_c")),
    "throttle": ("slower clocks", inject.throttle, ("gpu", "reason")),
    "lose": ("off the bus without an XID", inject.lose, ("gpu",)),
    "remap": ("a memory row remapped", inject.remap_row, ("gpu", "failed")),
    "nvlink": ("an NVLink down", inject.take_link_down, ("gpu", "link")),
    "nvlink-errors": ("errors on an NVLink", inject.add_link_errors, ("gpu", "link", "replay", "crc")),
    "pcie": ("PCIe replays", inject.add_pcie_replays, ("gpu", "count")),
    "hang": ("a kernel that never ends", inject.hang, ("gpu",)),
    "driver": ("no driver for the tools to talk to", inject.break_driver, ("problem",)),
    "stall": ("a driver that answers late", inject.stall, ("seconds",)),
    "clear": ("everything repaired, like a reboot", inject.clear, ()),
}
_ARGUMENTS: dict[str, dict[str, object]] = {
    "gpu": {"type": int, "required": True},
    "code": {"type": int, "required": True},
    "switch": {"type": int, "default": 0},
    "corrected": {"type": int, "default": 0},
    "uncorrected": {"type": int, "default": 0},
    "temperature_c": {"type": int, "default": inject.HOT_C, "metavar": "CELSIUS"},
    "reason": {"choices": list(THROTTLES), "default": "hw_power_brake_slowdown"},
    "failed": {"action": "store_true", "help": "no spare row is left"},
    "link": {"type": int, "default": 0},
    "replay": {"type": int, "default": 0},
    "crc": {"type": int, "default": 0},
    "count": {"type": int, "default": 1},
    "problem": {"choices": list(DRIVER_PROBLEMS), "default": DRIVER_PROBLEMS[0]},
    "seconds": {"type": float, "required": True},
}


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except (NoMachine, ScenarioError, CannotInject) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.gpu", description="A simulated GPU machine: no driver, no GPU.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    init = _verb(verbs, "init", _init, "make a machine in DIR")
    init.add_argument(
        "--scenario", default="h100x8", metavar="NAME|FILE", help=f"one of {', '.join(available())}, or a YAML file"
    )
    init.add_argument("--hostname", help="another machine of the same build: own UUIDs and serials")
    init.add_argument("--bin", type=Path, metavar="DIR2", help="put the vendor's tools for this machine there")

    _verb(verbs, "status", lambda args: print(render(args.state)), "the GPUs and what is broken")

    faults = _verb(verbs, "inject", _inject, "break something; prints the kernel lines").add_subparsers(
        dest="fault", required=True, metavar="FAULT"
    )
    for name, (text, _, wanted) in _FAULTS.items():
        fault = faults.add_parser(name, help=text, description=text)
        for argument in wanted:
            fault.add_argument(f"--{argument.replace('_', '-')}", **_ARGUMENTS[argument])  # type: ignore[arg-type]

    fixtures = verbs.add_parser("fixtures", help="regenerate tests/fixtures/metrics and tests/fixtures/kernel")
    fixtures.add_argument("--directory", type=Path, default=Path("tests/fixtures"))
    fixtures.set_defaults(run=_fixtures)
    return parser


def _verb(verbs, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the machine's state directory")
    parser.set_defaults(run=run)
    return parser


def _init(args: argparse.Namespace) -> None:
    machine = setup.init(state=args.state, scenario=args.scenario, hostname=args.hostname)
    print(f"{args.state}: {machine['hostname']}, {len(machine['gpus'])} simulated GPUs ({machine['scenario']})")
    if args.bin:
        tools = setup.place_tools(state=args.state, bin_directory=args.bin)
        print(f"{args.bin}: {', '.join(tools)}")


def _inject(args: argparse.Namespace) -> None:
    _, function, wanted = _FAULTS[args.fault]
    for line in function(args.state, **{name: getattr(args, name) for name in wanted}):
        print(line)


def _fixtures(args: argparse.Namespace) -> None:
    from lab.gpu.fixtures import write_fixtures

    for path in write_fixtures(args.directory):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
