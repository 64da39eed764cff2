"""Alertmanager's configuration: who is notified, how fast, and what is notified only once."""

from __future__ import annotations

import re

import pytest

import alerts
from alerts.alertmanager import alertmanager_config
from alerts.channels import KINDS
from alerts.notifications import INHIBITIONS, PAGE_GROUP
from gpu_fleet.stackfile.alerts import Channel, Receiver
from tests.alerts.receivers import EVERYONE, SECRETS, section

LAB = {"webhook": {"url": "http://127.0.0.1:9094/"}}
ONCALL = {"pagerduty": EVERYONE["pagerduty"], "slack": EVERYONE["slack"]}


def config(**changes):
    given = {"receiver": "lab", "receivers": {"lab": LAB, "oncall": ONCALL}} | changes
    return alertmanager_config(section(**given), SECRETS)


def test_an_alert_that_matches_no_route_goes_to_the_default_receiver():
    assert config()["route"]["receiver"] == "lab"


def test_a_page_is_grouped_by_gpu_and_sent_at_once():
    (page,) = config()["route"]["routes"]
    assert page["matchers"] == ['severity="critical"']
    assert page["group_by"] == list(PAGE_GROUP)
    assert page["group_wait"] == "3s", "an injected XID has to be at the receiver within a minute"
    assert "receiver" not in page, "the page goes to the receiver of the route's other alerts"


def test_warnings_keep_the_grouping_of_the_stack_file():
    route = config(groupBy=["cluster"], groupWait="1m")["route"]
    assert (route["group_by"], route["group_wait"]) == (["cluster"], "1m")


def test_routes_keep_their_order_and_each_has_its_own_branch_for_pages():
    given = [
        {"receiver": "oncall", "matchers": ["severity=critical"]},
        {"receiver": "lab", "matchers": ["cluster=a"]},
    ]
    routes = config(routes=given)["route"]["routes"]
    assert [route.get("receiver") for route in routes] == ["oncall", "lab", None]
    assert routes[0]["routes"][0]["group_wait"] == "3s"


def test_the_grouping_of_a_route_applies_to_pages_too():
    route = {"receiver": "oncall", "matchers": ["a=b"], "groupBy": ["cluster"], "groupWait": "2m"}
    page = config(routes=[route])["route"]["routes"][0]["routes"][0]
    assert "group_by" not in page
    assert "group_wait" not in page


def test_an_alert_that_a_route_took_and_passed_on_does_not_reach_the_default_receiver_too():
    routes = config(routes=[{"receiver": "oncall", "matchers": ["severity=critical"], "continue": True}])["route"]["routes"]
    assert len(routes) == 1
    assert routes[0]["continue"] is True


def test_a_muted_route_is_silent_for_pages_too():
    nights = {"weekdays": ["saturday"], "times": [{"start": "22:00", "end": "24:00"}], "daysOfMonth": [1]}
    route = {"receiver": "oncall", "matchers": ["a=b"], "muteTimings": ["nights"]}
    made = config(routes=[route], muteTimings={"nights": nights})
    route = made["route"]["routes"][0]
    assert route["mute_time_intervals"] == ["nights"]
    assert route["routes"][0]["mute_time_intervals"] == ["nights"], "Alertmanager does not hand mute times down to branches"
    assert made["time_intervals"] == [
        {
            "name": "nights",
            "time_intervals": [
                {
                    "location": "UTC",
                    "weekdays": ["saturday"],
                    "times": [{"start_time": "22:00", "end_time": "24:00"}],
                    "days_of_month": ["1"],
                }
            ],
        }
    ]


def test_every_kind_of_channel_becomes_its_section():
    assert {*EVERYONE} == set(Receiver.model_fields) and len(KINDS) == len(EVERYONE), "add the new one here"
    assert set(KINDS) == set(Channel.__subclasses__()), "a kind that Alertmanager and Grafana get nothing of"
    (receiver,) = config(receivers={"everyone": EVERYONE}, receiver="everyone")["receivers"]
    assert set(receiver) == {"name", *(kind.alertmanager for kind in KINDS.values())}
    (webhook,) = receiver["webhook_configs"]
    assert webhook["http_config"] == {"basic_auth": {"username": "u", "password": "p"}}
    assert receiver["slack_configs"][0]["channel"] == "#gpu"
    assert receiver["msteamsv2_configs"][0]["webhook_url"] == SECRETS["teamsUrl"]
    assert receiver["pagerduty_configs"][0]["routing_key"] == "the-key"
    assert receiver["email_configs"][0]["auth_username"] == "u"
    assert all(channel["send_resolved"] for kind in KINDS.values() for channel in receiver[kind.alertmanager])


def test_a_webhook_with_a_token_and_without_resolved_alerts():
    desk = {"webhook": {"urlSecret": "slackUrl", "authorizationSecret": "deskToken", "sendResolved": False}}
    (receiver,) = config(receivers={"lab": desk})["receivers"]
    (webhook,) = receiver["webhook_configs"]
    assert (webhook["url"], webhook["send_resolved"]) == (SECRETS["slackUrl"], False)
    assert webhook["http_config"] == {"authorization": {"credentials": "t"}}


def test_a_section_names_the_secrets_of_its_receivers_and_no_receiver_holds_one():
    every = section(receivers={"everyone": EVERYONE})
    assert every.secret_names == set(SECRETS) - {"deskToken"}
    assert not [value for value in SECRETS.values() if len(value) > 1 and value in repr(every)]


def test_loki_s_copy_is_hidden_by_mimir_s_alert_of_the_same_gpu():
    (rule,) = [rule for rule in config()["inhibit_rules"] if rule["target_matchers"] == ['source="log"']]
    assert {'source=""', 'severity="critical"'} <= set(rule["source_matchers"]), (
        "a warning must not hide the page of a graver code"
    )
    assert set(rule["equal"]) == {"datacenter", "cluster", "instance", "pci"}


def test_maintenance_hides_what_a_reboot_causes_and_no_failure_of_a_gpu():
    (rule,) = [rule for rule in config()["inhibit_rules"] if rule["source_matchers"] == ['alertname="HostInMaintenance"']]
    hidden = set(rule["target_matchers"][0].removeprefix('alertname=~"').removesuffix('"').split("|"))
    known = {rule["alert"] for group in alerts.rule_groups("mimir") for rule in group.rules if "alert" in rule}
    assert hidden <= known, "a name that no alert has hides nothing"
    assert {"HostSilent", "GpuExporterDown", "FabricServiceDown"} <= hidden
    assert not {"GpuXid", "GpuEccUncorrected", "GpuRowRemapFailed", "HostDiskFilling", "NvswitchSxid"} & hidden


def notified(*firing: dict[str, str]) -> list[dict[str, str]]:
    """The alerts that Alertmanager would notify while all of them fire on one host."""

    def matches(labels: dict[str, str], matchers: tuple[str, ...]) -> bool:
        found = [re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups() for matcher in matchers]
        return all(
            bool(re.fullmatch(value if "~" in sign else re.escape(value), labels.get(name, ""))) != sign.startswith("!")
            for name, sign, value in found
        )

    def is_hidden(one: dict[str, str]) -> bool:
        return any(
            matches(one, rule.target)
            and any(
                matches(other, rule.source) and all(one.get(name) == other.get(name) for name in rule.equal) for other in firing
            )
            for rule in INHIBITIONS
        )

    return [one for one in firing if not is_hidden(one)]


def fires(alertname: str, **labels: str) -> dict[str, str]:
    return {"alertname": alertname, **labels}


HEAT = ("GpuTemperatureHigh", "GpuMemoryHot", "GpuSoftwareThermalSlowdown", "GpuDcgmHealthFailing")
SWITCH = fires("NvswitchSxid", severity="critical", source="log", pci="0000:05:00.0")


@pytest.mark.parametrize(
    ("firing", "expected"),
    [
        pytest.param(
            [fires("GpuThermalSlowdown", uuid="3"), *(fires(name, uuid="3") for name in HEAT), fires(HEAT[0], uuid="4")],
            [fires("GpuThermalSlowdown", uuid="3"), fires(HEAT[0], uuid="4")],
            id="a hot GPU that is throttled, and another one that is hot",
        ),
        pytest.param([fires(name, uuid="3") for name in HEAT], [fires(HEAT[0], uuid="3")], id="a hot GPU with hot memory"),
        pytest.param([fires(HEAT[1], uuid="3"), fires(HEAT[3], uuid="3")], [fires(HEAT[1], uuid="3")], id="hot memory"),
        pytest.param(
            [
                fires("GpuAmdEvent", event="thermal_throttle", pci="0000:05:00"),
                fires("GpuThermalSlowdown", uuid="3"),
                fires("GpuTemperatureHigh", uuid="3"),
            ],
            [fires("GpuAmdEvent", event="thermal_throttle", pci="0000:05:00")],
            id="a hot GPU, reported by AMD's driver",
        ),
        pytest.param(
            [
                fires("GpuEccUncorrected", uuid="3", severity="critical"),
                fires("GpuRecoveryActionNeeded", uuid="3", severity="warning"),
                fires("GpuRowRemapPending", uuid="3", severity="warning"),
                fires("GpuRecoveryActionNeeded", uuid="4", severity="warning"),
            ],
            [
                fires("GpuEccUncorrected", uuid="3", severity="critical"),
                fires("GpuRecoveryActionNeeded", uuid="4", severity="warning"),
            ],
            id="memory errors and what the driver requires after them",
        ),
        pytest.param(
            [
                fires("GpuNvlinkErrors", uuid="3"),
                fires("GpuDcgmHealthFailing", uuid="3"),
                fires("GpuDcgmHealthFailing", uuid="4"),
            ],
            [fires("GpuNvlinkErrors", uuid="3"), fires("GpuDcgmHealthFailing", uuid="4")],
            id="a health watch that reads what another alert reads",
        ),
        pytest.param(
            [SWITCH, *(fires("GpuXid", severity="critical", source="log", xid=xid) for xid in ("74", "145", "154", "79"))],
            [SWITCH, fires("GpuXid", severity="critical", source="log", xid="79")],
            id="a fatal error of a switch, by Loki alone",
        ),
    ],
)
def test_one_condition_is_one_notification(firing, expected):
    assert notified(*firing) == expected


def test_no_alert_hides_itself_by_its_own_name():
    for inhibition in INHIBITIONS:
        assert inhibition.source != inhibition.target
        assert inhibition.reason.endswith(".")
