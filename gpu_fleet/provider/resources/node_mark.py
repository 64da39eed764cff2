"""gpu-fleet:kubernetes:NodeMark: a condition or a taint that a program in the cluster sets on nodes, and that goes with it.

It changes nothing before its deletion. The program depends on it, so it is gone by then, and its permissions with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Manifest, Refused, Unreachable
from gpu_fleet.provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, changes
from gpu_fleet.provider.schema import errors_of_inputs

_NODES: Final = "/api/v1/nodes"
_TRIES: Final = 5  # the kubelet and others change nodes at the same time


class NodeMark:
    type_name = "gpu-fleet:kubernetes:NodeMark"
    replaces_by_deleting_first = False

    def __init__(self, api: ClusterApi | None):
        """`api` is None when the stack no longer has a cluster."""
        self._api = api

    def check(self, inputs: Inputs) -> Checked:
        return Checked(errors=tuple(errors_of_inputs(self.type_name, inputs)))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        return [replace(change, replaces=change.path in ("kind", "mark")) for change in changes(old, new)]

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return inputs["mark"], {}

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        return Current(id_)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return {}

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        api, what = self._api or ClusterApi.at(inputs.get("place")), f"the {inputs['kind']} {inputs['mark']}"
        if api is None:
            call.warning(f"{what} stays on the nodes that have it, since the stack file no longer names the cluster")
            return
        remove = _remove_taint if inputs["kind"] == "taint" else _remove_condition
        try:
            marked = [node for node in await asyncio.to_thread(_listed, api) if _has(node, inputs["kind"], inputs["mark"])]
            for number, node in enumerate(marked):
                call.sending(f"removing {what}, after {number} of {len(marked)} nodes", "the next run removes the rest")
                await asyncio.to_thread(remove, api, node, inputs["mark"])
        except (KubeconfigError, Unreachable, Refused) as error:
            raise ResourceError(f"{what} was not removed from every node: {error}") from None


def _listed(api: ClusterApi) -> list[Manifest]:
    return list(api.list(_NODES))


def _has(node: Manifest, kind: str, mark: str) -> bool:
    if kind == "taint":
        return any(taint["key"] == mark for taint in node.get("spec", {}).get("taints") or ())
    return any(condition["type"] == mark for condition in node.get("status", {}).get("conditions") or ())


def _remove_condition(api: ClusterApi, node: Manifest, mark: str) -> None:
    gone = {"status": {"conditions": [{"$patch": "delete", "type": mark}]}}
    _unless_gone(api, f"{_path(node)}/status", gone, "application/strategic-merge-patch+json")


def _remove_taint(api: ClusterApi, node: Manifest, mark: str) -> None:
    """The list is one value: it is written as it was read, but for ours, or read again."""
    for attempt in range(_TRIES):
        others = [taint for taint in node.get("spec", {}).get("taints") or () if taint["key"] != mark]
        change = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": others}}
        try:
            _unless_gone(api, _path(node), change, "application/merge-patch+json")
            return
        except Refused as error:
            if error.status != 409 or attempt == _TRIES - 1:
                raise
        found = api.find(_path(node))
        if found is None:
            return
        node = found


def _unless_gone(api: ClusterApi, path: str, change: Mapping[str, Any], content: str) -> None:
    try:
        api.patch(path, change, content)
    except Refused as error:
        if error.status != 404:
            raise


def _path(node: Manifest) -> str:
    return f"{_NODES}/{quote(node['metadata']['name'])}"
