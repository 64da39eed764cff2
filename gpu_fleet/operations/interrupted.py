"""What a killed run left open, settled before the next: hosts that it brought up, and what it was creating in a cluster and in
Grafana, which take nothing twice under one name.

Pulumi notes each operation in the state before it begins, and forgets all of these notes when a state is imported (3.259.0,
pkg/cmd/pulumi/stack/io.go, SaveSnapshot). So one import settles everything, and what has to be read first is listed in the state
itself (NOTE) until a second import has what was found: a run that is killed in between is continued by the next.

What was being created may exist by now: it is looked up, and what carries our mark is taken into the state, so that the run
updates it. What was being changed or removed in Grafana is read too: its plugin cannot remove what is gone. Helm's record of what
it did not finish, an installation or an upgrade, is deleted, and nothing else: the objects stay, and Helm takes over what their
labels show to be of this release. Everything else that was open is forgotten, since creating it again converges: objects in
Kubernetes (applied by the server), rule groups of rulers, processes of an embedded backend. Hosts: state.py.
"""

from __future__ import annotations

import calendar
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from alerts.channels import KINDS
from components.kubernetes.place import kubernetes_place
from components.kubernetes.releases import release_names
from gpu_fleet.operations.cluster import cluster_api
from gpu_fleet.operations.engine import OperationError, error_of, pulumi, secret
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.operations.state import HOST, exported, failed_host, pending, resources_of, save
from gpu_fleet.provider.helm import HelmRelease, helm_releases
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.stackfile.config import ConfigErrors
from gpu_fleet.stackfile.naming import release_mark
from gpu_fleet.stackfile.problems import listed

RELEASE: Final = "kubernetes:helm.sh/v3:Release"
NOTE: Final = "gpu-fleet:operations:Unfinished"
# No program registers the note, so a plain `pulumi up` would remove it, and with it what has not been read. It is protected:
# pulumi refuses, and prints this name.
_NAME_OF_NOTE: Final = "a-run-was-killed--make-up-continues-it"
_UNREAD: Final = "a run was killed while it created this; the next `make up` finds out whether it exists"
# Types of Grafana's plugin that refuse to create what exists, or that components/grafana/ownership.py refuses: the input that is
# their id, and the inputs that what is ours has in common with it. Source of the ids: the plugin's import documentation.
_OF_GRAFANA: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "grafana:oss/folder:Folder": ("{uid}", ("title",)),
    "grafana:oss/dataSource:DataSource": ("{uid}", ("name", "type", "url")),
    "grafana:oss/dashboard:Dashboard": ("{uid}", ("folder",)),
    "grafana:alerting/ruleGroup:RuleGroup": ("{folderUid}:{name}", ("folderUid",)),
    "grafana:alerting/contactPoint:ContactPoint": ("{name}", tuple(kind.grafana for kind in KINDS.values())),
    "grafana:alerting/muteTiming:MuteTiming": ("{name}", ("intervals",)),
    "grafana:alerting/messageTemplate:MessageTemplate": ("{name}", ("template",)),
    "grafana:alerting/notificationPolicy:NotificationPolicy": ("policy", ("contactPoint",)),
}
_TAKEN: Final = {RELEASE, *_OF_GRAFANA}
_SIGNATURE: Final = "4dabf18193072939515e22adb298388d"  # the key of a mapping that stands for a secret in a state
_IS_ENCRYPTED: Final = "1b47061264138c4ac30d75fd1eb44270"  # its value
_MONTHS: Final = [name.lower() for name in calendar.month_name[1:]]
_UNFINISHED: Final = ("pending-install", "failed", "uninstalling")  # an atomic installation that fails is uninstalled by Helm
_UNCHANGED: Final = ("pending-upgrade", "pending-rollback")  # Helm then continues from the revision before

Resource = Mapping[str, Any]


def is_open(state: Mapping[str, Any]) -> bool:
    """Whether a killed run, or one that ended while it was being settled, left something open."""
    return bool((state.get("deployment") or {}).get("pending_operations")) or any(map(_is_note, resources_of(state)))


def settle(stack: str, found: Configuration, *, removes: bool = False) -> dict[str, Any]:
    """The state, in which nothing is open now. `removes`: the next run removes the whole stack. Raises OperationError, with
    everything still open, where somebody else has the name of a release that is to be installed, and where what may exist cannot
    be read; ConfigErrors where only the stack file says where that is."""
    state = exported(stack)
    if not is_open(state):
        return state
    live = {one["urn"]: one for one in resources_of(state) if not one.get("delete") and not one.get("pendingReplacement")}
    creating = {urn: one for urn, one in pending(state, "creating").items() if urn not in live or _has_another_id(one, live[urn])}
    hosts = [failed_host(one) for one in creating.values() if one["type"] == HOST]
    opened = [one for one in creating.values() if one["type"] in _TAKEN]
    changed = [one for one in pending(state, "updating").values() if one["type"] == RELEASE]
    ids = _releases(stack, found, [one for one in opened if one["type"] == RELEASE], changed, removes)
    ids |= {one["urn"]: identity for one in opened if (identity := _in_grafana(one))}
    assumed = [{**one, "id": ids[one["urn"]], "initErrors": [_UNREAD]} for one in opened if one["urn"] in ids]
    kept = [*_with_assumed((one for one in resources_of(state) if not _is_note(one)), assumed), *hosts]
    # The inputs too: those in the state become what exists, and then say no more whether it is what was being created.
    created = {one["urn"]: {"type": one["type"], "inputs": one["inputs"]} for one in assumed}
    touched = {**pending(state, "updating"), **pending(state, "deleting")}
    others: dict[str, Any] = {urn: {} for urn, one in touched.items() if one["type"] in _OF_GRAFANA}
    for note in filter(_is_note, resources_of(state)):
        created, others = {**note["inputs"]["created"], **created}, {**note["inputs"]["others"], **others}
    reading = list(dict.fromkeys(one["urn"] for one in kept if one["urn"] in created or one["urn"] in others))
    if reading:
        kept = [*_with_logins(kept, reading, stack, found), _note(reading[0], {"created": created, "others": others})]
    _replace(stack, state, kept)
    if hosts:
        names = ", ".join(str(one["inputs"]["host"]) for one in hosts)
        print(f"A run was killed while it brought up {names}: this one finishes or removes it.", file=sys.stderr)
    return _read(stack, reading, created, "destroy" if removes else "up") if reading else state


def _is_note(one: Resource) -> bool:
    return bool(one["type"] == NOTE)


def _note(urn: str, unread: Mapping[str, Any]) -> dict[str, Any]:
    """`urn`: of any resource of the stack."""
    named = f"{'::'.join(urn.split('::')[:2])}::{NOTE}::{_NAME_OF_NOTE}"
    return {"urn": named, "custom": False, "type": NOTE, "inputs": unread, "protect": True}


def _has_another_id(creating: Resource, live: Resource) -> bool:
    """Whether it was being created to replace the live one, as where a contact point is renamed. With the same id it would be
    what is live."""
    identity = "/".join(_place(creating)) if creating["type"] == RELEASE else _in_grafana(creating)
    return bool(identity) and identity != live.get("id")


def _with_assumed(resources: Iterable[dict[str, Any]], assumed: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What was being created, in the place of what it was to replace, where others look for it. That is still to be removed,
    unless it was removed first."""
    left = {one["urn"]: one for one in assumed}
    for one in resources:
        if one.get("delete") or not (replacement := left.pop(one["urn"], None)):
            yield one
            continue
        yield replacement
        if not one.get("pendingReplacement"):
            yield {**one, "delete": True}
    yield from left.values()


def _replace(stack: str, state: dict[str, Any], resources: list[Any]) -> None:
    """Saves the state with these resources and nothing open."""
    state["deployment"] = {**state["deployment"], "resources": resources, "pending_operations": []}
    save(stack, state)


def _read(stack: str, reading: Collection[str], created: Mapping[str, Resource], command: str) -> dict[str, Any]:
    """The state with what Pulumi read. What exists and is not what the killed run was creating leaves it."""
    done = pulumi("refresh", "--stack", stack, "--yes", "--skip-preview", *(f"--target={urn}" for urn in reading))
    if done.returncode != 0:
        names = [urn.rpartition("::")[2] for urn in reading]
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise OperationError(
            f"a run was killed while it worked on {some}, and whether they exist cannot be read now:\n{error_of(done)}\n"
            f"Nothing of it is lost: `make {command} STACK={stack}` continues once they can be read"
        )
    state = exported(stack)
    read = {one["urn"]: one for one in resources_of(state) if one["urn"] in created and not one.get("delete")}
    others = {urn for urn, one in read.items() if not _is_ours(created[urn], one.get("outputs") or {})}
    if others:
        shown = listed(sorted(f"{_shown(read[urn])} ({read[urn]['id']})" for urn in others))
        print(f"Exists, differs from what a killed run was creating, and is left alone: {shown}.", file=sys.stderr)
    kept = []
    for one in resources_of(state):
        if one["urn"] in others and one.get("delete"):  # nothing of ours replaces it
            kept.append({key: value for key, value in one.items() if key != "delete"})
        elif one["urn"] not in others and not _is_note(one):
            kept.append(one)
    _replace(stack, state, kept)
    if ours := [_shown(one) for urn, one in read.items() if urn not in others]:
        print(f"A run was killed after it had created {', '.join(ours)}: in the state now.", file=sys.stderr)
    return state


def _with_logins(
    resources: Sequence[dict[str, Any]], reading: Collection[str], stack: str, found: Configuration
) -> Iterable[dict[str, Any]]:
    """The providers with which is read have the logins of the stack file: those that the killed run had may be valid no more."""
    used = {one["provider"].rpartition("::")[0] for one in resources if one["urn"] in reading and one.get("provider")}
    logins = _logins(stack, found)
    for one in resources:
        if one["urn"] not in used or one["type"] not in logins:
            yield one
            continue
        changed = {**one["inputs"], **logins[one["type"]]}
        yield {**one, **{kind: {**one.get(kind, {}), **changed} for kind in ("inputs", "outputs")}}


def _logins(stack: str, found: Configuration) -> dict[str, dict[str, Any]]:
    """By the type of a provider, the inputs with which it logs in. None where the stack file has errors: a stack that is removed
    needs none without."""
    try:
        config = found.load()
    except ConfigErrors:
        return {}

    def given(key: str) -> Any:
        return {_SIGNATURE: _IS_ENCRYPTED, "plaintext": json.dumps(secret(stack, key).rstrip())}

    logins: dict[str, dict[str, Any]] = {}
    if config.grafana:
        auth = {"auth": given("grafanaAuth")} if "grafanaAuth" in found.secrets else {}
        logins["pulumi:providers:grafana"] = {"url": config.grafana.url, **auth}
    if config.kubernetes:
        kubeconfig = {"kubeconfig": given("kubeconfig")} if "kubeconfig" in found.secrets else {}
        logins["pulumi:providers:kubernetes"] = {**(kubernetes_place(config) or {}), **kubeconfig}
    return logins


def _releases(
    stack: str, found: Configuration, opened: Sequence[Resource], changed: Sequence[Resource], removes: bool
) -> dict[str, str]:
    """URN to id of the Helm releases that are ours. What Helm did not finish is made ready for the next attempt; where none
    follows, it is taken as it is, so that it is removed."""
    adopted: dict[str, str] = {}
    unfinished: list[HelmRelease] = []
    if not opened and not changed:
        return adopted
    config = found.load()
    if config.kubernetes is None:
        if not opened:
            return adopted  # they are removed, whatever Helm was doing
        names = listed([one["inputs"]["name"] for one in opened])
        raise OperationError(
            f"a run was killed while it installed Helm releases ({names}), and gpu-fleet:kubernetes, which says where, is not in "
            f"the stack file any more: put it back, then `make up STACK={stack}` or `make destroy STACK={stack}`"
        )
    api, section = cluster_api(config, stack, found), config.kubernetes
    wanted = set() if removes else {(section.namespace, name) for name in release_names(section)}
    try:
        for one in changed:
            release = _of_cluster(api, one)
            if release and release.status in _UNCHANGED and _place(one) in wanted:
                unfinished.append(release)
        for one in opened:
            release = _of_cluster(api, one)
            if release is None:
                continue
            is_unfinished = release.status in _UNFINISHED and _given(release.values) == _given(one["inputs"].get("values"))
            if is_unfinished and _place(one) in wanted:
                unfinished.append(release)
            elif is_unfinished or _is_marked(release, stack):
                adopted[one["urn"]] = "/".join(_place(one))
            elif _place(one) in wanted:
                raise OperationError(_of_others(release, one["inputs"]["namespace"], stack))
        if unfinished:
            _refuse_another_run(stack, [*opened, *changed][0]["urn"])
        for release in unfinished:
            api.delete(release.path)
    except (KubeconfigError, Unreachable, Refused) as error:
        raise OperationError(
            f"a run was killed while it installed Helm releases, and whether they exist cannot be read now: {error}"
        ) from None
    return adopted


def _refuse_another_run(stack: str, urn: str) -> None:
    """What looks killed may be at work on another machine. No backend can be asked for its locks: a refresh takes one, and of a
    resource that does not exist does nothing (run with 3.259.0; Pulumi Cloud answers 409 meanwhile). `urn`: of the stack."""
    nothing = f"{'::'.join(urn.split('::')[:2])}::{NOTE}::nothing"
    said = error_of(pulumi("refresh", "--stack", stack, "--yes", "--skip-preview", f"--target={nothing}"))
    if "currently locked" in said or "currently in progress" in said:
        raise OperationError(f"another run is at work on the stack {stack}; nothing was changed:\n{said}")


def _place(one: Resource) -> tuple[str, str]:
    return one["inputs"]["namespace"], one["inputs"]["name"]


def _of_cluster(api: ClusterApi, one: Resource) -> HelmRelease | None:
    namespace, name = _place(one)
    return helm_releases(api, namespace, [name]).get(name)


def _of_others(release: HelmRelease, namespace: str, stack: str) -> str:
    return (
        f"the Helm release {release.name} exists in the namespace {namespace}, and this stack did not create it "
        f"({release.status}; {release.description or 'no description'}): nothing was changed. If nothing needs it: "
        f"helm uninstall {release.name} --namespace {namespace}, then `make up STACK={stack}` again"
    )


def _is_marked(release: HelmRelease, stack: str) -> bool:
    mark = release_mark(stack.rpartition("/")[2])
    return release.description == mark or release.description.startswith(f"{mark};")


def _given(values: Any) -> Any:
    """Without what Pulumi's provider loses on the way to Helm: null and, before 4.30, what is empty."""
    if isinstance(values, Mapping):
        return {key: given for key, value in values.items() if (given := _given(value)) not in (None, {}, [])}
    return [_given(value) for value in values] if isinstance(values, list) else values


def _in_grafana(one: Resource) -> str:
    """The id under which Grafana has it, if it does; empty for other types."""
    pattern, _ = _OF_GRAFANA.get(one["type"], ("", ()))
    inputs = dict(one["inputs"])
    if "configJson" in inputs:
        inputs["uid"] = json.loads(inputs["configJson"]).get("uid", "")
    return pattern.format_map(inputs)


def _shown(one: Resource) -> str:
    return f"{one['type'].rpartition(':')[2]} {one['urn'].rpartition('::')[2]}"


def _is_ours(wanted: Resource, read: Mapping[str, Any]) -> bool:
    """Whether what exists under the name agrees with what the run was about to create; the rest is what an update repairs."""
    _, names = _OF_GRAFANA.get(wanted["type"], ("", ()))
    return all(_agrees(wanted["inputs"].get(name), read.get(name)) for name in names)


def _agrees(wanted: Any, read: Any) -> bool:
    """Grafana adds defaults, gives no secret back, and writes months as numbers."""
    if isinstance(wanted, dict):
        return _SIGNATURE in wanted or (
            isinstance(read, dict) and all(_agrees(each, read.get(key)) for key, each in wanted.items())
        )
    if isinstance(read, dict) and _SIGNATURE in read:
        return True
    if wanted and isinstance(wanted, list):
        return isinstance(read, list) and len(read) == len(wanted) and all(map(_agrees, wanted, read))
    if isinstance(wanted, str) and isinstance(read, str):
        return _plain(wanted) == _plain(read)
    return bool(wanted == read) or not (wanted or read)


def _plain(text: str) -> str:
    ends = text.strip().split(":")
    return ":".join(str(_MONTHS.index(end) + 1) if end in _MONTHS else end for end in ends)
