"""From notifications to a score per tape and mode. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lab.scorecard.tape import ACTION_LABELS, ACTIONS, Expected

# Values of the label `severity` for which public rule sets wake somebody.
_PAGES: Final = frozenset({"critical", "page", "error", "emergency", "high", "fatal"})


@dataclass(frozen=True)
class Post:
    """One notification of Alertmanager: Unix seconds, its group, the alerts of that group as in a webhook's body."""

    at_s: float
    group: str
    alerts: tuple[Mapping[str, Any], ...]


@dataclass
class Episode:
    """A group that began to fire: what a pager opens one incident for. Seconds since the tape began."""

    is_page: bool
    alert: Mapping[str, Any]  # the first
    start_s: float
    end_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """`seconds`: from the fault to its notification; None: there was none. `pages`, `warnings`: how many began since the fault.

    `ended`: "yes", "early", "never" (not within the time), "" where nothing is expected. `too_early`: notified before the fault.
    """

    expected: Expected
    seconds: float | None
    pages: int
    warnings: int
    is_severity_right: bool
    is_action_right: bool
    ended: str
    too_early: int
    names: tuple[str, ...]

    @property
    def is_detected(self) -> bool:
        return self.seconds is not None and self.seconds <= self.expected.within_s

    @property
    def is_right(self) -> bool:
        if self.expected.severity == "none":
            return not self.pages and not self.warnings and not self.too_early
        pages = self.expected.count if self.expected.severity == "page" else 0
        return (
            self.is_detected
            and self.is_severity_right
            and self.is_action_right
            and self.pages == pages
            and not self.too_early
            and self.ended in ("yes", "")
        )


def episodes(posts: Iterable[Post], host: str, start_s: float) -> list[Episode]:
    """What was notified about one host. `start_s`: Unix seconds of the tape's second 0."""
    found: list[Episode] = []
    open_: dict[tuple[str, bool], Episode] = {}
    for post in posts:
        about = [alert for alert in post.alerts if _is_about(alert, host)]
        for is_page in (True, False):
            of_kind = [alert for alert in about if _is_page(alert) == is_page]
            firing = [alert for alert in of_kind if alert["status"] == "firing"]
            key = post.group, is_page
            if firing and key not in open_:
                open_[key] = Episode(is_page, firing[0], post.at_s - start_s)
                found.append(open_[key])
            elif of_kind and not firing and key in open_:
                open_.pop(key).end_s = post.at_s - start_s
    return found


def score(expected: Expected, found: Sequence[Episode]) -> Score:
    since = [each for each in found if each.start_s >= expected.since_s]
    pages = [each for each in since if each.is_page]
    warnings = [each for each in since if not each.is_page]
    wanted = pages if expected.severity == "page" else warnings
    first = min(wanted or since, key=lambda each: each.start_s, default=None)
    if expected.severity == "none":
        first = None
    return Score(
        expected=expected,
        seconds=first.start_s - expected.since_s if first else None,
        pages=len(pages),
        warnings=len(warnings),
        is_severity_right=bool(first) and first.is_page == (expected.severity == "page"),
        is_action_right=any(is_action(each.alert, expected.actions) for each in wanted[: expected.count]),
        ended=_ended(expected, first) if first else "",
        too_early=len(found) - len(since),
        names=tuple(sorted({_name(each) for each in since})),
    )


# Alertmanager notifies the end of a group with its next interval.
_TOLERANCE_S: Final = 5


def _ended(expected: Expected, first: Episode) -> str:
    if not expected.stays:
        return ""
    over_s = float("inf") if expected.over_s is None else expected.over_s
    if first.end_s is not None and first.end_s < over_s - _TOLERANCE_S:
        return "early"
    if expected.over_s is not None and (first.end_s is None or first.end_s > expected.over_s + expected.end_within_s):
        return "never"
    return "yes"


def is_action(alert: Mapping[str, Any], actions: Sequence[str]) -> bool:
    """The label `action` decides where its value is one of a known class; otherwise the words of the annotations."""
    if "any" in actions:
        return True
    label = alert["labels"].get("action", "")
    if named := {name for name, values in ACTION_LABELS.items() if label in values} | ({label} & set(ACTIONS)):
        return bool(named & set(actions))
    annotations = alert.get("annotations", {})
    text = annotations.get("action") or " ".join(str(text) for text in annotations.values())
    return any(re.search(ACTIONS[action], text, re.IGNORECASE) for action in actions)


def _name(episode: Episode) -> str:
    labels = episode.alert["labels"]
    code = labels.get("xid") or labels.get("sxid") or ""
    return f"{labels['alertname']}{' ' + code if code else ''}{'' if episode.is_page else ' (warning)'}"


def _is_page(alert: Mapping[str, Any]) -> bool:
    return str(alert["labels"].get("severity", "")).lower() in _PAGES


def _is_about(alert: Mapping[str, Any], host: str) -> bool:
    """Other rule sets keep some of our labels: the host's name is in instance and cluster."""
    return host in alert["labels"].values()
