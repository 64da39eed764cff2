"""Recording and alerting rules, the XID catalogue, runbooks, Alertmanager's configuration. Pure.

rules/*.yaml are for Mimir and Prometheus, loki/*.yaml for Loki, and can be loaded unchanged; grafana/*.yaml has the additional
rules that only Grafana evaluates. Some are generated from tables (generate.py), the others are written by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from alerts.links import NO_LINKS, Links, with_links
from alerts.model import RuleGroup, read_groups

Backend = Literal["mimir", "loki", "grafana"]

_FILES: Final = {"mimir": "rules", "loki": "loki", "grafana": "grafana"}


def rule_files(backend: Backend) -> list[Path]:
    """The rule files of one backend, sorted by name."""
    return sorted((Path(__file__).parent / _FILES[backend]).glob("*.yaml"))


def rule_groups(backend: Backend, links: Links = NO_LINKS) -> list[RuleGroup]:
    """Every group of one backend, with the annotations of links.py; names are unique."""
    return [with_links(group, links) for file in rule_files(backend) for group in read_groups(file)]


def recording_groups() -> list[RuleGroup]:
    """Mimir's groups without their alerts, for stacks where another system evaluates the alerts."""
    records = [replace(group, rules=tuple(rule for rule in group.rules if "record" in rule)) for group in rule_groups("mimir")]
    return [group for group in records if group.rules]
