"""gpu-fleet:host:Host: one host brought to a bundle."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from gpu_fleet.provider.envelope import Envelope
from gpu_fleet.provider.host import CAUSES, HostError, Hosts, Place
from gpu_fleet.provider.outcome import Outcome
from gpu_fleet.provider.renames import Renames
from gpu_fleet.provider.resources.bundle import Archives
from gpu_fleet.provider.resources.resource import (
    Call,
    Change,
    Checked,
    Current,
    Inputs,
    Outputs,
    ResourceError,
    Unhealthy,
    changes,
)
from gpu_fleet.provider.rollout import Rollout
from gpu_fleet.provider.schema import InputError, errors_of_inputs
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.values import UNKNOWN, is_known

_STACK_SETTING, _INSTANCE_SETTING = "GPU_FLEET_STACK", "GPU_FLEET_INSTANCE"
# How a host is reached changes nothing on it: a new port, login or bastion contacts no host.
_LOGIN_INPUTS = (
    "connection.port",
    "connection.user",
    "connection.privateKeyFile",
    "connection.hostKey",
    "connection.bastion",
    "connection.sudo",
)
_NO = ("", "no", "none")
_NOTICE = "_NOTICE"  # of a fact that is shown to whoever deploys (gpu_fleet/host/converge/README.md)
_CLOCK_OFF_S = 120.0  # as HostClockSkew (alerts/rules/host.yaml), which needs samples that arrive
_UNITS = ((31_557_600, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"))
_LEFT_ALONE = "nothing was removed from it, and {} leaves this stack"
_ANOTHER_HOST = ("connection.kind", "connection.prefix")
# Output of a host that failed when its stack was given another datacenter or cluster: its own record may still have the old one.
_FORMER_STACKS = "formerStacks"


class Host:
    type_name = "gpu-fleet:host:Host"
    replaces_by_deleting_first = True  # two of them on one machine would need the same ports

    def __init__(self, hosts: Hosts, archives: Archives, settings: Settings, renames: Renames):
        self._hosts = hosts
        self._archives = archives
        self._settings = settings
        self._rollout = Rollout(settings.rollout)
        self._replaced: set[str] = set()  # hosts that are deleted in this run only to be created again
        self._renames = renames
        self._left: dict[str, str] = {}  # by host: the address that it had before, and that no host has now
        self._plans: dict[str, asyncio.Task[Outcome]] = {}  # by URN: Diff and Update of one preview plan a host once

    def check(self, inputs: Inputs) -> Checked:
        errors = errors_of_inputs(self.type_name, inputs)
        if not errors:
            errors = [*_errors_of_connection(inputs["connection"]), *_errors_of_settings(inputs["settings"])]
        if not errors and inputs.get("wave") is not None:
            self._rollout.assign(inputs["host"], inputs["wave"])
        if is_known(inputs["host"]) and is_known(inputs["connection"]) and not errors:
            self._renames.expect(inputs["host"], inputs["connection"])
        if not errors and inputs.get("leaves"):
            self._left[inputs["host"]] = inputs["leaves"]
        # What concerns only this run is not stored: another canary changes no host.
        transient = ("wave", "leaves")
        digest = UNKNOWN if inputs.get("withheld") is UNKNOWN else self._settings.secrets_digest(inputs.get("withheld") or ())
        return Checked(changed={"secretsDigest": digest}, dropped=transient, errors=tuple(errors))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        found = [
            Change(change.path, change.kind, replaces=change.path in _ANOTHER_HOST)
            for change in changes(old, new)
            if not change.path.startswith(_LOGIN_INPUTS)
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
                call.info(line)
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
                outcome = await self._hosts.check(_place(inputs, _owners(inputs, {}, outputs)), call.progress)
        except HostError as error:
            # Kept as it was, and marked: the engine warns, and the next `up` updates it even without a change.
            raise Unhealthy(id_, dict(outputs), f"{name}: {error}") from None
        if outcome.is_absent:
            call.warning(f"{name}: nothing of gpu-fleet is on this host any more; the next `up` places it again")
            return Current("")
        return Current(id_, _outputs(inputs, outcome, outputs))

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        name = inputs["host"]
        if name in self._settings.lost_hosts:
            return
        try:
            if name in self._replaced:  # a failure is one of its wave: the machine is neither what it was nor what it is to be
                async with self._rollout.turn(name, call.progress):
                    await self._remove(inputs, outputs, call)
                return
            if new_name := self._renames.new_name(name, inputs["connection"]):
                call.warning(f"{name} → {new_name} (same machine); {_LEFT_ALONE.format(name)}")
                return
            await self._remove(inputs, outputs, call)
        except HostError as error:
            hint = (
                "\nWhen the machine is gone for good, set `lost: true` for it and run `up`."
                if error.code == "unreachable"
                else ""
            )
            raise ResourceError(f"{name}: {error}{hint}") from None

    async def _remove(self, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        try:
            async with _limited(call):
                await self._hosts.remove(_place(inputs, _owners(inputs, {}, outputs)), call.progress)
            if kept := inputs.get("keeps"):
                paths = " ".join(kept)
                call.warning(f"{inputs['host']}: its data stays on the host; to delete it there: sudo rm -rf {paths}")
        except HostError as error:
            # Nothing of this stack, or of this host, is on the machine, so there is nothing to remove.
            if error.code not in ("other-stack", "other-instance"):
                raise
            call.warning(f"{inputs['host']}: {error.message.partition(';')[0]}; {_LEFT_ALONE.format(inputs['host'])}")

    async def _apply(self, inputs: Inputs, old: Inputs, before: Inputs, call: Call) -> Outputs:
        if call.is_preview:
            if self._settings.plans_on_hosts:
                await self._log_plan(inputs, _owners(inputs, old, before), call)
            return {"facts": UNKNOWN, "drift": [], **_address(inputs)}
        try:
            async with self._rollout.turn(inputs["host"], call.progress):
                return await self._apply_now(inputs, old, before, call)
        except HostError as error:  # held back
            raise ResourceError(f"{inputs['host']}: {error}") from None

    async def _apply_now(self, inputs: Inputs, old: Inputs, before: Inputs, call: Call) -> Outputs:
        owners = _owners(inputs, old, before)
        try:
            async with _limited(call):
                outcome = await self._brought_up(inputs, old, owners, call)
        except HostError as error:
            self._log_rename(inputs, error.outcome, call)
            _warn_of_clock(inputs, error.outcome, call)
            message = f"{inputs['host']}: {error}"
            # Never reached, or another stack's: nothing of ours is on it, and nothing may be removed from it later.
            if error.outcome is None or error.code == "other-stack":
                raise ResourceError(message) from None
            outputs = _outputs(inputs, error.outcome, before)
            if len(owners) > 1:
                outputs[_FORMER_STACKS] = list(owners)  # this one too: the engine keeps the old inputs of a failed update
            raise Unhealthy(inputs["host"], outputs, message) from None
        self._log_rename(inputs, outcome, call)
        _warn_of_clock(inputs, outcome, call)
        self._renames.settle(inputs["host"])
        if old and (outcome.is_first or outcome.renamed_from):
            self._warn_of_former_machine(old, inputs, call)
        for name, value in outcome.facts.items():
            if name.endswith(_NOTICE):
                call.warning(f"{inputs['host']}: {value}")
        changed = sum(report.status in ("changed", "removed") for report in outcome.parts.values())
        call.progress(f"{changed} of {len(outcome.parts)} parts changed")
        return _outputs(inputs, outcome, before)

    async def _brought_up(self, inputs: Inputs, old: Inputs, owners: Sequence[str], call: Call) -> Outcome:
        """A machine that has another name changes nothing at first: it may be one that the stack has under that name too."""
        place, envelope = _place(inputs, owners), self._envelope(inputs)
        names = [place.instance, *([old["host"]] if old else [])]
        try:
            return await self._hosts.apply(replace(place, instance=" ".join(filter(None, names))), envelope, call.progress)
        except HostError as error:
            found = error.outcome.renamed_from if error.outcome else ""
            if error.code != "other-instance" or not found:
                raise
            if self._renames.stays(found):
                raise ResourceError(
                    f"{inputs['host']}: {CAUSES['other-instance']}: this machine is {found}, which the stack file has at another "
                    f"address; nothing was changed on it. Take {inputs['host']} or {found} out of the stack file"
                ) from None
        return await self._hosts.apply(replace(place, instance=f"{place.instance} {found}"), envelope, call.progress)

    def _moves(self, old: Inputs, new: Inputs) -> list[str]:
        """What a preview reports of a host with another name or another address."""
        lines = []
        if is_known(new["host"]) and old["host"] != new["host"]:
            lines.append(f"{old['host']} → {new['host']} (same machine)")
        before, after = old["connection"].get("address"), new["connection"].get("address")
        if is_known(after) and before != after:
            left = f"; the machine at {before} is not changed, unless it is the same one" if new["host"] in self._left else ""
            lines.append(f"{new['host']}: address {before} → {after}{left}")
        return lines

    def _warn_of_former_machine(self, old: Inputs, new: Inputs, call: Call) -> None:
        """The machine at the new address is another one. The one at the old address is not cleaned from here: what answers there
        now may belong to somebody else, or be the same machine on its other network interface."""
        if not (before := self._left.get(new["host"])):
            return
        name, stack = old["host"], old["settings"].get(_STACK_SETTING, "")
        call.warning(
            f"{new['host']}: the machine at its new address is another one than before. The one at {before} was not changed; "
            f"if it still runs, it reports as {name} too. To clean it, run there: sudo sh /var/lib/gpu-fleet/current/converge "
            f"remove --prefix / --stack '{stack}' --instance '{name}'"
        )

    def _log_rename(self, inputs: Inputs, outcome: Outcome | None, call: Call) -> None:
        if outcome is not None and outcome.renamed_from:
            self._renames.take(outcome.renamed_from, inputs["host"])
            call.info(f"{outcome.renamed_from} → {inputs['host']} (same machine)")

    async def _planned_changes(self, place: Place, inputs: Inputs, call: Call) -> list[Change]:
        """A host without changes in the state may still differ: PLAN=hosts finds out."""
        try:
            outcome = await self._plan(place, inputs, call)
        except (HostError, ResourceError) as error:
            call.warning(f"{inputs['host']}: {error}")
            return []
        if outcome.changes():
            return [Change("drift", "update", of_inputs=False)]
        for part, failure in outcome.failures().items():
            call.warning(f"{inputs['host']}: {part}: would fail: {failure.message}")
        return []

    async def _log_plan(self, inputs: Inputs, owners: Sequence[str], call: Call) -> None:
        name = inputs["host"] if inputs["host"] is not UNKNOWN else call.urn.rpartition("::")[2]
        if not is_known(inputs):
            call.info(f"{name}: not planned; some of its values are known only after the update")
            return
        try:
            outcome = await self._plan(_place(inputs, owners), inputs, call)
        except (HostError, ResourceError) as error:
            call.warning(f"{name}: {error}")
            return
        would_change = {part: report for part, report in outcome.parts.items() if report.changes}
        lines = [f"{name}: {len(would_change)} of {len(outcome.parts)} parts would change"]
        if found := outcome.renamed_from:
            refused = "the stack file has that name at another address, so it would be refused"
            said = refused if self._renames.stays(found) else "nothing is removed from it"
            lines.append(f"  {found} → {name} (same machine); {said}")
        for part, report in would_change.items():
            lines += [f"  {part}:", *(f"    {change}" for change in report.changes)]
        for part, failure in outcome.failures().items():
            lines += [f"  {part}: would fail: {failure.message}"]
        call.info("\n".join(lines))

    async def _plan(self, place: Place, inputs: Inputs, call: Call) -> Outcome:
        if call.urn not in self._plans:
            envelope = self._envelope(inputs)
            # Without progress: `preview --diff` would keep each line, without its host, among the changes.
            self._plans[call.urn] = asyncio.create_task(self._hosts.plan(place, envelope, lambda line: None))
        return await self._plans[call.urn]

    def _envelope(self, inputs: Inputs) -> Envelope:
        bundle = self._archives.get(inputs["bundle"])
        return Envelope(
            bundle=bundle, settings=inputs["settings"], secrets=self._settings.secrets_without(inputs.get("withheld") or ())
        )


@contextlib.asynccontextmanager
async def _limited(call: Call) -> AsyncIterator[None]:
    """The limit of `customTimeouts`. Without one the limits of connections and of silence apply."""
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
    return Place(
        connection=inputs["connection"],
        name=inputs["host"],
        stack=" ".join(owners),
        instance=inputs["settings"].get(_INSTANCE_SETTING, ""),
    )


def _outputs(inputs: Inputs, outcome: Outcome, before: Inputs) -> Outputs:
    """Independent of what this run changed, so that a second run and a refresh give the same. Negative facts are left out: for a
    thousand hosts they are 250 kB of state."""
    facts = {name: value for name, value in outcome.facts.items() if value not in _NO and not name.endswith(_NOTICE)}
    return {"facts": facts or dict(before.get("facts") or {}), "drift": outcome.drift(), **_address(inputs)}


def _address(inputs: Inputs) -> Outputs:
    """An output too, since a program can read those alone from the state: so it finds the machine of a host with a new name."""
    connection = inputs["connection"]
    return {"address": connection.get("address") or connection.get("prefix") or ""} if is_known(connection) else {}


def _errors_of_connection(connection: Any) -> list[InputError]:
    if not is_known(connection):
        return []
    if connection["kind"] == "ssh" and not connection.get("address"):
        return [InputError("connection.address", "is missing; an ssh host needs one")]
    prefix = connection.get("prefix") or ""
    return (
        [InputError("connection.prefix", f'"{prefix}" is not an absolute path')] if prefix and not prefix.startswith("/") else []
    )


def _errors_of_settings(settings: Any) -> list[InputError]:
    """What the lines of the environment file cannot hold. Values are not shown: they may be secret."""
    if settings is UNKNOWN:
        return []
    errors = []
    for name, value in settings.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            errors.append(InputError(f'settings["{name}"]', "is not a valid name of an environment variable"))
        elif isinstance(value, str) and not value.isprintable():
            errors.append(InputError(f"settings.{name}", "must be one line of printable characters"))
    return errors


def _warn_of_clock(inputs: Inputs, outcome: Outcome | None, call: Call) -> None:
    """Stores refuse samples and lines of another time, and what a wrong clock does to certificates does not name it."""
    off_s = outcome.clock_off_s if outcome else 0.0
    if abs(off_s) <= _CLOCK_OFF_S:
        return
    size, unit = next((size, unit) for size, unit in _UNITS if abs(off_s) >= 2 * size)
    call.warning(
        f"{inputs['host']}: its clock is {abs(off_s) / size:.0f} {unit} {'ahead of' if off_s > 0 else 'behind'} this machine's; "
        "stores refuse samples and lines of another time. Correct the wrong one (timedatectl shows whether it is synchronized)"
    )
