"""Recording and alerting rules, the XID catalogue, runbooks, Alertmanager's configuration. Pure.

rules/*.yaml are for Mimir and Prometheus, loki/*.yaml for Loki, and can be loaded unchanged; grafana/*.yaml has the additional
rules that only Grafana evaluates. Some are generated from tables (generate.py), the others are written by hand. What a stack
overrides and adds is applied here, before any ruler sees the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from alerts.customization import NO_CUSTOMIZATION, Customization, customized, labelled
from alerts.links import NO_LINKS, Links, with_links
from alerts.model import RuleGroup, read_groups

Backend = Literal["mimir", "loki", "grafana"]

_FILES: Final = {"mimir": "rules", "loki": "loki", "grafana": "grafana"}


def rule_files(backend: Backend) -> list[Path]:
    """The rule files of one backend, sorted by name."""
    return sorted((Path(__file__).parent / _FILES[backend]).glob("*.yaml"))


def groups_by_file(
    backend: Backend, links: Links = NO_LINKS, custom: Customization = NO_CUSTOMIZATION
) -> Iterator[tuple[str, list[RuleGroup]]]:
    """The groups of each rule file of one backend by a name for the file: ours with the overrides of the stack, and its own."""
    files = [(file.stem, list(customized(read_groups(file), custom))) for file in rule_files(backend)]
    files += [(f"custom-{file.stem}", read_groups(file)) for file in custom.files.get(_FILES[backend], ())]
    if backend != "mimir":
        links = replace(links, has_jobs=False)  # texts of the other rulers cannot query series
    for name, groups in files:
        if groups:
            yield name, [with_links(labelled(group, custom.labels), links) for group in groups]


def rule_groups(backend: Backend, links: Links = NO_LINKS, custom: Customization = NO_CUSTOMIZATION) -> list[RuleGroup]:
    """Every group of one backend, with the annotations of links.py; names are unique."""
    return [group for _, groups in groups_by_file(backend, links, custom) for group in groups]


def recording_groups(custom: Customization = NO_CUSTOMIZATION) -> list[RuleGroup]:
    """Mimir's groups without their alerts, for stacks where another system evaluates the alerts."""
    groups = rule_groups("mimir", custom=custom)
    records = [replace(group, rules=tuple(rule for rule in group.rules if "record" in rule)) for group in groups]
    return [group for group in records if group.rules]
