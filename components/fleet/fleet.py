"""Every host of a stack brought to one bundle, wave by wave. Not done here: what the bundle holds (gpu_fleet/host/parts),
applying it and stopping a rollout (the provider).

A wave waits for the one before it without depending on it: a dependency of every host on every earlier one would be in the state
of each, and a host that failed would take the later ones along however many may fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pulumi

from components.fleet import resources
from components.fleet.renames import Moves, inventory, moves
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.stackfile.config import HostSpec
from gpu_fleet.stackfile.naming import resource_name, type_token


@dataclass(frozen=True, kw_only=True)
class FleetArgs:
    """`waves`: the hosts, those that go first in front; one wave where all go at once. `settings`: of each host by name, what its
    environment file says and the bundle does not. `ssh`: the provider's, which no host need repeat. `server`: the monitoring
    server, before all waves. `server_secrets`: names of the secrets that only that one gets, `server_data`: what stays there when
    it is removed. `prefix`: of the resources' names, where a program has several fleets."""

    bundle: Bundle
    waves: Sequence[Sequence[HostSpec]]
    settings: Mapping[str, Mapping[str, pulumi.Input[str]]]
    server: HostSpec | None = None
    server_secrets: Sequence[str] = ()
    server_data: Sequence[str] = ()
    ssh: Mapping[str, object] = field(default_factory=dict)
    prefix: str = ""


class Fleet(pulumi.ComponentResource):
    """One Bundle and one Host per host.

    `facts`: host name to what `apply` reported there: GPUs, driver, the exporter chosen and why. `drift`: host name to how it
    differs from the bundle. `inventory`: see renames.py. `server`: the monitoring server; what uses it depends on it.
    """

    facts: dict[str, pulumi.Output[Mapping[str, str]]]
    drift: dict[str, pulumi.Output[Sequence[str]]]
    inventory: str
    server: resources.Host | None

    def __init__(self, name: str, args: FleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("host", "Fleet"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.facts, self.drift = {}, {}
        specs = [*([args.server] if args.server else ()), *(spec for wave in args.waves for spec in wave)]
        self.inventory = inventory(specs)
        # The state of another program says nothing about its fleets: a renamed host is created and deleted there.
        since = Moves({}, {}) if args.prefix else moves(specs)
        staying = [] if args.prefix else [spec.name for spec in specs if spec.name not in since.moved]
        bundle = resources.Bundle(f"{name}-bundle", files=args.bundle.texts, tar=args.bundle.tar, hosts=staying, opts=child)
        digest = bundle.digest
        self.server = None
        if spec := args.server:
            self.server = resources.Host(
                args.prefix + resource_name(spec.name),
                host=spec.name,
                connection=own_connection(spec, args.ssh),
                bundle=digest,
                settings=args.settings[spec.name],
                keeps=args.server_data,
                leaves=since.left.get(spec.name),
                opts=_renamed(child, since.old_names.get(spec.name)),
            )
            self.facts[spec.name], self.drift[spec.name] = self.server.facts, self.server.drift
            digest = digest.apply(partial(_once_finished, [self.server]))
        for number, wave in enumerate(args.waves):
            hosts = [
                resources.Host(
                    args.prefix + resource_name(spec.name),
                    host=spec.name,
                    connection=own_connection(spec, args.ssh),
                    bundle=digest,
                    settings=args.settings[spec.name],
                    wave=number if len(args.waves) > 1 else None,
                    withheld=args.server_secrets,
                    leaves=since.left.get(spec.name),
                    opts=_renamed(child, since.old_names.get(spec.name)),
                )
                for spec in wave
            ]
            for spec, host in zip(wave, hosts, strict=True):
                self.facts[spec.name], self.drift[spec.name] = host.facts, host.drift
            digest = digest.apply(partial(_once_finished, hosts))
        # Not the facts again: at 10,000 hosts they would double the state.
        self.register_outputs({})


def _renamed(opts: pulumi.ResourceOptions, old_name: str | None) -> pulumi.ResourceOptions:
    aliases = [pulumi.Alias(name=resource_name(old_name))] if old_name else None
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(aliases=aliases))


async def _once_finished(hosts: Sequence[resources.Host], digest: str) -> str:
    """The digest, once the engine is done with the hosts, failed ones among them: it answers a registration only then."""
    await asyncio.gather(*(host.urn.future() for host in hosts), return_exceptions=True)
    return digest


def own_connection(spec: HostSpec, ssh: Mapping[str, object]) -> dict[str, object]:
    """Where the host is and what differs from the provider's `ssh`: the login of today counts, not that of the day when the host
    was last changed."""
    return {name: value for name, value in connection(spec).items() if name not in ssh or ssh[name] != value}


def connection(spec: HostSpec) -> dict[str, object]:
    """Where the host is and how it is reached, complete."""
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
