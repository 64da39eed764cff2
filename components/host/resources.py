"""The resource types of the gpu-fleet provider for hosts, as Pulumi classes. What they do is in provider/."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi


@dataclass(frozen=True, kw_only=True)
class ProviderArgs:
    """`ssh`: user, port, privateKeyFile, knownHostsFile, bastion, sudo as in the stack file; the defaults of every connection.
    `secrets`: file name to content of what hosts get, such as metrics-password. `artifact_directory`: files named by sha256.
    `kubernetes`: kubeconfig (a path) and context of the cluster; None: the stack has none.
    `lost_hosts`: hosts that are gone for good; when their Host leaves the program, it goes without being contacted.
    `rollout`: hasCanary, maxFailures, pauseSeconds; how the waves of hosts are judged.
    """

    ssh: Mapping[str, Any] = field(default_factory=dict)
    ssh_private_key: pulumi.Input[str] | None = None
    sudo_password: pulumi.Input[str] | None = None
    secrets: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    ruler_password: pulumi.Input[str] | None = None
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
            "secrets": _secret(pulumi.Output.json_dumps(dict(args.secrets)) if args.secrets else None),
            "rulerPassword": _secret(args.ruler_password),
            "kubernetes": None if args.kubernetes is None else pulumi.Output.json_dumps(dict(args.kubernetes)),
            "kubeconfig": _secret(args.kubeconfig),
            "artifactDirectory": args.artifact_directory,
            "lostHosts": pulumi.Output.json_dumps(list(args.lost_hosts)) if args.lost_hosts else None,
            "rollout": pulumi.Output.json_dumps(dict(args.rollout)) if args.rollout else None,
        }
        super().__init__("gpu-fleet", name, props, opts)


class Bundle(pulumi.CustomResource):
    """What the hosts of a stack get. `files`: what `tar` holds, as text for the preview, by path.

    Hosts name a bundle by its `digest`, and must have the same provider.
    """

    digest: pulumi.Output[str]

    def __init__(self, name: str, *, files: Mapping[str, str], tar: bytes, opts: pulumi.ResourceOptions | None = None) -> None:
        archive = base64.b64encode(gzip.compress(tar, mtime=0)).decode()
        super().__init__("gpu-fleet:host:Bundle", name, {"files": dict(files), "archive": archive, "digest": None}, opts)


class Host(pulumi.CustomResource):
    """One host brought to a bundle, and kept so: `refresh` shows drift, the next `up` repairs it.

    `host`: its name in the inventory. `connection`: kind (`ssh` or `local`), prefix, address, and what differs from the
    provider's `ssh`. `settings`: NAME=value of its environment file. `wave`: of a staged rollout, counted from 0; a wave must not
    be registered before the one before it is finished. `facts`: what was found there; one that is absent is no. `drift`: how it
    differs from its bundle.
    """

    facts: pulumi.Output[Mapping[str, str]]
    drift: pulumi.Output[Sequence[str]]

    def __init__(
        self,
        name: str,
        *,
        host: str,
        connection: Mapping[str, Any],
        bundle: pulumi.Input[str],
        settings: Mapping[str, pulumi.Input[str]],
        wave: int | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "host": host,
            "connection": dict(connection),
            "bundle": bundle,
            "settings": dict(settings),
            "wave": wave,
            "facts": None,
            "drift": None,
        }
        super().__init__("gpu-fleet:host:Host", name, props, opts)


def _secret(value: pulumi.Input[str] | None) -> pulumi.Output[str] | None:
    return None if value is None else pulumi.Output.secret(value)
