"""What belongs to somebody else, on a real Mimir and Loki: the mark survives there, and refusals leave everything as it is."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpu_fleet.provider.values import Secret
from lab.showcase.servers import Servers
from tests.provider.plugin import Failure, Plugin

GROUP, ALERTS = "gpu-fleet:ruler:RuleGroup", "gpu-fleet:ruler:AlertmanagerConfig"
THEIRS = "route: {receiver: theirs}\nreceivers: [{name: theirs}]\n"
OURS = "route: {receiver: ours}\nreceivers: [{name: ours}]\n"
ALERTS_PATH = "/api/v1/alerts"
PATHS = {"mimir": "/prometheus/config/v1/rules/gpu-fleet", "loki": "/loki/api/v1/rules/gpu-fleet"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    servers.wait()
    yield servers
    servers.stop()


def send(url: str, body: Any, method: str = "POST") -> str:
    data = None if body is None else yaml.safe_dump(body).encode()
    request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": "application/yaml"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def test_an_alertmanager_configuration_is_refused_handed_over_edited_and_left(plugin: Plugin, servers: Servers) -> None:
    url = servers.mimir
    send(url + ALERTS_PATH, {"template_files": {}, "alertmanager_config": THEIRS})
    inputs = plugin.checked(
        ALERTS, {"url": url, "config": Secret(OURS), "templates": {"page.tmpl": '{{ define "x" }}y{{ end }}'}}
    )
    with pytest.raises(Failure, match="has no mark of gpu-fleet"):
        plugin.create(ALERTS, inputs)
    assert "theirs" in send(url + ALERTS_PATH, None, "GET")

    plugin.configure(takeOverRulers=True)
    plugin.create(ALERTS, inputs)
    plugin.configure()
    stored = yaml.safe_load(send(url + ALERTS_PATH, None, "GET"))
    assert stored["template_files"]["gpu-fleet-owner.tmpl"] == "{{/* gpu-fleet stack test */}}"
    send(url + ALERTS_PATH, {**stored, "alertmanager_config": THEIRS})  # as Grafana's editor does it
    plugin.update(ALERTS, "x", inputs, inputs)
    assert "ours" in send(url + ALERTS_PATH, None, "GET"), "an edit of ours is drift"

    send(url + ALERTS_PATH, {"template_files": {}, "alertmanager_config": THEIRS})
    plugin.delete(ALERTS, "x", inputs)
    assert "theirs" in send(url + ALERTS_PATH, None, "GET"), "destroy removes only ours"


@pytest.mark.parametrize("backend", PATHS)
def test_a_rule_group_of_somebody_else_is_refused(plugin: Plugin, servers: Servers, backend: str) -> None:
    url = getattr(servers, backend)
    expr = {"mimir": "up == 0", "loki": 'sum(rate({job="kernel"}[1m])) > 0'}[backend]
    send(url + PATHS[backend], {"name": "xid", "interval": "1m", "rules": [{"alert": "Theirs", "expr": expr}]})
    rules = yaml.safe_dump({"name": "xid", "interval": "1m", "rules": [{"alert": "Ours", "expr": expr}]})
    inputs = plugin.checked(GROUP, {"backend": backend, "url": url, "namespace": "gpu-fleet", "name": "xid", "rules": rules})
    with pytest.raises(Failure, match="with other rules, and this stack did not create it"):
        plugin.create(GROUP, inputs)
    assert "Theirs" in send(f"{url}{PATHS[backend]}/xid", None, "GET")
    send(f"{url}{PATHS[backend]}/xid", None, "DELETE")
    plugin.create(GROUP, inputs)
    plugin.create(GROUP, inputs)  # the same rules: what a run wrote before its state was lost
