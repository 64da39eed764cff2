"""What becomes of Grafana when the program changes and when somebody edits by hand.

The real program, with whatever plugin the toolchain finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import dashboards
from tests.hosts.stack import Stack
from tests.provider.ruler_server import RulerServer
from tests.standins.grafana_server import GrafanaServer

PROVISIONING = "/api/v1/provisioning"
POLICIES = f"{PROVISIONING}/policies"
PIPELINE = "/api/dashboards/uid/gpu-fleet-pipeline"
SECRETS = {"slackUrl": "https://hooks.slack.example.com/services/planted", "rulersPassword": "planted-password"}
ALERTS = {
    "targets": ["grafana"],
    "runbookUrl": "https://git.example.com/gpu-fleet/blob/main",
    "receiver": "team",
    "receivers": {"team": {"slack": {"urlSecret": "slackUrl", "channel": "#gpu"}}},
    "routes": [{"matchers": ["severity=critical"], "receiver": "team"}],
}


@pytest.fixture(scope="module")
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    ruler.password = SECRETS["rulersPassword"]
    yield ruler
    ruler.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrafanaServer]:
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def stack(server: GrafanaServer, ruler: RulerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    login = {"url": ruler.url, "tenant": "us-west", "username": "writer"}
    config = {"rulers": {"mimir": login, "loki": login}, "grafana": {"url": server.url}, "alerts": ALERTS}
    directory = tmp_path_factory.mktemp("stack")
    stack = Stack(directory, "observability", config, {**SECRETS, "grafanaAuth": server.auth}).create()
    stack.up()
    yield stack
    stack.destroy()


def replace(stack: Stack, file: str, old: str, new: str) -> None:
    """Once, in the stack's own copy of the program."""
    path = stack.directory / file
    text = path.read_text()
    assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def counted(output: str, done: str) -> int:
    """`counted(output, "updated")`: pulumi's own count."""
    found = re.search(rf"^ +\D*?(\d+) {done}$", output, re.MULTILINE)
    return int(found[1]) if found else 0


def boards_of(stack: Stack) -> list[dict[str, Any]]:
    """The dashboards of the stack's state."""
    return [one for one in stack.resources() if one["type"] == "grafana:oss/dashboard:Dashboard"]


def titles(server: GrafanaServer) -> list[str]:
    return [panel["title"] for panel in server.get(PIPELINE)["dashboard"]["panels"]]


def missing(server: GrafanaServer) -> list[str]:
    return [uid for uid in dashboards.all_dashboards() if server.ask("GET", f"/api/dashboards/uid/{uid}")[0] != 200]


def group_of(server: GrafanaServer, title: str) -> tuple[str, dict[str, Any]]:
    """The path and content of the rule group that holds the rule."""
    (rule,) = [rule for rule in server.get(f"{PROVISIONING}/alert-rules") if rule["title"] == title]
    path = f"{PROVISIONING}/folder/{rule['folderUID']}/rule-groups/{rule['ruleGroup']}"
    return path, server.get(path)


def rule_of(server: GrafanaServer, title: str) -> dict[str, Any]:
    return next(rule for rule in group_of(server, title)[1]["rules"] if rule["title"] == title)


def edit_rule(server: GrafanaServer, title: str, **fields: Any) -> None:
    path, group = group_of(server, title)
    group["rules"] = [rule | fields if rule["title"] == title else rule for rule in group["rules"]]
    assert server.ask("PUT", path, group, **{"X-Disable-Provenance": "true"})[0] == 200


def test_a_changed_word_costs_few_lines_of_a_preview_and_updates_one_dashboard_in_place(
    stack: Stack, server: GrafanaServer
) -> None:
    file, old, new = "dashboards/pipeline.py", '"Samples lost"', '"Samples dropped"'
    replace(stack, file, old, new)
    refreshed = stack.up("--refresh", "--diff")
    assert "Samples dropped" in titles(server) and missing(server) == []
    replace(stack, file, new, old)
    unrefreshed, done = stack.previewed_up("--diff")
    assert "Samples lost" in titles(server) and missing(server) == []
    names = ("lost", "dropped"), ("dropped", "lost")
    for shown, (then, now) in zip((refreshed, unrefreshed), names, strict=True):
        assert f'panel "Samples {then}": renamed to "Samples {now}"' in shown
        assert not counted(shown, "to replace") and not counted(shown, "replaced")
        about = shown[shown.index("grafana:oss/dashboard:Dashboard: (update)") :].partition("\n    --outputs:--")[0]
        assert len(about.splitlines()) <= 20, shown
    assert counted(refreshed, "updated") == counted(unrefreshed, "to update") == counted(done, "updated") == 1
    assert not counted(done, "replaced")


def test_the_state_holds_the_json_of_every_dashboard_as_it_was_written_but_for_the_ids_of_panels(stack: Stack) -> None:
    """Whatever else the plugin dropped or Grafana added would be reported as a change where nothing changed."""
    boards = boards_of(stack)
    assert len(boards) == len(dashboards.all_dashboards())
    for board in boards:
        written, kept = (json.loads(board[of]["configJson"]) for of in ("inputs", "outputs"))
        for panel in written["panels"]:
            del panel["id"]
        assert kept == written, board["urn"]


def test_what_somebody_edited_paused_or_deleted_by_hand_is_shown_by_a_refresh_and_restored_by_an_update(
    stack: Stack, server: GrafanaServer
) -> None:
    kept = server.get(PIPELINE)
    by_hand = {**kept["dashboard"], "title": "By hand"}
    assert server.ask("POST", "/api/dashboards/db", {"dashboard": by_hand, "folderUid": kept["meta"]["folderUid"]})[0] == 200
    before = rule_of(server, "GpuXid 79")
    edit_rule(server, "GpuXid 79", labels={**before["labels"], "severity": "none"})
    edit_rule(server, "GpuXid 48", isPaused=True)
    tree = server.get(POLICIES)
    changed = {**tree, "routes": [{**tree["routes"][0], "group_wait": "59m"}, *tree["routes"][1:]]}
    assert server.ask("PUT", POLICIES, changed, **{"X-Disable-Provenance": "true"})[0] == 202

    group, _ = group_of(server, "GpuTemperatureHigh")
    assert group not in (group_of(server, rule)[0] for rule in ("GpuXid 79", "GpuXid 48"))
    assert server.ask("DELETE", group)[0] == 204
    assert server.ask("DELETE", "/api/dashboards/uid/gpu-fleet-host")[0] == 200
    assert missing(server) == ["gpu-fleet-host"]

    shown = stack.pulumi("refresh", "--yes", "--skip-preview", "--diff")
    groups = {group_of(server, rule)[0] for rule in ("GpuXid 79", "GpuXid 48")}
    assert counted(shown, "updated") == 2 + len(groups), "and nothing that the updates in place left"
    assert counted(shown, "deleted") == 2
    assert '"none"' in shown and '"59m"' in shown

    done = stack.up()
    assert "title By hand → GPU fleet / Pipeline health" in done
    assert counted(done, "updated") == counted(shown, "updated") and not counted(done, "replaced")
    assert counted(done, "created") == 2
    assert server.get(PIPELINE)["dashboard"]["title"] == kept["dashboard"]["title"]
    assert rule_of(server, "GpuXid 79")["labels"] == before["labels"]
    assert rule_of(server, "GpuXid 48")["isPaused"] is False
    assert "group_wait" not in server.get(POLICIES)["routes"][0]
    assert rule_of(server, "GpuTemperatureHigh") and missing(server) == []


def test_a_refresh_after_an_up_finds_nothing_changed(stack: Stack) -> None:
    """Neither after the updates in place nor after what was restored."""
    stack.up_unchanged()


def test_a_renamed_folder_stays_with_what_others_keep_there_and_panels_keep_their_ids(
    stack: Stack, server: GrafanaServer
) -> None:
    """Links to panels name their ids: those of runbooks in pages and tickets."""
    folder = server.get(PIPELINE)["meta"]["folderUid"]
    theirs = {"dashboard": {"uid": "theirs", "title": "Theirs"}, "folderUid": folder}
    assert server.ask("POST", "/api/dashboards/db", theirs)[0] == 200
    stack.config["grafana"] |= {"folder": "Machines", "takeOver": True}
    stack.write()
    stack.up()
    stack.config["grafana"].pop("takeOver")
    stack.write()
    stack.up()
    assert server.get("/api/dashboards/uid/theirs")["meta"]["folderTitle"] == "Machines"
    for uid, model in dashboards.all_dashboards().items():
        stored = server.get(f"/api/dashboards/uid/{uid}")["dashboard"]["panels"]
        assert [panel["id"] for panel in stored] == [panel["id"] for panel in model["panels"]], uid

    refused = stack.pulumi("destroy", "--yes", "--skip-preview", "--continue-on-error", ok=False)
    assert "is not empty" in refused and "Theirs" in refused and server.ask("GET", "/api/dashboards/uid/theirs")[0] == 200
    assert server.ask("DELETE", "/api/dashboards/uid/theirs")[0] == 200
