"""Whose process listens on a port."""

from __future__ import annotations

import pytest

from gpu_fleet.on_host.converge import ports


@pytest.mark.parametrize(
    ("group", "is_ours"),
    [
        ("0::/system.slice/gpu-fleet-alloy.service", True),
        ("3:cpu:/system.slice/gpu-fleet.slice/gpu-fleet-alloy.service/child\n0::/", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/gpu-fleet-alloy.service", False),
        ("0::/system.slice/docker-0123.scope/system.slice/gpu-fleet-alloy.service", False),
        ("0::/system.slice/ssh.service", False),
    ],
)
def test_a_unit_of_a_user_with_the_name_of_ours_is_not_ours(monkeypatch: pytest.MonkeyPatch, group: str, is_ours: bool) -> None:
    monkeypatch.setattr(ports, "read_or_empty", lambda path: group if path.endswith("/cgroup") else "")
    assert ports.is_process_of("71", "gpu-fleet-alloy") is is_ours
