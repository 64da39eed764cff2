"""What Mimir's Alertmanager and Grafana have in common: how pages are grouped, and which alerts are hidden by others.

Not done here: receivers, routes and mute timings (gpu_fleet/stackfile/alerts.py), what a receiver gets (channels.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOST: Final = ("datacenter", "cluster", "instance")
# Pages are sent immediately and separately, whatever the grouping of other alerts: one per GPU, or per host for what is not about
# one GPU. A failure of a second GPU or host is a page of its own and not an update of the first one.
PAGE_GROUP: Final = (*HOST, "pci", "uuid")
# Long enough for the gravest code of a burst to be the one that pages: not less than from one evaluation in Loki to the next.
PAGE_WAIT: Final = "3s"
PAGE_INTERVAL: Final = "1m"


@dataclass(frozen=True, kw_only=True)
class Inhibition:
    """While an alert of `source` is firing, alerts of `target` with equal labels `equal` are not notified."""

    reason: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = HOST


# One incident, one page.
INHIBITIONS: Final = (
    Inhibition(
        reason="Mimir's verdict on the GPU replaces Loki's page, which was sent first.",
        source=(
            'alertname=~"GpuXid|GpuDriverAsksForAction|GpuAmdEvent|NvswitchSxid|HostNicDriverError"',
            'severity="critical"',
            'source=""',
        ),
        target=('source="log"',),
        equal=(*HOST, "pci"),
    ),
    Inhibition(
        # Mimir's rules have it in their expressions; this is for Loki's pages, and for the seconds before the switch is recorded.
        reason="A fatal error of an NVSwitch causes link errors of the host's GPUs, which are reset together with it.",
        source=('alertname="NvswitchSxid"', 'severity="critical"'),
        target=('alertname="GpuXid"', 'xid=~"74|136|14[4-9]|150|154|155"'),
    ),
    Inhibition(
        reason="A fatal error of an NVSwitch stops Fabric Manager and the links of the GPUs, until all are reset together.",
        source=('alertname="NvswitchSxid"', 'severity="critical"'),
        target=('alertname=~"FabricServiceDown|GpuFabricNotReady|GpuNvlinkDown|GpuNvlinkSlow|GpuNvlinkErrors"',),
    ),
    Inhibition(
        reason="Without Fabric Manager or IMEX, GPUs do not join the fabric and their links are not trained.",
        source=('alertname="FabricServiceDown"',),
        target=('alertname=~"GpuFabricNotReady|GpuFabricDomainDiffers|GpuNvlinkDown|GpuNvlinkSlow"',),
    ),
    Inhibition(
        reason="Errors of a port that is down belong to the same failure.",
        source=('alertname="HostInfinibandPortDown"',),
        target=('alertname=~"HostInfinibandPortFlapping|HostInfinibandPortFailing|HostInfinibandPortDegraded"',),
        equal=(*HOST, "device", "port"),
    ),
    Inhibition(
        reason="A counter that NVSentinel calls fatal includes the degradation of the port.",
        source=('alertname="HostInfinibandPortFailing"',),
        target=('alertname="HostInfinibandPortDegraded"',),
        equal=(*HOST, "device", "port"),
    ),
    Inhibition(
        reason="The critical alert of a file system includes the warning.",
        source=('alertname="HostDiskFilling"', 'severity="critical"'),
        target=('alertname="HostDiskFilling"', 'severity="warning"'),
        equal=(*HOST, "mountpoint"),
    ),
    Inhibition(
        reason="A GPU whose hardware reduces the clocks because of heat is hot, and so is its memory.",
        source=('alertname="GpuThermalSlowdown"',),
        target=('alertname=~"GpuTemperatureHigh|GpuMemoryHot|GpuSoftwareThermalSlowdown"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="The memory of a hot GPU is hot, and its driver reduces the clocks.",
        source=('alertname="GpuTemperatureHigh"',),
        target=('alertname=~"GpuMemoryHot|GpuSoftwareThermalSlowdown"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="What reduces the clocks of a GPU is why its job is slow.",
        source=('alertname=~"GpuThermalSlowdown|GpuSoftwareThermalSlowdown|GpuTemperatureHigh|GpuPowerBrake"',),
        target=('alertname="JobSlowedByGpu"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="AMD's driver logged the heat. Its exporter has no addresses, so that of all GPUs of the host belongs to it.",
        source=('alertname="GpuAmdEvent"', 'event=~"thermal_throttle|over_temperature"'),
        target=('alertname=~"GpuThermalSlowdown|GpuTemperatureHigh|GpuMemoryHot"',),
    ),
    Inhibition(
        reason="The errors of a GPU's memory are why its driver requires a drain and a reset.",
        source=('alertname=~"GpuEccUncorrected|GpuRowRemapFailed"',),
        target=('alertname=~"GpuRecoveryActionNeeded|GpuRowRemapPending"', 'severity="warning"'),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="A health watch of DCGM reads the counters and sensors that have an alert of their own.",
        source=(
            'alertname=~"GpuEccUncorrected|GpuRowRemapFailed|GpuRowRemapPending|GpuThermalSlowdown|GpuTemperatureHigh|GpuMemoryHot'
            '|GpuPowerBrake|GpuPcieReplaysOften|GpuNvlinkErrors|GpuNvlinkDown"',
        ),
        target=('alertname="GpuDcgmHealthFailing"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="An incident of the GPU that pages includes the error of its link.",
        source=('alertname=~"GpuXid|GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="GpuPcieUncorrectableError"',),
        equal=(*HOST, "pci"),
    ),
    Inhibition(
        reason="Links that are down, and what pages about a GPU or a switch, include what the driver logged about links.",
        source=('alertname=~"GpuNvlinkDown|GpuXid|NvswitchSxid"', 'severity="critical"'),
        target=('alertname="HostNvlinkDriverError"',),
    ),
    Inhibition(
        reason="A model server that loses its GPU stalls.",
        source=('alertname=~"GpuXid|GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="ModelServerStalled"',),
    ),
    Inhibition(
        reason="A missing GPU of a host with an incident that pages belongs to it.",
        source=('alertname="GpuXid"', 'severity="critical"'),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="The same on AMD.",
        source=('alertname="GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="A reboot, a GPU reset or a driver upgrade of a host in maintenance is expected, and what it causes.",
        source=('alertname="HostInMaintenance"',),
        target=(
            'alertname=~"HostSilent|HostNeverSeen|HostExporterDown|HostCollectorFailing|HostServiceFailed|HostDrifted|HostNotChecked|HostPullFailing'
            "|HostInfinibandPortDown|HostInfinibandNotMeasured|HostInfinibandPortFlapping|HostInfinibandPortFailing|HostInfinibandPortDegraded|HostNicDriverError"
            "|GpuExporterDown|GpuExporterFailing|GpuDataStale|GpuMetricsMissing|GpuCountBelowInventory|GpuMissing"
            "|GpuNotAllocatable|GpuRecoveryActionNeeded|GpuRowRemapPending|GpuPagesRetiredPending|GpuFabricNotReady|GpuFabricDomainDiffers"
            "|GpuNvlinkDown|GpuNvlinkSlow|HostNvlinkDriverError|GpuPcieUncorrectableError|FabricServiceDown"
            '|AgentComponentUnhealthy|AgentConfigBroken|MetricsDelayed|MetricsLost|LogsLost|TextfileBroken"',
        ),
    ),
    Inhibition(
        reason="A comparison with the inventory is more reliable than one with the host's own past.",
        source=('alertname="GpuCountBelowInventory"',),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="A GPU that is missing cannot be allocated.",
        source=('alertname=~"GpuMissing|GpuCountBelowInventory"',),
        target=('alertname="GpuNotAllocatable"',),
    ),
    Inhibition(
        reason="The state of the GPUs, exporters and disks of a silent host is unknown.",
        source=('alertname=~"HostSilent|HostNeverSeen"',),
        target=('scope=~"gpu|exporter|host|pipeline"', 'alertname!~"HostSilent|HostNeverSeen|HostClockSkew|GpuXid|GpuAmdEvent"'),
    ),
    Inhibition(
        reason="An exporter that is down reports no GPUs.",
        source=('alertname=~"GpuExporterDown|GpuExporterFailing"',),
        target=('alertname=~"GpuMissing|GpuCountBelowInventory"',),
    ),
    Inhibition(
        reason="When most hosts of a cluster go silent at the same time, the cause is the network or the backend.",
        source=('alertname="ClusterSilent"',),
        target=('alertname="HostSilent"',),
        equal=("datacenter", "cluster"),
    ),
    Inhibition(
        reason="While Slurm's controller is down no host knows its jobs.",
        source=('alertname="SlurmNotAnswering"',),
        target=('alertname="JobsNotRead"',),
        equal=("datacenter", "cluster"),
    ),
)
