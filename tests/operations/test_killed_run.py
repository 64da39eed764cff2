"""What a killed run was doing to Helm releases, with a stack file that has no cluster any more."""

from __future__ import annotations

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
