"""gpu-fleet:host:Host: one host brought to a bundle."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from provider.envelope import Envelope
from provider.host import HostError, Hosts, Outcome, Place
from provider.renames import Renames
from provider.resources.bundle import Archives
from provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, Unhealthy, changes
from provider.rollout import Rollout
from provider.schema import Mistake, mistakes_of_inputs
from provider.settings import Settings
from provider.values import UNKNOWN, is_known

_STACK_SETTING, _INSTANCE_SETTING = "GPU_FLEET_STACK", "GPU_FLEET_INSTANCE"
# How we get there says nothing about the host: a new port, login or bastion contacts nobody.
_WAYS_IN = (
    "connection.port",
    "connection.user",
    "connection.privateKeyFile",
    "connection.hostKey",
    "connection.bastion",
    "connection.sudo",
)
_NO = ("", "no", "none")
_LEFT_ALONE = "nothing was removed from it, and {} leaves this stack"
_ANOTHER_HOST = ("connection.kind", "connection.prefix")
# Output of a host that failed when its stack was given another datacenter or cluster: its own record may still have the old one.
_FORMER_STACKS = "formerStacks"


class Host:
    type_name = "gpu-fleet:host:Host"
    replaces_by_deleting_first = True  # two of them on one machine would want the same ports

    def __init__(self, hosts: Hosts, archives: Archives, settings: Settings):
        self._hosts = hosts
        self._archives = archives
        self._settings = settings
        self._rollout = Rollout(settings.rollout)
        self._replaced: set[str] = set()  # hosts whose old one is deleted in this run only to be made anew
        self._renames = Renames()
        self._left: dict[str, str] = {}  # by host: the address that it had before, and that no host has now
        self._plans: dict[str, asyncio.Task[Outcome]] = {}  # by URN: Diff and Update of one preview ask a host once

    def check(self, inputs: Inputs) -> Checked:
        mistakes = mistakes_of_inputs(self.type_name, inputs)
        if not mistakes:
            mistakes = [*_mistakes_of_connection(inputs["connection"]), *_mistakes_of_settings(inputs["settings"])]
        if not mistakes and inputs.get("wave") is not None:
            self._rollout.place(inputs["host"], inputs["wave"])
        if is_known(inputs["host"]) and is_known(inputs["connection"]) and not mistakes:
            self._renames.expect(inputs["host"], inputs["connection"])
        if not mistakes and inputs.get("leaves"):
            self._left[inputs["host"]] = inputs["leaves"]
        # What is about this run stays out of the state: another canary is no change of any host.
        transient = ("wave", "leaves")
        return Checked(changed={"secretsDigest": self._settings.secrets_digest()}, dropped=transient, mistakes=tuple(mistakes))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        found = [
            Change(change.path, change.kind, replaces=change.path in _ANOTHER_HOST)
            for change in changes(old, new)
            if not change.path.startswith(_WAYS_IN)
        ]
        found += [Change(f"drift[{index}]", "delete", of_inputs=False) for index in range(len(outputs.get("drift") or ()))]
        if any(change.replaces for change in found):
            self._replaced.add(old["host"])
        if not found and self._settings.plans_on_hosts:
            found = await self._planned_changes(_place(new, _owners(new, old, outputs)), new, call)
        if not found:
            self._renames.settle(new["host"])
        return found

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return inputs["host"], await self._apply(inputs, {}, {}, call)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        if call.is_preview:
            for line in self._moves(old, new):
                call.note(line)
        return await self._apply(new, old, outputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError(
                "a host cannot be imported: declare it, and `pulumi up` brings it to its state whatever that is now"
            )
        name = inputs["host"]  # not the id, which is the name that the host was created with
        if name in self._settings.lost_hosts:
            return Current(id_)
        try:
            async with _limited(call):
                outcome = await self._hosts.check(_place(inputs, _owners(inputs, {}, outputs)), call.tell)
        except HostError as error:
            # Kept as it was, and marked: the engine warns, and the next `up` goes there even when nothing changed.
            raise Unhealthy(id_, dict(outputs), f"{name}: {error}") from None
        if outcome.is_absent:
            call.warn(f"{name}: nothing of gpu-fleet is there any more; the next `up` brings it back")
            return Current("")
        return Current(id_, _outputs(inputs, outcome, outputs))

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        name = inputs["host"]
        if name in self._settings.lost_hosts:
            return
        try:
            if name in self._replaced:
                self._rollout.judge(name)
            elif new_name := self._renames.new_name(name, inputs["connection"]):
                call.warn(f"{name} → {new_name} (same machine); {_LEFT_ALONE.format(name)}")
                return
            async with _limited(call):
                await self._hosts.remove(_place(inputs, _owners(inputs, {}, outputs)), call.tell)
        except HostError as error:
            # Nothing of this stack, or of this host, is there, so nothing is left to remove.
            if error.code in ("other-stack", "other-instance"):
                call.warn(f"{name}: {error.message.partition(';')[0]}; {_LEFT_ALONE.format(name)}")
                return
            hint = (
                "\nWhen the machine is gone for good, set `lost: true` for it and run `up`."
                if error.code == "unreachable"
                else ""
            )
            raise ResourceError(f"{name}: {error}{hint}") from None

    async def _apply(self, inputs: Inputs, old: Inputs, before: Inputs, call: Call) -> Outputs:
        if call.is_preview:
            if self._settings.plans_on_hosts:
                await self._tell_plan(inputs, _owners(inputs, old, before), call)
            return {"facts": UNKNOWN, "drift": [], **_address(inputs)}
        try:
            async with self._rollout.turn(inputs["host"], call.tell):
                return await self._apply_now(inputs, old, before, call)
        except HostError as error:  # held back
            raise ResourceError(f"{inputs['host']}: {error}") from None

    async def _apply_now(self, inputs: Inputs, old: Inputs, before: Inputs, call: Call) -> Outputs:
        owners = _owners(inputs, old, before)
        try:
            async with _limited(call):
                outcome = await self._hosts.apply(_place(inputs, owners), self._envelope(inputs), call.tell)
        except HostError as error:
            self._tell_rename(inputs, error.outcome, call)
            message = f"{inputs['host']}: {error}"
            # Never reached, or another stack's: nothing of ours is there, and nothing may be removed there later.
            if error.outcome is None or error.code == "other-stack":
                raise ResourceError(message) from None
            outputs = _outputs(inputs, error.outcome, before)
            if len(owners) > 1:
                outputs[_FORMER_STACKS] = list(owners)  # this one too: the engine keeps the old inputs of an update that failed
            raise Unhealthy(inputs["host"], outputs, message) from None
        self._tell_rename(inputs, outcome, call)
        self._renames.settle(inputs["host"])
        if old and (outcome.is_first or outcome.renamed_from):
            self._tell_left_behind(old, inputs, call)
        changed = sum(report.status in ("changed", "removed") for report in outcome.parts.values())
        call.tell(f"{changed} of {len(outcome.parts)} parts changed")
        return _outputs(inputs, outcome, before)

    def _moves(self, old: Inputs, new: Inputs) -> list[str]:
        """What a preview says of a host with another name or another address."""
        lines = []
        if is_known(new["host"]) and old["host"] != new["host"]:
            lines.append(f"{old['host']} → {new['host']} (same machine)")
        before, after = old["connection"].get("address"), new["connection"].get("address")
        if is_known(after) and before != after:
            left = f"; the machine at {before} is left as it is, unless it is the same one" if new["host"] in self._left else ""
            lines.append(f"{new['host']}: address {before} → {after}{left}")
        return lines

    def _tell_left_behind(self, old: Inputs, new: Inputs, call: Call) -> None:
        """The machine at the new address is another one. That at the old address is not cleaned from here: who answers there now
        may be another's machine, or the same one through its other network card."""
        if not (before := self._left.get(new["host"])):
            return
        name, stack = old["host"], old["settings"].get(_STACK_SETTING, "")
        call.warn(
            f"{new['host']}: the machine at its new address is another one than before. The one at {before} was left as it is; "
            f"if it still runs, it reports as {name} too. To clean it, run there: sudo sh /var/lib/gpu-fleet/current/converge "
            f"remove --prefix / --stack '{stack}' --instance '{name}'"
        )

    def _tell_rename(self, inputs: Inputs, outcome: Outcome | None, call: Call) -> None:
        if outcome is not None and outcome.renamed_from:
            self._renames.take(outcome.renamed_from, inputs["host"])
            call.note(f"{outcome.renamed_from} → {inputs['host']} (same machine)")

    async def _planned_changes(self, place: Place, inputs: Inputs, call: Call) -> list[Change]:
        """A host that the state calls unchanged may still differ: PLAN=hosts asks it."""
        try:
            outcome = await self._plan(place, inputs, call)
        except (HostError, ResourceError) as error:
            call.warn(f"{inputs['host']}: {error}")
            return []
        if outcome.changes():
            return [Change("drift", "update", of_inputs=False)]
        for part, failure in outcome.failures().items():
            call.warn(f"{inputs['host']}: {part}: would fail: {failure['message']}")
        return []

    async def _tell_plan(self, inputs: Inputs, owners: Sequence[str], call: Call) -> None:
        name = inputs["host"] if inputs["host"] is not UNKNOWN else call.urn.rpartition("::")[2]
        if not is_known(inputs):
            call.note(f"{name}: not asked; some of its values exist only after the update")
            return
        try:
            outcome = await self._plan(_place(inputs, owners), inputs, call)
        except (HostError, ResourceError) as error:
            call.warn(f"{name}: {error}")
            return
        would_change = {part: report for part, report in outcome.parts.items() if report.changes}
        lines = [f"{name}: {len(would_change)} of {len(outcome.parts)} parts would change"]
        if outcome.renamed_from:
            lines.append(f"  {outcome.renamed_from} → {name} (same machine); nothing is removed from it")
        for part, report in would_change.items():
            lines += [f"  {part}:", *(f"    {change}" for change in report.changes)]
        for part, failure in outcome.failures().items():
            lines += [f"  {part}: would fail: {failure['message']}"]
        call.note("\n".join(lines))

    async def _plan(self, place: Place, inputs: Inputs, call: Call) -> Outcome:
        if call.urn not in self._plans:
            envelope = self._envelope(inputs)
            # Quiet: `preview --diff` would keep each line of progress, without its host, among the changes.
            self._plans[call.urn] = asyncio.create_task(self._hosts.plan(place, envelope, lambda line: None))
        return await self._plans[call.urn]

    def _envelope(self, inputs: Inputs) -> Envelope:
        bundle = self._archives.get(inputs["bundle"])
        return Envelope(bundle=bundle, settings=inputs["settings"], secrets=self._settings.secrets)


@contextlib.asynccontextmanager
async def _limited(call: Call) -> AsyncIterator[None]:
    """The time a stack's `customTimeouts` gives the operation; without one the transports' own limits hold."""
    try:
        async with asyncio.timeout(call.timeout_s) as limit:
            yield
    except TimeoutError:
        raise HostError("stopped", f"not finished within the {call.timeout_s:.0f} s of customTimeouts") from None
    except HostError as error:
        if limit.expired():
            error.message = f"not finished within the {call.timeout_s:.0f} s of customTimeouts; the next run finishes it"
        raise


def _owners(inputs: Inputs, old: Inputs, outputs: Inputs) -> tuple[str, ...]:
    """What the host's record may name as its stack: this one first, then what the same Pulumi stack was called when the host was
    last brought to its state. So the datacenter and the cluster of a stack can change."""
    named = [values["settings"].get(_STACK_SETTING) for values in (inputs, old) if is_known(values.get("settings", UNKNOWN))]
    return tuple(dict.fromkeys(name for name in (*named, *outputs.get(_FORMER_STACKS, ())) if name))


def _place(inputs: Inputs, owners: Sequence[str]) -> Place:
    return Place(connection=inputs["connection"], stack=" ".join(owners), instance=inputs["settings"].get(_INSTANCE_SETTING, ""))


def _outputs(inputs: Inputs, outcome: Outcome, before: Inputs) -> Outputs:
    """Nothing of what this run did, so that a second run and a refresh give the same. Facts that say no stay out: of a thousand
    hosts they are a quarter of a megabyte in the state."""
    facts = {name: value for name, value in outcome.facts.items() if value not in _NO}
    return {"facts": facts or dict(before.get("facts") or {}), "drift": outcome.drift(), **_address(inputs)}


def _address(inputs: Inputs) -> Outputs:
    """An output too, since a program can read those alone from the state: so it finds the machine of a host with a new name."""
    connection = inputs["connection"]
    return {"address": connection.get("address") or connection.get("prefix") or ""} if is_known(connection) else {}


def _mistakes_of_connection(connection: Any) -> list[Mistake]:
    if not is_known(connection):
        return []
    if connection["kind"] == "ssh" and not connection.get("address"):
        return [Mistake("connection.address", "is missing; an ssh host needs one")]
    prefix = connection.get("prefix") or ""
    return [Mistake("connection.prefix", f'"{prefix}" is not an absolute path')] if prefix and not prefix.startswith("/") else []


def _mistakes_of_settings(settings: Any) -> list[Mistake]:
    """What the envelope's lines cannot carry. The values are not shown: an environment may hold anything."""
    if settings is UNKNOWN:
        return []
    mistakes = []
    for name, value in settings.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            mistakes.append(Mistake(f'settings["{name}"]', "is not a name that an environment file can carry"))
        elif isinstance(value, str) and not value.isprintable():
            mistakes.append(Mistake(f"settings.{name}", "must be one line of printable characters"))
    return mistakes
