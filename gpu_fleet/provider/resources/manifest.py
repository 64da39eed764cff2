"""gpu-fleet:kubernetes:Manifest: the objects of one Helm release, as text for the preview, and whether the cluster has them.

Pulumi's Kubernetes provider installs the release; it shows values, never objects, and does not read the objects again
(pulumi-kubernetes 4.32, helm.v3.Release). Here a preview shows every changed object as a diff of its YAML, a refresh finds manual
changes, and the next update reverts them.
"""

from __future__ import annotations

import asyncio

import yaml

from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.provider.manifest import Objects
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
from gpu_fleet.provider.schema import errors_of_inputs


class Manifest:
    type_name = "gpu-fleet:kubernetes:Manifest"
    replaces_by_deleting_first = False

    def __init__(self, api: ClusterApi | None):
        """`api` is None when the stack no longer has a cluster."""
        self._api = api

    def check(self, inputs: Inputs) -> Checked:
        return Checked(errors=tuple(errors_of_inputs(self.type_name, inputs)))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        found = list(changes(old, new))
        if outputs.get("drift"):
            found.append(Change("drift", "update", of_inputs=False))
        return found

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return inputs["release"], {"drift": []}

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        """Reads every object; changes nothing."""
        objects = self._objects(inputs)
        try:
            found = await asyncio.to_thread(objects.differences)
        except (KubeconfigError, Unreachable) as error:
            raise Unhealthy(id_, {**outputs}, f"{inputs['release']}: unreachable: {error}") from None
        except Refused as error:
            raise Unhealthy(id_, {**outputs}, f"{inputs['release']}: cannot be compared: {error}") from None
        return Current(id_, outputs={"drift": [str(difference) for difference in found]})

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        """The release is already up to date; manual changes to its objects are reverted."""
        if outputs.get("drift") and not call.is_preview:
            call.progress("reverting manual changes")
            call.sending(f"reverting manual changes to {new['release']}", "the next `pulumi refresh` and `up` find what is left")
            objects = self._objects(new)
            try:
                await asyncio.to_thread(objects.repair)
            except asyncio.CancelledError:
                objects.stop()  # a thread cannot be interrupted
                raise
            except (KubeconfigError, Unreachable, Refused) as error:
                raise ResourceError(f"{new['release']}: manual changes were not reverted: {error}") from None
        return {"drift": []}

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        """Nothing to delete: Helm deletes the objects with their release."""

    def _objects(self, inputs: Inputs) -> Objects:
        if self._api is None:
            raise ResourceError("the provider's configuration names no Kubernetes cluster")
        manifests = [yaml.load(text, yaml.CSafeLoader) for text in inputs["objects"].values()]
        return Objects(self._api, inputs["release"], inputs["namespace"], manifests)
