"""What decides whether work may start on a host (gpu_fleet/on_host/ready.py), from the same tables as the alerts.

What pages about a GPU or a link fails (tests/alerts/test_readiness.py compares both); of warnings those warn that are about the
GPU and not about a program. Metrics are those of the vocabulary, of whichever exporter a host has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from alerts import amd, nvlink_rules, rule_groups, sxid
from alerts.vocabulary import SERIES
from alerts.xid import CATALOGUE, LINES, Action, Severity

PASS, WARN, FAIL = "pass", "warn", "fail"
LATE_S: Final = 45  # how much later than its interval a scrape may be
RULES_OLD_S: Final = 120  # Mimir evaluates rules a minute late by default (ruler_evaluation_delay_duration)


class _Signal(NamedTuple):
    """`values`: those that fail; none: all above 0. `unless`: events of the host that explain it: no more is to be done."""

    series: str
    state: str
    code: str
    text: str
    values: tuple[int, ...] = ()
    unless: tuple[str, ...] = ()


_SIGNALS: Final = (
    _Signal("gpu:recovery_action:code", FAIL, "recovery_action", "the driver reports a recovery action"),
    _Signal("gpu:row_remap_failed:bool", FAIL, "row_remap_failed", "the remapping of a memory row failed"),
    _Signal("gpu:row_remap_pending:bool", WARN, "row_remap_pending", "a memory row is remapped at the next reset"),
    _Signal("gpu:pages_retired_pending:bool", WARN, "pages_pending", "a memory page is retired at the next reset"),
    _Signal("gpu:sram_errors_exceeded:bool", FAIL, "sram_errors", "uncorrectable SRAM errors exceed the threshold"),
    _Signal("gpu:vendor_health:bool", FAIL, "vendor_health", "AMD's exporter reports it as unhealthy", (0,)),
)
# In a cluster the rules know better; what is left of their alerts is in _ALERTS.
_ON_HOSTS: Final = (
    *_SIGNALS,
    _Signal(
        *("gpu:ecc_uncorrected_volatile:total", FAIL, "ecc_uncorrected", "uncorrectable memory errors since the last reset"),
        unless=("94", amd.RESET_SUCCEEDED),
    ),
    _Signal("gpu:fabric_state:code", FAIL, "fabric_not_ready", "not registered with the NVLink fabric", (1, 2, 4)),
)
_NIC_FAILED: Final = "Drain the node and reboot it; power-cycle it if the adapter does not come back."
_PCIE_FAILED: Final = "Drain the node and reboot it. If the error returns, reseat the GPU, its riser or cable."
_NVLINK_FAILED: Final = "Drain the node and reboot it."


class _Alert(NamedTuple):
    """`by`: labels of a reason. `is_read`: from an exporter, so it is not known while that does not answer."""

    name: str
    state: str
    code: str
    text: str
    by: str = ""
    is_read: bool = False


_ALERTS: Final = (
    _Alert("GpuEccUncorrected", FAIL, "ecc_uncorrected", "uncorrectable memory errors since the last reset", "gpu, uuid", True),
    _Alert("GpuFabricNotReady", FAIL, "fabric_not_ready", "GPUs are not registered with the NVLink fabric", "", True),
    _Alert("GpuNvlinkDown", FAIL, "nvlinks_down", "NVLinks are down", "gpu, uuid", True),
    _Alert("GpuPcieUncorrectableError", WARN, "pcie_error", f"uncorrectable PCIe error: {_PCIE_FAILED}", "pci"),
    _Alert("HostNvlinkDriverError", WARN, "nvlink_error", f"NVLinks that the driver could not set up: {_NVLINK_FAILED}"),
    _Alert("NvswitchSxid", FAIL, "sxid", "fatal error of an NVSwitch"),
    _Alert("FabricServiceDown", FAIL, "fabric_service_down", "Fabric Manager or IMEX stopped"),
    _Alert("HostNicDriverError", FAIL, "nic_failed", "a network adapter failed"),
    _Alert("HostInfinibandPortDown", FAIL, "infiniband_down", "an InfiniBand port is down"),
    _Alert("HostInfinibandPortFlapping", FAIL, "infiniband_flapping", "an InfiniBand port went down repeatedly"),
    _Alert("HostInfinibandPortFailing", FAIL, "infiniband_failing", "an InfiniBand port has errors that end jobs"),
    _Alert("HostInfinibandPortDegraded", FAIL, "infiniband_degraded", "an InfiniBand port has too many errors"),
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
    `ends`: the event that ends others, and those that it does not; `nvlinks`: product -> how many its GPUs have."""
    kernel = {**_kernel(), **_kernel_of_links()}
    kept = {code: found for code, classes in kernel.items() if (found := _without_pass(classes))}
    return json.dumps(
        {
            "identity": list(_metrics("gpu:info")),
            "signals": [
                {
                    **{"state": one.state, "code": one.code, "text": one.text, "values": one.values, "unless": one.unless},
                    **{"texts": _TEXTS.get(one.code, {}), "metrics": list(_metrics(one.series))},
                }
                for one in _ON_HOSTS
            ],
            "nvlinks": {product.model: product.links for product in nvlink_rules.PRODUCTS},
            "kernel": kept,
            "ends": {"event": amd.RESET_SUCCEEDED, "not": [amd.RETIRED]},
        },
        indent=1,
        sort_keys=True,
    )


def cluster_table(datacenter: str, cluster: str, scrape_interval_s: int) -> str:
    """As JSON, for the nodes of a Kubernetes cluster (gpu_fleet/on_cluster/verdict.py): queries of what the rules have recorded.

    `fresh`: what must be at most so many seconds old, or the node is unknown; the query gives the age by `instance`. `signals`:
    one reason for each series of the answer, `not_while` any of these are old; `actions`: code -> class of its line -> action.
    """
    here = f"datacenter={json.dumps(datacenter)},cluster={json.dumps(cluster)}"
    old_s = scrape_interval_s + LATE_S
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
                **{"state": one.state, "code": one.code, "text": one.text, "texts": _TEXTS.get(one.code, {}), "actions": {}},
                "query": _reading(one, here),
                # The rules record a reading for five minutes after its last sample.
                "not_while": ["exporter_old", "rules_old"],
            }
            for one in _SIGNALS
        ),
        *(
            {
                **{"state": alert.state, "code": alert.code, "text": alert.text, "texts": {}, "actions": {}},
                "query": _of_rule(alert, json.dumps(datacenter), json.dumps(cluster)),
                "not_while": ["exporter_old", "rules_old"] if alert.is_read else [],
            }
            for alert in _ALERTS
        ),
    ]
    fresh = [
        {"code": code, "text": text, "most_s": most_s, "query": f"time() - max by (instance) ({newest})"}
        for code, text, most_s, newest in (
            ("exporter_old", "the GPU exporter has not answered for a minute", old_s, _newest_up(here, "gpu-exporter")),
            ("agent_old", "Alloy, which reads the kernel log, has not reported for a minute", old_s, _newest_up(here, "alloy")),
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


def _reading(signal: _Signal, here: str) -> str:
    most = f"max by (instance, gpu, uuid) ({signal.series}{{{here}}})"
    return " or ".join(f"{most} == {value}" for value in signal.values) or f"{most} > 0"


def _of_rule(alert: _Alert, datacenter: str, cluster: str) -> str:
    """Where the alert would fire; without its `for`: a node that fails is tainted later (gpu_fleet/on_cluster)."""
    [rule, *_] = [rule for group in rule_groups("mimir") for rule in group.rules if rule.get("alert") == alert.name]
    by = f"instance, {alert.by}" if alert.by else "instance"
    here = f'label_replace(label_replace(vector(1), "datacenter", {datacenter}, "", ""), "cluster", {cluster}, "", "")'
    return f"group by ({by}) (\n({rule['expr']}) and on (datacenter, cluster) {here}\n)"


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


def _kernel_of_links() -> dict[str, dict[str, tuple[str, str]]]:
    """Of NVSwitches, network adapters and PCIe. The severity in an NVSwitch's line wins over the table's."""
    reset = sxid.Action.RESET_GPU
    found: dict[str, dict[str, tuple[str, str]]] = {"sxid": {"Fatal": (FAIL, reset.text)}}
    for code, error in sxid.CATALOGUE.items():
        if error.severity is Severity.CRITICAL:
            action = error.action.text
            found[f"sxid_{code}"] = {"": (FAIL, action), "Fatal": (FAIL, action), "Non-fatal": (PASS, "")}
    for event in ("health_compromised", "unrecoverable_error", "command_timeout"):
        found[event] = {"": (FAIL, _NIC_FAILED)}
    return {**found, "pcie_error": {"": (WARN, _PCIE_FAILED)}, "nvlink_error": {"": (WARN, _NVLINK_FAILED)}}


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
