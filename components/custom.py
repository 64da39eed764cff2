"""What a stack overrides in our rules, and its own rules and dashboards: from the stack file to alerts/ and dashboards/, checked.

Pure but for the files that the stack file names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import dashboards
from alerts.customization import Customization, Override
from gpu_fleet import signals
from gpu_fleet.signals.dashboard_files import read_dashboards
from gpu_fleet.signals.overrides import warnings
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.custom import CONTENT, METRICS, files_of
from gpu_fleet.stackfile.prices import Prices
from gpu_fleet.stackfile.values import duration_s, local_path
from gpu_fleet.stackfile.yaml_text import YamlError, YamlText

SCRAPE_INTERVAL: Final = "gpu-fleet:scrapeInterval"


def customization(config: StackConfig) -> Customization:
    section = config.alerts
    return Customization(
        overrides={
            name: Override(
                threshold=rule.threshold,
                for_=rule.hold,
                severity=rule.severity,
                labels=rule.labels,
                is_enabled=rule.enabled,
            )
            for name, rule in (section.rules if section else {}).items()
        },
        labels=section.labels if section else {},
        scrape_interval_s=config.scrape_interval_s,
        files={kind: config.custom_files(kind) for kind in CONTENT if kind != "dashboards"} if section else {},
    )


def custom_dashboards(config: StackConfig) -> list[dict[str, Any]]:
    """The models of the stack's own, without those that have errors."""
    return read_dashboards(config.custom_files("dashboards"), config.base)[0]


def dashboards_below(section: object, base: Path) -> list[dict[str, Any]]:
    """The same of a section `custom` as the stack file writes it, for a command that needs nothing else of the stack."""
    directory = section.get("directory") if isinstance(section, Mapping) else section
    files = files_of(local_path(base, directory), "dashboards") if isinstance(directory, str) else ()
    return read_dashboards(files, base)[0]


def all_dashboards(config: StackConfig) -> dict[str, dict[str, Any]]:
    """By uid: ours as the stack's Grafana gets them, and the stack's own."""
    section = config.grafana
    return dashboards.all_dashboards(
        price(config),
        metrics_uid=section.metrics_data_source if section else None,
        logs_uid=section.logs_data_source if section else None,
        custom=custom_dashboards(config),
    )


def price(config: StackConfig) -> dashboards.Price | None:
    section = config.grafana
    if section is None or section.cost_per_gpu_hour is None:
        return None
    return newest_price(Prices.of(section.cost_per_gpu_hour), section.currency)


def newest_price(prices: Prices, currency: str) -> dashboards.Price:
    """Dashboards calculate with the last price of each model."""
    by_model = dict(prices.newest())
    return dashboards.Price(by_model[""] if len(by_model) == 1 and "" in by_model else by_model, currency)


def check_signals(config: StackConfig) -> list[str]:
    """Warnings about rules and dashboards of a stack that deploys any. Raises signals.SignalErrors with all errors at once."""
    custom = customization(config)
    boards, found = read_dashboards(config.custom_files("dashboards"), config.base)
    metrics = config.local_path(config.custom.directory) / METRICS if config.custom else None
    signals.check_signals(
        [*signals.rule_files(), *signals.custom_rule_files(custom, config.base)],
        [*dashboards.models(price(config)), *boards],
        custom,
        metrics=metrics if metrics and metrics.exists() else None,
        found=found,
    )
    return [*warnings(custom), *_slower_sites(config)]


def _slower_sites(config: StackConfig) -> Iterator[str]:
    """Of the stack files beside this one that leave rules to another: those that scrape less often than the rules here expect."""
    for file in sorted(config.base.glob("Pulumi.*.yaml")):
        keys = _keys(file)
        every = str(keys.get(SCRAPE_INTERVAL, ""))
        if "gpu-fleet:alerts" not in keys and (duration_s(every) or 0) > config.scrape_interval_s:
            yield (
                f"{file.name} has {SCRAPE_INTERVAL}: {every}, but rules and dashboards of this stack expect a sample every "
                f"{config.scrape_interval_s}s: there the bandwidth of NVLink would be missing, and HostClockSkew may fire. "
                f"If they are for that site, set {SCRAPE_INTERVAL}: {every} here too"
            )


def _keys(file: Path) -> Mapping[str, Any]:
    """None of a file with errors, which its own preview reports."""
    with contextlib.suppress(OSError, YamlError, AttributeError):
        text = file.read_text(encoding="utf-8", errors="replace")
        if SCRAPE_INTERVAL in text and isinstance(keys := YamlText(file.name, text).load().get("config"), dict):
            return keys
    return {}
