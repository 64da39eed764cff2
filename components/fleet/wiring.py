"""From the stack's configuration to the arguments of Fleet and what a stack exports about its hosts. Makes no resource.

An error found here (a directory of artifacts without the program, say) ends the program with its text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pulumi

from components.backend.once_up import once_up
from components.fleet import series
from components.fleet.bundle import bundle
from components.fleet.fleet import FleetArgs
from components.fleet.scrape import scrape_config
from gpu_fleet.host.artifacts import ArtifactsError
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.parts.monitoring import DATA, SERVER_SECRETS
from gpu_fleet.host.pull.publish import INSTALLER
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.counters import counters
from gpu_fleet.stackfile.jobs import asking
from gpu_fleet.stackfile.monitoring import has_gpus, is_server
from gpu_fleet.stackfile.settings import host_settings

if TYPE_CHECKING:
    from components.backend.backend import Backend


def fleet_args(config: StackConfig, backend: Backend | None, prefix: str = "") -> FleetArgs:
    """The hosts that exist, and the one bundle for all of them. `prefix`: of the resources' names.

    With an embedded backend they are created after it and deleted before it, so that an agent which stops can still flush.
    """
    built, names, server = _bundle(config), pushed_to(config), config.monitoring_host
    waves = config.rollout.waves(names) if config.rollout else [names]
    # The state of a thousand hosts need not repeat what the bundle has.
    defaults = built.settings.items()
    settings: dict[str, dict[str, pulumi.Input[str]]] = {
        name: dict(host_settings(config.hosts[name], config).items() - defaults)
        for name in (*names, *([server.name] if server else ()))
    }
    if backend and config.metrics:
        for values in settings.values():
            values["GPU_FLEET_METRICS_URL"] = once_up(backend, config.metrics.url)
    return FleetArgs(
        bundle=built,
        waves=[[config.hosts[name] for name in wave] for wave in waves],
        settings=settings,
        ssh=config.ssh_values,
        server=server,
        server_secrets=SERVER_SECRETS if server else (),
        server_data=[DATA] if server else (),
        prefix=prefix,
    )


def pushed_to(config: StackConfig) -> list[str]:
    """The hosts that go in waves; the monitoring server goes before all of them, also where it is a GPU host."""
    hosts = config.hosts.values()
    return [host.name for host in hosts if host.connection != "pull" and not host.lost and not is_server(host)]


def estimated_series(config: StackConfig) -> dict[str, int]:
    """How many series the stack's hosts cost in Mimir, as an output; a preview prints it in words."""
    estimate = series.summary(
        [host for host in config.hosts.values() if has_gpus(host)],
        counters(config.dcgm.counters, config.base),
        config.dcgm.counters,
        readiness=config.readiness is not None,
        jobs=config.jobs is not None,
        queue_hosts=len(asking(config.jobs)) if config.jobs else 0,
        interval_s=config.scrape_interval_s,
    )
    if estimate is None:
        return {"sent": 0, "recorded": 0}
    text, total = estimate
    if pulumi.runtime.is_dry_run():
        pulumi.log.info(text)
    return {"sent": total.sent, "recorded": total.recorded}


def runtime_notice(config: StackConfig) -> str:
    """Which hosts may get a container runtime, for a preview; empty where none does. Each host decides, and may have one."""
    dcgm = config.dcgm
    if not dcgm.install or dcgm.source != "image":
        return ""
    names = [
        host.name
        for host in config.hosts.values()
        if host.exporter in ("auto", "dcgm-exporter") and host.vendor != "amd" and not host.prefix and has_gpus(host)
    ]
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        "gpu-fleet:dcgm.install: Docker or Podman and the NVIDIA Container Toolkit are installed where they are missing, "
        f"never beside another container runtime, Kubernetes or virtual machines. Hosts that may get them: {shown}"
    )


def scrape_output(config: StackConfig, facts: Mapping[str, pulumi.Output[Mapping[str, str]]]) -> pulumi.Output[str]:
    """What a Prometheus needs to scrape the hosts, as text; known once the hosts have reported which exporter they run. One that
    failed has no facts, and must not hide the targets of the others."""
    if not pulumi.runtime.is_dry_run():
        facts = {
            name: found.apply(lambda known: known if isinstance(known, Mapping) else {}, True) for name, found in facts.items()
        }
    return pulumi.Output.all(**facts).apply(lambda known: scrape_config(config, known))


def pull_output(config: StackConfig) -> dict[str, str]:
    """For hosts that provision themselves. `bundle`: sha256 of what `make pull-bundle` publishes, named by `latest` then.
    `install`: the command that each host runs once, with the password in a file there."""
    assert config.pull is not None
    url = config.pull.url.rstrip("/")
    login = " --password-file /root/metrics-password" if config.metrics and config.metrics.username else ""
    if any(store and (store.bearer_token or store.tls.certificate) for store in (config.metrics, config.logs)):
        login += " --secrets-directory /root/gpu-fleet-secrets"
    return {
        "bundle": _bundle(config).digest,
        "url": url,
        "install": f"curl -fsSLO {url}/{INSTALLER} && sudo sh {INSTALLER}{login}",
    }


def _bundle(config: StackConfig) -> Bundle:
    try:
        return bundle(config)
    except ArtifactsError as error:
        raise pulumi.RunError(str(error)) from None
