"""gpu-fleet:ruler:RuleGroup and gpu-fleet:ruler:AlertmanagerConfig."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any

import yaml

from gpu_fleet.provider.redaction import Redaction
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
from gpu_fleet.provider.ruler import (
    InvalidRules,
    RulerError,
    Rulers,
    Server,
    StoredAlertmanager,
    alertmanager_path,
    comparable,
    group_path,
    normalised,
)
from gpu_fleet.provider.schema import InputError, errors_of_inputs
from gpu_fleet.provider.values import UNKNOWN, Secret, is_known

_SENT = "`pulumi refresh` shows what the server has, and the next `up` sends it again"
_DELETED = "the next run deletes what is left"


class RuleGroup:
    type_name = "gpu-fleet:ruler:RuleGroup"
    replaces_by_deleting_first = False
    _replacing = ("backend", "tenant", "namespace", "name")

    def __init__(self, rulers: Rulers):
        self._rulers = rulers

    def check(self, inputs: Inputs) -> Checked:
        errors = errors_of_inputs(self.type_name, inputs)
        rules = inputs.get("rules")
        if (
            inputs.get("backend") == "loki"
        ):  # seen with Loki 3.7.8: its router takes the slash as a separator, however it is escaped
            for key in ("namespace", "name"):
                if "/" in str(inputs.get(key)):
                    errors.append(InputError(key, "must not contain a / for Loki, whose API cannot address it"))
        if errors or rules is UNKNOWN:
            return Checked(errors=tuple(errors))
        try:
            rules = normalised(inputs["rules"])
        except InvalidRules as error:
            return Checked(errors=(InputError("rules", str(error)),))
        written = yaml.load(rules, yaml.CSafeLoader)["name"]
        if inputs["name"] is not UNKNOWN and written != inputs["name"]:
            return Checked(errors=(InputError("rules", f'the name in the YAML is "{written}" and `name` is "{inputs["name"]}"'),))
        return Checked(changed={"rules": rules})

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        if found := [Change(change.path, change.kind, replaces=change.path in self._replacing) for change in changes(old, new)]:
            return found
        what = f"rule group {new['namespace']}/{new['name']}"
        with _unless_unreachable(self._rulers, new, call):
            stored = (await self._rulers.stored(_server(new), new["backend"])).get((new["namespace"], new["name"]))
            if stored != comparable(yaml.load(new["rules"], yaml.CSafeLoader)):
                return [_lost(what, new, call, is_missing=stored is None, key="rules")]
        return []

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        id_ = "/".join(str(inputs[key]) for key in ("backend", "namespace", "name"))
        if not call.is_preview and not self._rulers.takes_over:
            await self._refuse_existing(inputs, inputs["rules"])
        return id_, await self._put(id_, inputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError("a rule group cannot be imported: declare it, and `pulumi up` writes it")
        async with _kept(id_, outputs):
            rules = await self._get(inputs)
        if rules is None:
            return Current("")
        return Current(id_, outputs={"rules": rules}, inputs={"rules": rules})

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        what = f"rule group {new['namespace']}/{new['name']}"
        if old["url"] != new["url"] and not call.is_preview and not self._rulers.takes_over:
            await self._refuse_existing(new, old["rules"], new["rules"])  # the old ones: two names of one server
        is_same = await _is_same_server(old, new, call, what, self._get, new["rules"])
        put = await self._put(id_, new, call)
        if not await is_same():
            await self._leave(old, call, what)
        return put

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        what = f"rule group {inputs['namespace']}/{inputs['name']}"
        call.sending(f"deleting {what} at {inputs['url']}", _DELETED)
        async with _reported():
            await self._rulers.delete_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["name"])

    async def _refuse_existing(self, inputs: Inputs, *ours: str) -> None:
        """A group of that name with other rules belongs to another stack, or to whoever loaded it by hand. One with the same
        rules is what an earlier run wrote before its state was lost, or what `make rules` wrote."""
        what = f"rule group {inputs['namespace']}/{inputs['name']}"
        async with _reported(f"{what}: "):
            existing = await self._get(inputs)
        if existing is not None and existing not in ours:
            raise ResourceError(
                f"{what} exists at {_where(inputs)} with other rules, and this stack did not create it: nothing was changed. "
                f"{_how_to_hand_over('it', _curl_of(inputs))}"
            )

    async def _get(self, inputs: Inputs) -> str | None:
        return await self._rulers.get_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["name"])

    async def _put(self, id_: str, inputs: Inputs, call: Call) -> Outputs:
        outputs = {"rules": inputs["rules"]}
        if not call.is_preview:
            what = f"rule group {inputs['namespace']}/{inputs['name']}"
            async with _reported(f"{what}: "), _kept_when_stopped(id_, outputs, f"{what} was sent to {inputs['url']}"):
                await self._rulers.put_group(_server(inputs), inputs["backend"], inputs["namespace"], inputs["rules"])
        return outputs

    async def _leave(self, old: Inputs, call: Call, what: str) -> None:
        server = _server(old)
        path = group_path(old["backend"], old["namespace"], old["name"])
        call.sending(f"deleting {what} at {old['url']}", f"it may go on alerting there: {_curl('DELETE', server, path)}")
        try:
            await self._rulers.delete_group(server, old["backend"], old["namespace"], old["name"], retries=False)
        except RulerError as error:
            _warn_of_leftover(call, what, server, path, str(error))
            return
        call.info(f"{what}: deleted at {old['url']}")


class AlertmanagerConfig:
    type_name = "gpu-fleet:ruler:AlertmanagerConfig"
    replaces_by_deleting_first = True  # a tenant has one configuration

    def __init__(self, rulers: Rulers):
        self._rulers = rulers

    def check(self, inputs: Inputs) -> Checked:
        errors = errors_of_inputs(self.type_name, inputs)
        return Checked(changed={} if errors else {"config": Secret(inputs["config"])}, errors=tuple(errors))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        if found := [Change(change.path, change.kind, replaces=change.path == "tenant") for change in changes(old, new)]:
            return found
        with _unless_unreachable(self._rulers, new, call):
            stored = await self._rulers.get_alertmanager(_server(new), retries=False)
            # One that is not ours any more is refused by `update`, with the way to hand it over.
            if stored is None or (stored.config, dict(stored.templates)) != (new["config"], dict(new.get("templates") or {})):
                return [_lost("the Alertmanager configuration", new, call, is_missing=stored is None, key="config")]
        return []

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        id_ = f"alertmanager/{inputs.get('tenant') or 'anonymous'}"
        if is_known(inputs["url"]) and not self._rulers.takes_over:
            # Nobody waits for a server in a preview, which has to work without one.
            with suppress(RulerError) if call.is_preview else nullcontext():
                await self._refuse_foreign(inputs, None, call)
        return id_, await self._put(id_, inputs, call)

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        if not inputs:
            raise ResourceError("an Alertmanager configuration cannot be imported: declare it, and `pulumi up` writes it")
        async with _kept(id_, outputs):
            stored = await self._get(inputs)
        if stored is None or not _is_ours(stored, inputs, call):
            return Current("")  # ours is gone; the one it has now belongs to somebody else
        config, templates = Secret(stored.config), dict(stored.templates)
        return Current(
            id_, inputs={"config": config, **({"templates": templates} if templates or inputs.get("templates") else {})}
        )

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        what = f"Alertmanager configuration of tenant {new.get('tenant') or 'anonymous'}"
        if not call.is_preview and not self._rulers.takes_over:
            await self._refuse_foreign(new, old, call)
        sent = StoredAlertmanager(new["config"], new.get("templates") or {}, _owner(call))
        is_same = await _is_same_server(old, new, call, what, self._get, sent)
        put = await self._put(id_, new, call)
        if not await is_same():
            await self._leave(old, call, what)
        return put

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        async with _reported():
            stored = await self._get(inputs)
        if stored is not None and not _is_ours(stored, inputs, call):
            call.warning(f"the Alertmanager configuration at {_where(inputs)} is not ours any more ({_whose(stored)}): it stays")
            return
        call.sending(f"deleting the Alertmanager configuration at {inputs['url']}", _DELETED)
        async with _reported():
            await self._rulers.delete_alertmanager(_server(inputs))

    async def _refuse_foreign(self, inputs: Inputs, old: Inputs | None, call: Call) -> None:
        """Raises ResourceError where the tenant has a configuration that this stack did not write; RulerError."""
        try:
            stored = await self._rulers.get_alertmanager(_server(inputs), retries=not call.is_preview)
        except RulerError as error:
            if call.is_preview:
                raise
            raise ResourceError(f"Alertmanager configuration: {error}") from None
        if stored is not None and not _is_ours(stored, old or inputs, call):
            raise ResourceError(
                f"{_where(inputs)} has an Alertmanager configuration that this stack did not write ({_whose(stored)}): nothing "
                f"was changed. {_how_to_hand_over('it', _curl_of(inputs))} Or remove `receivers` from gpu-fleet:alerts: the "
                "alerts then go where that configuration routes them."
            )

    async def _get(self, inputs: Inputs) -> StoredAlertmanager | None:
        return await self._rulers.get_alertmanager(_server(inputs))

    async def _put(self, id_: str, inputs: Inputs, call: Call) -> Outputs:
        if not call.is_preview:
            try:
                async with _kept_when_stopped(id_, {}, f"the Alertmanager configuration was sent to {inputs['url']}"):
                    await self._rulers.put_alertmanager(
                        _server(inputs), inputs["config"], inputs.get("templates") or {}, _owner(call)
                    )
            except RulerError as error:
                raise ResourceError(f"Alertmanager configuration: {_without_values(str(error), inputs['config'])}") from None
        return {}

    async def _leave(self, old: Inputs, call: Call, what: str) -> None:
        server = _server(old)
        call.sending(f"deleting the {what} at {old['url']}", f"it may stay: {_curl('DELETE', server, alertmanager_path())}")
        try:
            stored = await self._rulers.get_alertmanager(server, retries=False)
            if stored is not None and not _is_ours(stored, old, call):
                return
            await self._rulers.delete_alertmanager(server, retries=False)
        except RulerError as error:
            _warn_of_leftover(call, what, server, alertmanager_path(), str(error))
            return
        call.info(f"{what}: deleted at {old['url']}")


@contextmanager
def _unless_unreachable(rulers: Rulers, inputs: Inputs, call: Call) -> Iterator[None]:
    """A preview has to work without the server; what it has is then taken to be what was deployed, and that is said once."""
    try:
        yield
    except RulerError as error:
        if rulers.is_first_failure(_server(inputs)):
            call.warning(f"it is not known whether the rules that were deployed are still there: {error}")


def _lost(what: str, inputs: Inputs, call: Call, *, is_missing: bool, key: str) -> Change:
    found = "is not there any more" if is_missing else "was changed there"
    call.info(f"{what} {found} ({inputs['url']}): it is written again")
    return Change(key, "update", of_inputs=False)


def _owner(call: Call) -> str:
    """The stack as an Alertmanager configuration names it. A URN is urn:pulumi:STACK::PROJECT::…"""
    return f"gpu-fleet stack {call.urn.removeprefix('urn:pulumi:').partition('::')[0]}"


def _is_ours(stored: StoredAlertmanager, inputs: Inputs, call: Call) -> bool:
    """It has this stack's mark; or none, and it is what this stack wrote before there were marks."""
    if stored.owner:
        return stored.owner == _owner(call)
    return (stored.config, dict(stored.templates)) == (inputs["config"], dict(inputs.get("templates") or {}))


def _whose(stored: StoredAlertmanager) -> str:
    return f"written by the {stored.owner}" if stored.owner else "it has no mark of gpu-fleet"


def _where(inputs: Inputs) -> str:
    return f"{inputs['url']}, tenant {inputs.get('tenant') or 'none'},"


def _how_to_hand_over(what: str, command: str) -> str:
    return f"To replace {what}, write `takeOver: true` under gpu-fleet:rulers for one `up`; to delete {what} first: {command}."


async def _is_same_server(
    old: Inputs, new: Inputs, call: Call, what: str, get: Callable[[Inputs], Awaitable[Any]], sent: object
) -> Callable[[], Awaitable[bool]]:
    """Whether nothing is left behind at the old URL. Called before `sent` is written to the new one; the result is called
    after that.

    A ruler keeps evaluating what nobody deletes, so rules at an old URL go on alerting. But two URLs may be one server, where
    deleting at the old one would delete what was just written. They are two servers when they held different things before, or
    when what is written at the new URL does not show at the old one."""

    async def yes() -> bool:
        return True

    async def no() -> bool:
        return False

    if old["url"] == new["url"] or not is_known(new["url"]):
        return yes
    if call.is_preview:
        call.info(f"{what} moves from {old['url']} to {new['url']}, and is deleted at {old['url']}")
        return yes
    async with _reported(f"{what}: "):
        at_new = await get(new)
    try:
        at_old = await get(old)
    except RulerError:
        return no  # the deletion reports it
    if at_new is None or at_new != at_old:
        return no

    async def compared() -> bool:
        if at_new != sent:
            try:
                return bool(await get(old) == sent)
            except RulerError:
                return False
        call.warning(
            f"{what} was the same at {old['url']} and {new['url']}, which may be one server, so nothing was deleted. "
            f"If they are two, it goes on alerting at the old one; delete it there: {_curl_of(old)}"
        )
        return True

    return compared


def _curl_of(inputs: Inputs) -> str:
    path = group_path(inputs["backend"], inputs["namespace"], inputs["name"]) if "backend" in inputs else alertmanager_path()
    return _curl("DELETE", _server(inputs), path)


def _curl(method: str, server: Server, path: str) -> str:
    tenant = f" --header 'X-Scope-OrgID: {server.tenant}'" if server.tenant else ""
    user = f" --user {server.username}" if server.username else ""
    return f"curl --request {method}{tenant}{user} '{server.url.rstrip('/')}{path}'"


def _warn_of_leftover(call: Call, what: str, server: Server, path: str, error: str) -> None:
    call.warning(
        f"{what} stays at {server.url}, where it goes on alerting: {error}. Delete it there: {_curl('DELETE', server, path)}"
    )


_SECRET_KEY = re.compile(r"(url|key|token|password|secret|credentials)$")


def _without_values(message: str, config: str) -> str:
    """Errors of the server quote values of the configuration, which may be a receiver's token."""
    secrets: list[str] = []

    def collect(key: str, value: object) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                collect(str(name), inner)
        elif isinstance(value, list):
            for inner in value:
                collect(key, inner)
        elif isinstance(value, str) and _SECRET_KEY.search(key):
            secrets.append(value)

    try:
        collect("", yaml.safe_load(config))
    except yaml.YAMLError:
        secrets.append(config)
    return re.sub(r"`[^`]*`", "`…`", Redaction(secrets).text(message))


def _server(inputs: Inputs) -> Server:
    return Server(
        url=inputs["url"],
        tenant=inputs.get("tenant") or "",
        username=inputs.get("username") or "",
        bearer_token=bool(inputs.get("bearerToken")),
        headers=tuple((inputs.get("headers") or {}).items()),
        ca=inputs.get("ca") or "",
        certificate=inputs.get("certificate") or "",
    )


@asynccontextmanager
async def _reported(what: str = "") -> AsyncIterator[None]:
    try:
        yield
    except RulerError as error:
        raise ResourceError(f"{what}{error}") from None


@asynccontextmanager
async def _kept_when_stopped(id_: str, outputs: Outputs, what: str) -> AsyncIterator[None]:
    """A request whose answer was not awaited may have been carried out: the resource stays in the state, so that it is deleted
    one day."""
    try:
        yield
    except asyncio.CancelledError:
        raise Unhealthy(id_, outputs, f"stopped: {what}, and the answer was not awaited; {_SENT}") from None


@asynccontextmanager
async def _kept(id_: str, outputs: Inputs) -> AsyncIterator[None]:
    """A server that cannot be reached during a refresh: the resource is kept in the state and marked, the others are still
    read."""
    try:
        yield
    except RulerError as error:
        raise Unhealthy(id_, dict(outputs), f"{id_}: {error}") from None
