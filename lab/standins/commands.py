"""`python -m lab.standins`: what the Makefile calls for the dev datacenter, for tests, and with STAND_INS=1."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from gpu_fleet.host.parts import PROGRAMS as HOST_PROGRAMS
from gpu_fleet.operations.artifacts import programs_for
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.offline_kit import PYTHONS, Replaced, hosts_programs_for, make_kit, tools_for
from gpu_fleet.operations.programs import ALWAYS, needed_for
from gpu_fleet.operations.stack import configuration, enter_project, stack_file
from gpu_fleet.stackfile.stand_ins import LAB_STACKS, TRIAL, StandInsRefused
from gpu_fleet.toolchain import PROGRAMS, ToolchainError
from gpu_fleet.toolchain.install import architecture
from lab.standins import permission, programs

DEV = "dev"  # the stack of `make dev`


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    # Whoever calls this is in the lab. Its stack needs no other mark; those of tests are in the environment.
    os.environ[LAB_STACKS] = ",".join(filter(None, [DEV, os.environ.get(LAB_STACKS)]))
    try:
        match given.verb:
            case "install":
                enter_project()
                file = stack_file(given.stack) if given.stack is not None else None
                names = [*ALWAYS, *needed_for(configuration(given.stack).keys)] if file else _standard(given)
                options = {name: getattr(given, name) for name in ("quiet", "retry_upstream", "keep_go_caches")}
                programs.install(names, **options)
                replaced = [name for name in programs.in_use() if name in names]
                if file and replaced and (warning := permission.permit_all(replaced, given.stack, file)):
                    print(warning, file=sys.stderr)
            case "artifacts":
                enter_project()
                programs.gather(given.directory, programs_for(given.stack) if given.stack else HOST_PROGRAMS)
            case "offline-kit":
                enter_project()
                names = tools_for(given.stack)
                programs.install(sorted({*names, *hosts_programs_for(given.stack)}, key=list(PROGRAMS).index), quiet=True)
                stand_ins = {name: f"stand-in {path}" for name, path in programs.in_use().items()}
                archive = make_kit(
                    given.to,
                    stack=given.stack,
                    architectures=(architecture(),),
                    pythons=given.python or PYTHONS,
                    replaced=Replaced(programs=stand_ins, gather=programs.gather),
                )
                print(archive)
            case "env":
                print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in programs.environment().items()))
            case "run":
                os.environ.update(programs.environment())
                command = given.command[1:] if given.command[:1] == ["--"] else given.command
                os.execvp(command[0], command)  # noqa: S606 - the very purpose
    except (ToolchainError, OperationError, StandInsRefused, OSError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def _standard(given: argparse.Namespace) -> list[str]:
    if given.setup:
        return tools_for("")
    # The dev datacenter has no cluster.
    return [name for name, program in PROGRAMS.items() if given.all or program.purpose not in ("clusters", "tests")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.standins",
        description=f"Stand-ins for the stack `dev`, for tests and, with {TRIAL}=1, for trials.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    install = verbs.add_parser("install", help="install real programs where available; stand-ins replace the others")
    which = install.add_mutually_exclusive_group()
    which.add_argument("--stack", help="what this stack needs, if it may use stand-ins; default: what the dev datacenter needs")
    which.add_argument("--all", action="store_true", help="and what only tests need")
    which.add_argument("--setup", action="store_true", help="what `make setup` installs")
    install.add_argument("--retry-upstream", action="store_true", help="try to get the real ones now (else once a day)")
    install.add_argument("--keep-go-caches", action="store_true", help="do not remove them when everything is built")
    install.add_argument("--quiet", action="store_true", help="print nothing when everything is installed")
    artifacts = verbs.add_parser("artifacts", help="a directory of artifacts for simulated hosts")
    artifacts.add_argument("directory", type=Path, metavar="DIRECTORY")
    artifacts.add_argument("--stack", default="", help="one that has a monitoring server needs its programs too")
    artifacts.add_argument("--arch", action="append", choices=[architecture()], help="the only one that there is")
    kit = verbs.add_parser("offline-kit", help="an offline kit for trying out, with what there is on this machine")
    kit.add_argument("--stack", default="")
    kit.add_argument("--python", action="append")
    kit.add_argument("--arch", action="append", choices=[architecture()], help="the only one that there is")
    kit.add_argument("--to", type=Path, default=Path("build/offline-kit"))
    verbs.add_parser("env", help='the environment as shell text: eval "$(python -m lab.standins env)"')
    run = verbs.add_parser("run", help="run a command in that environment: run -- pulumi preview")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser
