"""Further exporters of the hosts: what is refused, and which host gets which target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.stackfile.stacks import problems, stack

URL = "http://127.0.0.1:8000"
PULLED = {"gpu-node-[001:002]": {"address": "10.0.1.[1:2]"}, "far": {"connection": "pull"}}


@pytest.mark.parametrize(
    ("targets", "where", "words"),
    [
        ({"vllm": {}}, "vllm.url", "is missing"),
        ({"vllm": {"url": "127.0.0.1:8000"}}, "vllm.url", "does not start with http://"),
        ({"vllm": {"url": "http://u:p@127.0.0.1:8000"}}, "vllm.url", "holds a user name or a password (not shown)"),
        ({"vLLM": {"url": URL}}, "vLLM", 'found "vLLM"'),
        ({"vllm": {"url": URL, "interval": "1s"}}, "vllm.interval", "too short"),
        ({"vllm": {"url": URL, "keep": ["vllm:.+"]}}, "vllm.keep[0]", "with * for any characters"),
        ({"vllm": {"url": URL, "labels": {"instance": "x"}}}, "vllm.labels.instance", "is set by us on every series"),
        ({"vllm": {"url": URL, "labels": {"exporter_mode": "x"}}}, "vllm.labels.exporter_mode", "is set by us on every series"),
        ({"vllm": {"url": URL, "hosts": ["gpu-node-09"]}}, "vllm.hosts[0]", "did you mean gpu-node-0"),
        ({"vllm": {"url": URL, "hosts": ["gpu-node-[002:001]"]}}, "vllm.hosts[0]", "correct the range"),
        ({"vllm": {"url": URL, "hosts": ["far"]}}, "vllm.hosts[0]", "provisions itself"),
        ({"gpu-exporter": {"url": URL}}, "gpu-exporter", "is the job of an exporter of ours"),
        ({"my-dcgm": {"url": URL}}, "my-dcgm", "is the job of an exporter of ours"),
        ({"vllm": {"url": URL, "port": 1}}, "vllm.port", "unknown key 'port'"),
    ],
)
def test_an_error_is_reported_where_it_is(targets: dict, where: str, words: str, base: Path) -> None:
    pull = {"url": "https://files.example.com/fleet"}
    errors = problems(stack(scrapeTargets=targets, hosts=PULLED, pull=pull), base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == [f"gpu-fleet:scrapeTargets.{where}"], str(errors)
    assert words in str(errors)
    assert "u:p" not in str(errors)


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
