"""Pipeline health: can what the other dashboards show be trusted? Agents, their way to Mimir and Loki, what is lost."""

from __future__ import annotations

from typing import Any

from dashboards import queries as q
from dashboards.layout import build
from dashboards.panels import NO_THRESHOLDS, Query, one_number, time_series

RED_FROM_ONE = ((None, "green"), (1, "red"))


def dashboard() -> dict[str, Any]:
    def panel(title: str, query: str, legend: str, description: str, unit: str) -> Any:
        return time_series(
            title,
            [Query(query, legend)],
            description=description,
            unit=unit,
            thresholds=NO_THRESHOLDS,
            filled=False,
            width=8,
        )

    def number(title: str, query: str, description: str, thresholds: Any) -> Any:
        return one_number(title, Query(query, title), description=description, unit="short", thresholds=thresholds, width=8)

    return build(
        "pipeline",
        "GPU fleet / Pipeline health",
        "The agents on the hosts and their way to Mimir and Loki: what is silent, late or lost.",
        variables=("datacenter", "cluster"),
        rows=(
            (
                "Now",
                (
                    number("Agents", q.agents(q.CLUSTER), "Hosts whose Alloy reports.", NO_THRESHOLDS),
                    number(
                        "Hosts not heard of",
                        q.missing_hosts(q.CLUSTER),
                        "Hosts of the stack files without a sample in the last five minutes.",
                        RED_FROM_ONE,
                    ),
                    number("Targets down", q.targets_down(q.CLUSTER), "Exporters that do not answer their Alloy.", RED_FROM_ONE),
                ),
            ),
            (
                "Metrics",
                (
                    panel("Delay", q.send_delay(q.CLUSTER), "{{instance}}", "How late metrics leave; the ten worst hosts.", "s"),
                    panel("Samples sent", q.samples_sent(q.CLUSTER), "{{cluster}}", "Samples a second, by cluster.", "short"),
                    panel(
                        "Samples lost",
                        q.samples_lost(q.CLUSTER),
                        "{{instance}}",
                        "Samples a second that Mimir refused; the ten worst hosts.",
                        "short",
                    ),
                ),
            ),
            (
                "Logs",
                (
                    panel("Lines sent", q.log_lines_sent(q.CLUSTER), "{{cluster}}", "Log lines a second, by cluster.", "short"),
                    panel(
                        "Lines lost",
                        q.log_lines_lost(q.CLUSTER),
                        "{{instance}}",
                        "Log lines a second that Alloy gave up on; the ten worst hosts.",
                        "short",
                    ),
                ),
            ),
            (
                "Agents in detail",
                (
                    panel(
                        "Memory of the agent",
                        q.agent_memory(q.CLUSTER),
                        "{{instance}}",
                        "Memory that Alloy takes from the host; the ten largest.",
                        "bytes",
                    ),
                    panel(
                        "Series per host",
                        q.series_per_host(q.CLUSTER),
                        "{{instance}}",
                        "Series that a host sends, which is what Mimir costs; the ten with most.",
                        "short",
                    ),
                    panel(
                        "Components not healthy",
                        q.unhealthy_components(q.CLUSTER),
                        "{{instance}}",
                        "Parts of Alloy that do not work; the ten worst hosts.",
                        "short",
                    ),
                ),
            ),
        ),
    )
