"""The shared backend of a batch: Mimir with ruler and Alertmanager, Loki with its ruler, and a webhook receiver."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import yaml

import alerts
from alerts.alertmanager import alertmanager_config, templates
from alerts.inventory import inventory_groups
from alerts.model import RuleGroup, to_yaml
from alerts.notifications import Notifications, Receiver, Webhook
from gpu_fleet.signals.promql import parse, selectors
from lab.scorecard.score import RULE_SET, Post
from lab.showcase.servers import Servers

DATACENTER: Final = "scorecard"


class BadRules(ValueError):
    """A rule file that cannot be read, or that a ruler rejects; the text names it."""


class RuleSet:
    """`name`: empty for the project's own rules, otherwise of the directory of rule files. All alerts of a directory have that
    name in a label, so that several sets are scored on the same replays.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.name = directory.resolve().name if directory else ""
        if directory is None:
            self.mimir: list[RuleGroup] = alerts.rule_groups("mimir")
            self.loki: list[RuleGroup] = alerts.rule_groups("loki")
            return
        if not directory.is_dir():
            raise BadRules(f"RULES={directory}: no such directory; expected Prometheus rule files in it, Loki's below loki/")
        files = sorted(path for path in directory.rglob("*") if path.suffix in (".yaml", ".yml"))
        loki = {path for path in files if "loki" in path.relative_to(directory).parts[:-1]}
        self.mimir = [group for file in files if file not in loki for group in _groups(file, self.name)]
        self.loki = [group for file in sorted(loki) for group in _groups(file, self.name)]
        if not self.mimir and not self.loki:
            raise BadRules(f"RULES={directory}: no rule group in {len(files)} YAML files")

    def blind(self, series: frozenset[str]) -> list[str]:
        """Alerts that name a metric which no host here has. `series`: all names of metrics in Mimir."""
        rules = [rule for group in self.mimir for rule in group.rules]
        known = series | {rule["record"] for rule in rules if "record" in rule}
        return [
            f"{rule['alert']} ({', '.join(sorted(missing))})"
            for rule in rules
            if "alert" in rule and (missing := {one.name for one in selectors(parse(rule["expr"])) if one.name} - known)
        ]


def _groups(file: Path, rule_set: str) -> list[RuleGroup]:
    """Of a rule file of Prometheus or Loki, or of a PrometheusRule object."""
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except yaml.YAMLError as error:
        raise BadRules(f"{file}: not YAML: {error}") from None
    found = []
    for document in documents:
        content = document.get("spec", document) if isinstance(document, dict) else {}
        for group in content.get("groups") or []:
            name = f"{rule_set}-{file.stem}-{group['name']}"
            rules = tuple(
                {**rule, "labels": {**(rule.get("labels") or {}), RULE_SET: rule_set}} if "alert" in rule else rule
                for rule in group["rules"]
            )
            found.append(RuleGroup(name=name, interval=group.get("interval", "1m"), rules=rules))
    return found


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

    def __init__(self, directory: Path, rules: Sequence[RuleSet], expected: dict[str, int]) -> None:
        """`expected`: the inventory, host (which is also its cluster) -> GPUs."""
        self.inbox = Inbox()
        self._servers = Servers(directory)
        self.mimir, self.loki = self._servers.mimir, self._servers.loki
        try:
            self._servers.wait()
            self._configure_alertmanager()
            inventory = [group for host, gpus in expected.items() for group in inventory_groups(DATACENTER, host, {host: gpus})]
            mimir = [group for each in rules for group in each.mimir]
            self._load(f"{self.mimir}/prometheus/config/v1/rules", [*mimir, *merged_inventory(inventory)])
            self._load(f"{self.loki}/loki/api/v1/rules", [group for each in rules for group in each.loki])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._servers.stop()
        self.inbox.stop()

    def _configure_alertmanager(self) -> None:
        receiver = Receiver(name="scorecard", channels=(Webhook(url=self.inbox.url),))
        config = by_rule_set(alertmanager_config(Notifications(receiver="scorecard", receivers=(receiver,))))
        body = {"template_files": dict(templates()), "alertmanager_config": to_yaml(config)}
        _post(f"{self.mimir}/api/v1/alerts", to_yaml(body))

    def series(self) -> frozenset[str]:
        """The names of all metrics in Mimir."""
        url = f"{self.mimir}/prometheus/api/v1/label/__name__/values"
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310  always loopback
            return frozenset(json.load(response)["data"])

    @staticmethod
    def _load(url: str, groups: Iterable[RuleGroup]) -> None:
        for group in groups:
            try:
                _post(f"{url}/{group.namespace}", group.yaml)
            except OSError as error:
                raise BadRules(f"rule group {group.name}: {error}") from None


def by_rule_set(config: Any) -> Any:
    """A configuration of Alertmanager in which no alert is grouped with, or inhibited by, one of another rule set."""
    match config:
        case dict():
            return {
                key: [*value, RULE_SET] if key in ("group_by", "equal") else by_rule_set(value) for key, value in config.items()
            }
        case list():
            return [by_rule_set(each) for each in config]
    return config


def merged_inventory(groups: list[RuleGroup]) -> list[RuleGroup]:
    """One group instead of one per cluster: they are a hundred clusters of one host here."""
    rules: tuple[Any, ...] = tuple(rule for group in groups for rule in group.rules)
    # Of a name that no rule set uses: a group of the same name would be replaced.
    return [RuleGroup(name="scorecard-inventory", interval=groups[0].interval, rules=rules)] if groups else []


def _post(url: str, text: str) -> None:
    request = urllib.request.Request(url, text.encode(), {"Content-Type": "application/yaml"})  # noqa: S310  always loopback
    try:
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.read().decode(errors='replace')[:500]}") from None
