"""`make rules`: the rules as files, for a Prometheus, Mimir, Loki or Prometheus Operator that Pulumi does not manage.

    python -m gpu_fleet.operations.rules mimir build/rules --stack us-west-training

The files are complete: recording rules, alerts and, with `--stack`, the inventory that the alerts about missing hosts and GPUs
compare with. `pulumi up` with a `rulers` section writes the same groups itself; a ruler should get them one way only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import alerts
from alerts.alertmanager import inhibit_rules
from alerts.customization import NO_CUSTOMIZATION, Customization
from alerts.links import NO_LINKS, Links
from alerts.model import NAMESPACE, RuleGroup, rule_file, to_yaml
from alerts.prometheus_rule import prometheus_rule, prometheus_rules
from components import notifications
from components.custom import check_signals, customization
from components.inventory import inventory
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import configuration, enter_project
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig


@dataclass(frozen=True, kw_only=True)
class Wanted:
    links: Links  # of the annotations
    custom: Customization  # overrides and own rules of the stack that was named
    inventory: tuple[RuleGroup, ...]  # of the stack that was named, empty without one
    namespace: str  # of PrometheusRule objects
    labels: dict[str, str]  # by which the operator's Prometheus selects PrometheusRule objects


def _of_prometheus(wanted: Wanted) -> dict[str, str]:
    return {f"{NAMESPACE}.yaml": rule_file([*alerts.rule_groups("mimir", wanted.links, wanted.custom), *wanted.inventory])}


def _of_loki(wanted: Wanted) -> dict[str, str]:
    return {f"{NAMESPACE}.yaml": rule_file(alerts.rule_groups("loki", wanted.links, wanted.custom))}


def _of_operator(wanted: Wanted) -> dict[str, str]:
    objects = prometheus_rules(namespace=wanted.namespace, labels=wanted.labels, links=wanted.links, custom=wanted.custom)
    if wanted.inventory:
        objects.append(prometheus_rule("inventory-expected", wanted.inventory, namespace=wanted.namespace, labels=wanted.labels))
    return {f"{one['metadata']['name']}.yaml": to_yaml(one) for one in objects}


# One file per ruler: mimirtool and lokitool take its name, gpu-fleet, as the namespace, which `pulumi up` uses too.
_FILES: Final[dict[str, Callable[[Wanted], dict[str, str]]]] = {
    "prometheus": _of_prometheus,
    "mimir": _of_prometheus,
    "loki": _of_loki,
    "operator": _of_operator,
}
_NEXT: Final = {
    "prometheus": "Add the file to rule_files of prometheus.yml, then reload Prometheus (SIGHUP or POST /-/reload).",
    "mimir": "mimirtool rules load --address=URL --id=TENANT {directory}/gpu-fleet.yaml",
    "loki": "lokitool rules load --address=URL --id=TENANT {directory}/gpu-fleet.yaml",
    "operator": "kubectl apply --server-side -f {directory}, or commit the directory to what your GitOps tool applies.",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make rules", description="Write the rules as files that another tool loads.")
    parser.add_argument("target", metavar="FOR", choices=sorted(_FILES), help=" | ".join(sorted(_FILES)))
    parser.add_argument("directory", type=Path, help="below it, one directory per target is written")
    parser.add_argument("--stack", default="", help="with this stack's overrides, own rules and inventory")
    parser.add_argument("--runbook-url", help="base URL of this repository's files; adds the annotation runbook_url")
    parser.add_argument("--namespace", default="monitoring", help="of PrometheusRule objects, default %(default)s")
    parser.add_argument("--labels", type=_labels, default={}, help="of PrometheusRule objects: release=kube-prometheus-stack,...")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        config = configuration(given.stack).load() if given.stack else None
        expected = _inventory(config, given.stack) if config else ()
        for warning in check_signals(config) if config else ():
            print(f"warning: {warning}", file=sys.stderr)
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    directory: Path = given.directory / given.target
    _write(
        directory,
        _FILES[given.target](
            Wanted(
                links=_links(config, given.runbook_url),
                custom=customization(config) if config else NO_CUSTOMIZATION,
                inventory=expected,
                namespace=given.namespace,
                labels=given.labels,
            )
        ),
    )
    print(_NEXT[given.target].format(directory=directory))
    inhibitions = given.directory / "alertmanager" / "inhibit_rules.yaml"
    inhibitions.parent.mkdir(exist_ok=True)
    inhibitions.write_text(to_yaml({"inhibit_rules": inhibit_rules()}))
    print(f"{inhibitions}: add its rules to your Alertmanager, or one incident notifies several times (docs/import-by-hand.md).")
    if not expected and given.target != "loki":
        print("Without STACK=... the alerts about missing hosts and GPUs stay silent: they compare with a stack's inventory.")
    return 0


def _write(directory: Path, files: dict[str, str]) -> None:
    """Rule files of an earlier run that are no longer written are removed: a tool that loads the directory would keep them."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f"{NAMESPACE}*.yaml"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (directory / name).write_text(text)
        print(directory / name)


def _links(config: StackConfig | None, runbook_url: str | None) -> Links:
    """Those that `pulumi up` writes for the stack."""
    found = notifications.links(config) if config else NO_LINKS
    return replace(found, runbooks=runbook_url) if runbook_url else found


def _inventory(config: StackConfig, stack: str) -> tuple[RuleGroup, ...]:
    """Raises OperationError."""
    groups = inventory(config)
    if not groups:
        raise OperationError(f"stack {stack} has neither hosts nor a Kubernetes cluster: it has no inventory")
    return tuple(groups)


def _labels(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if any(not name or not equals for name, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,NAME=VALUE")
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    run(main)
