"""What changed between two pictures of a stack, in words, by subject. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final

import yaml

from dashboards.changes import changes as dashboard_changes
from dashboards.review import as_code
from gpu_fleet.operations.pr_report import rules, values
from gpu_fleet.operations.pr_report.pictures import Picture, Resource
from gpu_fleet.safetext.differences import diff
from gpu_fleet.safetext.markdown import block, code, plain, strong

_MASKED: Final = re.compile(r"^(file\t.*\t)[0-9a-f]{64}$", re.MULTILINE)
_MOST_NAMED = 12
_SAID_ELSEWHERE: Final = ("settings.GPU_FLEET_INSTANCE", "settings.GPU_FLEET_SCRAPE_TARGETS", "settings.GPU_FLEET_SCRAPE_KEEP")
_IDENTITY: Final = ("GPU_FLEET_INSTANCE", "GPU_FLEET_DATACENTER", "GPU_FLEET_CLUSTER")
_UNREAD: Final = re.compile("GPU_FLEET_(STACK|PULL_[A-Z]*)")  # by any service (gpu_fleet/on_host/converge/settings.py)
_DIGEST: Final = "/var/lib/gpu-fleet/textfile/fleet_bundle.prom"  # of everything else
_LOOPBACK: Final = "127.0.0.1:"  # the stack file has ports alone
_GROUPS: Final = (values.RULE_GROUP, values.GRAFANA_GROUP, values.PROMETHEUS_RULE)
_OF_RULES: Final = ("- `alerts.rules.", "- `alerts.labels.")  # not of whom to notify


def hosts(old: Picture, new: Picture) -> Iterator[str]:
    """Added, removed, renamed and re-configured ones; hosts that change alike are one line."""
    before, after = old.of_type(values.HOST), new.of_type(values.HOST)
    gone, come = dict(before), dict(after)
    for name in before.keys() & after.keys():
        del gone[name], come[name]
    at = {_address(host): name for name, host in gone.items() if _address(host)}
    renamed = {at[_address(host)]: name for name, host in come.items() if _address(host) in at}
    for was, now in sorted(renamed.items()):
        yield f"- {code(was)} is renamed to {code(now)} ({plain(_address(after[now]))}): an update, nothing is reinstalled"
    yield from _alike("added", (host for name, host in come.items() if name not in renamed.values()), _place)
    yield from _alike("removed, and what it got is removed from it", (h for n, h in gone.items() if n not in renamed), _place)
    different, restarting, keys = defaultdict(list), defaultdict(list), _keys(old, new)
    for was, now in [(name, name) for name in before.keys() & after.keys()] + list(renamed.items()):
        if said := "; ".join(_configured(before[was], after[now], keys)):
            different[said].append(now)
        if units := _restarted(new, frozenset(_causes(before[was].inputs["settings"], after[now].inputs["settings"]))):
            restarting[units].append(now)
    for said, names in sorted(different.items()):
        yield f"- {_named(names)}: {said}"
    for units, names in sorted(restarting.items()):
        where = _count(len(names)) if len(names) > 1 else code(names[0])
        yield f"- On {where}, of these services those that run restart: {units}"


def _causes(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Of settings that differ: what restarts a unit, as gpu_fleet/host/part.py has it."""
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key) and not _UNREAD.fullmatch(key):
            yield "identity" if key in _IDENTITY else f"setting/{key}"
            if key not in _IDENTITY:
                yield "settings"


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


def _keys(old: Picture, new: Picture) -> dict[tuple[str, str], str]:
    """The key of the stack file whose value changed in the same way: a setting of a host is named by it."""
    changed = [(".".join(path), (str(was), str(now))) for path, was, now in values.leaves(old.config, new.config)]
    return {change: key for key, change in changed if sum(other == change for _, other in changed) == 1}


def _configured(old: Resource, new: Resource, keys: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """What differs but for the name, the bundle (which all hosts share) and the place in a rollout."""
    inputs = [{key: one.inputs.get(key) for key in ("connection", "settings")} for one in (old, new)]
    for path, was, now in values.different(*inputs):
        if ".".join(path) not in _SAID_ELSEWHERE:
            label = ".".join(path[1:] or path).removeprefix("GPU_FLEET_").lower()
            was, now = (value.removeprefix(_LOOPBACK) if isinstance(value, str) else value for value in (was, now))
            yield f"{code(keys.get((str(was), str(now)), label))} {values.arrow(was, now)}"


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
            changes = [f"{code('.'.join(path))} {values.arrow(*pair)}" for path, *pair in values.different(was, now)]
            yield f"- {code(job)}: " + "; ".join(changes)


def files(old: Picture, new: Picture) -> Iterator[str]:
    """The bundle's files, as diffs: every host of the stack gets them."""
    texts = [next((dict(one.inputs["files"]) for one in side.of_type(values.BUNDLE).values()), {}) for side in (old, new)]
    if not texts[0] or not texts[1]:
        return  # the first hosts of a stack, or its last: every file is new or gone
    manifests = [set(text.get("manifest", "").splitlines()) for text in texts]
    changed = {path for path in {*texts[0], *texts[1]} if texts[0].get(path) != texts[1].get(path)}
    changed |= {field for line in manifests[0] ^ manifests[1] for field in line.split("\t")[1:] if field.startswith("/")}
    defaults = [dict(line.partition("=")[::2] for line in text.get("settings", "").splitlines()) for text in texts]
    if changed:
        units = _restarted(new, {*changed - {"settings"}, *_causes(*defaults)})
        yield f"- {_count(len(new.of_type(values.HOST)))} get these files; " + (
            f"of these services those that run there restart: {units}" if units else "no service restarts"
        )
    yield from _downloads(*manifests)
    for text in texts:
        lines = _MASKED.sub(r"\1(sha256)", text.get("manifest", "")).splitlines()
        text["manifest"] = "\n".join(line for line in lines if not line.startswith("download\t"))
    for path in sorted({*texts[0], *texts[1]} - ({_DIGEST} if changed - {_DIGEST} else set())):
        yield from _diff(path, texts[0].get(path), texts[1].get(path))


def _downloads(old: Set[str], new: Set[str]) -> Iterator[str]:
    """Programs by the name of the release's file, which has the version."""
    sides: list[dict[tuple[str, str], list[str]]] = [{}, {}]
    for side, lines in zip(sides, (old, new), strict=True):
        for _, path, mode, arch, *source in (line.split("\t") for line in lines if line.startswith("download\t")):
            side[path, arch] = [mode, *source]
    for key in sorted({*sides[0], *sides[1]}):
        was, now = (side.get(key, []) for side in sides)
        if was != now:
            yield f"- {code(key[0])} ({plain(key[1])}): {_release(was, now)}"


def _release(was: list[str], now: list[str]) -> str:
    """`was`, `now`: mode, sha256, member and URL."""
    names = [one[-1].rpartition("/")[2] if one else "none" for one in (was, now)]
    if names[0] == names[1]:
        return values.arrow(" ".join(was), " ".join(now))
    stays = ", **and the sha256 is that of the old one**" if was and now and was[1] == now[1] else ""
    return " → ".join(map(code, names)) + stays


def _count(hosts: int) -> str:
    return f"{hosts} host{'' if hosts == 1 else 's'}"


def _restarted(picture: Picture, changed: Set[str]) -> str:
    """The services that restart when one of these files, or "settings" or "setting/NAME", changes, by the manifest."""
    lines = [
        line.split("\t")
        for one in picture.of_type(values.BUNDLE).values()
        for line in one.inputs["files"].get("manifest", "").splitlines()
    ]
    return ", ".join(map(code, sorted({line[1] for line in lines if line[0] == "restart" and line[2] in changed})))


def _diff(path: str, old: str | None, new: str | None) -> Iterator[str]:
    if old == new:
        return
    word = "added" if old is None else "removed" if new is None else "changed"
    yield f"- {code(path)} {word}\n\n{block(chr(10).join(diff(old or '', new or '')), 'diff', '  ')}"


def rules_and_alerts(old: Picture, new: Picture) -> Iterator[str]:
    yield from rules.changes(_rules(old), _rules(new))


def _rules(picture: Picture) -> list[rules.Rule]:
    """The same rules may reach several rulers, and Grafana too: each is said once. Inventories follow from the hosts."""
    found: dict[str, rules.Rule] = {}
    for group in picture.of_type(values.RULE_GROUP).values():
        found.update((repr(rule), rule) for rule in rules.rules_of_group(group.inputs["rules"]))
    for one in picture.of_type(values.PROMETHEUS_RULE).values():
        for part in one.inputs["spec"]["groups"]:
            found.update((repr(rule), rule) for rule in map(rules.rule_of_file, part["rules"]))
    of_rulers = {rule.name for rule in found.values()}
    for group in picture.of_type(values.GRAFANA_GROUP).values():
        managed = map(rules.rule_of_grafana, group.inputs["rules"])
        found.update((repr(rule), rule) for rule in managed if rule.name not in of_rulers)
    return [rule for rule in found.values() if not rule.name.startswith("inventory:")]


def notified(old: Picture, new: Picture) -> Iterator[str]:
    """Receivers and routes, as the stack file has them: the configuration that is made of them holds secrets."""
    for line in values.stack_file(old, new):
        if _is_of_notifications(line):
            yield line
    templates = [
        next((one.inputs.get("templates") for one in side.of_type(values.ALERTMANAGER).values()), None) for side in (old, new)
    ]
    for name in sorted({*(templates[0] or {}), *(templates[1] or {})}):
        yield from _diff(f"notification template {name}", (templates[0] or {}).get(name), (templates[1] or {}).get(name))


def _is_of_notifications(line: str) -> bool:
    return line.startswith("- `alerts.") and not line.startswith(_OF_RULES)


def stack_file(old: Picture, new: Picture) -> Iterator[str]:
    """Every key that differs, also one whose effects are said in words."""
    yield from (line for line in values.stack_file(old, new) if not _is_of_notifications(line))


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
    yield from (one.inputs["configJson"] for one in side.of_type(values.DASHBOARD).values())
    for one in side.resources:
        if _is_of_sidecar(one):
            yield from one.inputs["data"].values()


def _is_of_sidecar(one: Resource) -> bool:
    return one.type == values.CONFIG_MAP and "grafana_dashboard" in one.inputs["metadata"].get("labels", {})


def charts(old: Picture, new: Picture) -> Iterator[str]:
    """Values of Helm releases, and what the charts render."""
    before, after = old.of_type(values.RELEASE), new.of_type(values.RELEASE)
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            one = was or now
            assert one
            word = "removed" if now is None else "added"
            yield f"- release {strong(name)} {word} ({plain(one.inputs['chart'])} {one.inputs.get('version', '')})"
            continue
        for path, *pair in values.different(was.inputs, now.inputs):
            if path != ("description",):
                yield f"- release {strong(name)}, {code('.'.join(path))}: {values.arrow(*pair)}"
    rendered = [
        {
            f"{name.removesuffix('-objects')}: {key}": text
            for name, one in side.of_type(values.OBJECTS).items()
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


def whole(stack: str, old: Picture, new: Picture, *, is_new: bool) -> Iterator[str]:
    """What a stack that is new or gone has beside its hosts: numbers and names."""
    side = new if is_new else old
    if not is_new:
        yield f"- Hosts and servers keep what it has: `make destroy STACK={stack}` removes it, on the base that has the file"
    files = sum(len(one.inputs["files"]) for one in side.of_type(values.BUNDLE).values())
    if files:
        yield f"- Files for hosts ({files})"
    named = {
        "Groups of rules": [str(one.inputs.get("name") or one.name) for one in side.resources if one.type in _GROUPS],
        "Dashboards": [str(json.loads(text)["title"]) for text in _dashboard_texts(side)],
        "Charts": [str(one.inputs["chart"]) for one in side.of_type(values.RELEASE).values()],
        "Secrets": [key for key in side.secrets if key],
        "Keys of the stack file": list(side.config),
    }
    for what, names in named.items():
        if names:
            shown = ", ".join(map(code, sorted({*names})[:_MOST_NAMED]))
            rest = len({*names}) - _MOST_NAMED
            yield f"- {what} ({len({*names})}): {shown}{f' and {rest} more' if rest > 0 else ''}"
    kinds = Counter(one.type for one in side.resources)
    if kinds:
        yield f"- Resources ({sum(kinds.values())}): " + ", ".join(
            f"{count} {code(kind)}" for kind, count in sorted(kinds.items())
        )


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
