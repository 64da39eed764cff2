"""What a stack file describes, as components: the one place that puts them together, for the program of this repository and for
the package that other programs use (components/package)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi

from components.fleet.fleet import Fleet
from components.fleet.wiring import estimated_series, fleet_args, pull_output, runtime_notice, scrape_output
from components.preflight import check_artifacts, check_signals
from components.provider import Provider, provider_args
from components.stack import LoadedConfig


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the resources are: below `parent`, with names that begin with `prefix`, after `depends_on`."""

    parent: pulumi.Resource | None = None
    prefix: str = ""
    depends_on: Sequence[pulumi.Resource] = ()

    def name(self, name: str) -> str:
        return self.prefix + name

    def of_provider(self) -> pulumi.ResourceOptions:
        """Every resource depends on its provider, so this is enough to be deleted before what the arguments came from."""
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(self.depends_on))

    def below(self, provider: pulumi.ProviderResource | None, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self.parent, provider=provider, depends_on=list(after))


@dataclass(frozen=True)
class Deployed:
    """`outputs`: what the stack exports. `fleet`: None without hosts."""

    outputs: dict[str, Any] = field(default_factory=dict)
    fleet: Fleet | None = None


def deploy(loaded: LoadedConfig, place: Place) -> Deployed:
    """Creates the components of the sections, which are all optional. Raises RunError for what only a look at files shows.

    What a section alone needs is imported with it: Kubernetes, Grafana and the rules take half a second of each run.
    """
    config = loaded.config
    check_signals(config)
    check_artifacts(config)
    ours = place.below(Provider(place.name("gpu-fleet"), provider_args(loaded), place.of_provider()))
    outputs: dict[str, Any] = {}

    fleet = None
    backend = None
    if config.backend:
        from components.backend.backend import Backend
        from components.backend.wiring import backend_args

        backend = Backend(place.name("backend"), backend_args(loaded), place.below(None))
    if config.hosts:
        hosts = fleet_args(config, backend, prefix=place.prefix)
        fleet = Fleet(place.name("fleet"), hosts, ours)
        outputs["hosts"] = len(fleet.facts)
        outputs["inventory"] = fleet.inventory  # by which the next run sees that hosts were renamed or moved
        outputs["bundle"] = hosts.bundle.digest  # sha256; a publication for hosts that pull names the same
        outputs["series"] = estimated_series(config)
        if pulumi.runtime.is_dry_run() and (notice := runtime_notice(config)):
            pulumi.log.info(notice)
        if config.scrape:
            outputs["scrapeConfig"] = scrape_output(config, fleet.facts)
    if config.pull:
        outputs["pull"] = pull_output(config)
    if config.kubernetes:
        import pulumi_kubernetes as kubernetes

        from components.kubernetes.gpu_cluster import GpuCluster
        from components.kubernetes.wiring import gpu_cluster_args, kubernetes_provider_args

        cluster_provider = kubernetes.Provider(
            place.name("kubernetes"), **kubernetes_provider_args(loaded), opts=place.of_provider()
        )
        cluster = GpuCluster(place.name("gpu-cluster"), gpu_cluster_args(loaded, cluster_provider), ours)
        outputs["cluster"] = cluster.facts
    if config.rulers:
        from components.rulers.rulers import Rulers
        from components.rulers.wiring import rulers_args

        Rulers(place.name("rulers"), rulers_args(loaded, backend, fleet), ours)
    if config.grafana:
        import pulumiverse_grafana as grafana

        from components.grafana.alerting import Alerting
        from components.grafana.dashboards import Dashboards
        from components.grafana.wiring import alerting_args, dashboards_args, grafana_provider_args

        grafana_provider = grafana.Provider(
            place.name("grafana"), **grafana_provider_args(loaded, backend, fleet), opts=place.of_provider()
        )
        shown = Dashboards(place.name("grafana"), dashboards_args(loaded), place.below(grafana_provider))
        outputs["dashboards"] = shown.urls
        if config.alerts and "grafana" in config.alerts.targets:
            after = place.below(grafana_provider, shown)  # its data sources are used by the rules
            Alerting(place.name("alerting"), alerting_args(loaded, backend), after)
    if backend:
        outputs["backend"] = backend.urls
    return Deployed(outputs, fleet)
