"""Objects of any kind: made by a plain creation, changed by server-side apply; the API server says what either would do.

Source: provider/pkg/provider/provider.go and provider/pkg/await/await.go of pulumi/pulumi-kubernetes 4.32.0 (read 2026-11-22),
https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/managing-resources-with-server-side-apply/ and the
annotations pulumi.com/* of https://www.pulumi.com/registry/packages/kubernetes/ (read November 2026).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lab.kubernetes import ApiError, UnknownKind
from lab.kubernetes.api import APPLY, MERGE
from lab.standins.differences import differences
from lab.standins.kubernetes import replaced
from lab.standins.kubernetes.client import Client, unreachable
from lab.standins.kubernetes.normal import normalized
from lab.standins.kubernetes.ready import Hopeless, causes, waits_for
from lab.standins.kubernetes.shape import like
from lab.standins.plugin import Call, Cancelled, Failure, Incomplete, ResourceType, autoname
from lab.standins.properties import UNKNOWN, Properties, Secret, has_unknown, plain
from lab.standins.schema import Problem, Property

AWAIT_S = 600.0  # the official plugin's, for most kinds
POLL_S = 0.1
# A kind or a namespace that is not there may be made by something else at this moment: 63 s in all.
NOT_FOUND_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# Creations are the official plugin's, not the resource's: the first update hands its fields over.
CREATOR = "pulumi-kubernetes"
HANDED_OVER = {
    ("kubectl", "Apply"),
    *((name, "Update") for name in ("kubectl", "before-first-apply", CREATOR, "pulumi-resource-kubernetes")),
}
MANAGER = "__fieldManager"
CONFLICT_GUIDE = (
    "https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/"
    "managing-resources-with-server-side-apply/#handle-field-conflicts-on-existing-resources"
)
SECRET_OUTPUTS = {"data": Property(type="any", secret=True)}


class KubernetesObject(ResourceType):
    inputs: Mapping[str, Property] = {}

    def __init__(self, client: Client, token: str, kind: str) -> None:
        self.type_name = token  # type: ignore[misc]
        self.outputs = SECRET_OUTPUTS if kind == "Secret" else {}  # type: ignore[misc]
        self._client = client
        self._kind = kind

    def unfit(self, inputs: Properties) -> Iterator[Problem]:
        """Nothing: what is wrong with an object is for the API server to say."""
        return iter(())

    def filled(self, call: Call, inputs: Properties, olds: Properties) -> Properties:
        metadata = inputs.get("metadata") or {}
        if isinstance(metadata, Secret) or metadata == UNKNOWN:
            return inputs
        metadata = dict(metadata)
        if not metadata.get("name"):
            given = plain(olds.get("metadata") or {})
            metadata["name"] = given.get("name") if _annotation(given, "autonamed") else autoname(call.name)
            metadata["annotations"] = {**(metadata.get("annotations") or {}), "pulumi.com/autonamed": "true"}
        if not metadata.get("namespace") and self._is_namespaced(inputs):
            metadata["namespace"] = self._client.namespace
        inputs = {**inputs, "metadata": metadata}
        return normalized(self._client.api, inputs) if self._client.is_usable else inputs

    def changes(self, olds: Properties, news: Properties, outputs: Properties) -> Mapping[str, int]:
        """Between what was live last, of the fields that were given, and what is given now.

        Nothing is asked of the cluster: a refresh shows its findings by a diff, and must not fail for a conflict.
        """
        return differences(like(olds, outputs) if outputs else olds, news)

    def replacing(self, changes: Mapping[str, int], olds: Properties, news: Properties) -> set[str]:
        return self._replaced(changes, olds, news)

    def is_deleted_first(self, olds: Properties, news: Properties) -> bool:
        """Two objects of one name cannot be there at once."""
        return _name(olds) == _name(news) and not _annotation(news["metadata"], "autonamed")

    def preview_create(self, inputs: Properties) -> Properties:
        return self._previewed(inputs, lambda: self._created(inputs, _new_manager(), dry_run=True), unseen=("AlreadyExists",))

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        def update() -> Properties:
            live = self._live(news)
            return self._changed(live, news, olds.get(MANAGER) or _new_manager(), dry_run=True)

        return self._previewed(news, update)

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        manager = _new_manager()
        try:
            live = self._once_there_is_a_place(call, lambda: self._created(inputs, manager))
        except ApiError as error:
            raise self._failure(error, "created") from None
        id = _name(live)
        return id, self._awaited(call, id, live, manager)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        manager = olds.get(MANAGER) or _new_manager()
        try:
            live = self._live(news)
        except ApiError as error:
            raise self._failure(error, "updated") from None
        try:
            changed = self._changed(live, news, manager)
        except ApiError as error:
            raise Incomplete(_not_live(id, self._failure(error, "updated")), id, self._kept(live, manager)) from None
        return self._awaited(call, id, changed, manager)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        namespace, _, name = id.rpartition("/")
        api_version = outputs.get("apiVersion") or self._api_version()
        try:
            live = self._client.api.read(api_version, self._kind, name, namespace)
        except UnknownKind:
            return None
        except ApiError as error:
            raise self._failure(error, "read") from None
        if live is None:
            return None
        given = inputs or {"apiVersion": api_version, "kind": self._kind, **_imported(live)}
        return like(given, live), self._kept(live, outputs.get(MANAGER) or _new_manager())

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        if not self._client.is_usable and self._client.settings.get("deleteUnreachable"):
            return
        policy = _annotation(outputs["metadata"], "deletionPropagationPolicy") or "foreground"
        try:
            self._client.api.delete(outputs, policy.capitalize())
            if not _is_true(outputs["metadata"], "skipAwait"):
                self._until(call, outputs, lambda: "" if self._is_gone(outputs) else "it is still there")
        except UnknownKind:
            return
        except Hopeless as reason:
            raise Failure(f"finalizers might be preventing deletion ({id}): {reason}") from None
        except ApiError as error:
            if error.code == 0 and self._client.settings.get("deleteUnreachable"):
                return
            raise self._failure(error, "deleted") from None

    def _is_namespaced(self, inputs: Properties) -> bool:
        try:
            return self._client.is_usable and self._client.api.is_namespaced(plain(inputs["apiVersion"]), self._kind)
        except ApiError:
            return False  # its CRD may come with the same update

    def _replaced(self, changes: Mapping[str, int], olds: Properties, news: Properties) -> set[str]:
        mutable = {"ConfigMap": "enableConfigMapMutable", "Secret": "enableSecretMutable"}
        may_change = [kind for kind, setting in mutable.items() if self._client.settings.get(setting)]
        is_immutable = bool(olds.get("immutable"))
        return replaced.replacing(news["apiVersion"], self._kind, changes, () if is_immutable else may_change)

    def _may_adopt(self) -> bool:
        return bool(self._client.settings.get("upsertExistingObjects"))

    def _live(self, inputs: Properties) -> Properties:
        return self._client.api.get(self._client.api.path_of(inputs))

    def _previewed(self, inputs: Properties, change: Callable[[], Properties], unseen: tuple[str, ...] = ()) -> Properties:
        """What the object would be, less its status. Nothing where that cannot be known yet.

        A CRD, a namespace and a permission may come with the same update. `unseen`: further refusals that no preview shows.
        """
        if has_unknown(inputs) or not self._client.is_usable:
            return {}
        try:
            after = change()
        except ApiError as error:
            if isinstance(error, UnknownKind) or error.reason in ("NotFound", "Forbidden", *unseen):
                return {}
            raise self._failure(error, "changed") from None
        return {name: value for name, value in after.items() if name != "status"}

    def _created(self, inputs: Properties, manager: str, dry_run: bool = False) -> Properties:
        """Raises ApiError. An unknown field is a warning of the API server that nobody sees: the object comes without it."""
        if self._may_adopt():
            return self._applied(inputs, manager, self._may_force(inputs) or dry_run, dry_run)
        api = self._client.api
        return api.request("POST", api.path_of(inputs, of_list=True), _sent(inputs), fieldManager=CREATOR, **_dry(dry_run))

    def _changed(self, live: Properties, inputs: Properties, manager: str, dry_run: bool = False) -> Properties:
        """Raises ApiError. `live`: the object as it is."""
        api = self._client.api
        managers = live["metadata"].get("managedFields") or []
        if self._kind == "CustomResourceDefinition":
            metadata = {**inputs["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
            manifest = {**_sent(inputs), "metadata": metadata}
            return api.request("PUT", api.path_of(live), manifest, fieldManager=manager, **_dry(dry_run))
        # Before the first update a preview cannot distinguish a conflict from fields that the update will take over: it forces.
        force = self._may_force(inputs) or not managers
        if dry_run:
            force = force or any((one["manager"], one["operation"]) == (CREATOR, "Update") for one in managers)
        elif handed := _handed_over(managers, manager):
            metadata = {"managedFields": handed, "resourceVersion": live["metadata"]["resourceVersion"]}
            api.request("PATCH", api.path_of(live), {"metadata": metadata}, content=MERGE)
        return self._applied(inputs, manager, force, dry_run)

    def _may_force(self, inputs: Properties) -> bool:
        return _is_true(inputs["metadata"], "patchForce") or bool(self._client.settings.get("enablePatchForce"))

    def _applied(self, inputs: Properties, manager: str, force: bool, dry_run: bool) -> Properties:
        api = self._client.api
        manager = _annotation(inputs["metadata"], "patchFieldManager") or manager
        query = {"fieldManager": manager, "force": str(force).lower(), **_dry(dry_run)}
        return api.request("PATCH", api.path_of(inputs), _sent(inputs), content=APPLY, **query)

    def _once_there_is_a_place(self, call: Call, create: Callable[[], Properties]) -> Properties:
        """Tried again while the kind or the namespace is not there. Raises ApiError."""
        for number, wait_s in enumerate((*NOT_FOUND_WAITS_S, None)):
            try:
                return create()
            except ApiError as error:
                if error.code != 404 or wait_s is None:
                    raise
                call.log(f"Retry #{number}; creation failed: {error}")
            time.sleep(wait_s)  # not ended by Ctrl-C: the official plugin sleeps too
        raise AssertionError("the last attempt returned or raised")

    def _failure(self, error: ApiError, doing: str) -> Failure:
        if error.code == 0:
            return unreachable(error)
        if isinstance(error, UnknownKind):
            return Failure(
                f"resource of kind {self._kind} cannot be {doing} because the Kubernetes API server reported that the apiVersion "
                f"for this resource does not exist. Verify that any required CRDs have been created: {error}"
            )
        if error.reason == "Conflict":
            return Failure(
                f"server-side apply field conflict detected, see {CONFLICT_GUIDE} for troubleshooting help\n"
                f"The resource had an apply conflict: {error}"
            )
        if error.reason == "AlreadyExists":
            return Failure(
                f"resource was not successfully created by the Kubernetes API server: {error}\n\nThe resource already exists "
                "in the cluster. Import it, choose another name, or set upsertExistingObjects."
            )
        return Failure(f"resource was not successfully {doing} by the Kubernetes API server: {error}")

    def _awaited(self, call: Call, id: str, live: Properties, manager: str) -> Properties:
        def waiting() -> str:
            nonlocal live
            live = self._client.api.get(self._client.api.path_of(live))
            return waits_for(live)

        if not _is_true(live["metadata"], "skipAwait"):
            try:
                self._until(call, live, waiting)
            except Cancelled:
                raise Incomplete("cancelled", id, self._kept(live, manager)) from None
            except (Hopeless, ApiError) as reason:
                reasons = "; ".join([str(reason), *causes(self._client.api, live)])
                raise Incomplete(_not_live(id, reasons), id, self._kept(live, manager)) from None
        return self._kept(live, manager)

    def _until(self, call: Call, manifest: Properties, waiting: Any) -> None:
        """Returns when `waiting()` says nothing more. Raises Hopeless with what it said last, Cancelled."""
        limit = call.timeout_s or float(_annotation(manifest["metadata"], "timeoutSeconds") or AWAIT_S)
        deadline = time.monotonic() + limit
        cancelled = threading.Event()
        said = ""
        with call.ending(cancelled.set):
            while why := waiting():
                if time.monotonic() > deadline:
                    raise Hopeless(f"timed out after {limit:g} s: {why}")
                if why != said:
                    call.log(f"{manifest['kind']} {_name(manifest)}: {why}")
                said = why
                if cancelled.wait(POLL_S):
                    raise Cancelled

    def _is_gone(self, outputs: Properties) -> bool:
        metadata = outputs["metadata"]
        live = self._client.api.read(outputs["apiVersion"], self._kind, metadata["name"], metadata.get("namespace", ""))
        return live is None or live["metadata"]["uid"] != metadata.get("uid", live["metadata"]["uid"])

    def _kept(self, live: Properties, manager: str) -> Properties:
        return {**live, MANAGER: manager, "__initialApiVersion": live["apiVersion"]}

    def _api_version(self) -> str:
        group, version = self.type_name.split(":")[1].split("/")
        return version if group == "core" else f"{group}/{version}"


def _not_live(id: str, reason: object) -> str:
    return f'the Kubernetes API server reported that "{id}" failed to fully initialize or become live: {reason}'


def _sent(inputs: Properties) -> Properties:
    return {name: value for name, value in inputs.items() if not name.startswith("__")}


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _handed_over(managers: list[Properties], manager: str) -> list[Properties]:
    """The record of who set what, with the fields of those who hand theirs over as this resource's; empty: nobody does."""
    ours = [one for one in managers if (one["manager"], one["operation"]) in HANDED_OVER and "subresource" not in one]
    if not ours:
        return []
    own = [one for one in managers if (one["manager"], one["operation"]) == (manager, "Apply")]
    fields: Properties = {}
    for one in [*own, *ours]:
        fields = _joined(fields, one.get("fieldsV1") or {})
    entry = {**ours[-1], "manager": manager, "operation": "Apply", "fieldsV1": fields}
    return [*(one for one in managers if one not in ours and one not in own), entry]


def _joined(one: Properties, other: Properties) -> Properties:
    return {**one, **{key: _joined(one[key], value) if key in one else value for key, value in other.items()}}


def _new_manager() -> str:
    return f"pulumi-kubernetes-{secrets.token_hex(4)}"


def _annotation(metadata: Properties, name: str) -> str:
    value = (metadata.get("annotations") or {}).get(f"pulumi.com/{name}")
    return value if isinstance(value, str) else ""


def _is_true(metadata: Properties, name: str) -> bool:
    return _annotation(metadata, name).lower() == "true"


def _name(manifest: Properties) -> str:
    """NAMESPACE/NAME, which is also its id; NAME of what is in no namespace."""
    metadata = manifest["metadata"]
    return "/".join(filter(None, [metadata.get("namespace"), metadata.get("name")]))


def _imported(live: Properties) -> Properties:
    """What a person would have written: no status, no fields that the cluster sets."""
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: live["metadata"][key] for key in kept if key in live["metadata"]}
    return {**{key: value for key, value in live.items() if key != "status"}, "metadata": metadata}
