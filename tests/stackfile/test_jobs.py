"""Which hosts ask Slurm for its queue, and what is refused."""

from __future__ import annotations

from pathlib import Path

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.stackfile.stacks import stack


def test_only_the_hosts_that_are_named_ask(base: Path) -> None:
    config = StackConfig.load(stack(jobs={"scheduler": "slurm", "queueHosts": ["gpu-node-[001:001]"]}), base)
    asking = {name for name, host in config.hosts.items() if "GPU_FLEET_SLURM_QUEUE" in host_settings(host, config)}
    assert asking == {"gpu-node-001"}
    assert "GPU_FLEET_SLURM_QUEUE" not in shared_settings(config)
