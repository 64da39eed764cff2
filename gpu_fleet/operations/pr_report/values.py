"""Every leaf of the stack file and of every resource, compared: what no section says in words is said here, so that no change
can be missing. Also how two long values are shown where they differ. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from gpu_fleet.operations.pr_report.pictures import Picture, Resource
from gpu_fleet.safetext.differences import around
from gpu_fleet.safetext.markdown import code, plain, strong
from gpu_fleet.stackfile.problems import is_secret_key

HOST, BUNDLE = "gpu-fleet:host:Host", "gpu-fleet:host:Bundle"
RULE_GROUP, ALERTMANAGER = "gpu-fleet:ruler:RuleGroup", "gpu-fleet:ruler:AlertmanagerConfig"
GRAFANA_GROUP, DASHBOARD = "grafana:alerting/ruleGroup:RuleGroup", "grafana:oss/dashboard:Dashboard"
PROMETHEUS_RULE, CONFIG_MAP = "kubernetes:monitoring.coreos.com/v1:PrometheusRule", "kubernetes:core/v1:ConfigMap"
_PROVIDER = "pulumi:providers:gpu-fleet"
RELEASE, OBJECTS = "kubernetes:helm.sh/v3:Release", "gpu-fleet:kubernetes:Manifest"
_RULES, _DASHBOARDS, _HOSTS = "Rules and alerts", "Dashboards", "Hosts"
_SECTIONS: Final = {
    RULE_GROUP: _RULES,
    GRAFANA_GROUP: _RULES,
    PROMETHEUS_RULE: _RULES,
    DASHBOARD: _DASHBOARDS,
    CONFIG_MAP: _DASHBOARDS,
    HOST: _HOSTS,
    BUNDLE: "Files on hosts",
    RELEASE: "Charts",
    OBJECTS: "Charts",
}
# Inputs that the type's section says whole, and those that are made of what it says.
_SAID_WHOLE: Final = {HOST: {"connection", "settings"}, BUNDLE: {"files"}, ALERTMANAGER: {"templates"}, OBJECTS: {"objects"}}
_FOLLOWS: Final = {
    HOST: {"bundle", "host", "wave"},
    BUNDLE: {"archive", "hosts"},
    DASHBOARD: {"message"},
    RELEASE: {"description"},
}
_NAMES: Final = ("alert", "record", "title", "name", "uid", "refId", "key")  # of an element of a list
_MOST_NAMED = 6

Path = tuple[str, ...]


def flat(value: Any, path: Path = ()) -> dict[Path, Any]:
    """{"a": {"b": 1}, "c": [2]} becomes {("a", "b"): 1, ("c", "0"): 2}. An element that has a name is called by it, so that one
    inserted before it does not rename it. An empty mapping or list is a leaf."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and value:
        items = list(_elements(value))
    else:
        return {path: value}
    return {inner: leaf for key, item in items for inner, leaf in flat(item, (*path, key)).items()}


def _elements(values: list[Any]) -> Iterator[tuple[str, Any]]:
    taken: dict[str, int] = defaultdict(int)
    for place, item in enumerate(values):
        name = str(place)
        if isinstance(item, Mapping):
            name = next((str(item[key]) for key in _NAMES if isinstance(item.get(key), str) and item[key]), name)
        taken[name] += 1
        yield f"{name} ({taken[name]})" if taken[name] > 1 else name, item


def different(old: Any, new: Any) -> Iterator[tuple[Path, Any, Any]]:
    """The leaves that are not the same, None for one that is not there. What only one side has is named once, by the part
    that all of it has in common."""
    before, after = flat(old), flat(new)
    parts = [{path[:length] for path in side for length in range(1, len(path) + 1)} for side in (before, after)]
    named = set()
    for path in sorted({*before, *after} - {()}):
        if path in before and path in after:
            if before[path] != after[path]:
                yield path, before[path], after[path]
            continue
        is_old = path in before
        if path in parts[is_old]:
            continue  # an empty mapping that was filled, or one that was emptied
        top = next((path[:length] for length in range(1, len(path)) if path[:length] not in parts[is_old]), path)
        if top not in named:
            named.add(top)
            kept = _at(old if is_old else new, top)
            yield (top, kept, None) if is_old else (top, None, kept)


def leaves(old: Any, new: Any) -> Iterator[tuple[Path, Any, Any]]:
    """As `different`, but what only one side has is named by its leaves where they are few."""
    for path, was, now in different(old, new):
        inner = flat(now if was is None else was)
        if None in (was, now) and len(inner) <= _MOST_NAMED:
            for rest, leaf in inner.items():
                yield (*path, *rest), *((leaf, None) if now is None else (None, leaf))
        else:
            yield path, was, now


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = dict(_elements(value) if isinstance(value, list) else ((str(k), item) for k, item in value.items()))[key]
    return value


def arrow(old: Any, new: Any) -> str:
    """`a` → `b`, of long values what surrounds the first difference."""
    was, now = (_text(value) for value in (old, new))
    if was == now:  # but for blanks, or a text and a number
        was, now = (json.dumps(value, default=str) for value in (old, new))
    shown = around(was, now) if None not in (old, new) else (around(was, "")[0], around(now, "")[0])
    return " → ".join("unset" if value is None else code(text) for value, text in zip((old, new), shown, strict=True))


def _text(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)).split())


def stack_file(old: Picture, new: Picture) -> Iterator[str]:
    """Every key that differs, by its name in the stack file. A secret is named, and neither of its values is shown."""
    if not old.config or not new.config:
        return
    for path, was, now in leaves(old.config, new.config):
        key = code(".".join(path))
        if "secure" in path or any(map(is_secret_key, path)):
            yield f"- {key}: {'added' if was is None else 'removed' if now is None else 'set to another value'}"
        else:
            yield f"- {key}: {arrow(was, now)}"


def unsaid(old: Picture, new: Picture, said: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """What differs in resources and is in no line of `said` (by section). Resources that change alike are one line."""
    sides = [{(one.type, one.name): one for one in side.resources} for side in (old, new)]
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key in sorted({*sides[0], *sides[1]}):
        was, now = sides[0].get(key), sides[1].get(key)
        if was is None or now is None:
            if not said.get(_SECTIONS.get(key[0], "")):
                alike[key[0], "removed" if now is None else "added"].append(key[1])
            continue
        before, after = _parsed(was), _parsed(now)
        titles = [strong(title) for title in _titles(after)]
        for path, value, other in different(before, after):
            if not _is_said(key[0], path, said, titles):
                alike[key[0], f"{code('.'.join(path))}: {arrow(value, other)}"].append(key[1])
    for (kind, change), names in alike.items():
        shown = ", ".join(map(plain, names[:_MOST_NAMED]))
        rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"- {code(kind)} {shown}{rest}: {change}"


def _is_said(kind: str, path: Path, said: Mapping[str, tuple[str, ...]], titles: list[str]) -> bool:
    words = "\n".join(said.get(_SECTIONS.get(kind, ""), ()))
    if kind == _PROVIDER and path[0] == "rollout":
        return any(line.startswith("- `rollout") for line in said.get("Stack file", ()))
    if path[0] in _FOLLOWS.get(kind, ()) or path[0] in _SAID_WHOLE.get(kind, ()):
        return bool(said)
    if kind in (RULE_GROUP, PROMETHEUS_RULE) and "rules" in path[1:-1]:
        is_inventory = path[path.index("rules", 1) + 1].startswith("inventory:")
        return bool(said) if is_inventory else bool(words)  # an inventory follows from the hosts
    if kind == GRAFANA_GROUP and path[0] == "rules" and len(path) > 1:
        return strong(path[1]) in words or "other rules:" in words  # said with the same rule of a ruler
    if kind in (DASHBOARD, CONFIG_MAP) and path[0] in ("configJson", "data"):
        return any(title in words for title in titles)
    return kind == RELEASE and bool(words)


def _titles(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Of the dashboards that a resource holds."""
    for model in (inputs.get("configJson"), *(inputs.get("data") or {}).values()):
        if isinstance(model, Mapping) and "title" in model:
            yield model["title"]


def _parsed(one: Resource) -> dict[str, Any]:
    """A value that is JSON, and the rules of a group, are compared by their keys."""

    def parse(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: parse(item) for key, item in value.items()}
        if isinstance(value, str) and value.startswith(("{", "[")):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    inputs = {key: parse(value) for key, value in one.inputs.items()}
    if one.type == RULE_GROUP:
        inputs["rules"] = yaml.load(one.inputs["rules"], yaml.CSafeLoader)
    return inputs
