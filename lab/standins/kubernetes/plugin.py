"""The kubernetes package: of version 4.32.0 of the official plugin every kind of object, and helm.sh/v3:Release.

Left out: the Patch and List resources, Chart, ConfigFile, ConfigGroup, kustomize:Directory, client-side apply, rendering to a
directory and the functions. Asking for any of them is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from pulumi.runtime.proto import provider_pb2

from lab.standins import plugin
from lab.standins.kubernetes.client import Client
from lab.standins.kubernetes.objects import KubernetesObject
from lab.standins.kubernetes.release import Release
from lab.standins.plugin import Failure, ResourceType
from lab.standins.properties import Properties
from lab.standins.schema import Object, Property

HELM_SETTINGS = Object(
    "kubernetes:index:HelmReleaseSettings",
    {
        "driver": Property(),
        "pluginsPath": Property(),
        "registryConfigPath": Property(),
        "repositoryCache": Property(),
        "repositoryConfigPath": Property(),
        "suppressBetaWarning": Property(type="boolean"),
    },
)
CLIENT_SETTINGS = Object(
    "kubernetes:index:KubeClientSettings",
    {"burst": Property(type="integer"), "qps": Property(type="number"), "timeout": Property(type="integer")},
)
CONFIG = {
    "kubeconfig": Property(secret=True),
    "context": Property(),
    "cluster": Property(),
    "clusterIdentifier": Property(),
    "namespace": Property(),
    "enableServerSideApply": Property(type="boolean"),
    "enablePatchForce": Property(type="boolean"),
    "enableConfigMapMutable": Property(type="boolean"),
    "enableSecretMutable": Property(type="boolean"),
    "upsertExistingObjects": Property(type="boolean"),
    "deleteUnreachable": Property(type="boolean"),
    "skipUpdateUnreachable": Property(type="boolean"),
    "suppressDeprecationWarnings": Property(type="boolean"),
    "suppressHelmHookWarnings": Property(type="boolean"),
    "helmReleaseSettings": Property(type=HELM_SETTINGS),
    "kubeClientSettings": Property(type=CLIENT_SETTINGS),
}
# By which variables the official plugin takes what the configuration does not give.
VARIABLES = {
    "kubeconfig": "KUBECONFIG",
    "deleteUnreachable": "PULUMI_K8S_DELETE_UNREACHABLE",
    "skipUpdateUnreachable": "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE",
    "enablePatchForce": "PULUMI_K8S_ENABLE_PATCH_FORCE",
    "enableConfigMapMutable": "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE",
    "enableSecretMutable": "PULUMI_K8S_ENABLE_SECRET_MUTABLE",
    "upsertExistingObjects": "PULUMI_K8S_UPSERT_EXISTING_OBJECTS",
}
LEFT_OUT = re.compile(r"kubernetes:(helm\.sh|kustomize|yaml|index|pulumi)[:/].*|.*(Patch|List)")
TOKEN = re.compile(r"kubernetes:(?P<group>[^/:]+)/(?P<version>[^:]+):(?P<kind>\w+)")


class Kubernetes(plugin.Plugin):
    """Its resource types are as many as a cluster's kinds: each is made when it is first asked for."""

    def __init__(self) -> None:
        self._client = Client()
        super().__init__("kubernetes", "4.32.0", [Release(self._client)], config=CONFIG, configure=self._configure)

    def resource(self, token: str) -> ResourceType:
        if token not in self.resources:
            named = TOKEN.fullmatch(token)
            if named is None or LEFT_OUT.fullmatch(token):
                raise Failure(f"this stand-in of the kubernetes plugin has no {token}; it has objects and helm.sh/v3:Release")
            self.resources[token] = KubernetesObject(self._client, token, named["kind"])
        return self.resources[token]

    def configuration(self, request: provider_pb2.ConfigureRequest) -> Properties:
        """As provider/pkg/provider/provider.go of the official plugin 4.32.0 (read 2026-11-22): `variables`, and never `args`."""
        return {key.removeprefix("kubernetes:config:"): value for key, value in request.variables.items()}

    def _configure(self, config: Properties) -> None:
        if config.get("enableServerSideApply") is False:
            raise Failure("enableServerSideApply: false is not in this stand-in of the kubernetes plugin; leave it out")
        from_environment = {name: _parsed(name, os.environ[key]) for name, key in VARIABLES.items() if os.environ.get(key)}
        self._client.configure({**from_environment, **config})


def _parsed(name: str, text: str) -> Any:
    return text == "true" if CONFIG[name].type == "boolean" else text


def main(arguments: Sequence[str]) -> int:
    return plugin.main(arguments, Kubernetes())
