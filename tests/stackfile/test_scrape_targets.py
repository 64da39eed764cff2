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


def test_a_target_without_an_interval_is_scraped_no_more_often_than_the_hosts(base: Path) -> None:
    def intervals(**sections: object) -> dict[str, str]:
        targets = {"vllm": {"url": URL, "interval": "10s"}, "whisper": {"url": URL}}
        settings = shared_settings(StackConfig.load(stack(scrapeTargets=targets, **sections), base))
        return {one["job"]: one["__scrape_interval__"] for one in json.loads(settings["GPU_FLEET_SCRAPE_TARGETS"])}

    assert intervals() == intervals(scrapeInterval="15s") == {"vllm": "10s", "whisper": "30s"}
    assert intervals(scrapeInterval="60s") == {"vllm": "10s", "whisper": "60s"}, "what the stack file says of a target holds"
