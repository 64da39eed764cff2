"""gpu-fleet:ruler:RuleGroup and gpu-fleet:ruler:AlertmanagerConfig."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, Unhealthy, changes
from provider.ruler import InvalidRules, RulerError, Rulers, Server, normalised
from provider.schema import Mistake, mistakes_of_inputs
from provider.values import UNKNOWN, Secret


class RuleGroup:
    type_name = "gpu-fleet:ruler:RuleGroup"
    replaces_by_deleting_first = False
    _replacing = ("backend", "tenant", "namespace", "name")

    def __init__(self, rulers: Rulers):
        self._rulers = rulers

    def check(self, inputs: Inputs) -> Checked:
        mistakes = mistakes_of_inputs(self.type_name, inputs)
        rules = inputs.get("rules")
        if (
            inputs.get("backend") == "loki"
        ):  # seen with Loki 3.7.8: its router takes the slash for a border, however it is escaped
            for key in ("namespace", "name"):
                if "/" in str(inputs.get(key)):
                    mistakes.append(Mistake(key, "must not hold a / for Loki, whose API cannot address it"))
        if mistakes or rules is UNKNOWN:
            return Checked(mistakes=tuple(mistakes))
        try:
            rules = normalised(inputs["rules"])
        except InvalidRules as error:
            return Checked(mistakes=(Mistake("rules", str(error)),))
        written = yaml.safe_load(rules)["name"]
        if inputs["name"] is not UNKNOWN and written != inputs["name"]:
            return Checked(
                mistakes=(Mistake("rules", f'the group calls itself "{written}" and the resource "{inputs["name"]}"'),)
            )
        return Checked(changed={"rules": rules})

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        return [Change(change.path, change.kind, replaces=change.path in self._replacing) for change in changes(old, new)]

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        id_ = "/".join(str(inputs[key]) for key in ("backend", "namespace", "name"))
        return id_, await self._put(inputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError("a rule group cannot be imported: declare it, and `pulumi up` takes over the group of that name")
        async with _kept(id_, outputs):
            rules = await self._rulers.get_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["name"])
        if rules is None:
            return Current("")
        return Current(id_, outputs={"rules": rules}, inputs={"rules": rules})

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return await self._put(new, call)

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        async with _told():
            await self._rulers.delete_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["name"])

    async def _put(self, inputs: Inputs, call: Call) -> Outputs:
        if not call.is_preview:
            async with _told(f"rule group {inputs['namespace']}/{inputs['name']}: "):
                await self._rulers.put_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["rules"])
        return {"rules": inputs["rules"]}


class AlertmanagerConfig:
    type_name = "gpu-fleet:ruler:AlertmanagerConfig"
    replaces_by_deleting_first = True  # a tenant has one configuration

    def __init__(self, rulers: Rulers):
        self._rulers = rulers

    def check(self, inputs: Inputs) -> Checked:
        mistakes = mistakes_of_inputs(self.type_name, inputs)
        return Checked(changed={} if mistakes else {"config": Secret(inputs["config"])}, mistakes=tuple(mistakes))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        return [Change(change.path, change.kind, replaces=change.path == "tenant") for change in changes(old, new)]

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return f"alertmanager/{inputs.get('tenant') or 'anonymous'}", await self._put(inputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError(
                "an Alertmanager configuration cannot be imported: declare it, and `pulumi up` takes over the tenant's"
            )
        async with _kept(id_, outputs):
            stored = await self._rulers.get_alertmanager(_server(inputs))
        if stored is None:
            return Current("")
        config, templates = stored
        return Current(
            id_, inputs={"config": Secret(config), **({"templates": templates} if templates or inputs.get("templates") else {})}
        )

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return await self._put(new, call)

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        async with _told():
            await self._rulers.delete_alertmanager(_server(inputs))

    async def _put(self, inputs: Inputs, call: Call) -> Outputs:
        if not call.is_preview:
            try:
                await self._rulers.put_alertmanager(_server(inputs), inputs["config"], inputs.get("templates") or {})
            except RulerError as error:
                raise ResourceError(f"Alertmanager configuration: {_without_values(str(error))}") from None
        return {}


def _without_values(message: str) -> str:
    """YAML errors of the server quote the value they stumbled on, which may be a receiver's token."""
    return re.sub(r"`[^`]*`", "`…`", message)


def _server(inputs: Inputs) -> Server:
    return Server(url=inputs["url"], tenant=inputs.get("tenant") or "", username=inputs.get("username") or "")


@asynccontextmanager
async def _told(what: str = "") -> AsyncIterator[None]:
    try:
        yield
    except RulerError as error:
        raise ResourceError(f"{what}{error}") from None


@asynccontextmanager
async def _kept(id_: str, outputs: Inputs) -> AsyncIterator[None]:
    """A server that cannot be asked at a refresh: what it holds is kept in the state and marked, the others are read on."""
    try:
        yield
    except RulerError as error:
        raise Unhealthy(id_, dict(outputs), f"{id_}: {error}") from None
