"""`make scorecard`: replays tapes, prints the table and writes lab/scorecard/README.md.

python -m lab.scorecard --tapes 'xid-*' --modes dcgm,smi --rules DIR --at-once 40
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from pathlib import Path

from gpu_fleet.toolchain.errors import ToolchainError
from lab.scorecard import table, tape
from lab.scorecard.replay import MOST_AT_ONCE, ReplayFailed, Result, batches, replay
from lab.scorecard.stores import BadRules, RuleSet
from lab.showcase.servers import ServerFailed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make scorecard", description="Replay fault tapes and score what is notified.")
    parser.add_argument("--tapes", default="*", metavar="PATTERN,...", help="shell patterns of tape names")
    parser.add_argument("--file", type=Path, action="append", metavar="FILE", help="tapes of your own; the page is not written")
    parser.add_argument("--modes", default="", metavar="MODE,...", help=f"of {', '.join(tape.MODES)}; default: all")
    parser.add_argument("--rules", type=Path, action="append", metavar="DIR", help="another rule set, scored beside ours")
    parser.add_argument("--at-once", type=int, default=80, metavar="N", help="hosts at the same time, default %(default)s")
    parser.add_argument("--longest", type=float, metavar="SECONDS", help="cut tapes off there; the page is not written")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write every notification there, one file per replay")
    parser.add_argument("--list", action="store_true", help="list tapes and modes, replay nothing")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exits as on Ctrl-C, so that no server keeps running
    modes = [mode for mode in given.modes.split(",") if mode]
    try:
        if unknown := set(modes) - set(tape.MODES):
            raise tape.BadTape(
                f"MODES={given.modes}: unknown mode {', '.join(sorted(unknown))}; expected {', '.join(tape.MODES)}"
            )
        if given.file:
            chosen = tape.selected(tape.read_files(given.file), "*", modes)
        else:
            chosen = tape.selected(table.every_tape(), given.tapes, modes)
        if not chosen:
            raise tape.BadTape(f"TAPES={given.tapes}: no tape has such a name; `make scorecard LIST=1` lists them")
        if not 1 <= given.at_once <= MOST_AT_ONCE:
            raise tape.BadTape(f"AT_ONCE={given.at_once}: expected 1 to {MOST_AT_ONCE}, as many as have an address here")
        if given.list:
            print("\n".join(f"{each.name} {mode} {each.length_s:.0f} s" for each, mode in chosen))
            return 0
        rules = [RuleSet(), *map(RuleSet, given.rules or [])]
        results: list[Result] = []
        for number, batch in enumerate(batches(chosen, given.at_once), 1):
            longest = min(max(each.length_s for each, _ in batch), given.longest or float("inf"))
            print(f"batch {number}: {len(batch)} replays, {longest / 60:.0f} minutes and start-up", file=sys.stderr, flush=True)
            start = time.monotonic()
            results += replay(batch, rules, given.keep, given.longest)
            done = f"batch {number}: done after {time.monotonic() - start:.0f} s, {_cpu_s():.0f} s of CPU time since the start"
            print(done, file=sys.stderr, flush=True)
            # Written after each batch: a run takes an hour, and what is measured stays.
            if given.longest is None and not given.file:
                table.store(results)
    except KeyboardInterrupt:
        return 130
    except (tape.BadTape, BadRules, ReplayFailed, ServerFailed, ToolchainError, OSError) as error:
        print(f"scorecard: {error}", file=sys.stderr)
        return 1
    for each in rules:
        scored = [table.row(result) for result in results if result.rules == each.name]
        print(f"{each.name or 'ours'}\n\n{table.summary(scored)}\n{table.kinds(scored)}\n{table.rows(scored)}")
    return 0


def _cpu_s() -> float:
    """Of this process and of the ended ones that it started."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(main())
