"""The cluster of the provider's configuration: how it is reached, and what the configuration allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.kubernetes import Api, ApiError, KubeconfigError, connection, kubeconfig
from lab.standins.plugin import Failure
from lab.standins.properties import Properties


class Client:
    """`settings` is the provider's configuration. Nothing is asked of the cluster before a resource needs it."""

    def __init__(self) -> None:
        self.settings: Properties = {}
        self._api: Api | None = None
        self._unusable = "its configuration is not known yet"
        self._kubeconfig: dict[str, Any] = {}

    def configure(self, settings: Properties) -> None:
        self.settings = settings
        self._api, self._unusable = None, ""
        given = settings.get("kubeconfig") or str(Path.home() / ".kube" / "config")
        try:
            config = kubeconfig.read(given)
        except KubeconfigError as error:
            self._unusable = f"failed to parse kubeconfig data in `kubernetes:config:kubeconfig`- {error}"
            return
        try:
            self._kubeconfig = _chosen(config, settings)
            self._api = Api(connection(self._kubeconfig))
        except KubeconfigError as error:
            self._unusable = str(error)

    @property
    def is_usable(self) -> bool:
        return self._api is not None

    @property
    def api(self) -> Api:
        """Raises Failure, as the official plugin does, when the configuration leads nowhere."""
        if self._api is None:
            raise Failure(f"configured Kubernetes cluster is unreachable: {self._unusable}")
        return self._api

    @property
    def namespace(self) -> str:
        """Where objects without a namespace go."""
        return self.settings.get("namespace") or (self._api.connection.namespace if self._api else "default")

    @property
    def kubeconfig_text(self) -> str:
        """One that leads to this cluster with no further choice, for helm. It holds secrets."""
        if not self.is_usable:
            raise Failure(f"configured Kubernetes cluster is unreachable: {self._unusable}")
        return json.dumps(self._kubeconfig)


def unreachable(error: ApiError) -> Failure:
    return Failure(f"configured Kubernetes cluster is unreachable: {error}")


def _chosen(config: dict[str, Any], settings: Properties) -> dict[str, Any]:
    """The kubeconfig with the provider's `context` and `cluster` as its current ones."""
    context = settings.get("context") or config.get("current-context") or ""
    contexts = [dict(entry) for entry in config.get("contexts") or []]
    if settings.get("cluster"):
        for entry in contexts:
            if entry["name"] == context:
                entry["context"] = {**(entry.get("context") or {}), "cluster": settings["cluster"]}
    return {**config, "contexts": contexts, "current-context": context}
