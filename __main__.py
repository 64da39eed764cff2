"""The GPU fleet program: reads the stack file and creates the components of its sections, which are all optional."""
# ruff: noqa: E402

import atexit
import gc
import os
import signal

# When a run fails or is cancelled, the engine prints the reason and then sends SIGINT to this program (pulumi 3.259.0, plugin.go:
# to the process group of the language host). A KeyboardInterrupt would print a traceback below it, also during the imports, which
# take a second.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))
# At its end Python looks for cycles among half a million objects: a quarter of a second in every run.
atexit.register(gc.freeze)

import pulumi
import pulumiverse_grafana as grafana

from components.backend.backend import Backend
from components.backend.wiring import backend_args
from components.fleet.fleet import Fleet
from components.fleet.wiring import estimated_series, fleet_args, pull_output, scrape_output
from components.grafana.alerting import Alerting
from components.grafana.dashboards import Dashboards
from components.grafana.wiring import alerting_args, dashboards_args, grafana_provider_args
from components.preflight import check_artifacts, check_signals
from components.provider import Provider, provider_args
from components.rulers.rulers import Rulers
from components.rulers.wiring import rulers_args
from components.sdk_patches import patch_sdk
from components.stack import read_stack

patch_sdk()
loaded = read_stack()
config = loaded.config
check_signals(config)
check_artifacts(config)
ours = pulumi.ResourceOptions(provider=Provider("gpu-fleet", provider_args(loaded)))

fleet = None
backend = Backend("backend", backend_args(loaded)) if config.backend else None
if config.hosts:
    hosts = fleet_args(config, backend)
    fleet = Fleet("fleet", hosts, ours)
    pulumi.export("hosts", len(fleet.facts))
    pulumi.export("inventory", fleet.inventory)  # by which the next run sees that hosts were renamed or moved
    pulumi.export("bundle", hosts.bundle.digest)  # sha256; a publication for hosts that pull names the same
    pulumi.export("series", estimated_series(config))
    if config.scrape:
        pulumi.export("scrapeConfig", scrape_output(config, fleet.facts))
if config.pull:
    pulumi.export("pull", pull_output(config))
if config.kubernetes:
    # Here because they take 0.15 s to load, and a stack without a cluster does not need them.
    import pulumi_kubernetes as kubernetes

    from components.kubernetes.gpu_cluster import GpuCluster
    from components.kubernetes.wiring import gpu_cluster_args, kubernetes_provider_args

    cluster_provider = kubernetes.Provider("kubernetes", **kubernetes_provider_args(loaded))
    cluster = GpuCluster("gpu-cluster", gpu_cluster_args(loaded, cluster_provider), ours)
    pulumi.export("cluster", cluster.facts)
if config.rulers:
    Rulers("rulers", rulers_args(loaded, backend, fleet), ours)
if config.grafana:
    grafana_provider = grafana.Provider("grafana", **grafana_provider_args(loaded, backend, fleet))
    shown = Dashboards("grafana", dashboards_args(loaded), pulumi.ResourceOptions(provider=grafana_provider))
    pulumi.export("dashboards", shown.urls)
    if config.alerts and "grafana" in config.alerts.targets:
        after = pulumi.ResourceOptions(provider=grafana_provider, depends_on=[shown])  # its data sources are used by the rules
        Alerting("alerting", alerting_args(loaded, backend), after)
if backend:
    pulumi.export("backend", backend.urls)
