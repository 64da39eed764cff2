"""The stand-ins' schemas against the official SDKs: a program written for the SDK must meet the same names here."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator

import pulumi
import pytest

from lab.standins.command import LocalCommand
from lab.standins.grafana.plugin import RESOURCES
from lab.standins.plugin import ResourceType
from lab.standins.schema import ListOf, MapOf, Object, Property, Type

# What the stand-ins leave out: using it is refused.
LEFT_OUT = {
    "command:local:Command": {
        *("addPreviousOutputInEnv", "archivePaths", "assetPaths", "dir", "interpreter", "stdin", "triggers", "update"),
    },
    "grafana:alerting/contactPoint:ContactPoint": {
        *("alertmanagers", "dingdings", "discords", "googlechats", "jiras", "kafkas", "lines", "oncalls", "opsgenies"),
        *("pushovers", "sensugos", "sns", "telegrams", "threemas", "victorops", "webexes", "wecoms"),
    },
    "grafana:alerting/ContactPointWebhook:ContactPointWebhook": {"hmacConfig", "httpConfig", "payload", "tlsConfig"},
    "grafana:alerting/RuleGroupRule:RuleGroupRule": {"notificationSettings", "record"},
    "grafana:oss/folder:Folder": {"parentFolderUid"},
    "grafana:oss/dataSource:DataSource": {"privateDataSourceConnectNetworkId"},  # Grafana Cloud alone has such networks
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDKs warn about their own old classes
RESOURCE_TYPES = [LocalCommand, *RESOURCES]


def args_class(resource: type[ResourceType]) -> type:
    """The SDK's class of the resource's inputs: of grafana:oss/folder:Folder it is pulumiverse_grafana.oss.folder.FolderArgs."""
    package, module, name = resource.type_name.split(":")
    sdk = {"command": "pulumi_command", "grafana": "pulumiverse_grafana"}[package]
    file = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return getattr(importlib.import_module(f"{sdk}.{module.split('/')[0]}.{file}"), f"{name}Args")


def sdk_names(cls: type) -> dict[str, bool]:
    """Every input's name in the schema, and whether it is required."""
    names = pulumi._types.input_type_py_to_pulumi_names(cls)
    parameters = inspect.signature(cls.__init__).parameters
    return {
        names.get(name, name): parameter.default is inspect.Parameter.empty
        for name, parameter in parameters.items()
        if name != "__self__"
    }


def objects(properties: typing.Mapping[str, Property]) -> Iterator[Object]:
    def inside(type_: Type) -> Iterator[Object]:
        match type_:
            case ListOf():
                yield from inside(type_.item)
            case MapOf():
                yield from inside(type_.value)
            case Object():
                yield type_
                yield from objects(type_.properties)

    for property_ in properties.values():
        yield from inside(property_.type)


@pytest.mark.parametrize("resource", RESOURCE_TYPES, ids=lambda resource: resource.type_name)
def test_a_resource_has_the_inputs_of_the_sdk(resource: type[ResourceType]) -> None:
    ours = {name: property_.required for name, property_ in resource.inputs.items()}
    theirs = {
        name: needed
        for name, needed in sdk_names(args_class(resource)).items()
        if name not in LEFT_OUT.get(resource.type_name, set())
    }
    assert ours == theirs


@pytest.mark.parametrize("resource", RESOURCE_TYPES, ids=lambda resource: resource.type_name)
def test_nested_types_have_the_inputs_of_the_sdk(resource: type[ResourceType]) -> None:
    package = args_class(resource).__module__.rpartition(".")[0]
    inputs = importlib.import_module(f"{package}._inputs") if any(objects(resource.inputs)) else None
    for nested in objects(resource.inputs):
        name = nested.name.rpartition(":")[2]
        theirs = sdk_names(getattr(inputs, f"{name}Args"))
        left_out = LEFT_OUT.get(nested.name, set())
        ours = {key: property_.required for key, property_ in nested.properties.items()}
        assert ours == {key: needed for key, needed in theirs.items() if key not in left_out}, nested.name
