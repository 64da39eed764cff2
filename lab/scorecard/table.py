"""The table: results as data (results.json), and README.md made from them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from lab.scorecard import fuzz, tape
from lab.scorecard.replay import Result
from lab.scorecard.tape import Tape

RESULTS: Final = Path(__file__).parent / "results.json"
PUBLIC: Final = Path(__file__).parent / "public.yaml"
PAGE: Final = Path(__file__).parent / "README.md"
_TEMPLATE: Final = Path(__file__).parent / "page.md"

Row = dict[str, Any]


def every_tape() -> list[Tape]:
    """The written ones, and those generated from them."""
    written = tape.read()
    return [*written, *fuzz.generated(written)]


def row(result: Result) -> Row:
    score, expected = result.score, result.score.expected
    return {
        "rules": result.rules,
        "tape": result.tape.name,
        "kind": result.tape.kind,
        "mode": result.mode,
        "expected": expected.severity,
        "count": expected.count,
        "within": expected.within_s,
        "verdict": score.verdict,
        "detected": score.is_detected,
        "pages": score.pages,
        "warnings": score.warnings,
        "severity": score.is_severity_right,
        "action": score.is_action_right,
        "gpu": score.is_gpu_right,
        "seconds": None if score.seconds is None else round(score.seconds, 1),
        "ended": score.ended,
        "early": score.too_early,
        "notified": list(score.names),
    }


def store(results: Sequence[Result]) -> None:
    """Into results.json, where replays of other tapes and rule sets stay, and the page. Of other sets the verdict is kept."""
    kept = {(each["rules"], each["tape"], each["mode"]): each for each in _stored()}
    for result in results:
        full = row(result)
        short = {key: full[key] for key in ("rules", "tape", "kind", "mode", "expected", "verdict")}
        kept[result.rules, result.tape.name, result.mode] = short if result.rules else full
    known = {(each.name, mode) for each in every_tape() for mode in each.modes}
    lines = [json.dumps(kept[key]) for key in sorted(kept) if key[1:] in known]
    RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    PAGE.write_text(page())


def _stored() -> list[Row]:
    stored: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return stored


def page() -> str:
    """README.md, and how many results are missing."""
    tapes = every_tape()
    replays = {(each.name, mode) for each in tapes for mode in each.modes}
    stored = [each for each in _stored() if (each["tape"], each["mode"]) in replays]
    ours = [each for each in stored if not each["rules"]]
    missing = len(replays) - len(ours)
    wrong = [each for each in ours if each["verdict"] != "right"]
    return _TEMPLATE.read_text().format(
        tapes=len(tapes),
        generated=sum(each.kind == "fuzz" for each in tapes),
        replays=len(replays),
        summary=summary(ours),
        kinds=kinds(ours),
        sets=_sets(stored),
        how="".join(f"- **{each['name']}**: {each['what']} {each['how'].strip()}\n" for each in _public()),
        wrong=rows(wrong) if wrong else f"Nothing in {len(ours)} replays.\n",
        not_run=f"\nNot replayed since the tapes changed: {missing} of {len(replays)}.\n" if missing else "",
    )


def _public() -> list[dict[str, Any]]:
    sets: list[dict[str, Any]] = yaml.safe_load(PUBLIC.read_text())["sets"]
    return sets


def summary(given: Sequence[Row]) -> str:
    faults = [each for each in given if each["expected"] != "none"]
    paged = [each for each in faults if each["expected"] == "page"]
    ending = [each for each in faults if each["ended"]]
    # The driver reports these itself. What is only visible as a state has to last (a GPU reset takes minutes) before it pages.
    seconds = sorted(each["seconds"] for each in paged if each["within"] <= 30 and each["seconds"] is not None)
    false = sum(each["pages"] for each in given if each["expected"] != "page") + sum(each["early"] for each in given)
    lines = [
        ("replays", str(len(given)), ""),
        ("everything right", _share([each["verdict"] == "right" for each in given]), ""),
        ("detected in time", _share([each["detected"] for each in faults]), "at least 98 %"),
        ("right severity", _share([each["severity"] for each in faults]), ""),
        ("right action", _share([each["action"] for each in faults]), "at least 98 %"),
        ("one page per incident", _share([each["pages"] == each["count"] for each in paged if each["pages"]]), ""),
        ("pages where none is due, notifications before the fault", str(false), "0"),
        ("fires until over, then resolves", _share([each["ended"] == "yes" for each in ending]), ""),
        ("median of a page for a kernel line", _quantile(seconds, 0.5), ""),
        ("p99 of a page for a kernel line", _quantile(seconds, 0.99), "at most 20 s"),
    ]
    return "| | measured | goal |\n|---|---|---|\n" + "".join(f"| {what} | {value} | {goal} |\n" for what, value, goal in lines)


# In the order in which Score.verdict finds them.
_VERDICTS: Final = {
    "false page": "false pages",
    "false warning": "false warnings",
    "missed": "missed",
    "late": "late",
    "wrong severity": "wrong severity",
    "wrong action": "wrong action",
    "GPU not named": "GPU not named",
}


def kinds(given: Sequence[Row]) -> str:
    names = sorted({each["kind"] for each in given})
    return _counted("kind", [(name, [each for each in given if each["kind"] == name]) for name in names])


def _sets(given: Sequence[Row]) -> str:
    """Each rule set on the replays that all of them had."""
    names = sorted({each["rules"] for each in given})
    of = {name: {(each["tape"], each["mode"]): each for each in given if each["rules"] == name} for name in names}
    common = set.intersection(*(set(each) for each in of.values())) if of else set()
    described = {each["name"]: each for each in _public()}
    shown = [(described[name]["shown"] if name in described else name or "ours", name) for name in names]
    whole = _counted("rule set", [(title, [of[name][key] for key in sorted(common)]) for title, name in shown])
    own = [
        (f"{title}, in its modes", [of[name][key] for key in sorted(common) if key[1] in described[name]["modes"]])
        for title, name in shown
        if name in described
    ]
    return whole + "".join(_counted_line(*each) for each in own)


def _counted(what: str, groups: Iterable[tuple[str, Sequence[Row]]]) -> str:
    head = f"| {what} | replays | right | {' | '.join(_VERDICTS.values())} | other |\n" + "|---" * (len(_VERDICTS) + 4) + "|\n"
    return head + "".join(_counted_line(*each) for each in groups)


def _counted_line(name: str, given: Sequence[Row]) -> str:
    count = Counter(each["verdict"] for each in given)
    other = sum(count.values()) - count["right"] - sum(count[each] for each in _VERDICTS)
    cells = [name, len(given), count["right"], *(count[each] or "" for each in _VERDICTS), other or ""]
    return f"| {' | '.join(map(str, cells))} |\n"


def rows(given: Sequence[Row]) -> str:
    head = "| tape | mode | expected | verdict | pages | warnings | seconds | notified |\n|---|---|---|---|---|---|---|---|\n"
    return head + "".join(map(_line, given))


def _line(each: Row) -> str:
    cells = [
        each["tape"],
        each["mode"],
        f"{each['count']} {each['expected']}" if each["count"] > 1 else each["expected"],
        each["verdict"],
        str(each["pages"]),
        str(each["warnings"]),
        "" if each["seconds"] is None else f"{each['seconds']:.0f}",
        ", ".join(each["notified"]),
    ]
    return f"| {' | '.join(cells)} |\n"


def _quantile(seconds: Sequence[float], part: float) -> str:
    return f"{seconds[math.ceil(part * len(seconds)) - 1]:.0f} s" if seconds else "-"


def _share(given: Sequence[bool]) -> str:
    return f"{100 * sum(given) / len(given):.1f} % of {len(given)}" if given else "-"


if __name__ == "__main__":
    PAGE.write_text(page())
