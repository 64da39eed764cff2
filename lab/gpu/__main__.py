"""`python -m lab.gpu`: the simulated GPU machine for people. See the package's docstring."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.gpu import inject, setup
from lab.gpu.faults import THROTTLES
from lab.gpu.inject import CannotInject
from lab.gpu.machine import NoMachine
from lab.gpu.scenario import ScenarioError, available
from lab.gpu.status import render


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except (NoMachine, ScenarioError, CannotInject) as error:
        print(error, file=sys.stderr)
        return 1


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

    what = _verb(verbs, "inject", None, "break something; prints the kernel lines").add_subparsers(required=True, metavar="FAULT")
    fault = _fault(what, "xid", lambda args: inject.inject_xid(args.state, code=args.code, gpu=args.gpu), "an XID")
    fault.add_argument("--code", type=int, required=True)
    fault = _fault(
        what,
        "ecc",
        lambda args: inject.inject_ecc(args.state, gpu=args.gpu, corrected=args.corrected, uncorrected=args.uncorrected),
        "memory errors",
    )
    fault.add_argument("--corrected", type=int, default=0)
    fault.add_argument("--uncorrected", type=int, default=0)
    fault = _fault(
        what, "hot", lambda args: inject.make_hot(args.state, gpu=args.gpu, temperature_c=args.celsius), "pin the temperature"
    )
    fault.add_argument("--celsius", type=int, default=inject.HOT_C)
    fault = _fault(
        what, "throttle", lambda args: inject.throttle(args.state, gpu=args.gpu, reason=args.reason), "slow the clocks"
    )
    fault.add_argument("--reason", choices=list(THROTTLES), default="hw_power_brake_slowdown")
    _fault(what, "lose", lambda args: inject.lose(args.state, gpu=args.gpu), "off the bus without an XID")
    fault = _fault(
        what, "remap", lambda args: inject.remap_row(args.state, gpu=args.gpu, failed=args.failed), "a memory row remapped"
    )
    fault.add_argument("--failed", action="store_true", help="no spare row is left")
    fault = _fault(what, "nvlink", lambda args: inject.take_link_down(args.state, gpu=args.gpu, link=args.link), "an NVLink down")
    fault.add_argument("--link", type=int, default=0)
    _fault(what, "hang", lambda args: inject.hang(args.state, gpu=args.gpu), "a kernel that never ends")
    fault = _verb(
        what, "sxid", lambda args: _lines(inject.inject_sxid(args.state, code=args.code, switch=args.switch)), "an NVSwitch error"
    )
    fault.add_argument("--code", type=int, required=True)
    fault.add_argument("--switch", type=int, default=0)
    _verb(what, "clear", lambda args: _lines(inject.clear(args.state)), "repair everything")

    fixtures = verbs.add_parser("fixtures", help="write tests/fixtures/metrics and tests/fixtures/kernel anew")
    fixtures.add_argument("--directory", type=Path, default=Path("tests/fixtures"))
    fixtures.set_defaults(run=_fixtures)
    return parser


def _verb(verbs, name: str, run, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text)
    if run is not None:
        parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the machine's state directory")
        parser.set_defaults(run=run)
    return parser


def _fault(verbs, name: str, run, text: str) -> argparse.ArgumentParser:
    parser = _verb(verbs, name, lambda args: _lines(run(args)), text)
    parser.add_argument("--gpu", type=int, required=True)
    return parser


def _init(args: argparse.Namespace) -> None:
    machine = setup.init(state=args.state, scenario=args.scenario, hostname=args.hostname)
    print(f"{args.state}: {machine['hostname']}, {len(machine['gpus'])} simulated GPUs ({machine['scenario']})")
    if args.bin:
        tools = setup.place_tools(state=args.state, bin_directory=args.bin)
        print(f"{args.bin}: {', '.join(tools)}")


def _lines(lines: list[str]) -> None:
    for line in lines:
        print(line)


def _fixtures(args: argparse.Namespace) -> None:
    from lab.gpu.fixtures import write_fixtures

    for path in write_fixtures(args.directory):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
