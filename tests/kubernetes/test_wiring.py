"""What of the cluster's place is in the state: the same for everybody who runs the stack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pytest

from components.kubernetes.place import kubernetes_place
from components.kubernetes.wiring import kubernetes_provider_args
from components.stack import LoadedConfig
from gpu_fleet.stackfile.config import StackConfig

STACK = {
    "datacenter": "us-west",
    "cluster": "training",
    "kubernetes": {"context": "us-west-k8s"},
    "metrics": {"url": "https://mimir.example.com/api/v1/push"},
}


class Seen(pulumi.runtime.Mocks):
    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.inputs = dict(args.inputs)
        return "id", self.inputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        return {}


def registered(config: StackConfig) -> dict[str, Any]:
    """The inputs of Pulumi's Kubernetes provider."""
    seen = Seen()
    asyncio.set_event_loop(asyncio.new_event_loop())  # outputs need one, and a test that ran before may have closed the thread's
    pulumi.runtime.set_mocks(seen)

    @pulumi.runtime.test
    def register() -> None:
        kubernetes.Provider("kubernetes", **kubernetes_provider_args(LoadedConfig(config, {})))

    register()
    return seen.inputs


def test_the_kubeconfig_of_whoever_runs_it_is_not_in_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "somebody's"))
    assert registered(StackConfig.load(STACK, tmp_path)) == {"context": "us-west-k8s", "enableSecretMutable": "true"}


@pytest.mark.parametrize("written", ["~/.kube/us-west", "kube/us-west"])
def test_a_kubeconfig_file_is_in_the_state_as_the_stack_file_writes_it(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / written.removeprefix("~/")
    file.parent.mkdir()
    file.touch()
    config = StackConfig.load({**STACK, "kubernetes": {"kubeconfig": written}}, tmp_path)
    assert registered(config)["kubeconfig"] == written
    assert kubernetes_place(config) == {"kubeconfig": written}
