"""What people read: notifications rendered and sent by Mimir's own Alertmanager, of an alert that Mimir's ruler raised."""

from __future__ import annotations

import html
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import alerts
import dashboards
from alerts.alertmanager import alertmanager_config, templates
from alerts.links import GrafanaLinks, Links
from alerts.model import RuleGroup, to_yaml
from lab.showcase.remote_write import push
from lab.showcase.servers import Servers
from tests.alertmanager import has_loaded
from tests.alerts.inbox import Inbox, part
from tests.alerts.receivers import section

GRAFANA = "https://grafana.example.com"
LINKS = Links(
    grafana=GrafanaLinks(
        url=GRAFANA,
        incident="gpu-fleet-incident",
        host="gpu-fleet-host",
        cluster="gpu-fleet-cluster",
        logs="gpu-fleet-loki",
        runbooks=dashboards.runbook_paths(),
    )
)
PLACE = {"datacenter": "us-west", "cluster": "training", "instance": "gpu-node-001"}
PCI = "0000:4b:00"
# What an annotation may hold and no service may take for its own markup.
MARKUP = 'rate <5 & >3 <!channel> <script>alert("x")</script> *not bold* &amp;'


@dataclass(frozen=True)
class OnCall:
    mimir: str
    inbox: Inbox

    def send(self, path: str, body: bytes, kind: str = "application/yaml") -> None:
        request = urllib.request.Request(f"{self.mimir}{path}", data=body, headers={"Content-Type": kind})
        urllib.request.urlopen(request, timeout=120).close()

    def raise_alerts(self, *given: dict[str, Any]) -> None:
        self.send("/alertmanager/api/v2/alerts", json.dumps(given).encode(), "application/json")


def labels_of(group: RuleGroup) -> set[tuple[str, str]]:
    """Of all its rules."""
    return {label for rule in group.rules for label in rule.get("labels", {}).items()}


def configuration(inbox: Inbox) -> str:
    """Mimir's configuration as a stack deploys it, but for the addresses of the services, and the waiting."""
    everyone = {
        "webhook": {"url": f"{inbox.web}/webhook"},
        "slack": {"urlSecret": "slack", "channel": "#gpu-alerts"},
        "teams": {"urlSecret": "teams"},
        "pagerduty": {"routingKeySecret": "pagerduty"},
        "email": {"to": "oncall@example.com", "from": "alerts@example.com", "smarthost": inbox.smtp},
    }
    secrets = {"slack": f"{inbox.web}/slack", "teams": f"{inbox.web}/teams", "pagerduty": "the-key"}
    # Shorter waits than a stack file may have.
    given = section(receivers={"everyone": everyone}).model_copy(update={"group_wait": "1s", "group_interval": "1s"})
    made = alertmanager_config(given, secrets)
    made["route"]["routes"][0] |= {"group_wait": "1s", "group_interval": "1s"}
    made["receivers"][0]["pagerduty_configs"][0]["url"] = f"{inbox.web}/pagerduty"
    made["receivers"][0]["email_configs"][0]["require_tls"] = False
    return to_yaml({"template_files": templates(), "alertmanager_config": to_yaml(made)})


@pytest.fixture(scope="module")
def on_call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCall]:
    """A Mimir whose ruler has evaluated an XID 79, and everybody whom it notified."""
    servers = Servers(tmp_path_factory.mktemp("mimir"), ("mimir",))
    with Inbox().open() as inbox:
        try:
            servers.wait()
            made = OnCall(servers.mimir, inbox)
            made.send("/api/v1/alerts", configuration(inbox).encode())
            inbox.wait_for("the configuration at Alertmanager", lambda: has_loaded(made.mimir, "receiver: everyone"))
            (group,) = (one for one in alerts.rule_groups("mimir", LINKS) if ("xid", "79") in labels_of(one))
            made.send("/prometheus/config/v1/rules/gpu-fleet", group.yaml.encode())
            event = {**PLACE, "pci": PCI, "xid": "79", "__name__": "gpu:xid_verdict:score"}
            info = {**PLACE, "gpu": "3", "pci": PCI, "uuid": "GPU-3", "__name__": "gpu:address:info"}
            now = time.time()
            samples = [(now - 10 + 5 * step, 1.0) for step in range(30)]
            push(f"{servers.mimir}/api/v1/push", {tuple(sorted(labels.items())): samples for labels in (event, info)})
            yield made
        finally:
            servers.stop()


def alert(host: str, **changes: Any) -> dict[str, Any]:
    annotations = {
        "summary": f"{host}: silent {MARKUP}",
        "description": MARKUP,
        "action": f"Look. {MARKUP}",
        "runbook": "alerts/runbooks/HostSilent.md",
    }
    labels = {"alertname": "HostSilent", "severity": "warning", "scope": "host", **PLACE, "instance": host}
    return {"labels": labels, "annotations": annotations, **changes}


SUMMARY = r"XID 79 on gpu-node-001, GPU 3 \(0000:4b:00\): .+"
DRAIN_SLURM = 'scontrol update nodename=gpu-node-001 state=drain reason="GpuXid"'
MAINTENANCE = "ssh gpu-node-001 sudo /opt/gpu-fleet/bin/gpu-fleet-maintenance start --free-gpus repair"
DRAIN_KUBERNETES = "kubectl drain gpu-node-001 --ignore-daemonsets --delete-emptydir-data"


def lead_to_the_incident(runbook: str, dashboard: str, logs: str) -> None:
    """The links open the runbook, and the dashboard and the kernel log of the host since before the alert."""
    assert runbook == f"{GRAFANA}{dashboards.runbook_paths()['GpuXid']}"
    found = parse_qs(urlsplit(dashboard).query)
    assert dashboard.startswith(f"{GRAFANA}/d/gpu-fleet-incident?")
    assert {name: found[f"var-{name}"] for name in PLACE} == {name: [value] for name, value in PLACE.items()}
    before_s = time.time() - int(found["from"][0]) / 1000
    assert 1800 < before_s < 1800 + 3600, "half an hour before the alert, which is as old as these tests"
    assert found["to"] == ["now"]
    (pane,) = json.loads(parse_qs(urlsplit(logs).query)["panes"][0]).values()
    assert pane["queries"][0]["expr"] == '{job="kernel", datacenter="us-west", cluster="training", instance="gpu-node-001"}'
    assert pane["queries"][0]["datasource"] == {"type": "loki", "uid": "gpu-fleet-loki"}
    assert pane["range"] == {"from": found["from"][0], "to": "now"}


def test_an_email_says_where_what_and_what_to_do_in_text_and_html(on_call: OnCall) -> None:
    mail = on_call.inbox.mail("XID 79")
    assert re.fullmatch(rf"\[CRITICAL\] {SUMMARY} \(us-west / training\)", mail["Subject"]), mail["Subject"]
    text = part(mail, "plain").replace("\r\n", "\n")
    print(text)
    lines = text.splitlines()
    assert mail["Subject"][:60].startswith("[CRITICAL] XID 79 on gpu-node-001, GPU 3"), "what a locked phone shows"
    assert lines[:3] == ["CRITICAL GpuXid", "Host: gpu-node-001 (us-west / training)", f"GPU: PCI {PCI}"]
    assert re.fullmatch(r"Since: \d\d:\d\d:\d\d UTC on 20\d\d-\d\d-\d\d", lines[3])
    assert re.fullmatch(SUMMARY, lines[4]), lines[4]
    begins = [line.partition(": ")[0] for line in lines[5:] if line]
    order = [
        "Action",
        "Before a reset or reboot",
        "Drain with Slurm",
        "Drain in Kubernetes",
        "Runbook",
        "Dashboard",
        "Kernel log",
    ]
    assert [name for name in begins if name in order or name == "Silence"] == [*order, "Silence"], "each once, as one reads it"
    assert f"Before a reset or reboot: {MAINTENANCE}" in lines
    of_this_page = " ".join(f'{name}="{value}"' for name, value in {"alertname": "GpuXid", **PLACE, "pci": PCI}.items())
    assert f"Silence: amtool silence add {of_this_page} --duration=4h --comment=known" in lines, (
        "no other cluster and no other GPU"
    )
    assert f"Drain with Slurm: {DRAIN_SLURM}" in lines
    assert f"Drain in Kubernetes: {DRAIN_KUBERNETES}" in lines
    links = dict(line.split(": ", 1) for line in lines if ": https://" in line)
    lead_to_the_incident(links["Runbook"], links["Dashboard"], links["Kernel log"])
    page = part(mail, "html")
    print(page)
    hrefs = [html.unescape(href) for href in re.findall(r'<a href="([^"]+)">', page)]
    assert hrefs == list(links.values()), "the same links, escaped for HTML alone"
    assert f"<code>{html.escape(DRAIN_KUBERNETES)}</code>" in page
    assert "<h3" in page and "color: #b00020" in page and "CRITICAL GpuXid</h3>" in page
    assert "<td" not in page, "Alertmanager's own page lists labels"


def test_slack_shows_the_same_with_its_own_links(on_call: OnCall) -> None:
    (message,) = on_call.inbox.at("slack", "XID 79")["attachments"]
    print(message["text"])
    assert re.fullmatch(rf"\[CRITICAL\] {SUMMARY} \(us-west / training\)", message["title"])
    assert message["color"] == "danger"
    place = rf"Host: gpu-node-001 \(us-west / training\)\nGPU: PCI {PCI}\n"
    assert re.match(rf"\*CRITICAL GpuXid\*\n{place}Since: [^\n]+\n\*{SUMMARY}\*\n", message["text"])
    assert f"Before a reset or reboot: `{MAINTENANCE}`" in message["text"]
    assert f"Drain with Slurm: `{DRAIN_SLURM}`" in message["text"]
    links = {name: html.unescape(url) for url, name in re.findall(r"<(https://[^|>]+)\|([^>]+)>", message["text"])}
    lead_to_the_incident(links["Runbook"], links["Dashboard"], links["Kernel log"])
    assert message["title_link"] == links["Dashboard"]


def card(message: dict[str, Any]) -> tuple[str, str]:
    """Title and text of what a workflow of Teams posts."""
    (attachment,) = message["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    title, text = attachment["content"]["body"]
    return title["text"], text["text"]


def test_teams_shows_the_same_in_the_markdown_of_its_cards(on_call: OnCall) -> None:
    title, text = card(on_call.inbox.at("teams", "XID 79"))
    print(text)
    assert re.fullmatch(rf"\[CRITICAL\] {SUMMARY} \(us-west / training\)", title)
    assert not re.search(r"[^\n]\n[^\n]", text), "a single line break is none in a card"
    lines = text.split("\n\n")
    assert lines[:3] == ["**CRITICAL GpuXid**", "Host: gpu-node-001 (us-west / training)", f"GPU: PCI {PCI}"]
    assert re.fullmatch(rf"\*\*{SUMMARY}\*\*", lines[4]), lines[4]
    begins = ("**Action:**", "Before a reset", "Drain with Slurm", "Drain in Kubernetes", "[Runbook]", "Silence: amtool")
    places = [next(number for number, line in enumerate(lines) if line.startswith(begin)) for begin in begins]
    assert places == sorted(places), "in the order in which one reads it"
    assert f"Drain with Slurm: {DRAIN_SLURM}" in lines and f"Drain in Kubernetes: {DRAIN_KUBERNETES}" in lines
    links = dict(re.findall(r"\[([^\]]+)\]\((https://[^)]+)\)", text))
    lead_to_the_incident(links["Runbook"], links["Dashboard"], links["Kernel log"])


def test_pagerduty_gets_fields_links_and_no_wall_of_labels(on_call: OnCall) -> None:
    event = on_call.inbox.at("pagerduty", "XID 79")
    print(json.dumps(event, indent=2))
    assert (event["routing_key"], event["event_action"]) == ("the-key", "trigger")
    payload = event["payload"]
    assert (payload["source"], payload["component"], payload["group"], payload["class"], payload["severity"]) == (
        "gpu-node-001",
        "gpu",
        "training",
        "GpuXid",
        "critical",
    )
    assert re.fullmatch(rf"\[CRITICAL\] {SUMMARY} \(us-west / training\)", payload["summary"])
    assert DRAIN_SLURM in payload["custom_details"]["firing"]
    assert "scope" not in payload["custom_details"]["firing"]
    links = {link["text"]: link["href"] for link in event["links"]}
    lead_to_the_incident(links["Runbook"], links["Dashboard"], links["Kernel log"])
    assert len(event["dedup_key"]) == 64, "the same for all notifications of this group, so that one resolves the other"


def test_a_webhook_has_commands_and_links_as_annotations(on_call: OnCall) -> None:
    body = on_call.inbox.at("webhook", "XID 79")
    (one,) = body["alerts"]
    assert one["labels"].items() >= {**PLACE, "severity": "critical", "xid": "79"}.items()
    annotations = one["annotations"]
    assert (annotations["drain_slurm"], annotations["drain_kubernetes"]) == (DRAIN_SLURM, DRAIN_KUBERNETES)
    assert annotations["dashboard_url"].startswith(f"{GRAFANA}/d/gpu-fleet-incident?")
    assert annotations["runbook_url"].startswith(f"{GRAFANA}/d/gpu-fleet-runbooks?")


def test_markup_in_a_text_stays_text_and_a_group_of_forty_is_shortened(on_call: OnCall) -> None:
    on_call.raise_alerts(*(alert(f"gpu-node-{number:03}") for number in range(40)))
    (message,) = on_call.inbox.at("slack", "40 alerts")["attachments"]
    assert message["title"] == "[WARNING] 40 alerts: HostSilent (us-west / training)"
    assert message["color"] == "warning", "what may wait until the morning does not look like a page"
    assert message["text"].count("Host: ") == 10
    assert "... and 30 more: gpu-node-010, gpu-node-011," in message["text"]
    assert "<!channel>" not in message["text"] and "&lt;!channel&gt;" in message["text"], "it would notify the whole channel"
    assert "&amp;amp;" in message["text"]
    message = on_call.inbox.at("teams", "40 alerts")
    _, text = card(message)
    assert text.count("Host: ") == 5 and "... and 35 more: gpu-node-005, gpu-node-006," in text
    assert r"\*not bold\*" in text, "its Markdown would be bold"
    assert len(json.dumps(message)) < 28_000, "Teams takes no larger message"
    mail = on_call.inbox.mail("... and 30 more: gpu-node-010")
    assert MARKUP in part(mail, "plain").replace("\r\n", "\n"), "plain text needs no escaping"
    page = part(mail, "html")
    assert "<script" not in page and "&lt;script&gt;" in page
    event = on_call.inbox.at("pagerduty", "40 alerts")
    assert "... and 30 more" in event["payload"]["custom_details"]["firing"]


def test_the_place_of_a_cluster_is_in_its_title_once(on_call: OnCall) -> None:
    given = alert("x")
    del given["labels"]["instance"]
    given["labels"] |= {"alertname": "ClusterSilent", "severity": "critical", "scope": "cluster"}
    given["annotations"]["summary"] = "us-west / training: 60% of the hosts are silent"
    on_call.raise_alerts(given)
    (message,) = on_call.inbox.at("slack", "60% of the hosts")["attachments"]
    assert message["title"] == "[CRITICAL] us-west / training: 60% of the hosts are silent"
    assert message["color"] == "danger"


def test_a_resolved_notification_says_so_and_how_to_return_the_host(on_call: OnCall) -> None:
    began = datetime.now(UTC) - timedelta(minutes=20)
    commands = {"drain_slurm": "scontrol update nodename=b", "drain_kubernetes": "kubectl drain b"}
    given = alert("gpu-node-b", startsAt=began.isoformat())
    given["labels"] |= {"alertname": "GpuMissing", "severity": "critical", "scope": "gpu"}
    given["annotations"] |= {"summary": "gpu-node-b lost a GPU", "jobs": "4711 of alice <a@x>", **commands}
    on_call.raise_alerts(given)
    (message,) = on_call.inbox.at("slack", "gpu-node-b lost a GPU")["attachments"]
    assert "*Jobs:* 4711 of alice &lt;a@x&gt;\n" in message["text"]
    mail = on_call.inbox.mail("gpu-node-b lost a GPU")
    assert "Jobs: 4711 of alice <a@x>" in part(mail, "plain") and "<b>Jobs:</b> 4711 of alice &lt;a@x&gt;" in part(mail, "html")
    on_call.raise_alerts({**given, "endsAt": datetime.now(UTC).isoformat()})
    event = on_call.inbox.wait_for(
        "a resolved event",
        lambda: next(
            (body for path, body in on_call.inbox.posted if path == "pagerduty" and body["event_action"] == "resolve"), None
        ),
    )
    trigger = on_call.inbox.at("pagerduty", "gpu-node-b lost a GPU")
    assert event["dedup_key"] == trigger["dedup_key"]
    mail = on_call.inbox.mail("Resolved at")
    print(part(mail, "plain"))
    assert mail["Subject"] == "[RESOLVED] gpu-node-b lost a GPU (us-west / training)"
    assert "scontrol update nodename=gpu-node-b state=resume" in part(mail, "plain")
    assert "kubectl uncordon gpu-node-b" in part(mail, "html")
    assert "Action:" not in part(mail, "plain"), "there is nothing left to do about it"
    title, text = card(on_call.inbox.at("teams", "Resolved at"))
    assert title == mail["Subject"] and "in Kubernetes: kubectl uncordon gpu-node-b\n\n" in text
    (message,) = on_call.inbox.at("slack", "Resolved at")["attachments"]
    assert message["color"] == "good"
