"""`python -m gpu_fleet.toolchain`: see `--help`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys

from gpu_fleet.toolchain import system
from gpu_fleet.toolchain.cache import Cache
from gpu_fleet.toolchain.errors import ToolchainError
from gpu_fleet.toolchain.install import Installer
from gpu_fleet.toolchain.locate import environment, find, located
from gpu_fleet.toolchain.pin import pin, reset_since
from gpu_fleet.toolchain.programs import PROGRAMS
from gpu_fleet.toolchain.progress import WIDTH, Progress, size


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        return _do(arguments)
    except ToolchainError as error:
        print(f"\n{str(error).strip()}" if arguments.verb == "install" else error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nInterrupted. Installed programs and finished parts of a build are kept: run it again.",
            file=sys.stderr,
        )
        return 130


def _do(arguments: argparse.Namespace) -> int:
    match arguments.verb:
        case "install":
            installer = Installer(
                progress=Progress(quiet=arguments.quiet),
                retry_upstream=arguments.retry_upstream,
                keep_go_caches=arguments.keep_go_caches,
            )
            installer.install(list(PROGRAMS) if arguments.all else arguments.names)
        case "list":
            _list()
        case "path":
            print(find(arguments.name))
        case "env":
            print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment().items()))
        case "run":
            return _run(arguments.command)
        case "system":
            system.require(arguments.names, Progress())
        case "pin":
            if arguments.since:
                reset_since(arguments.since, Progress())
            pin(arguments.names, Progress())
        case "clean":
            freed = Cache().free_go()
            print("A build is using Go's caches: try again when it has finished." if freed is None else f"Freed {size(freed)}.")
    return 0


def _list() -> None:
    for program in PROGRAMS.values():
        found = located(program.name)
        print(f"{program.title:<{WIDTH}} " + (f"{found.how:<8} {found.path}" if found else "not installed"))


def _run(command: list[str]) -> int:
    """Becomes the command: signals and the exit code are its own."""
    command = command[1:] if command[:1] == ["--"] else command
    os.environ.update(environment())
    try:
        os.execvp(command[0], command)  # noqa: S606 - its purpose
    except OSError as error:
        raise ToolchainError(f"{command[0]}: {error.strerror}. Is it installed? `make setup`") from None


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu_fleet.toolchain", description="The programs that this project needs.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    install = verbs.add_parser("install", help="install what is missing")
    install.add_argument("names", nargs="*", metavar="NAME", help="default: the programs for work on stacks")
    install.add_argument("--all", action="store_true", help="also the programs of hosts, of the dev datacenter and of tests")
    install.add_argument("--retry-upstream", action="store_true", help="also where upstream was unreachable within the last day")
    install.add_argument("--keep-go-caches", action="store_true", help="do not remove them when everything is built")
    install.add_argument("--quiet", action="store_true", help="print nothing when everything is installed")
    verbs.add_parser("list", help="what is installed, and from which source")
    verbs.add_parser("path", help="where a program is").add_argument("name", metavar="NAME")
    verbs.add_parser("env", help='the environment as shell text: eval "$(python -m gpu_fleet.toolchain env)"')
    run = verbs.add_parser("run", help="run a command in that environment: run -- pulumi preview")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    needs = verbs.add_parser("system", help="check for programs of the distribution; as root on Debian, install them")
    needs.add_argument("names", nargs="+", choices=system.PACKAGES, metavar="NAME", help=", ".join(system.PACKAGES))
    pins = verbs.add_parser("pin", help="write upstream's checksums into gpu_fleet/toolchain/versions.yaml")
    pins.add_argument("names", nargs="*", metavar="NAME", help="default: every unpinned one")
    pins.add_argument(
        "--since", default="", metavar="COMMIT", help="also what got another version since, and has the old checksum"
    )
    verbs.add_parser("clean", help="remove the caches of Go builds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
