"""Which hosts ask Slurm for its queue, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.stackfile.stacks import problems, stack

HOSTS = {"gpu-node-[001:009]": {"address": "10.0.1.[1:9]"}, "far": {"connection": "pull"}}


@pytest.mark.parametrize(
    ("names", "where", "words"),
    [
        (["gpu-node-01"], "queueHosts[0]", "did you mean gpu-node-0"),
        (["gpu-node-001", "gpu-node-[003:002]"], "queueHosts[1]", "correct the range"),
        (["far"], "queueHosts[0]", "name a host that `up` deploys"),
        (["gpu-node-[001:004]"], "queueHosts", "4 hosts ask the controller"),
    ],
)
def test_an_error_is_reported_where_it_is(names: list[str], where: str, words: str, base: Path) -> None:
    jobs, pull = {"scheduler": "slurm", "queueHosts": names}, {"url": "https://files.example.com/fleet"}
    errors = problems(stack(jobs=jobs, hosts=HOSTS, pull=pull), base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == [f"gpu-fleet:jobs.{where}"], str(errors)
    assert words in str(errors)


def test_only_the_hosts_that_are_named_ask(base: Path) -> None:
    config = StackConfig.load(stack(jobs={"scheduler": "slurm", "queueHosts": ["gpu-node-[001:001]"]}), base)
    asking = {name for name, host in config.hosts.items() if "GPU_FLEET_SLURM_QUEUE" in host_settings(host, config)}
    assert asking == {"gpu-node-001"}
    assert "GPU_FLEET_SLURM_QUEUE" not in shared_settings(config)
