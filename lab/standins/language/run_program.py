"""Runs one Pulumi program; the language host starts it with the project's Python, once per preview or update.

Uses only the `pulumi` package of that environment and the standard library. The configuration comes by the variables
PULUMI_CONFIG and PULUMI_CONFIG_SECRET_KEYS, so that no secret is in a command line.
Source: how the official executor answers to each way a program can end (pulumi 3.259.0, sdk/python/cmd). As there, SIGINT is the
program's own affair: one that leaves it to Python ends in tracebacks.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import runpy
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FAILED = 1
FAILED_AND_TOLD = 32  # the language host then adds nothing to what the person has read

try:
    import pulumi
    import pulumi.runtime
except ImportError:
    traceback.print_exc()
    print("It looks like the Pulumi SDK has not been installed. Have you run pip install?", file=sys.stderr)
    sys.exit(FAILED)


def main() -> int:
    arguments = parser().parse_args()
    pulumi.runtime.set_all_config(pulumi.runtime.get_config_env(), pulumi.runtime.get_config_secret_keys_env())
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            monitor=arguments.monitor,
            engine=arguments.engine,
            project=arguments.project,
            stack=arguments.stack,
            parallel=arguments.parallel,
            dry_run=arguments.dry_run == "true",
            organization=arguments.organization,
            root_directory=arguments.root_directory,
        )
    )
    os.chdir(arguments.pwd)
    sys.argv = [arguments.program, *arguments.arguments]

    program = main_file(Path(arguments.program))
    if not program.is_file():
        pulumi.log.error(f"unable to find main python program `__main__.py` in `{program.parent}`")
        return FAILED_AND_TOLD
    return run(arguments.program, program, threads=max(arguments.parallel, 1) * 4)


def main_file(program: Path) -> Path:
    return (program / "__main__.py" if program.is_dir() else program).resolve()


def run(path: str, program: Path, threads: int) -> int:
    # A program that fails leaves futures that nobody reads; asyncio's complaints about them would bury the cause.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    executor = ThreadPoolExecutor(max_workers=threads)
    loop.set_default_executor(executor)
    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(lambda: runpy.run_path(path, run_name="__main__")))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return FAILED
    except Exception as error:
        pulumi.log.error("Program failed with an unhandled exception:\n" + users_traceback(error, program))
        return FAILED_AND_TOLD
    finally:
        executor.shutdown(wait=True)
        loop.close()
    return 0


def users_traceback(error: Exception, program: Path) -> str:
    """The traceback from the program's own first line on; whole, when none of its lines is in it (a syntax error)."""
    step = error.__traceback__
    while step is not None and Path(step.tb_frame.f_code.co_filename).resolve() != program:
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step or error.__traceback__))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("monitor", "engine", "project", "stack", "organization", "root-directory", "pwd"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--dry-run", required=True, choices=("true", "false"))
    parser.add_argument("--parallel", required=True, type=int)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs="*")
    return parser


if __name__ == "__main__":
    code = main()
    gc.freeze()  # Python would look for cycles among all objects at its end: a quarter of a second
    sys.exit(code)
