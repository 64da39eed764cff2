"""What a killed run was doing to Helm releases: without a cluster in the stack file any more, or beside another run."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_fleet.operations import interrupted
from gpu_fleet.operations.engine import OperationError

WITHOUT_CLUSTER: Any = SimpleNamespace(load=lambda: SimpleNamespace(kubernetes=None))
ALLOY = {"type": interrupted.RELEASE, "inputs": {"name": "alloy"}}


def test_a_killed_upgrade_needs_no_section_as_its_release_is_removed() -> None:
    assert interrupted._releases("train", WITHOUT_CLUSTER, opened=[], changed=[ALLOY], removes=False) == {}


def test_a_killed_installation_needs_the_section_to_be_found() -> None:
    with pytest.raises(OperationError, match=r"Helm releases \(alloy\).*put it back, then `make up STACK=train`"):
        interrupted._releases("train", WITHOUT_CLUSTER, opened=[ALLOY], changed=[], removes=False)


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ("error: no resource named 'urn' found", False),
        ("error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or", True),
        ("error: [409] Conflict: Another update is currently in progress.", True),
    ],
)
def test_helm_s_record_of_a_run_that_is_at_work_on_another_machine_stays(
    monkeypatch: pytest.MonkeyPatch, said: str, is_refused: bool
) -> None:
    deleted: list[str] = []
    api = SimpleNamespace(delete=deleted.append)
    release = SimpleNamespace(status="pending-install", path="secrets/v1", values={"image": "a"}, description="")
    monkeypatch.setattr(interrupted, "cluster_api", lambda *_: api)
    monkeypatch.setattr(interrupted, "helm_releases", lambda _, __, names: dict.fromkeys(names, release))
    monkeypatch.setattr(interrupted, "release_names", lambda _: ["alloy"])
    monkeypatch.setattr(interrupted, "pulumi", lambda *_: subprocess.CompletedProcess([], 255, "", said))
    found: Any = SimpleNamespace(load=lambda: SimpleNamespace(kubernetes=SimpleNamespace(namespace="gpu-fleet")))
    inputs = {"name": "alloy", "namespace": "gpu-fleet", "values": {"image": "a"}}
    opened = [{"type": interrupted.RELEASE, "urn": "urn:pulumi:train::gpu-fleet::t::alloy", "inputs": inputs}]
    if is_refused:
        with pytest.raises(OperationError, match="another run is at work on the stack train; nothing was changed"):
            interrupted._releases("train", found, opened=opened, changed=[], removes=False)
    else:
        interrupted._releases("train", found, opened=opened, changed=[], removes=False)
    assert deleted == ([] if is_refused else ["secrets/v1"])
