"""The resource types of the gpu-fleet provider for hosts, as Pulumi classes. What they do is in gpu_fleet/provider/."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi


class Bundle(pulumi.CustomResource):
    """What the hosts of a stack get. `files`: what `tar` holds, as text for the preview, by path.

    Hosts name a bundle by its `digest`, and must have the same provider. `hosts`: names of those that are at the same address as
    before, which no other machine may get or lose.
    """

    digest: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        files: Mapping[str, str],
        tar: bytes,
        hosts: Sequence[str] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        archive = base64.b64encode(gzip.compress(tar, mtime=0)).decode()
        props = {"files": dict(files), "archive": archive, "hosts": list(hosts) or None, "digest": None}
        super().__init__("gpu-fleet:host:Bundle", name, props, opts)


class Host(pulumi.CustomResource):
    """One host brought to a bundle, and kept so: `refresh` shows drift, the next `up` repairs it.

    `host`: its name in the inventory. `connection`: kind (`ssh` or `local`), prefix, address, and what differs from the
    provider's `ssh`. `settings`: NAME=value of its environment file. `wave`: of a staged rollout, counted from 0; a wave must not
    be registered before the one before it is finished. `withheld`: names of the provider's secrets that it does not get. `keeps`:
    directories with data that stay when it is removed, and are named then. `leaves`: the address it had, where no host has that
    now. `facts`: what was found there; one that is absent is no. `drift`: how it differs from its bundle.
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
        withheld: Sequence[str] = (),
        keeps: Sequence[str] = (),
        leaves: str | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        # Only what is set: the SDK makes an Output of each property, a quarter of the program's CPU time with 1,000 hosts.
        rest = {"wave": wave, "withheld": list(withheld) or None, "keeps": list(keeps) or None, "leaves": leaves}
        props: dict[str, Any] = {
            "host": host,
            "connection": dict(connection),
            "bundle": bundle,
            "settings": dict(settings),
            **{name: value for name, value in rest.items() if value is not None},
            "facts": None,
            "drift": None,
        }
        super().__init__("gpu-fleet:host:Host", name, props, opts)
