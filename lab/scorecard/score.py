"""From notifications to a score per tape and mode. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lab.scorecard.tape import ACTION_LABELS, ACTIONS, Expected

RULE_SET: Final = "ruleset"  # label of the alerts of other rule sets


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
    `is_gpu_right`: the notification names the GPU, or it is not about one.
    """

    expected: Expected
    seconds: float | None
    pages: int
    warnings: int
    is_severity_right: bool
    is_action_right: bool
    is_gpu_right: bool
    ended: str
    too_early: int
    names: tuple[str, ...]

    @property
    def is_detected(self) -> bool:
        return self.seconds is not None and self.seconds <= self.expected.within_s

    @property
    def verdict(self) -> str:
        """ "right", or what is wrong, the gravest first."""
        due = self.expected.count if self.expected.severity == "page" else 0
        wrong = {
            "false page": self.pages > 0 and self.expected.severity != "page",
            "false warning": self.warnings > 0 and self.expected.severity == "none",
            "notified before the fault": self.too_early > 0,
        }
        if self.expected.severity != "none":
            wrong |= {
                "missed": self.seconds is None,
                "wrong severity": not self.is_severity_right,
                "late": not self.is_detected,
                "more than one page per incident": self.pages > due,
                "incidents without a page": self.pages < due,
                "ended early": self.ended == "early",
                "did not end": self.ended == "never",
                "wrong action": not self.is_action_right,
                "GPU not named": not self.is_gpu_right,
            }
        return next((name for name, is_so in wrong.items() if is_so), "right")

    @property
    def is_right(self) -> bool:
        return self.verdict == "right"


def episodes(posts: Iterable[Post], host: str, start_s: float, rule_set: str = "") -> list[Episode]:
    """What was notified about one host. `start_s`: Unix seconds of the tape's second 0. `rule_set`: "" is ours."""
    found: list[Episode] = []
    open_: dict[tuple[str, bool], Episode] = {}
    for post in posts:
        about = [
            alert for alert in post.alerts if host in alert["labels"].values() and alert["labels"].get(RULE_SET, "") == rule_set
        ]
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


def score(expected: Expected, found: Sequence[Episode], gpu_names: frozenset[str] = frozenset()) -> Score:
    """`gpu_names`: of the GPU that the notification has to name, in lower case; empty: it does not have to name one."""
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
        is_severity_right=first is not None and first.is_page == (expected.severity == "page"),
        is_action_right=any(is_action(each.alert, expected.actions) for each in wanted[: expected.count]),
        is_gpu_right=not gpu_names or any(_names(each.alert, gpu_names) for each in wanted[: expected.count]),
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


def _names(alert: Mapping[str, Any], gpu_names: frozenset[str]) -> bool:
    """An index counts in a label for it only; UUIDs and addresses count wherever they are."""
    labels = {name.lower(): str(value).lower() for name, value in alert["labels"].items()}
    if {labels.get(name) for name in ("gpu", "gpu_id", "gpu_index", "minor_number")} & gpu_names:
        return True
    text = " ".join([*labels.values(), *(str(each).lower() for each in alert.get("annotations", {}).values())])
    return any(len(name) > 3 and name in text for name in gpu_names)


def _name(episode: Episode) -> str:
    labels = episode.alert["labels"]
    code = labels.get("xid") or labels.get("sxid") or ""
    return f"{labels['alertname']}{' ' + code if code else ''}{'' if episode.is_page else ' (warning)'}"


def _is_page(alert: Mapping[str, Any]) -> bool:
    return alert["labels"].get("severity") == "critical"
