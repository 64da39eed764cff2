"""Every host of a stack brought to one bundle. Not done here: what the bundle holds (host/parts) and doing it (the provider)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from components.config import HostSpec
from components.host import resources
from components.host.bundle import Bundle
from components.naming import resource_name, type_token


@dataclass(frozen=True, kw_only=True)
class FleetArgs:
    """`settings`: of each host by name, the values of its environment file."""

    bundle: Bundle
    hosts: Sequence[HostSpec]
    settings: Mapping[str, Mapping[str, pulumi.Input[str]]]


class Fleet(pulumi.ComponentResource):
    """One Bundle and one Host per host.

    `facts`: host name to what `apply` reported there: GPUs, driver, the exporter chosen and why.
    """

    facts: dict[str, pulumi.Output[Mapping[str, str]]]

    def __init__(self, name: str, args: FleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("host", "Fleet"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        bundle = resources.Bundle(f"{name}-bundle", files=args.bundle.texts, tar=args.bundle.tar, opts=child)
        self.facts = {}
        for spec in args.hosts:
            host = resources.Host(
                resource_name(spec.name),
                host=spec.name,
                connection=connection(spec),
                bundle=bundle.digest,
                settings=args.settings[spec.name],
                opts=child,
            )
            self.facts[spec.name] = host.facts
        # Not the facts again: at 10,000 hosts they would double the state.
        self.register_outputs({})


def connection(spec: HostSpec) -> dict[str, object]:
    """Where the host is; what is absent comes from the provider's `ssh`."""
    if spec.connection == "local":
        return {"kind": "local", "prefix": spec.prefix}
    values = {
        "kind": "ssh",
        "address": spec.address,
        "port": spec.port,
        "user": spec.user,
        "privateKeyFile": spec.private_key_file,
        "hostKey": spec.host_key,
        "bastion": spec.bastion.model_dump(by_alias=True, exclude_none=True) if spec.bastion else None,
        "sudo": spec.sudo,
    }
    return {name: value for name, value in values.items() if value is not None}
