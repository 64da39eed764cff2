"""From notifications to scores."""

from __future__ import annotations

from typing import Any

import pytest

from lab.scorecard.score import RULE_SET, Post, episodes, is_action, score
from lab.scorecard.tape import Expected

HOST = "xid-79--dcgm"
PAGE = Expected(severity="page", actions=("reboot",))


def post(at_s: float, *alerts: dict[str, Any], group: str = "g") -> Post:
    return Post(at_s=at_s, group=group, alerts=alerts)


def alert(status: str = "firing", *, host: str = HOST, annotation: str = "", **labels: str) -> dict[str, Any]:
    labels = {"alertname": "GpuXid", "severity": "critical", "action": "reboot_node", "instance": host, **labels}
    return {"status": status, "labels": labels, "annotations": {"action": annotation}}


def scored(expected: Expected, *posts: Post):
    return score(expected, episodes(posts, HOST, 1000.0))


def test_one_page_in_time_with_its_action_is_right():
    result = scored(PAGE, post(1012, alert()))
    assert result.is_right
    assert (result.seconds, result.pages, result.ended) == (12, 1, "yes")


def test_an_update_of_the_same_group_is_not_a_second_page():
    assert scored(PAGE, post(1012, alert()), post(1072, alert(), alert(xid="48"))).pages == 1


def test_a_page_that_resolves_and_fires_again_is_two_pages_and_ended_early():
    result = scored(PAGE, post(1012, alert()), post(1612, alert("resolved")), post(1700, alert()))
    assert (result.pages, result.ended, result.is_right) == (2, "early", False)


def test_a_page_of_another_group_is_a_second_page():
    assert not scored(PAGE, post(1012, alert()), post(1300, alert(), group="other")).is_right


def test_another_host_s_page_in_the_same_group_is_not_this_host_s():
    result = scored(PAGE, post(1012, alert(host="xid-79--dcgm2")))
    assert (result.is_detected, result.pages) == (False, 0)


def test_a_late_page_is_not_detected():
    assert not scored(PAGE, post(1021, alert())).is_detected


def test_a_warning_instead_of_a_page_has_the_wrong_severity():
    result = scored(PAGE, post(1012, alert(severity="warning")))
    assert result.is_detected
    assert not result.is_severity_right
    assert not result.is_right


def test_a_page_must_resolve_once_the_fault_is_over():
    over = Expected(severity="page", over_s=600, end_within_s=300)
    assert scored(over, post(1012, alert()), post(1700, alert("resolved"))).ended == "yes"
    assert scored(over, post(1012, alert()), post(1950, alert("resolved"))).ended == "never"
    assert scored(over, post(1012, alert())).ended == "never"
    assert scored(over, post(1012, alert()), post(1400, alert("resolved"))).ended == "early"


def test_two_incidents_are_two_pages():
    two = Expected(severity="page", count=2)
    assert not scored(two, post(1012, alert())).is_right
    assert scored(two, post(1012, alert()), post(1260, alert(), group="other")).is_right


def test_a_notification_before_the_fault_is_counted_against_it():
    later = Expected(severity="page", since_s=30)
    result = scored(later, post(1010, alert()), post(1040, alert(), group="other"))
    assert (result.too_early, result.is_right) == (1, False)


@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_where_nothing_is_due_any_notification_is_wrong(severity):
    none = Expected(severity="none", count=0)
    assert scored(none).is_right
    assert not scored(none, post(1100, alert(severity=severity))).is_right


def test_the_label_action_decides_and_otherwise_the_words():
    assert is_action(alert(action="drain_and_reset"), ("drain_and_reset",))
    assert not is_action(alert(action="reset_gpu", annotation="Reset it. Reboot the node if that fails."), ("reboot",))
    assert is_action(alert(action="", annotation="Drain and reboot the node."), ("reboot",))
    assert not is_action(alert(action="", annotation="Look at the dashboard."), ("reboot", "reset"))


UUID = "28b78c8f-ce8d-5bcb-7470-d207754567ef"
GPU_2 = frozenset({"2", UUID, "0000:3a:00"})


@pytest.mark.parametrize(
    ("labels", "is_right"),
    [
        ({"gpu": "2"}, True),
        ({"pci": "0000:3a:00"}, True),
        ({"pci_bus_id": "00000000:3A:00.0"}, True),
        ({"UUID": f"GPU-{UUID}"}, True),
        ({"gpu": "1"}, False),
        ({"xid": "2"}, False),
        ({}, False),
    ],
)
def test_the_notification_has_to_name_the_gpu(labels, is_right):
    result = score(PAGE, episodes([post(1012, alert(**labels))], HOST, 1000.0), GPU_2)
    assert (result.verdict == "right") == is_right
    assert is_right or result.verdict == "GPU not named"


@pytest.mark.parametrize(
    ("severity", "posts", "verdict"),
    [
        ("page", [], "missed"),
        ("page", [post(1030, alert())], "late"),
        ("page", [post(1012, alert(severity="warning"))], "wrong severity"),
        ("page", [post(1012, alert(action="reset_gpu"))], "wrong action"),
        ("page", [post(1012, alert()), post(1050, alert(), group="h")], "more than one page per incident"),
        ("page", [post(1012, alert()), post(1050, alert("resolved"))], "ended early"),
        ("warning", [post(1012, alert())], "false page"),
        ("none", [post(1012, alert(severity="warning"))], "false warning"),
        ("none", [post(1012, alert(severity="info"))], "right"),
    ],
)
def test_the_verdict_is_the_gravest_of_what_is_wrong(severity, posts, verdict):
    expected = Expected(severity=severity, actions=("reboot",), stays=severity == "page", count=int(severity != "none"))
    assert scored(expected, *posts).verdict == verdict


def test_each_rule_set_is_scored_on_its_own_alerts():
    posts = [post(1012, alert()), post(1015, alert(severity="warning", **{RULE_SET: "other"}))]
    assert score(PAGE, episodes(posts, HOST, 1000.0)).verdict == "right"
    assert score(PAGE, episodes(posts, HOST, 1000.0, "other")).verdict == "wrong severity"
