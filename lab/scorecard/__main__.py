"""`make scorecard`: replays tapes and prints what was notified.

python -m lab.scorecard --tapes 'xid-*' --modes dcgm,smi --at-once 40
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from gpu_fleet.toolchain.errors import ToolchainError
from lab.scorecard import rules, table, tape, vary
from lab.scorecard.replay import MOST_AT_ONCE, ReplayFailed, Result, batches, replay
from lab.showcase.servers import ServerFailed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make scorecard", description="Replay fault tapes and score what is notified.")
    parser.add_argument("--tapes", default="*", metavar="PATTERN,...", help="shell patterns of tape names")
    parser.add_argument("--modes", default="", metavar="MODE,...", help=f"of {', '.join(tape.MODES)}; default: all")
    parser.add_argument("--at-once", type=int, default=80, metavar="N", help="hosts at the same time, default %(default)s")
    parser.add_argument(
        "--rules", type=Path, nargs="*", default=[], metavar="DIR", help="other rule sets, scored on the same replays"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write every notification there, one file per replay")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exits as on Ctrl-C, so that no server keeps running
    modes = [mode for mode in given.modes.split(",") if mode]
    results: list[Result] = []
    try:
        if unknown := set(modes) - set(tape.MODES):
            raise tape.BadTape(
                f"MODES={given.modes}: unknown mode {', '.join(sorted(unknown))}; expected {', '.join(tape.MODES)}"
            )
        tapes = tape.read()
        chosen = tape.selected([*tapes, *vary.varied(tapes)], given.tapes, modes)
        others = {directory.name: rules.read(directory) for directory in given.rules}
        if not chosen:
            raise tape.BadTape(f"TAPES={given.tapes}: no tape in lab/scorecard/tapes has such a name")
        if not 1 <= given.at_once <= MOST_AT_ONCE:
            raise tape.BadTape(f"AT_ONCE={given.at_once}: expected 1 to {MOST_AT_ONCE}, as many as have an address here")
        for number, batch in enumerate(batches(chosen, given.at_once), 1):
            minutes = max(each.length_s for each, _ in batch) / 60
            print(f"batch {number}: {len(batch)} replays, {minutes:.0f} minutes and start-up", file=sys.stderr, flush=True)
            results += replay(batch, given.keep, others=others)
    except KeyboardInterrupt:
        return 130
    except (tape.BadTape, rules.BadRules, ReplayFailed, ServerFailed, ToolchainError, OSError) as error:
        print(f"scorecard: {error}", file=sys.stderr)
        return 1
    finally:  # a run takes an hour: what was measured is shown
        print(f"{table.summary(results)}\n{table.rule_sets(results)}\n{table.kinds(results)}\n{table.wrong(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
