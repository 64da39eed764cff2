"""The shared backend of a batch: Mimir with ruler and Alertmanager, Loki with its ruler, and a webhook receiver."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import alerts
from alerts.alertmanager import alertmanager_config, templates
from alerts.inventory import inventory_groups
from alerts.model import RuleGroup, to_yaml
from gpu_fleet.stackfile.alerts import Alerts, Receiver, Webhook
from lab.scorecard.rules import Group
from lab.scorecard.score import RULE_SET, Post
from lab.showcase.servers import Servers

DATACENTER: Final = "scorecard"


class Inbox:
    """What Alertmanager posted, oldest first."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                posts.append(Post(at_s=time.time(), group=body["groupKey"], alerts=tuple(body["alerts"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Silent: the notifications themselves are the log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Stores:
    """Started and loaded with the rules and the project's own notification configuration. `inbox`: what was notified."""

    def __init__(self, directory: Path, expected: dict[str, int], others: Mapping[str, list[Group]]) -> None:
        """`expected`: the inventory, host (which is also its cluster) -> GPUs. `others`: rule sets beside ours, by name."""
        self.inbox = Inbox()
        self._servers = Servers(directory)
        self.mimir, self.loki = self._servers.mimir, self._servers.loki
        try:
            self._servers.wait()
            self._configure_alertmanager()
            inventory = [group for host, gpus in expected.items() for group in inventory_groups(DATACENTER, host, {host: gpus})]
            mimir = [*alerts.rule_groups("mimir"), *merged_inventory(inventory)]
            self._load(f"{self.mimir}/prometheus/config/v1/rules", mimir)
            for name, groups in others.items():
                for group in groups:
                    _post(f"{self.mimir}/prometheus/config/v1/rules/others-{name}", to_yaml(group))
            self._load(f"{self.loki}/loki/api/v1/rules", alerts.rule_groups("loki"))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._servers.stop()
        self.inbox.stop()

    def _configure_alertmanager(self) -> None:
        config = alertmanager_config(Alerts(receivers={"scorecard": Receiver(webhook=Webhook(url=self.inbox.url))}), {})
        _keep_apart(config)
        body = {"template_files": dict(templates()), "alertmanager_config": to_yaml(config)}
        _post(f"{self.mimir}/api/v1/alerts", to_yaml(body))

    @staticmethod
    def _load(url: str, groups: Iterable[RuleGroup]) -> None:
        for group in groups:
            _post(f"{url}/{group.namespace}", group.yaml)


def _keep_apart(config: dict[str, Any]) -> None:
    """Alerts of other rule sets come one by one, and neither they nor ours mute each other."""
    each = {
        "matchers": [f'{RULE_SET}=~".+"'],
        "group_by": ["..."],
        **{"group_wait": "5s", "group_interval": "15s", "receiver": config["route"]["receiver"]},
    }
    config["route"]["routes"] = [each, *config["route"].get("routes", [])]
    for rule in config.get("inhibit_rules", []):
        for side in ("source_matchers", "target_matchers"):
            rule[side] = [*rule[side], f'{RULE_SET}=""']


def merged_inventory(groups: list[RuleGroup]) -> list[RuleGroup]:
    """One group instead of one per cluster: they are a hundred clusters of one host here."""
    rules: tuple[Any, ...] = tuple(rule for group in groups for rule in group.rules)
    # Of a name of its own: a group of the same name would be replaced.
    return [RuleGroup(name="scorecard-inventory", interval=groups[0].interval, rules=rules)] if groups else []


def _post(url: str, text: str) -> None:
    request = urllib.request.Request(url, text.encode(), {"Content-Type": "application/yaml"})  # noqa: S310  always loopback
    try:
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.read().decode(errors='replace')[:500]}") from None
