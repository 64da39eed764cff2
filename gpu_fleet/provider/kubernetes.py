"""The part of the Kubernetes API that the checks need: plain requests with a kubeconfig's credentials. Knows no Pulumi.

The `kubernetes` package reads kubeconfigs, runs their credential plugins and speaks TLS; its typed models are not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from yaml import YAMLError, safe_load

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_TIMEOUT_S = (5.0, 30.0)  # to connect, to answer
_PAGE = 500  # objects per answer of a list
_JSON = "application/json"
# Metadata alone: the data of a Secret stays in the cluster. Not with JSON as a second choice, which would bring it after all.
# Source: Kubernetes API concepts, "Receiving resources as metadata only"; every server since 1.15 knows it.
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Manifest = Mapping[str, Any]


@dataclass
class KubeconfigError(Exception):
    """The kubeconfig is missing, invalid, or lacks the context."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass
class Unreachable(Exception):
    """No API server answered."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass
class Refused(Exception):
    """The API server answered with an error. `status`: HTTP; `reason`: the Kubernetes reason (NotFound, Forbidden, …)."""

    status: int
    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


class ClusterApi:
    """One cluster. Connects on the first request; every method may raise KubeconfigError, Unreachable and Refused."""

    def __init__(self, *, file: str | None = None, text: str | None = None, context: str | None = None):
        """`text`: a whole kubeconfig, preferred to a `file`. Default: the one that kubectl uses."""
        self._file, self._text, self._context = file, text, context
        self._client: ApiClient | None = None

    @property
    def server(self) -> str:
        return str(self._connected().configuration.host)

    def get(self, path: str) -> Any:
        return self._request("GET", path)

    @classmethod
    def at(cls, place: Mapping[str, str] | None) -> ClusterApi | None:
        """By a resource's own input: the provider's configuration has lost the cluster when the section is removed."""
        return None if place is None else cls(file=place.get("kubeconfig"), context=place.get("context"))

    def text(self, path: str) -> str:
        """What is not an object of the API: the answer of a service that the API server is a proxy for."""
        return self._answer("GET", path, accept="*/*").decode(errors="replace")

    def find(self, path: str) -> Any:
        """The object, or None when it does not exist."""
        try:
            return self.get(path)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, *, only_metadata: bool = False, **query: str) -> Iterator[Manifest]:
        """Every object below a path, page by page. `query`: labelSelector, fieldSelector."""
        accept = _METADATA if only_metadata else _JSON
        token = ""
        while True:
            steps = {**query, "limit": _PAGE, **({"continue": token} if token else {})}
            page = self._request("GET", f"{path}?{urlencode(steps)}", accept=accept)
            yield from page["items"] or ()  # null for an empty list of metadata
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def create(self, path: str, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        created: Manifest = self._request("POST", f"{path}?dryRun=All" if dry_run else path, manifest)
        return created

    def replace(self, path: str, manifest: Manifest) -> None:
        self._request("PUT", path, manifest)

    def patch(self, path: str, change: Manifest, content: str) -> None:
        """`content`: the media type of the patch."""
        self._request("PATCH", path, change, content=content)

    def delete(self, path: str) -> None:
        """Deleting a missing object is not an error."""
        try:
            self._request("DELETE", path)
        except Refused as error:
            if error.status != 404:
                raise

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(self.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)["status"].get("allowed"))

    def resources(self, api_version: str) -> dict[str, tuple[str, bool]]:
        """Kinds of an API version: kind to (resource name in paths, whether it is namespaced). Empty: the cluster lacks the
        version."""
        prefix = "/api" if "/" not in api_version else "/apis"
        found = self.find(f"{prefix}/{api_version}") or {"resources": []}
        return {
            resource["kind"]: (resource["name"], resource["namespaced"])
            for resource in found["resources"]
            if "/" not in resource["name"]
        }

    def _connected(self) -> ApiClient:
        if self._client is None:
            self._client = self._load()
        return self._client

    def _load(self) -> ApiClient:
        # Takes 0.25 s to import, which a stack without a cluster need not pay.
        from kubernetes import config
        from kubernetes.client import Configuration
        from kubernetes.config.config_exception import ConfigException

        settings = Configuration()
        settings.retries = False
        try:
            if self._text is None:
                return config.new_client_from_config(
                    self._file, context=self._context, client_configuration=settings, persist_config=False
                )
            loaded = safe_load(self._text)
            if not isinstance(loaded, dict):
                raise ConfigException("is not a kubeconfig")
            return config.new_client_from_config_dict(loaded, context=self._context, client_configuration=settings)
        except (ConfigException, YAMLError, OSError, KeyError, TypeError) as error:
            file = self._file or "the default kubeconfig (KUBECONFIG, or ~/.kube/config)"
            where = file if self._text is None else "the secret gpu-fleet:kubeconfig"
            # The YAML library's message would quote the file.
            cause = "is not YAML" if isinstance(error, YAMLError) else str(error).removeprefix("Invalid kube-config file. ")
            raise KubeconfigError(f"{where}: {cause}") from None

    def _request(self, method: str, path: str, body: Manifest | None = None, accept: str = _JSON, content: str = _JSON) -> Any:
        return json.loads(self._answer(method, path, body, accept, content))

    def _answer(self, method: str, path: str, body: Manifest | None = None, accept: str = _JSON, content: str = _JSON) -> bytes:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        client = self._connected()
        try:
            response = client.call_api(
                path,
                method,
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            return bytes(response.data)
        except ApiException as error:
            answer = _json(error.body)
            message = answer.get("message") or f"{method} {path}: HTTP {error.status}"
            raise Refused(error.status, answer.get("reason") or str(error.status), message) from None
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{client.configuration.host} does not answer: {_cause(error)}") from None


def _json(text: str | bytes | None) -> Mapping[str, Any]:
    try:
        answer = json.loads(text or "{}")
    except ValueError:
        return {}  # a proxy answers in HTML
    return answer if isinstance(answer, dict) else {}


def _cause(error: Exception) -> str:
    """The innermost reason, without the pool and object addresses of urllib3."""
    while (inner := getattr(error, "reason", None)) and isinstance(inner, Exception):
        error = inner
    text = str(error)
    return text.rpartition(": ")[2] if "object at 0x" in text or text.startswith("HTTPSConnection(") else text


def object_path(resource: str, namespaced: bool, api_version: str, namespace: str, name: str = "") -> str:
    """`/apis/apps/v1/namespaces/x/daemonsets/y`."""
    steps: Sequence[str] = ("api" if "/" not in api_version else "apis", api_version)
    if namespaced:
        steps = (*steps, "namespaces", quote(namespace))
    return "/" + "/".join(filter(None, (*steps, resource, quote(name))))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches. Source: Kubernetes API, LabelSelector."""
    if any(labels.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return bool(
        {"In": value in values, "NotIn": value not in values, "Exists": value is not None, "DoesNotExist": value is None}[
            expression["operator"]
        ]
    )
