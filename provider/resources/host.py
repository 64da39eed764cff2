"""gpu-fleet:host:Host: one host brought to a bundle."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
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
_ANOTHER_HOST = ("host", "connection.kind", "connection.prefix")


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
        self._plans: dict[str, asyncio.Task[Outcome]] = {}  # by URN: Diff and Update of one preview ask a host once

    def check(self, inputs: Inputs) -> Checked:
        mistakes = mistakes_of_inputs(self.type_name, inputs)
        if not mistakes:
            mistakes = [*_mistakes_of_connection(inputs["connection"]), *_mistakes_of_settings(inputs["settings"])]
        if not mistakes and inputs.get("wave") is not None:
            self._rollout.place(inputs["host"], inputs["wave"])
        if is_known(inputs["host"]) and is_known(inputs["connection"]) and not mistakes:
            self._renames.expect(inputs["host"], inputs["connection"])
        # The wave stays out of the state: another canary is no change of any host.
        return Checked(changed={"secretsDigest": self._settings.secrets_digest()}, dropped=("wave",), mistakes=tuple(mistakes))

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
            found = await self._planned_changes(new, call)
        if not found:
            self._renames.settle(new["host"])
        return found

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return inputs["host"], await self._apply(inputs, {}, call)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return await self._apply(new, outputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError(
                "a host cannot be imported: declare it, and `pulumi up` brings it to its state whatever that is now"
            )
        if id_ in self._settings.lost_hosts:
            return Current(id_)
        try:
            async with _limited(call):
                outcome = await self._hosts.check(_place(inputs), call.tell)
        except HostError as error:
            # Kept as it was, and marked: the engine warns, and the next `up` goes there even when nothing changed.
            raise Unhealthy(id_, dict(outputs), f"{id_}: {error}") from None
        if outcome.is_absent:
            call.warn(f"{id_}: nothing of gpu-fleet is there any more; the next `up` brings it back")
            return Current("")
        return Current(id_, _outputs(outcome, outputs))

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        if id_ in self._settings.lost_hosts:
            return
        try:
            if id_ in self._replaced:
                self._rollout.judge(id_)
            elif new_name := self._renames.new_name(id_, inputs["connection"]):
                call.warn(f"{id_}: this machine is managed as {new_name} now; {_LEFT_ALONE.format(id_)}")
                return
            async with _limited(call):
                await self._hosts.remove(_place(inputs), call.tell)
        except HostError as error:
            # Nothing of this stack, or of this host, is there, so nothing is left to remove.
            if error.code in ("other-stack", "other-instance"):
                call.warn(f"{id_}: {error.message.partition(';')[0]}; {_LEFT_ALONE.format(id_)}")
                return
            hint = (
                "\nWhen the machine is gone for good, set `lost: true` for it and run `up`."
                if error.code == "unreachable"
                else ""
            )
            raise ResourceError(f"{id_}: {error}{hint}") from None

    async def _apply(self, inputs: Inputs, before: Inputs, call: Call) -> Outputs:
        if call.is_preview:
            if self._settings.plans_on_hosts:
                await self._tell_plan(inputs, call)
            return {"facts": UNKNOWN, "drift": []}
        try:
            async with self._rollout.turn(inputs["host"], call.tell):
                return await self._apply_now(inputs, before, call)
        except HostError as error:  # held back
            raise ResourceError(f"{inputs['host']}: {error}") from None

    async def _apply_now(self, inputs: Inputs, before: Inputs, call: Call) -> Outputs:
        try:
            async with _limited(call):
                outcome = await self._hosts.apply(_place(inputs), self._envelope(inputs), call.tell)
        except HostError as error:
            self._tell_rename(inputs, error.outcome, call)
            message = f"{inputs['host']}: {error}"
            # Never reached, or another stack's: nothing of ours is there, and nothing may be removed there later.
            if error.outcome is None or error.code == "other-stack":
                raise ResourceError(message) from None
            raise Unhealthy(inputs["host"], _outputs(error.outcome, before), message) from None
        self._tell_rename(inputs, outcome, call)
        self._renames.settle(inputs["host"])
        changed = sum(report.status in ("changed", "removed") for report in outcome.parts.values())
        call.tell(f"{changed} of {len(outcome.parts)} parts changed")
        return _outputs(outcome, before)

    def _tell_rename(self, inputs: Inputs, outcome: Outcome | None, call: Call) -> None:
        if outcome is not None and outcome.renamed_from:
            self._renames.take(outcome.renamed_from, inputs["host"])
            call.note(f"{inputs['host']}: this machine was {outcome.renamed_from} until now")

    async def _planned_changes(self, inputs: Inputs, call: Call) -> list[Change]:
        """A host that the state calls unchanged may still differ: PLAN=hosts asks it."""
        try:
            outcome = await self._plan(inputs, call)
        except (HostError, ResourceError) as error:
            call.warn(f"{inputs['host']}: {error}")
            return []
        if outcome.changes():
            return [Change("drift", "update", of_inputs=False)]
        for part, failure in outcome.failures().items():
            call.warn(f"{inputs['host']}: {part}: would fail: {failure['message']}")
        return []

    async def _tell_plan(self, inputs: Inputs, call: Call) -> None:
        name = inputs["host"] if inputs["host"] is not UNKNOWN else call.urn.rpartition("::")[2]
        if not is_known(inputs):
            call.note(f"{name}: not asked; some of its values exist only after the update")
            return
        try:
            outcome = await self._plan(inputs, call)
        except (HostError, ResourceError) as error:
            call.warn(f"{name}: {error}")
            return
        would_change = {part: report for part, report in outcome.parts.items() if report.changes}
        lines = [f"{name}: {len(would_change)} of {len(outcome.parts)} parts would change"]
        if outcome.renamed_from:
            lines.append(f"  this machine is {outcome.renamed_from} now and gets the name {name}; nothing is removed from it")
        for part, report in would_change.items():
            lines += [f"  {part}:", *(f"    {change}" for change in report.changes)]
        for part, failure in outcome.failures().items():
            lines += [f"  {part}: would fail: {failure['message']}"]
        call.note("\n".join(lines))

    async def _plan(self, inputs: Inputs, call: Call) -> Outcome:
        if call.urn not in self._plans:
            envelope = self._envelope(inputs)
            # Quiet: `preview --diff` would keep each line of progress, without its host, among the changes.
            self._plans[call.urn] = asyncio.create_task(self._hosts.plan(_place(inputs), envelope, lambda line: None))
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


def _place(inputs: Inputs) -> Place:
    settings = inputs["settings"]
    return Place(
        connection=inputs["connection"], stack=settings.get(_STACK_SETTING, ""), instance=settings.get(_INSTANCE_SETTING, "")
    )


def _outputs(outcome: Outcome, before: Inputs) -> Outputs:
    """Nothing of what this run did, so that a second run and a refresh give the same. Facts that say no stay out: of a thousand
    hosts they are a quarter of a megabyte in the state."""
    facts = {name: value for name, value in outcome.facts.items() if value not in _NO}
    return {"facts": facts or dict(before.get("facts") or {}), "drift": outcome.drift()}


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
