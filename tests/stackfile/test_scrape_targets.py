"""Further exporters of the hosts: what is refused, and which host gets which target."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.stackfile.stacks import stack

URL = "http://127.0.0.1:8000"


def test_a_host_has_the_targets_that_name_it_and_those_of_all(base: Path) -> None:
    targets = {"vllm": {"url": URL, "hosts": ["gpu-node-[001:001]"]}, "whisper": {"url": URL}}
    config = StackConfig.load(stack(scrapeTargets=targets), base)

    def jobs(settings: dict[str, str]) -> list[str]:
        return [target["job"] for target in json.loads(settings["GPU_FLEET_SCRAPE_TARGETS"])]

    found = {name: jobs(host_settings(host, config)) for name, host in config.hosts.items()}
    assert found == {"gpu-node-001": ["vllm", "whisper"], "gpu-node-002": ["whisper"], "old-amd-node": ["whisper"]}
    assert jobs(shared_settings(config)) == ["whisper"], "hosts that provision themselves get what all get"


def test_a_stack_without_targets_gives_its_hosts_no_further_settings(base: Path) -> None:
    config = StackConfig.load(stack(), base)
    for host in config.hosts.values():
        assert not [name for name in host_settings(host, config) if "SCRAPE" in name]
