"""The gpu-fleet provider of a stack: logins and secrets, stored once, and how its hosts and cluster are reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulumi

from components.fleet.monitoring import server_secrets
from components.fleet.scrape import web_config
from components.fleet.wiring import pushed_to
from components.kubernetes.place import kubernetes_place
from components.stack import LoadedConfig
from gpu_fleet.host.parts.scrape import WEB_CONFIG
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from gpu_fleet.stackfile.sudo_passwords import sudo_passwords, warning_of_unknown


@dataclass(frozen=True, kw_only=True)
class ProviderArgs:
    """`ssh`: user, port, privateKeyFile, knownHostsFile, bastion, sudo as in the stack file; the defaults of every connection.
    `sudo_passwords`: by host, where they differ from `sudo_password`. `secrets`: file name to content of what hosts get, such
    as metrics-password. `artifact_directory`: files named by sha256. `kubernetes`: kubeconfig (a path) and context of the
    cluster; None: the stack has none. `lost_hosts`: hosts that are gone for good; when their Host leaves the program, it goes
    without being contacted. `rollout`: hasCanary, maxFailures, pauseSeconds; how the waves of hosts are evaluated."""

    ssh: Mapping[str, Any] = field(default_factory=dict)
    ssh_private_key: pulumi.Input[str] | None = None
    sudo_password: pulumi.Input[str] | None = None
    sudo_passwords: pulumi.Input[Mapping[str, str]] | None = None
    secrets: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    ruler_password: pulumi.Input[str] | None = None
    ruler_bearer_token: pulumi.Input[str] | None = None
    ruler_client_key: pulumi.Input[str] | None = None
    take_over_rulers: bool = False
    kubernetes: Mapping[str, str] | None = None
    kubeconfig: pulumi.Input[str] | None = None
    artifact_directory: str | None = None
    lost_hosts: Sequence[str] = ()
    rollout: Mapping[str, Any] | None = None


class Provider(pulumi.ProviderResource):
    """Logins and secrets of a stack, kept once and encrypted. No host changes when a login does."""

    def __init__(self, name: str, args: ProviderArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        # A provider's configuration is text; what is no text travels as JSON.
        props = {
            "ssh": pulumi.Output.json_dumps(dict(args.ssh)) if args.ssh else None,
            "sshPrivateKey": _secret(args.ssh_private_key),
            "sudoPassword": _secret(args.sudo_password),
            "sudoPasswords": None if args.sudo_passwords is None else _secret(pulumi.Output.json_dumps(args.sudo_passwords)),
            "secrets": _secret(pulumi.Output.json_dumps(dict(args.secrets)) if args.secrets else None),
            "rulerPassword": _secret(args.ruler_password),
            "rulerBearerToken": _secret(args.ruler_bearer_token),
            "rulerClientKey": _secret(args.ruler_client_key),
            "takeOverRulers": "true" if args.take_over_rulers else None,
            "kubernetes": None if args.kubernetes is None else pulumi.Output.json_dumps(dict(args.kubernetes)),
            "kubeconfig": _secret(args.kubeconfig),
            "artifactDirectory": args.artifact_directory,
            "lostHosts": pulumi.Output.json_dumps(list(args.lost_hosts)) if args.lost_hosts else None,
            "rollout": pulumi.Output.json_dumps(dict(args.rollout)) if args.rollout else None,
        }
        super().__init__("gpu-fleet", name, props, opts)


def _secret(value: pulumi.Input[str] | None) -> pulumi.Output[str] | None:
    return None if value is None else pulumi.Output.secret(value)


def provider_args(loaded: LoadedConfig) -> ProviderArgs:
    """Logins and secrets of the stack, stored once: a Host carries none of them."""
    config, secrets = loaded.config, loaded.secrets
    placed = {name: secrets[key] for name, key in PLACED_SECRETS.items() if key in secrets}
    placed |= server_secrets(loaded)
    if section := config.scrape:
        stack = f"{config.datacenter}/{config.cluster}"
        placed[WEB_CONFIG] = secrets["scrapePassword"].apply(partial(web_config, section, stack))
    return ProviderArgs(
        ssh=config.ssh_values,
        ssh_private_key=secrets.get("sshPrivateKey"),
        sudo_password=secrets.get("sudoPassword"),
        sudo_passwords=secrets["sudoPasswords"].apply(partial(_sudo_passwords, config)) if "sudoPasswords" in secrets else None,
        secrets=placed,
        ruler_password=secrets.get("rulersPassword"),
        ruler_bearer_token=secrets.get("rulersBearerToken"),
        ruler_client_key=secrets.get("rulersClientKey"),
        take_over_rulers=config.rulers is not None and config.rulers.take_over,
        kubernetes=kubernetes_place(config),
        kubeconfig=secrets.get("kubeconfig"),
        artifact_directory=_artifact_directory(config),
        rollout=_rollout(config),
        lost_hosts=sorted(name for name, host in config.hosts.items() if host.lost),
    )


# Files below /etc/gpu-fleet/secrets on every host, by the key of the stack file that holds them.
PLACED_SECRETS = {
    f"{store}-{name}": store + key
    for store in ("metrics", "logs")
    for name, key in {"password": "Password", "bearer-token": "BearerToken", "client-key": "ClientKey"}.items()
}


def _sudo_passwords(config: StackConfig, text: str) -> Mapping[str, str]:
    """By host, patterns expanded: the provider knows names alone."""
    try:
        found = sudo_passwords(text)
    except ConfigErrors as errors:
        raise pulumi.RunError(str(errors)) from None
    if warning := warning_of_unknown(found.keys(), config.hosts.keys()):
        pulumi.log.warn(warning)
    return found


def _rollout(config: StackConfig) -> Mapping[str, Any] | None:
    section = config.rollout
    if section is None:
        return None
    names = pushed_to(config)
    has_canary = not set(names).isdisjoint(section.canaries(names))  # lost ones, and those that pull, go in no wave
    return {"hasCanary": has_canary, "maxFailures": section.max_failures, "pauseSeconds": section.pause_s}


def _artifact_directory(config: StackConfig) -> str | None:
    """As the stack file writes it, like the paths of `ssh`."""
    return config.artifacts.directory if config.artifacts.source == "controller" else None
