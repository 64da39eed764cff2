"""What is to change on the nodes, as pure functions of their state and their verdicts. All memory is on the nodes themselves: a
program that was restarted goes on where the old one stopped.

- The condition says what is known; it is written when that changes, and every five minutes, by which a reader sees that somebody
  still looks.
- The taint keeps new pods away from a node that has failed for a minute, unless somebody else keeps them away already, and goes
  when the node has been ready for five minutes. Unknown changes no taint.
- No more than a share of the GPU nodes is tainted by us at a time: many that fail at once have a cause in common, which may be a
  fault of ours. The limit holds back new taints alone, never the removal of one.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .nodes import CONDITION, EFFECT, TAINT, Json, Node
from .verdict import FAIL, PASS, UNKNOWN, WARN, Reason, state_of, summary

HEARTBEAT_S = 300  # of the kubelet and of node-problem-detector too: each is a write of the whole node
FAILED_S = 60
READY_S = 300
LONGEST = 500  # characters of a condition's message
_STATUS = {PASS: "True", WARN: "True", FAIL: "False", UNKNOWN: "Unknown"}


class Settings(NamedTuple):
    """`does`: dry-run, condition, or taint, which includes the condition. `most_percent`: of the GPU nodes, and at least one."""

    does: str
    most_percent: float


class Plan(NamedTuple):
    """`conditions`: by node, those that fail first, then those that were written longest ago. `refused`: not tainted because of
    the limit."""

    conditions: Mapping[str, Json]
    taint: Mapping[str, Json]
    untaint: Sequence[str]
    refused: Sequence[str]
    most: int


def plan(nodes: Mapping[str, Node], found: Mapping[str, Sequence[Reason]], settings: Settings, now: float) -> Plan:
    """`nodes`: those with GPUs, or with a mark of ours; `found`: the verdict on each."""
    states = {name: state_of(found[name]) for name in nodes}
    conditions = {name: condition(nodes[name], found[name], now) for name in nodes}
    changed = {name: one for name, one in conditions.items() if _is_due(nodes[name], one, now)}
    failing = [name for name in sorted(nodes) if states[name] == FAIL and nodes[name].our_taint is None]
    candidates = [name for name in failing if nodes[name].is_schedulable]
    if settings.does == "taint":
        candidates = [name for name in candidates if _since(nodes[name], "False", now) >= FAILED_S]
        candidates.sort(key=lambda name: (-_since(nodes[name], "False", now), name))
    most = max(1, int(len(nodes) * settings.most_percent / 100))
    free = max(0, most - sum(node.our_taint is not None for node in nodes.values()))
    ready = (name for name, node in nodes.items() if node.our_taint and states[name] in (PASS, WARN))
    return Plan(
        conditions=dict(sorted(changed.items(), key=lambda one: (states[one[0]] != FAIL, _heartbeat(nodes[one[0]])))),
        taint={name: taint(found[name], now) for name in candidates[:free]},
        untaint=[name for name in sorted(ready) if _since(nodes[name], "True", now) >= READY_S],
        refused=candidates[free:],
        most=most,
    )


def condition(node: Node, reasons: Sequence[Reason], now: float) -> dict[str, Any]:
    """As it is to be on the node; the time of its last transition stays while the status does, unless it is yet to come: a pod
    with another clock wrote it."""
    state = state_of(reasons)
    status, before = _STATUS[state], node.condition
    stays = _since(node, status, now) >= 0
    return {
        "type": CONDITION,
        "status": status,
        "reason": _camel_case(_code(reasons, state)) if reasons else "GpusReady",
        "message": summary(reasons, LONGEST) or "gpu-fleet knows nothing against this node",
        "lastHeartbeatTime": _written(now),
        "lastTransitionTime": before["lastTransitionTime"] if stays else _written(now),
    }


def taint(reasons: Sequence[Reason], now: float) -> dict[str, Any]:
    return {"key": TAINT, "value": _code(reasons, FAIL)[:63], "effect": EFFECT, "timeAdded": _written(now)}


def with_taint(node: Node, ours: Json) -> tuple[Json, ...]:
    """Every other taint stays. A node that somebody took out of service meanwhile needs none of ours."""
    return node.taints if node.our_taint or not node.is_schedulable else (*node.taints, ours)


def without_taint(node: Node) -> tuple[Json, ...]:
    return tuple(one for one in node.taints if one["key"] != TAINT)


def tainted_at(node: Node) -> float | None:
    """None: not by us."""
    ours = node.our_taint
    return None if ours is None else _seconds(ours.get("timeAdded")) or 0.0


def _is_due(node: Node, after: Json, now: float) -> bool:
    is_same = all(node.condition.get(key) == after[key] for key in ("status", "reason", "message"))
    return not is_same or not 0 <= now - _heartbeat(node) < HEARTBEAT_S


def _heartbeat(node: Node) -> float:
    return _seconds(node.condition.get("lastHeartbeatTime")) or 0.0


def _since(node: Node, status: str, now: float) -> float:
    """Seconds for which our condition has had this status on the node; below 0: it has another."""
    transition = _seconds(node.condition.get("lastTransitionTime"))
    return now - transition if node.condition.get("status") == status and transition is not None else -1.0


def _code(reasons: Iterable[Reason], state: str) -> str:
    return next((reason.code for reason in reasons if reason.state == state), "")


def _camel_case(code: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in code.split("_"))


def _written(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _seconds(written: str | None) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(written or "", "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return None
