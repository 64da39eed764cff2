"""The schema of the package: the sections of the stack file as arguments of Fleet and Host, and the provider's RuleGroup.

Made from gpu_fleet/stackfile/ and gpu_fleet/provider/schema.json, so there is no second list of keys or descriptions. Not done
here: what Pulumi's `component_provider_host` does, which infers a schema from annotations: it serves components alone, and these
need the provider's resources from the same plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.schema import stack_file_schema
from gpu_fleet.stackfile.sections import SECRETS

FLEET: Final = f"{PROJECT}:index:Fleet"
HOST: Final = f"{PROJECT}:index:Host"
RULE_GROUP: Final = f"{PROJECT}:ruler:RuleGroup"
# Servers on the machine that runs Pulumi: for trying out this repository.
_NOT_OFFERED: Final = ("backend",)
OF_HOST: Final = (
    "datacenter",
    "cluster",
    "ssh",
    "metrics",
    "logs",
    "scrapeInterval",
    "scrape",
    "scrapeTargets",
    "artifacts",
    "dcgm",
)
SECRETS_OF_HOST: Final = tuple(
    name for name in SECRETS if name.startswith(("ssh", "sudo", "metrics", "logs", "scrape")) and name != "sudoPasswords"
)
NAMED_SECRETS: Final = "secrets"
HOST_NAME: Final = "hostName"

_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_STATUS: Final = {
    "exporter": {
        "type": "string",
        "description": "The GPU exporter that runs there: dcgm-exporter, nvidia_gpu_exporter or textfile.",
    },
    "exporterReason": {"type": "string", "description": "Why the host chose this exporter."},
    "gpus": {"type": "integer", "description": "How many GPUs its driver shows."},
    "driver": {"type": "string", "description": "Version of its GPU driver."},
    "drift": {
        "type": "array",
        "items": {"type": "string"},
        "description": "How it differs from its bundle, found by `pulumi refresh`; empty when it does not.",
    },
    "facts": {**_STRINGS, "description": "Everything that the host reported about itself."},
}
_FLEET_OUTPUTS: Final = {
    "hosts": {
        "type": "object",
        "additionalProperties": {"$ref": f"#/types/{PROJECT}:index:HostStatus"},
        "description": "Status of each host, by name. Hosts that provision themselves are not in it.",
    },
    "bundle": {"type": "string", "description": "sha256 of what is placed on the hosts."},
    "series": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "description": "Estimated series in the metrics store: `sent` by the hosts, and `recorded` from those by rules.",
    },
    "scrapeConfig": {
        "type": "string",
        "description": "`scrape_configs` of a Prometheus that scrapes the hosts.",
    },
    "pull": {
        **_STRINGS,
        "description": "For hosts that provision themselves: `bundle`, `url`, and `install`, which each runs once.",
    },
    "cluster": {**_STRINGS, "description": "What was found in the Kubernetes cluster."},
    "dashboards": {**_STRINGS, "description": "URL of each dashboard, by its uid."},
}
OUTPUTS: Final = {FLEET: tuple(_FLEET_OUTPUTS), HOST: tuple(_STATUS)}


def package_schema(of_provider: Mapping[str, Any]) -> dict[str, Any]:
    """`of_provider`: the schema of the provider, whose configuration and rule groups are offered as they are."""
    stack = stack_file_schema()
    sections = {key: node for key, node in stack["properties"].items() if key not in _NOT_OFFERED}
    entry = stack["$defs"]["HostEntry"]["properties"]
    fleet = {**_properties(sections), **_secrets(SECRETS), NAMED_SECRETS: _NAMED}
    host = {
        HOST_NAME: {
            "type": "string",
            "description": "Its name in the inventory, label `instance`. Default: that of the resource.",
        },
        **_properties({key: sections[key] for key in OF_HOST}),
        **_properties(entry),
        **_secrets(SECRETS_OF_HOST),
    }
    status = {
        "type": "object",
        "description": "What a host reported about itself.",
        "properties": _STATUS,
        "required": ["drift", "facts"],
    }
    own = {f"{PROJECT}:index:{name}": _object(stack["$defs"][name]) for name in sorted(_reached([fleet, host], stack["$defs"]))}
    rule_group = of_provider["resources"][RULE_GROUP]
    return {
        "name": of_provider["name"],
        "displayName": of_provider["displayName"],
        "version": of_provider["version"],
        "description": "Monitoring for GPU fleets: exporters and agents on hosts, rules, dashboards and XID alerts.",
        "keywords": ["pulumi", "gpu", "monitoring", "kind/component", "category/infrastructure"],
        "license": of_provider["license"],
        "config": of_provider["config"],
        "provider": of_provider["provider"],
        "types": {
            **{name: of_provider["types"][name] for name in _reached_types(of_provider)},
            **own,
            f"{PROJECT}:index:HostStatus": status,
        },
        "resources": {
            FLEET: {
                "isComponent": True,
                "description": "The GPU hosts of one cluster, or a Kubernetes cluster, with everything that watches them: what a "
                "stack file of GPU Fleet describes. Sections that are left out are not deployed.",
                "inputProperties": fleet,
                "properties": _FLEET_OUTPUTS,
                "required": ["dashboards", "hosts"],
            },
            HOST: {
                "isComponent": True,
                "description": "One GPU host with exporters and an agent that pushes its metrics and logs. Several hosts of one "
                "cluster are better one Fleet, which can roll out in waves and shows a changed file once.",
                "inputProperties": host,
                "requiredInputs": ["cluster", "datacenter", "metrics"],
                "properties": _STATUS,
                "required": ["drift", "facts"],
            },
            RULE_GROUP: rule_group,
        },
        "language": {
            # The names that programs import, whoever's repository the package comes from; and without the module names the rule
            # group would be in a module `ruler` beside the components.
            "python": {
                "respectSchemaVersion": True,
                "packageName": "pulumi_gpu_fleet",
                "moduleNameOverrides": {"ruler": ""},
                "pyproject": {"enabled": True},
            },
            "nodejs": {"respectSchemaVersion": True, "packageName": "gpu-fleet", "moduleToPackage": {"ruler": ""}},
        },
    }


_NAMED: Final = {
    **_STRINGS,
    "secret": True,
    "description": "Secrets of receivers, by the names that the receivers give them (`urlSecret: slackUrl`).",
}


def _secrets(names: Iterable[str]) -> dict[str, Any]:
    return {
        name: {"type": "string", "secret": True, "description": f"Secret: {SECRETS[name].replace(f'{PROJECT}:', '')}."}
        for name in names
    }


def _object(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        **({"description": node["description"]} if node.get("description") else {}),
        "properties": _properties(node["properties"]),
        **({"required": sorted(node["required"])} if node.get("required") else {}),
    }


def _properties(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**_type(node), **_description(node)} for name, node in nodes.items()}


def _description(node: Mapping[str, Any]) -> dict[str, str]:
    text = node.get("description", "").replace(f"{PROJECT}:", "")
    words = [one for option in _options(node) if (one := option.get("enum"))]
    if words and not all(f"`{word}`" in text for word in words[0]):
        text += f" One of: {', '.join(words[0])}."
    default = node.get("default")
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and "default" not in text.lower():
        text += f" Default: {default}."
    return {"description": text.strip()} if text else {}


def _options(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the value may be; null means that it may be left out, which a component's argument always may."""
    among = node.get("anyOf") or node.get("oneOf")
    options = [node] if among is None else [inner for option in among for inner in _options(option)]
    return [option for option in options if option.get("type") != "null"]


def _type(node: Mapping[str, Any]) -> dict[str, Any]:
    options = _options(node)
    if len(options) > 1:
        return {"oneOf": [_type(option) for option in options]}
    (option,) = options
    if "$ref" in option:
        return {"$ref": f"#/types/{PROJECT}:index:{option['$ref'].rpartition('/')[2]}"}
    match option["type"]:
        case "array":
            return {"type": "array", "items": _type(option["items"])}
        case "object":
            values = option.get("additionalProperties") or next(iter(option["patternProperties"].values()))
            return {"type": "object", "additionalProperties": {"$ref": "pulumi.json#/Any"} if values is True else _type(values)}
    return {"type": option["type"]}


def _references(node: object) -> Iterable[str]:
    if isinstance(node, Mapping):
        if isinstance(reference := node.get("$ref"), str):
            yield reference.rpartition(":")[2] if reference.startswith("#/types/") else reference.rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def _reached(roots: object, definitions: Mapping[str, Any]) -> set[str]:
    """Names of the sections' types that the arguments need."""
    found: set[str] = set()
    todo = [name for name in _references(roots) if name in definitions]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += [other for other in _references(definitions[name]["properties"]) if other in definitions]
    return found


def _reached_types(of_provider: Mapping[str, Any]) -> list[str]:
    """Types of the provider that its configuration and rule groups need."""
    found: list[str] = []
    todo: list[object] = [of_provider["provider"], of_provider["resources"][RULE_GROUP]]
    while todo:
        for short in _references(todo.pop()):
            for name in of_provider["types"]:
                if name.rpartition(":")[2] == short and name not in found:
                    found.append(name)
                    todo.append(of_provider["types"][name])
    return sorted(found)
