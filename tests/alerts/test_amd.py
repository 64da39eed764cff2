"""The events of AMD's driver: the table, what the agent finds in the kernel log, and one order of gravity."""

from __future__ import annotations

import re

from alerts.amd import ACTION_TEXTS, EVENTS, RESET_SUCCEEDED, RETIRED
from alerts.xid import Severity
from alerts.xid_rules import CRITICAL, UNKNOWN
from tests.alerts.test_xid import ROOTFS


def test_the_agent_finds_the_events_of_the_table_and_no_others():
    (template,) = re.findall(r"template = `(\{\{ if \.kind \}\}.*)`", ROOTFS.read_text())
    assert set(re.findall(r"\}\}([a-z_]+)\{\{", template)) == {event.name for event in EVENTS}


def test_no_two_events_of_a_gpu_are_equally_grave_and_the_table_is_in_that_order():
    ranks = [event.rank for event in EVENTS if event.severity is not Severity.INFO]
    assert ranks == sorted(set(ranks), reverse=True), "two equal ones would take turns as the verdict"
    assert all((event.rank >= CRITICAL) == (event.severity is Severity.CRITICAL) for event in EVENTS)
    assert all((event.rank == 0) == (event.severity is Severity.INFO) for event in EVENTS)
    assert UNKNOWN not in ranks


def test_a_lost_gpu_outranks_a_failed_reset_and_poison_outranks_the_error_that_made_it():
    names = [event.name for event in EVENTS]
    assert names.index("lost") < names.index("reset_failed") < names.index("poison_consumed") < names.index("uncorrectable")


def test_each_event_has_an_action_in_words_and_what_ends_incidents_raises_no_alert():
    assert {event.action for event in EVENTS} == set(ACTION_TEXTS)
    assert all(text.endswith(".") for text in ACTION_TEXTS.values())
    by_name = {event.name: event for event in EVENTS}
    assert by_name[RESET_SUCCEEDED].severity is Severity.INFO and by_name[RETIRED].severity is Severity.CRITICAL
