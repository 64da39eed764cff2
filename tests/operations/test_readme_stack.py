"""The README's own stack, as its reader has it: no key beyond those that the page names, releases from upstream."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.checkout import REPO
from tests.hosts.stack import Stack
from tests.stackfile.stacks import write_known_hosts

README = (REPO / "README.md").read_text()


def test_the_stack_previews_as_the_readme_writes_it(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(config:\n.*?)```", README, re.DOTALL)
    config = {key.removeprefix("gpu-fleet:"): value for key, value in yaml.safe_load(text)["config"].items()}
    commands = re.findall(r"^pulumi config set --secret gpu-fleet:(\w+)", README, re.MULTILINE)
    stack = Stack(tmp_path, "us-west-training", config, dict.fromkeys(commands, "a password")).create()
    known_hosts = tmp_path / config["ssh"]["knownHostsFile"]
    known_hosts.parent.mkdir()
    write_known_hosts(known_hosts.parent)  # what `make known-hosts` writes
    preview = stack.pulumi("preview", "--diff", "--suppress-permalink")
    assert preview.count("gpu-fleet:host:Host: (create)") == 17, preview
