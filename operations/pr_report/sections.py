"""What changed between two pictures of a stack, in words, by subject. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from dashboards.changes import changes as dashboard_changes
from dashboards.review import as_code
from operations.pr_report import rules
from operations.pr_report.pictures import Picture, Resource
from safetext.markdown import block, code, plain, strong

_HOST, _BUNDLE = "gpu-fleet:host:Host", "gpu-fleet:host:Bundle"
_RULE_GROUP, _ALERTMANAGER = "gpu-fleet:ruler:RuleGroup", "gpu-fleet:ruler:AlertmanagerConfig"
_GRAFANA_GROUP, _DASHBOARD = "grafana:alerting/ruleGroup:RuleGroup", "grafana:oss/dashboard:Dashboard"
_PROMETHEUS_RULE = "kubernetes:monitoring.coreos.com/v1:PrometheusRule"
_CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
_RELEASE, _OBJECTS = "kubernetes:helm.sh/v3:Release", "gpu-fleet:kubernetes:Manifest"
_COMPONENTS = re.compile(r"gpu-fleet:\w+:(Fleet|Rulers|Dashboards|Alerting|GpuCluster|Backend)$")
_MASKED: Final = re.compile(r"^(file\t.*\t)[0-9a-f]{64}$", re.MULTILINE)
_MOST_NAMED = 12
_SAID_ELSEWHERE: Final = ("settings.GPU_FLEET_INSTANCE", "settings.GPU_FLEET_SCRAPE_TARGETS", "settings.GPU_FLEET_SCRAPE_KEEP")
_IN_WORDS: Final = ("hosts", "inventory", "alerts", "scrapeTargets")
_OF_RULES: Final = ("rules", "labels")  # keys of `alerts` whose effect is said at the rules


def hosts(old: Picture, new: Picture) -> Iterator[str]:
    """Added, removed, renamed and re-configured ones; hosts that change alike are one line."""
    before, after = old.of_type(_HOST), new.of_type(_HOST)
    gone, come = dict(before), dict(after)
    for name in before.keys() & after.keys():
        del gone[name], come[name]
    at = {_address(host): name for name, host in gone.items() if _address(host)}
    renamed = {at[_address(host)]: name for name, host in come.items() if _address(host) in at}
    for was, now in sorted(renamed.items()):
        yield f"- {code(was)} is renamed to {code(now)} ({plain(_address(after[now]))}): an update, nothing is reinstalled"
    yield from _alike("added", (host for name, host in come.items() if name not in renamed.values()), _place)
    yield from _alike("removed, and what it got is removed from it", (h for n, h in gone.items() if n not in renamed), _place)
    different = defaultdict(list)
    for was, now in [(name, name) for name in before.keys() & after.keys()] + list(renamed.items()):
        if said := "; ".join(_configured(before[was], after[now])):
            different[said].append(now)
    for said, names in sorted(different.items()):
        yield f"- {_named(names)}: {said}"


def _address(host: Resource) -> str:
    return str(host.inputs["connection"].get("address") or "")


def _place(host: Resource) -> str:
    settings = host.inputs["settings"]
    gpus = settings.get("GPU_FLEET_GPUS")
    words = [f"{gpus} GPUs" if gpus else "", settings.get("GPU_FLEET_EXPORTER", ""), host.inputs["connection"]["kind"]]
    return ", ".join(word for word in words if word and word != "ssh")


def _alike(what: str, found: Iterable[Resource], described: Callable[[Resource], str]) -> Iterator[str]:
    groups = defaultdict(list)
    for host in found:
        groups[described(host)].append(host)
    for said, group in sorted(groups.items()):
        single = f" ({', '.join(filter(None, (_address(group[0]), said)))})" if len(group) == 1 else f" ({said})" if said else ""
        yield f"- {_named([host.name for host in group])} {what}{single}"


def _named(names: list[str]) -> str:
    shown = ", ".join(map(code, sorted(names)[:_MOST_NAMED]))
    rest = len(names) - _MOST_NAMED
    return f"{len(names)} hosts ({shown}{f' and {rest} more' if rest > 0 else ''})" if len(names) > 1 else shown


def _configured(old: Resource, new: Resource) -> Iterator[str]:
    """What differs but for the name, the bundle (which all hosts share) and the place in a rollout."""
    flat = [_flat({key: one.inputs.get(key) for key in ("connection", "settings")}) for one in (old, new)]
    for key in sorted({*flat[0], *flat[1]}):
        if flat[0].get(key) != flat[1].get(key) and key not in _SAID_ELSEWHERE:
            label = key.removeprefix("settings.GPU_FLEET_").removeprefix("connection.").lower()
            yield f"{label} {_value(flat[0].get(key))} → {_value(flat[1].get(key))}"


def scrape_targets(old: Picture, new: Picture) -> Iterator[str]:
    """Further exporters of the hosts, as the stack file has them."""
    before, after = ({**(side.config.get("scrapeTargets") or {})} for side in (old, new))
    for job in sorted({*before, *after}):
        was, now = before.get(job), after.get(job)
        if was is None or now is None:
            target = was if now is None else now
            assert target is not None
            where = ", ".join(map(code, target.get("hosts") or ())) or "all GPU hosts"
            kept = f", only {', '.join(map(code, target['keep']))}" if target.get("keep") else ""
            verb = "no longer scraped" if now is None else f"scraped every {target.get('interval', '30s')}"
            yield f"- {code(job)} at {plain(target['url'])} is {verb} on {where}{kept}"
        elif was != now:
            flat = [_flat(one) for one in (was, now)]
            keys = [key for key in sorted({*flat[0], *flat[1]}) if flat[0].get(key) != flat[1].get(key)]
            yield f"- {code(job)}: " + "; ".join(f"{key} {_value(flat[0].get(key))} → {_value(flat[1].get(key))}" for key in keys)


def files(old: Picture, new: Picture) -> Iterator[str]:
    """The bundle's files, as diffs: every host of the stack gets them."""
    texts = [next((dict(one.inputs["files"]) for one in side.of_type(_BUNDLE).values()), {}) for side in (old, new)]
    if not texts[0] or not texts[1]:
        return  # the first hosts of a stack, or its last: every file is new or gone
    for text in texts:
        text["manifest"] = _MASKED.sub(r"\1(sha256)", text.get("manifest", ""))
    for path in sorted({*texts[0], *texts[1]}):
        yield from _diff(path, texts[0].get(path), texts[1].get(path))


def _diff(path: str, old: str | None, new: str | None) -> Iterator[str]:
    if old == new:
        return
    word = "added" if old is None else "removed" if new is None else "changed"
    lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), lineterm="", n=2)
    body = "\n".join(line for line in lines if not line.startswith(("---", "+++")))
    yield f"- {code(path)} {word}\n\n{block(body, 'diff', '  ')}"


def rules_and_alerts(old: Picture, new: Picture) -> Iterator[str]:
    yield from rules.changes(_rules(old), _rules(new))


def _rules(picture: Picture) -> list[rules.Rule]:
    """The same rules may reach several rulers, and Grafana too: each is said once. Inventories follow from the hosts."""
    found: dict[str, rules.Rule] = {}
    for group in picture.of_type(_RULE_GROUP).values():
        found.update((repr(rule), rule) for rule in rules.rules_of_group(group.inputs["rules"]))
    for one in picture.of_type(_PROMETHEUS_RULE).values():
        for part in one.inputs["spec"]["groups"]:
            found.update((repr(rule), rule) for rule in map(rules.rule_of_file, part["rules"]))
    of_rulers = {rule.name for rule in found.values()}
    for group in picture.of_type(_GRAFANA_GROUP).values():
        managed = map(rules.rule_of_grafana, group.inputs["rules"])
        found.update((repr(rule), rule) for rule in managed if rule.name not in of_rulers)
    return [rule for rule in found.values() if not rule.name.startswith("inventory:")]


def notified(old: Picture, new: Picture) -> Iterator[str]:
    """Receivers and routes, as the stack file has them: the configuration that is made of them holds secrets."""
    sections = [side.config.get("alerts") for side in (old, new)]
    before, after = (
        _flat({key: value for key, value in section.items() if key not in _OF_RULES}) if isinstance(section, Mapping) else {}
        for section in sections
    )
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield f"- `alerts.{key}`: {_value(before.get(key))} → {_value(after.get(key))}"
    templates = [next((one.inputs.get("templates") for one in side.of_type(_ALERTMANAGER).values()), None) for side in (old, new)]
    for name in sorted({*(templates[0] or {}), *(templates[1] or {})}):
        yield from _diff(f"notification template {name}", (templates[0] or {}).get(name), (templates[1] or {}).get(name))


def dashboards(old: Picture, new: Picture) -> Iterator[str]:
    models = [{model["uid"]: model for model in map(json.loads, _dashboard_texts(side))} for side in (old, new)]
    for uid in sorted({*models[0], *models[1]}):
        was, now = models[0].get(uid), models[1].get(uid)
        model = now or was
        assert model
        title = f"{strong(model['title'])} ({code(model['uid'])})"
        if was is None or now is None:
            yield f"- {title} {'removed' if now is None else 'added'}, {len(model['panels'])} panels and rows"
        elif said := [as_code(str(change)) for change in dashboard_changes(was, now)]:
            yield f"- {title}\n" + "\n".join(f"  - {line.replace(chr(10), chr(10) + '  ')}" for line in said)


def _dashboard_texts(side: Picture) -> Iterator[str]:
    """JSON of those that Grafana stores, and of those that its sidecar reads from the cluster."""
    yield from (one.inputs["configJson"] for one in side.of_type(_DASHBOARD).values())
    for one in side.resources:
        if _is_of_sidecar(one):
            yield from one.inputs["data"].values()


def _is_of_sidecar(one: Resource) -> bool:
    return one.type == _CONFIG_MAP and "grafana_dashboard" in one.inputs["metadata"].get("labels", {})


def charts(old: Picture, new: Picture) -> Iterator[str]:
    """Values of Helm releases, and what the charts render."""
    before, after = old.of_type(_RELEASE), new.of_type(_RELEASE)
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            one = was or now
            assert one
            word = "removed" if now is None else "added"
            yield f"- release {strong(name)} {word} ({plain(one.inputs['chart'])} {one.inputs.get('version', '')})"
            continue
        flat = [_flat({key: value for key, value in one.inputs.items() if key != "description"}) for one in (was, now)]
        for key in sorted({*flat[0], *flat[1]}):
            if flat[0].get(key) != flat[1].get(key):
                yield f"- release {strong(name)}, {code(key)}: {_value(flat[0].get(key))} → {_value(flat[1].get(key))}"
    rendered = [
        {
            f"{name.removesuffix('-objects')}: {key}": text
            for name, one in side.of_type(_OBJECTS).items()
            for key, text in _objects(one)
        }
        for side in (old, new)
    ]
    for key in sorted({*rendered[0], *rendered[1]}):
        yield from _diff(key, rendered[0].get(key), rendered[1].get(key))


def _objects(manifest: Resource) -> Iterator[tuple[str, str]]:
    for key, value in manifest.inputs["objects"].items():
        yield key, value if isinstance(value, str) else yaml.safe_dump(value)


def secrets(old: Picture, new: Picture) -> Iterator[str]:
    """Keys whose encrypted value changed. Only whoever deploys can read the values."""
    for key in sorted({*old.secrets, *new.secrets}):
        was, now = old.secrets.get(key), new.secrets.get(key)
        if was == now or not (old.secrets and new.secrets):
            continue
        if not key:
            yield "- All secrets are encrypted by another passphrase or key"
        else:
            yield f"- {code(key)} {'added' if was is None else 'removed' if now is None else 'set to a new value'}"


def stack_file(old: Picture, new: Picture) -> Iterator[str]:
    """Every key that differs, by its name in the stack file, but for the sections that are described in words above."""
    if not old.config or not new.config:
        return
    flat = [_flat({key: value for key, value in side.config.items() if key not in _IN_WORDS}) for side in (old, new)]
    for key in sorted({*flat[0], *flat[1]}):
        if flat[0].get(key) != flat[1].get(key):
            yield f"- {code(key)}: {_value(flat[0].get(key))} → {_value(flat[1].get(key))}"


def others(old: Picture, new: Picture) -> Iterator[str]:
    """What no other section says: providers, folders, data sources, outputs."""
    said = {_HOST, _BUNDLE, _RULE_GROUP, _ALERTMANAGER, _GRAFANA_GROUP, _DASHBOARD, _PROMETHEUS_RULE, _RELEASE, _OBJECTS}
    sides = [
        {
            (one.type, one.name): one
            for one in side.resources
            if one.type not in said and not _COMPONENTS.match(one.type) and not _is_of_sidecar(one)
        }
        for side in (old, new)
    ]
    for key in sorted({*sides[0], *sides[1]}):
        was, now = sides[0].get(key), sides[1].get(key)
        label = f"{code(key[0])} {plain(key[1])}"
        if was is None or now is None:
            yield f"- {label} {'removed' if now is None else 'added'}"
            continue
        yield from _leaves(f"{label}, ", was, now)


def anything(old: Picture, new: Picture) -> Iterator[str]:
    """The inputs of every resource, for a difference that no section describes: it is never called nothing."""
    sides = [{(one.type, one.name): one for one in side.resources} for side in (old, new)]
    for key in sorted(sides[0].keys() & sides[1].keys()):
        yield from _leaves(f"{code(key[0])} {plain(key[1])}, ", sides[0][key], sides[1][key])


def _leaves(label: str, old: Resource, new: Resource) -> Iterator[str]:
    flat = [_flat(_parsed(one.inputs)) for one in (old, new)]
    for path in sorted({*flat[0], *flat[1]}):
        if flat[0].get(path) != flat[1].get(path):
            yield f"- {label}{code(path)}: {_value(flat[0].get(path))} → {_value(flat[1].get(path))}"


def problems(old: Picture, new: Picture) -> Iterator[str]:
    if new.environments:
        what = "the stack was not compared" if new.error else "values that come from them were not compared"
        yield f"- Pulumi ESC environments cannot be opened without a login, so {what}: {code(new.environments)}"
    if new.error:
        since = " (the base has the same error)" if new.error == old.error else ""
        verdict = "Without their values the program ends with" if new.environments else f"**The stack cannot be deployed**{since}"
        yield f"- {verdict}:\n\n{block(new.error, indent='  ')}"
    elif old.error:
        yield "- The base cannot be deployed; the branch can."
    for warning in new.warnings:
        if warning not in old.warnings:
            yield f"- Warning: {code(warning)}"


def violations(old: Picture, new: Picture) -> Iterator[str]:
    """Of policies, if the base has not the same; docs/policies.md."""
    known = old.findings
    for (policy, found), resources in new.findings.items():
        if (policy, found) not in known:
            level = " (advisory)" if policy.is_advisory else ""
            names = [name.replace("::", " ") for name in resources]
            where = code(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            what = f"{where}: {plain(found.found)}"
            yield f"- **{policy.name}**{level}: {what}\n  - expected: {found.expected}\n  - fix: {found.fix}"


def breaks_policy(old: Picture, new: Picture) -> bool:
    """Whether the branch adds a violation that is not only advisory."""
    return any(not policy.is_advisory for policy, found in new.findings if (policy, found) not in old.findings)


def _parsed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """JSON within a value is compared by its keys."""

    def parse(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(("{", "[")):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    return {key: parse(value) for key, value in inputs.items()}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c": [2]} becomes {"a.b": 1, "c.0": 2}."""
    if value in ({}, []):
        return {}
    if isinstance(value, Mapping):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{path}.{key}" if path else str(key)).items()}
    if isinstance(value, list):
        return {
            k: v for place, item in enumerate(value) for k, v in _flat(item, f"{path}.{place}" if path else str(place)).items()
        }
    return {path: value}


def _value(value: object) -> str:
    if value is None:
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return code(text if len(text) <= 200 else text[:197] + "...")
