"""What a run prints: a summary, the verdicts by kind of tape, and a row for each replay that was not right. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lab.scorecard.replay import Result


def summary(results: Sequence[Result]) -> str:
    scores = [each.score for each in results]
    faults = [each for each in scores if each.expected.severity != "none"]
    paged = [each for each in faults if each.expected.severity == "page"]
    # The driver reports these itself. What is only visible as a state has to last (a GPU reset takes minutes) before it pages.
    seconds = sorted(each.seconds for each in paged if each.expected.within_s <= 30 and each.seconds is not None)
    false = sum(each.pages for each in scores if each.expected.severity != "page") + sum(each.too_early for each in scores)
    lines = [
        ("replays", str(len(scores)), ""),
        ("everything right", _share([each.is_right for each in scores]), ""),
        ("detected in time", _share([each.is_detected for each in faults]), "at least 98 %"),
        ("right severity", _share([each.is_severity_right for each in faults]), ""),
        ("right action", _share([each.is_action_right for each in faults]), "at least 98 %"),
        ("one page per incident", _share([each.pages == each.expected.count for each in paged if each.pages]), ""),
        ("pages where none is due, notifications before the fault", str(false), "0"),
        ("fires until over, then resolves", _share([each.ended == "yes" for each in faults if each.ended]), ""),
        ("median of a page for a kernel line", _quantile(seconds, 0.5), ""),
        ("p99 of a page for a kernel line", _quantile(seconds, 0.99), "at most 20 s"),
    ]
    return "| | measured | goal |\n|---|---|---|\n" + "".join(f"| {what} | {value} | {goal} |\n" for what, value, goal in lines)


def rule_sets(results: Sequence[Result]) -> str:
    """Ours beside the others, on the same replays."""
    names = sorted({name for each in results for name in each.others})
    if not names:
        return ""
    text = "| rules | right | detected in time | right severity | pages where none is due |\n|---|---|---|---|---|\n"
    for name in ("ours", *names):
        scores = [each.score if name == "ours" else each.others[name] for each in results]
        faults = [each for each in scores if each.expected.severity != "none"]
        false = sum(each.pages for each in scores if each.expected.severity != "page") + sum(each.too_early for each in scores)
        cells = (name, _share([each.is_right for each in scores]), _share([each.is_detected for each in faults]))
        text += f"| {' | '.join(cells)} | {_share([each.is_severity_right for each in faults])} | {false} |\n"
    return text


def kinds(results: Sequence[Result]) -> str:
    text = "| kind | replays | right | wrong |\n|---|---|---|---|\n"
    for kind in sorted({each.tape.kind for each in results}):
        count = Counter(each.score.verdict for each in results if each.tape.kind == kind)
        wrong = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common() if verdict != "right")
        text += f"| {kind} | {sum(count.values())} | {count['right']} | {wrong} |\n"
    return text


def wrong(results: Sequence[Result]) -> str:
    text = "| tape | mode | expected | verdict | pages | warnings | seconds | notified |\n|---|---|---|---|---|---|---|---|\n"
    for each in results:
        score, expected = each.score, each.score.expected
        if not score.is_right:
            seconds = "" if score.seconds is None else f"{score.seconds:.0f}"
            cells = (each.tape.name, each.mode, f"{expected.count} {expected.severity}", score.verdict, score.pages)
            text += f"| {' | '.join(map(str, (*cells, score.warnings, seconds, ', '.join(score.names))))} |\n"
    return text


def _quantile(seconds: Sequence[float], part: float) -> str:
    return f"{seconds[math.ceil(part * len(seconds)) - 1]:.0f} s" if seconds else "-"


def _share(given: Sequence[bool]) -> str:
    return f"{100 * sum(given) / len(given):.1f} % of {len(given)}" if given else "-"
