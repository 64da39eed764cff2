"""What decides whether work may start on a host (gpu_fleet/on_host/ready.py), from the same tables as the alerts.

Critical XIDs and events fail; of warnings those warn that are about the GPU and not about a program. Metrics are those of the
vocabulary, of whichever exporter a host has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from alerts import amd
from alerts.vocabulary import SERIES
from alerts.xid import CATALOGUE, LINES, Action, Severity

PASS, WARN, FAIL = "pass", "warn", "fail"
OLD_S: Final = 60  # of what is scraped, as on hosts
RULES_OLD_S: Final = 120  # Mimir evaluates rules a minute late by default (ruler_evaluation_delay_duration)
# Series -> state, code, and why, in words. `zero`: what fails is 0.
_SIGNALS: Final = (
    ("gpu:recovery_action:code", FAIL, "recovery_action", "the driver reports a recovery action", False),
    ("gpu:row_remap_failed:bool", FAIL, "row_remap_failed", "the remapping of a memory row failed", False),
    ("gpu:row_remap_pending:bool", WARN, "row_remap_pending", "a memory row is remapped at the next reset", False),
    ("gpu:pages_retired_pending:bool", WARN, "pages_pending", "a memory page is retired at the next reset", False),
    ("gpu:sram_errors_exceeded:bool", FAIL, "sram_errors", "uncorrectable SRAM errors exceed the threshold", False),
    ("gpu:vendor_health:bool", FAIL, "vendor_health", "AMD's exporter reports it as unhealthy", True),
)
# What a value says that is more than the text of its signal.
_TEXTS: Final = {
    "recovery_action": {
        "1": "the driver asks to reset the GPU",
        "2": "the driver asks to reboot the node",
        "3": "the driver asks to drain peer-to-peer traffic",
        "4": "the driver asks to drain the node, then reset the GPU",
        "5": "the driver asks to recover the IMEX domain",
        "6": "the driver asks to reset the bus",
        "7": "the driver asks to reboot the system",
    }
}
# About the program, or about nothing that the next job would notice.
_NOT_THE_GPU: Final = frozenset(
    {Action.RESTART_APP, Action.CHECK_APP, Action.CHECK_UVM, Action.UPDATE_SOFTWARE, Action.FOLLOW_COMPANION_XID, Action.NONE}
)


def table() -> str:
    """As JSON: `identity`, metrics that each listed GPU has; `signals`; `kernel`: code -> class of its line -> state, action;
    `ends`: the event that ends others, and those that it does not."""
    kept = {code: found for code, classes in _kernel().items() if (found := _without_pass(classes))}
    return json.dumps(
        {
            "identity": list(_metrics("gpu:info")),
            "signals": [
                {
                    **{"state": state, "code": code, "text": text, "zero": zero},
                    **{"texts": _TEXTS.get(code, {}), "metrics": list(_metrics(series))},
                }
                for series, state, code, text, zero in _SIGNALS
            ],
            "kernel": kept,
            "ends": {"event": amd.RESET_SUCCEEDED, "not": [amd.RETIRED]},
        },
        indent=1,
        sort_keys=True,
    )


def cluster_table(datacenter: str, cluster: str) -> str:
    """As JSON, for the nodes of a Kubernetes cluster (gpu_fleet/on_cluster/verdict.py): queries of what the rules have recorded.

    `fresh`: what must be at most so many seconds old, or the node is unknown; the query gives the age by `instance`. `signals`:
    one reason for each series of the answer, `not_while` any of these are old; `actions`: code -> class of its line -> action.
    """
    here = f"datacenter={json.dumps(datacenter)},cluster={json.dumps(cluster)}"
    gravest = {code: {kind: text for kind, (_, text) in found.items()} for code, found in _kernel().items()}
    signals = [
        {
            **{"state": FAIL, "code": "", "text": "", "texts": {}, "actions": gravest, "not_while": []},
            # Critical; less is about a program, or can wait. It lasts while the exporter is away, perhaps because of it.
            "query": f"gpu:xid_verdict:score{{{here}}} > 49",
        },
        {
            **{"state": FAIL, "code": "gpus_missing", "text": "GPUs are missing", "texts": {}, "actions": {}},
            # An exporter that is restarted lists none for a moment.
            "query": f"instance:gpus_missing:count{{{here}}} and instance:gpus_missing:count{{{here}}} offset 5m",
            "not_while": ["exporter_old"],
        },
        *(
            {
                **{"state": state, "code": code, "text": text, "texts": _TEXTS.get(code, {}), "actions": {}},
                # The rules record a reading for five minutes after its last sample.
                "query": f"max by (instance, gpu, uuid) ({series}{{{here}}}) {'== 0' if zero else '> 0'}",
                "not_while": ["exporter_old", "rules_old"],
            }
            for series, state, code, text, zero in _SIGNALS
        ),
    ]
    fresh = [
        {"code": code, "text": text, "most_s": most_s, "query": f"time() - max by (instance) ({newest})"}
        for code, text, most_s, newest in (
            ("exporter_old", "the GPU exporter has not answered for a minute", OLD_S, _newest_up(here, "gpu-exporter")),
            ("agent_old", "Alloy, which reads the kernel log, has not reported for a minute", OLD_S, _newest_up(here, "alloy")),
            ("rules_old", "the store's ruler has recorded no GPU lately", RULES_OLD_S, f"timestamp(gpu:info{{{here}}})"),
            (
                "events_old",
                "the store's ruler has recorded no events lately",
                RULES_OLD_S,
                f"timestamp(host:known:bool{{{here}}})",
            ),
        )
    ]
    return json.dumps({"fresh": fresh, "signals": signals}, indent=1, sort_keys=True)


def _newest_up(here: str, job: str) -> str:
    """When this was last scraped with success. The time of a sample is that of a selector alone."""
    selector = f'up{{{here},job="{job}"}}'
    return f"timestamp({selector}) and {selector} == 1"


def _kernel() -> dict[str, dict[str, tuple[str, str]]]:
    """Code -> class of its line -> state, recommended action."""
    kernel: dict[str, dict[str, tuple[str, str]]] = {}
    for code, xid in CATALOGUE.items():
        kernel[str(code)] = {"": (_state(xid.severity, xid.action), xid.action.text)}
    for line in LINES:
        kernel.setdefault(str(line.code), {})[line.kind] = (_state(line.severity, line.action), line.action.text)
    for event in amd.EVENTS:
        kernel[event.name] = {"": (_state(event.severity, event.action), amd.ACTION_TEXTS.get(event.action, ""))}
    return kernel


def _state(severity: Severity, action: Action) -> str:
    if severity is Severity.CRITICAL:
        return FAIL
    return WARN if severity is Severity.WARNING and action not in _NOT_THE_GPU else PASS


def _without_pass(classes: dict[str, Any]) -> dict[str, Any]:
    """A class that passes stays where the code alone would not."""
    return classes if any(state != PASS for state, _ in classes.values()) else {}


def _metrics(series: str) -> Iterator[str]:
    for source in SERIES[series].sources:
        for name in source.metrics:
            yield name
            if source.exporter.startswith("AMD"):
                yield f"amd_{name}"  # the prefix of its documentation
