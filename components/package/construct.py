"""Fleet and Host of the package, for programs in any language: what the engine asks with Construct.

The arguments are those of a stack file and go the same way: checked with all errors at once, then deployed by
components/program.py. Not done here: the resources that the components consist of, which the same plugin serves
(gpu_fleet/provider/).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pulumi
from pulumi.errors import InputPropertiesError
from pulumi.provider import ConstructResult, Provider
from pulumi.provider.server import ProviderServicer

from components.messages import make_messages_safe
from components.package.schema import HOST, HOST_NAME, NAMED_SECRETS, OF_HOST, OUTPUTS, SECRETS_OF_HOST, package_schema
from components.program import Place, deploy
from components.sdk_patches import patch_sdk
from components.stack import LoadedConfig
from gpu_fleet.safetext.terminal import printable
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig, given_otherwise
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.sections import SECRETS


class Package:
    """`schema`: as JSON, of components and of the provider's resources that others may use."""

    def __init__(self, of_provider: Mapping[str, Any]) -> None:
        self.schema = json.dumps(package_schema(of_provider))

    async def construct(self, request: Any, context: grpc.aio.ServicerContext[Any, Any], engine: str) -> Any:
        try:
            return await ProviderServicer(_Components(), [], engine).Construct(request, context)
        except pulumi.RunError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, printable(str(error)))


class _Components(Provider):
    """One request of the engine."""

    def __init__(self) -> None:
        super().__init__(None)

    def construct(
        self, name: str, resource_type: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions | None = None
    ) -> ConstructResult:
        # The component is registered once its arguments were accepted, so that nothing of one that is refused is in the state.
        made = asyncio.ensure_future(_made(name, resource_type, inputs, options or pulumi.ResourceOptions()))

        async def urn() -> Any:
            return (await made)[0].urn

        async def output(key: str) -> Any:
            return (await made)[1].get(key)

        state = {key: pulumi.Output.from_input(output(key)) for key in OUTPUTS[resource_type]}
        return ConstructResult(pulumi.Output.from_input(urn()), state)


class Component(pulumi.ComponentResource):
    """A Fleet or a Host of a program; what it consists of is below it."""


@cache
def _patch_once() -> None:
    """Not on import: it may warn, and only a request knows where."""
    make_messages_safe()
    patch_sdk()


async def _made(
    name: str, token: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions
) -> tuple[Component, dict[str, Any]]:
    _patch_once()
    arguments = await Arguments.of(inputs)
    if arguments.unknown:
        component = Component(token, name, None, options)
        pulumi.log.info(
            f"{', '.join(arguments.unknown)}: not known before the resources that the value comes from are created, so this "
            "preview does not show what the component consists of",
            component,
        )
        component.register_outputs({})
        return component, {key: pulumi.Output.from_input(_unknown()) for key in OUTPUTS[token]}
    host = str(arguments.values.get(HOST_NAME) or name) if token == HOST else ""
    loaded = _loaded(arguments, host)
    after = [*_list(options.depends_on), *arguments.resources]
    component = Component(token, name, None, options)
    for warning in loaded.config.warnings:
        if not host or re.match(rf"{PROJECT}:({'|'.join(OF_HOST)}|hosts)\b", warning):  # a Host has no other sections
            pulumi.log.warn(_in_arguments(warning), component)
    deployed = deploy(loaded, Place(parent=component, prefix=f"{name}-", depends_on=after))
    statuses = {}
    if fleet := deployed.fleet:
        statuses = {each: _status(fleet.facts[each], fleet.drift[each]) for each in fleet.facts}
    component.register_outputs({})
    if host:
        # One that is lost, or provisions itself, reports nothing to a run.
        status = statuses.get(host, pulumi.Output.from_input(status_of({}, None)))
        return component, {key: status.apply(partial(_item, key)) for key in OUTPUTS[HOST]}
    return component, {"dashboards": {}, **deployed.outputs, "hosts": statuses}


def _list(resources: Any) -> list[pulumi.Resource]:
    return [] if resources is None else [resources] if isinstance(resources, pulumi.Resource) else list(resources)


def _status(facts: pulumi.Output[Any], drift: pulumi.Output[Any]) -> pulumi.Output[dict[str, Any]]:
    return pulumi.Output.all(facts, drift).apply(lambda known: status_of(*known))


def status_of(facts: Mapping[str, str], drift: list[str] | None) -> dict[str, Any]:
    """HostStatus of the schema."""
    gpus = facts.get("GPU_COUNT", "")
    found = {
        "exporter": facts.get("GPU_FLEET_EXPORTER_MODE"),
        "exporterReason": facts.get("GPU_FLEET_EXPORTER_REASON"),
        "gpus": int(gpus) if gpus.isdigit() else None,
        "driver": facts.get("GPU_DRIVER_VERSION"),
        "drift": list(drift or []),
        "facts": dict(facts),
    }
    return {key: value for key, value in found.items() if value is not None}


class Arguments:
    """The arguments of a component once they are known. `values`: those in clear text. `secrets`: by their keys. `encrypted`:
    keys of sections that hold a secret. `unknown`: keys of arguments that a preview cannot know. `resources`:
    what they came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.secrets: dict[str, pulumi.Output[str]] = {}
        self.encrypted: set[str] = set()
        self.unknown: list[str] = []
        self.resources: set[pulumi.Resource] = set()

    @classmethod
    async def of(cls, inputs: Mapping[str, Any]) -> Arguments:
        found = cls()
        for key, value in inputs.items():
            await found._add(key, pulumi.Output.from_input(value))
        return found

    async def _add(self, key: str, given: pulumi.Output[Any]) -> None:
        self.resources |= await given.resources()
        if key in SECRETS:
            self.secrets[key] = pulumi.Output.secret(given)
        elif not await given.is_known():
            self.unknown.append(key)
        elif key == NAMED_SECRETS:
            for name in await given.future() or {}:
                self.secrets[name] = pulumi.Output.secret(given.apply(partial(_item, name)))
        elif await given.is_secret():
            self.encrypted.add(key)
        elif (value := _plain(await given.future())) is not None:
            self.values[key] = value


def _item(key: str, known: Mapping[str, Any]) -> Any:
    return known.get(key)


def _plain(value: Any) -> Any:
    """As YAML gives it: whole numbers are no floats, and what a program left out is not there."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _unknown() -> Any:
    return pulumi.UNKNOWN


def _loaded(arguments: Arguments, host: str) -> LoadedConfig:
    """`host`: the name of the one host of a Host. Raises InputPropertiesError, whose text is for the user."""
    raw, given = arguments.values, arguments.secrets
    if host:
        shared = {*OF_HOST, *SECRETS_OF_HOST, HOST_NAME}
        entry = {key: value for key, value in raw.items() if key not in shared}
        raw = {**{key: value for key, value in raw.items() if key in OF_HOST}, "hosts": {host: entry}}
    try:
        # Relative paths start where the program is.
        config = StackConfig.load(raw, Path.cwd(), {*given, *arguments.encrypted} | given_otherwise(raw))
    except ConfigErrors as errors:
        # Not as errors of single properties: the engine would show their values, secrets among them.
        found = ArgumentErrors(_of_arguments(problem, host) for problem in errors.problems)
        raise InputPropertiesError(printable(str(found)), []) from None
    return LoadedConfig(config, given)


class ArgumentErrors(ConfigErrors):
    SUBJECT: ClassVar = "the arguments"


def _of_arguments(problem: Problem, host: str) -> Problem:
    texts = (_in_arguments(text) for text in (problem.where, problem.what, problem.expected, problem.fix))
    where, what, expected, fix = texts
    if host:
        for start in (f'hosts["{host}"]', f"hosts.{host}"):
            if where.startswith(start):
                where = where.removeprefix(start).removeprefix(".") or "address"
    return Problem(where, what, expected, fix)


def _in_arguments(text: str) -> str:
    """A text about a stack file, about the arguments of a component."""

    def named(found: re.Match[str]) -> str:
        return f"the argument `{found[1]}`" if found[1] in SECRETS else f"the argument `{NAMED_SECRETS}.{found[1]}`"

    text = re.sub(rf"`pulumi config set --secret {PROJECT}:(\w+)`", named, text)
    return text.replace(f"{PROJECT}:", "").replace("the stack file", "the arguments")
