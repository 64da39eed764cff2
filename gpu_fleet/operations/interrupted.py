"""What a killed run was creating in a cluster and in Grafana, which take nothing twice under one name: settled before the next.

Pulumi notes each creation in the state before it begins. What a killed run left open there may exist by now: it is looked up, and
what carries our mark is taken into the state, so that the run updates it. Helm's record of what it did not finish, an
installation or an upgrade, is deleted, and nothing else: the objects stay, and Helm takes over what their labels show to be of
this release. Everything else that
was open is forgotten, since creating it again converges: objects in Kubernetes (applied by the server), rule groups of rulers,
processes of an embedded backend. Hosts: state.py.
"""

from __future__ import annotations

import calendar
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from alerts.channels import KINDS
from components.kubernetes.releases import release_names
from gpu_fleet.operations.cluster import cluster_api
from gpu_fleet.operations.engine import OperationError, error_of, pulumi
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.operations.state import exported, pending, resources_of, save
from gpu_fleet.provider.helm import HelmRelease, helm_releases
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.stackfile.naming import release_mark
from gpu_fleet.stackfile.problems import listed

RELEASE: Final = "kubernetes:helm.sh/v3:Release"
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
_MONTHS: Final = [name.lower() for name in calendar.month_name[1:]]
_UNFINISHED: Final = ("pending-install", "failed", "uninstalling")  # an atomic installation that fails is uninstalled by Helm
_UNCHANGED: Final = ("pending-upgrade", "pending-rollback")  # Helm then continues from the revision before

Resource = Mapping[str, Any]


def settle(stack: str, found: Configuration, *, removes: bool = False) -> list[str]:
    """What was open and is in the state now, by type and name. `removes`: the next run removes the whole stack. Raises
    OperationError where somebody else has the name of a release that is to be installed, before anything was changed."""
    state = exported(stack)
    creating = pending(state, "creating")
    changed = [one for one in pending(state, "updating").values() if one["type"] == RELEASE]
    if not creating and not changed:
        return []
    # One without outputs: this very function was killed before it had read it.
    known = {one["urn"] for one in resources_of(state) if one.get("outputs") or one["type"] not in _TAKEN}
    opened = {urn: one for urn, one in creating.items() if urn not in known}
    adopted = {
        **_releases(stack, found, [one for one in opened.values() if one["type"] == RELEASE], changed, removes),
        **{urn: identity for urn, one in opened.items() if (identity := _in_grafana(one))},
    }
    if adopted and not _read(stack, state, {urn: {**opened[urn], "id": identity} for urn, identity in adopted.items()}):
        return []
    return _without_others(stack, {urn: opened[urn] for urn in adopted})


def _read(stack: str, state: Mapping[str, Any], resources: Mapping[str, Resource]) -> bool:
    """Whether Pulumi could read them: those that exist are in the state then. Until they are settled, they are pending too."""
    deployment = state["deployment"]
    others = [one for one in deployment["resources"] if one["urn"] not in resources]
    assumed = [{**one, "outputs": {}} for one in resources.values()]
    save(stack, {**state, "deployment": {**deployment, "resources": [*others, *assumed]}})
    options = ("--yes", "--skip-preview", "--skip-pending-creates")
    done = pulumi("refresh", "--stack", stack, *options, *(f"--target={urn}" for urn in resources))
    if done.returncode != 0:
        # Perhaps with a login that is not valid any more: the run writes the one of the stack file into the state, and the next
        # `make up` reads with that.
        save(stack, state)
        print(f"A run was killed, and whether what it was creating exists could not be read:\n{error_of(done)}", file=sys.stderr)
    return done.returncode == 0


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
        for release in unfinished:
            api.delete(release.path)
    except (KubeconfigError, Unreachable, Refused) as error:
        raise OperationError(
            f"a run was killed while it installed Helm releases, and whether they exist cannot be read now: {error}"
        ) from None
    return adopted


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


def _without_others(stack: str, opened: Mapping[str, Resource]) -> list[str]:
    """Leaves in the state what was found there and is what the killed run was creating; names it. Nothing is pending then."""
    state = exported(stack)
    deployment = state["deployment"]
    read = {one["urn"]: one for one in resources_of(state) if one["urn"] in opened}
    others = [urn for urn, one in read.items() if not _is_ours(opened[urn], one.get("outputs") or {})]
    if others:
        shown = listed(sorted(f"{_shown(read[urn])} ({read[urn]['id']})" for urn in others))
        print(f"Exists, differs from what a killed run was creating, and is left alone: {shown}.", file=sys.stderr)
    deployment["resources"] = [one for one in resources_of(state) if one["urn"] not in others]
    deployment["pending_operations"] = [one for one in deployment.get("pending_operations") or () if one["type"] != "creating"]
    save(stack, state)
    return [_shown(one) for urn, one in read.items() if urn not in others]


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
