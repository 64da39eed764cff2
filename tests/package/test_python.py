"""The package in a program in Python: `Fleet` and `RuleGroup` with the real engine, which starts the plugin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.platform import PASSWORD, Simulated


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    """Up, with both hosts."""
    platform = Simulated(tmp_path_factory.mktemp("python"))
    platform.configure(
        {"hosts": {name: {**platform.address(number), "gpus": 8} for number, name in enumerate(("gpu-1", "gpu-2"))}}
    )
    platform.preview, _ = platform.previewed_up("--diff")
    yield platform
    platform.run("destroy", "--yes", "--skip-preview")
    assert not platform.ruler.groups and all(" remove " in host.commands[-1] for host in platform.hosts)
    platform.close()


def test_a_preview_shows_the_parts_of_the_fleet(platform: Simulated) -> None:
    created = re.findall(r"(?m)^ *\+ (\S+): \(create\)\n.*urn=.*::(\S+)\]", platform.preview)
    assert set(created) == {
        ("gpu-fleet:index:Fleet", "us-west"),
        ("pulumi:providers:gpu-fleet", "us-west-gpu-fleet"),
        ("gpu-fleet:host:Fleet", "us-west-fleet"),
        ("gpu-fleet:host:Bundle", "us-west-fleet-bundle"),
        ("gpu-fleet:host:Host", "us-west-gpu-1"),
        ("gpu-fleet:host:Host", "us-west-gpu-2"),
        ("gpu-fleet:ruler:RuleGroup", "busy"),
        ("pulumi:pulumi:Stack", "our-platform-platform"),
    }, platform.preview


def test_the_program_learns_what_each_host_reported(platform: Simulated) -> None:
    hosts = platform.outputs()["hosts"]
    assert hosts == {name: {"gpus": 8, "drift": [], "facts": {"GPU_COUNT": "8"}} for name in ("gpu-1", "gpu-2")}
    assert list(platform.ruler.groups) == [("mimir", "", "ours", "busy")]


def test_a_secret_stays_encrypted_on_both_sides(platform: Simulated) -> None:
    assert PASSWORD not in platform.state_text() + platform.preview


def test_a_second_run_changes_nothing_and_a_changed_host_is_changed_alone_with_what_the_fleet_costs(platform: Simulated) -> None:
    platform.run("up", "--yes", "--skip-preview", "--expect-no-changes")
    hosts = {"gpu-1": {**platform.address(0), "gpus": 8}, "gpu-2": {**platform.address(1), "gpus": 4}}
    platform.configure({"hosts": hosts})
    output = platform.run("preview", "--diff")
    assert re.findall(r"(?m)^ *~ (\S+): \(update\)", output) == ["gpu-fleet:host:Host"], output
    assert "Series in Mimir, estimated: up to" in output
    assert "us-west-gpu-2" in output and "us-west-gpu-1" not in output, output


def test_all_errors_of_the_arguments_are_one_failure_of_the_resource(platform: Simulated) -> None:
    platform.configure({"hosts": {"gpu-1": {"address": "not an address"}, "gpu-2": {"gpus": 800}}})
    program = platform.directory / "__main__.py"
    text = program.read_text()
    program.write_text(
        text.replace('{"url": config.require("metricsUrl"),', f'{{"url": "http://writer:{PASSWORD}@x/api/v1/push",')
    )
    output = platform.run("preview", fails=True)
    program.write_text(text)
    head = "gpu-fleet:index:Fleet resource 'us-west' has a problem: 3 errors in the arguments; nothing was changed."
    assert head in output, output
    shown = output[output.rindex(head) :].partition("error: Program failed")[0]  # what follows is the SDK's own traceback
    errors = ('hosts.gpu-1.address: "not an address" is neither', "hosts.gpu-2.gpus: found 800", "metrics.url: the URL ")
    assert all(words in shown for words in errors), output
    assert "expected: a whole number from 1 to 64" in shown
    assert "stack file" not in shown and "gpu-fleet:hosts" not in shown, "a program has no stack file"
    assert PASSWORD not in output


def test_hosts_that_are_created_in_the_same_run_are_deployed_in_it(platform: Simulated, tmp_path: Path) -> None:
    """Their addresses are outputs of other resources, such as machines of a cloud. Keys in a program are in snake_case."""
    own = Simulated(tmp_path)
    own.configure({"hosts": {"gpu-1": {**own.address(0), "gpus": 8}}})
    program = own.directory / "__main__.py"
    made = 'hosts={"gpu-1": {"address": machine.stdout, "port": config.require_object("hosts")["gpu-1"]["port"]}},'
    ssh = own.configured("ssh")
    ssh |= {"private_key_file": ssh.pop("privateKeyFile"), "known_hosts_file": ssh.pop("knownHostsFile")}
    text = program.read_text().replace('hosts=config.require_object("hosts"),', made)
    text = text.replace('ssh=config.require_object("ssh")', f"ssh={ssh}")
    text = text.replace("fleet = ", 'machine = command.local.Command("machine", create="printf 127.0.0.1")\nfleet = ', 1)
    program.write_text(text.replace("import pulumi\n", "import pulumi\nimport pulumi_command as command\n", 1))
    preview, _ = own.previewed_up()
    assert "hosts: not known before the resources that the value comes from are created" in preview, preview
    assert own.outputs()["hosts"]["gpu-1"]["gpus"] == 8
    state = own.state()
    [machine] = [each["urn"] for each in state if each["type"] == "command:local:Command"]
    [provider] = [each for each in state if each["urn"].endswith("::us-west-gpu-fleet")]
    assert machine in provider["dependencies"], "else the machine could be deleted before what is on it"
    own.run("destroy", "--yes", "--skip-preview")
    own.close()
