"""The report as Markdown: one comment under the size limit, and the whole of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpu_fleet.operations.pr_report import sections, values
from gpu_fleet.operations.pr_report.pictures import Picture
from gpu_fleet.safetext.markdown import block, code

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
}
_REST: Final = "Everything else"
# Of a stack that only one side has: named, not printed.
_WHOLE: Final = (_CHECKS, "Checks that fail", "Hosts", "Scrape targets")
_HAS: Final = "What it has"
_WIDTH: Final = 300
_MOST_FILES: Final = 100
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
        comparable = not any(side.error for side in pair)
        if not comparable:
            pair = _reached(*pair)
        if before and after:
            said = {name: tuple(lines) for name, of in _SECTIONS.items() if (lines := list(of(*pair)))}
            if rest := tuple(values.unsaid(*pair, said)):
                said[_REST] = rest
        else:
            said = {name: tuple(lines) for name in _WHOLE if (lines := list(_SECTIONS[name](*pair)))}
            said[_HAS] = tuple(sections.whole(stack, *pair, is_new=before is None))
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


def _reached(old: Picture, new: Picture) -> tuple[Picture, Picture]:
    """What both register: what a program that ended early did not reach is not removed."""
    names = [{(one.type, one.name) for one in side.resources} for side in (old, new)]

    def of(side: Picture) -> Picture:
        return replace(side, resources=tuple(one for one in side.resources if (one.type, one.name) in names[0] & names[1]))

    return of(old), of(new)


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
    changes: list[Change],
    *,
    base: str,
    compared: int,
    limit: int | None = None,
    previews: Mapping[str, str] = {},
    files: Sequence[str] = (),
) -> str:
    """`compared`: the number of stacks. `limit`: characters; what does not fit is left out from the end, and said. `files`: those
    of the checkout that differ, for what no stack file leads to, such as the host keys of hosts."""
    named = [f"- {code(file)}" for file in files[:_MOST_FILES]]
    if rest := files[_MOST_FILES:]:
        named.append(f"- and {len(rest)} more")
    of_files = ["### Files of the checkout\n\n" + "\n".join(named) + "\n"] if named else []
    lines = [MARK, "## What this changes", ""]
    if not changes:
        lines.append(f"Nothing, in any of {_stacks(compared)}: each would be deployed as {code(base)} deploys it.")
        return "\n".join([*lines, "", *of_files]).rstrip("\n") + "\n"
    lines += [
        f"Compared with {code(base)}, {len(changes)} of {_stacks(compared)} would change. No host or server was contacted.",
        "",
    ]
    lines += ["| stack | what changes | active series, estimated |", "|---|---|---|"]
    lines += [f"| {code(one.stack)} | {_verdict(one)}{one.summary} | {one.series} |" for one in changes]
    blocks = ["\n".join(lines) + "\n", *_blocks(changes)]
    blocks += [f"### Preview of {code(stack)}\n\n{block(text.rstrip())}\n" for stack, text in previews.items()]
    narrow = ("\n".join(map(_narrow, one.split("\n"))) for one in (*blocks, *of_files))
    return _within(list(narrow), limit)


def _verdict(change: Change) -> str:
    return "**cannot be deployed**, " if change.fails else "**violates a policy**, " if change.breaks_policy else ""


def _stacks(count: int) -> str:
    return f"{count} stack{'' if count == 1 else 's'}"


def _blocks(changes: list[Change]) -> Iterator[str]:
    """By section. What several stacks have in common is said once."""
    for name in (*_SECTIONS, _REST, _HAS):
        same: dict[tuple[str, ...], list[str]] = {}
        for one in changes:
            if name in one.said:
                same.setdefault(one.said[name], []).append(one.stack)
        for said, stacks in same.items():
            yield f"### {name}: {', '.join(map(code, stacks))}\n\n" + "\n".join(said) + "\n"


def _narrow(line: str) -> str:
    """A reader of a comment cannot scroll in a line: items follow one another, and the rest is cut."""
    if len(line) <= _WIDTH:
        return line
    first, *more = line.split("; ") if line.startswith("- ") else [line]
    return "\n".join(_cut(part) for part in (first, *(f"  - {item}" for item in more)))


def _cut(line: str) -> str:
    kept = line if len(line) <= _WIDTH else line[: _WIDTH - 2] + "…"
    return kept + "`" * (kept.count("`") % 2 if "```" not in kept else 0)


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
