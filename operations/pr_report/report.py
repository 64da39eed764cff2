"""The report as Markdown: one comment under the size limit, and the whole of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from operations.pr_report import sections
from operations.pr_report.pictures import Picture
from safetext.markdown import block, code

MARK: Final = "<!-- gpu-fleet pr-report -->"  # by which the comment is found again
_CHECKS: Final = "Errors and warnings"
_SECTIONS: Final[Mapping[str, Callable[[Picture, Picture], Iterator[str]]]] = {
    _CHECKS: sections.problems,
    "Checks that fail": sections.violations,
    "Hosts": sections.hosts,
    "Scrape targets": sections.scrape_targets,
    "Who is notified": sections.notified,
    "Rules and alerts": sections.rules_and_alerts,
    "Dashboards": sections.dashboards,
    "Files on hosts": sections.files,
    "Charts": sections.charts,
    "Secrets": sections.secrets,
    "Stack file": sections.stack_file,
    "Everything else": sections.others,
}
_OF_FILES: Final = {name: _SECTIONS[name] for name in (_CHECKS, "Secrets", "Stack file")}
_NOTHING: Final = Picture(outputs={}, config={})


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the branch changes in one stack: lines of Markdown by section."""

    stack: str
    is_new: bool = False
    is_removed: bool = False
    said: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    series: str = ""
    fails: bool = False  # to be deployed
    breaks_policy: bool = False

    @property
    def summary(self) -> str:
        words = ["new stack"] if self.is_new else ["stack file removed"] if self.is_removed else []
        return ", ".join([*words, *(f"{name.lower()} ({len(lines)})" for name, lines in self.said.items())]) or "no difference"


def changed(old: Mapping[str, Picture], new: Mapping[str, Picture], price: float | None = None) -> list[Change]:
    """The stacks that differ, by name; a stack that is the same on both sides is not listed."""
    found = []
    for stack in sorted({*old, *new}):
        before, after = old.get(stack), new.get(stack)
        if before == after:
            continue
        pair = before or _NOTHING, after or _NOTHING
        # What a program that ended early did not register yet is not removed.
        comparable = not any(side.error for side in pair)
        shown = _SECTIONS if comparable else _OF_FILES
        said = {name: tuple(lines) for name, of in shown.items() if (lines := list(of(*pair)))}
        if not said and comparable and (lines := list(sections.anything(*pair))):
            said = {"Everything else": tuple(lines)}
        series = _series(*pair, price) if comparable else ""
        if said or series or not before or not after:
            is_new, is_removed = before is None, after is None
            fails = bool(after and after.error and not after.environments)
            found.append(
                Change(
                    stack=stack,
                    is_new=is_new,
                    is_removed=is_removed,
                    said=said,
                    series=series,
                    fails=fails,
                    breaks_policy=comparable and sections.breaks_policy(*pair),
                )
            )
    return found


def _series(old: Picture, new: Picture, price: float | None) -> str:
    """The estimate of active series, and what they cost where a price per 1,000 is known."""
    before, after = (_total(side) for side in (old, new))
    if before == after:
        return ""
    share = f" ({(after - before) / before:+.1%})" if before else ""
    cost = f", {(after - before) / 1000 * price:+,.2f} a month" if price else ""
    return f"{before:,} → {after:,}{share}{cost}"


def _total(picture: Picture) -> int:
    series = picture.outputs.get("series") or {}
    return sum(int(series.get(key, 0)) for key in ("sent", "recorded"))


def markdown(
    changes: list[Change], *, base: str, compared: int, limit: int | None = None, previews: Mapping[str, str] = {}
) -> str:
    """`compared`: the number of stacks. `limit`: characters; what does not fit is left out from the end, and said."""
    lines = [MARK, "## What this changes", ""]
    if not changes:
        lines.append(f"Nothing, in any of {_stacks(compared)}: each would be deployed as {code(base)} deploys it.")
        return "\n".join(lines) + "\n"
    lines += [
        f"Compared with {code(base)}, {len(changes)} of {_stacks(compared)} would change. No host or server was contacted.",
        "",
    ]
    lines += ["| stack | what changes | active series, estimated |", "|---|---|---|"]
    lines += [f"| {code(one.stack)} | {_verdict(one)}{one.summary} | {one.series} |" for one in changes]
    blocks = ["\n".join(lines) + "\n", *_blocks(changes)]
    blocks += [f"### Preview of {code(stack)}\n\n{block(text.rstrip())}\n" for stack, text in previews.items()]
    return _within(blocks, limit)


def _verdict(change: Change) -> str:
    return "**cannot be deployed**, " if change.fails else "**violates a policy**, " if change.breaks_policy else ""


def _stacks(count: int) -> str:
    return f"{count} stack{'' if count == 1 else 's'}"


def _blocks(changes: list[Change]) -> Iterator[str]:
    """By section. What several stacks have in common is said once."""
    for name in _SECTIONS:
        same: dict[tuple[str, ...], list[str]] = {}
        for one in changes:
            if name in one.said:
                same.setdefault(one.said[name], []).append(one.stack)
        for said, stacks in same.items():
            yield f"### {name}: {', '.join(map(code, stacks))}\n\n" + "\n".join(said) + "\n"


def _within(blocks: list[str], limit: int | None) -> str:
    whole = "\n".join(blocks)
    if limit is None or len(whole) <= limit:
        return whole
    note = "\n*Cut here: {} of {} characters do not fit into a comment. The whole report is an artefact of this run.*\n"
    room = limit - len(note) - 20
    kept, open_fence = whole[:room].rpartition("\n")[0], ""
    if sum(line.lstrip().startswith("```") for line in kept.splitlines()) % 2:
        open_fence = "\n```"
    return kept + open_fence + "\n" + note.format(len(whole) - len(kept), len(whole))
