"""The README's own stack, as its reader has it: made by `make new-stack`, with no key beyond those on the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from tests import checkout
from tests.checkout import REPO
from tests.hosts.stack import Stack
from tests.stackfile.stacks import write_known_hosts

README = (REPO / "README.md").read_text()


def test_the_stack_previews_as_the_readme_writes_it(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(config:\n.*?)```", README, re.DOTALL)
    config = {key.removeprefix("gpu-fleet:"): value for key, value in yaml.safe_load(text)["config"].items()}
    stack = Stack(tmp_path, "us-west-training", config)
    checkout.copy_to(tmp_path)
    (tmp_path / "state").mkdir()
    [new_stack] = re.findall(r"^make (new-stack .*?)(?: +#.*)?$", README, re.MULTILINE)
    dry = ["make", "--dry-run", "--no-print-directory", *shlex.split(new_stack)]
    printed = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    *_, command = printed.replace("\\\n", "").splitlines()
    secrets = dict.fromkeys(("METRICS_PASSWORD", "LOGS_PASSWORD", "RULERS_PASSWORD"), "a password")
    environment = {**stack._environment(), **secrets, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stack.write()  # as somebody edits the file
    named = re.findall(r"^pulumi config set --secret gpu-fleet:(\w+)", README, re.MULTILINE)
    assert named == ["grafanaAuth", "slackUrl"]
    for secret in named:
        stack.pulumi("config", "set", "--secret", f"gpu-fleet:{secret}", stdin="https://hooks.example.com/token")
    known_hosts = tmp_path / config["ssh"]["knownHostsFile"]
    known_hosts.parent.mkdir()
    write_known_hosts(known_hosts.parent)  # what `make known-hosts` writes
    preview = stack.pulumi("preview", "--diff", "--suppress-permalink")
    assert preview.count("gpu-fleet:host:Host: (create)") == 17, preview
    assert "gpu-fleet:ruler:RuleGroup: (create)" in preview, "rules and inventory"
    assert "grafana:oss/dashboard:Dashboard: (create)" in preview
    assert "gpu-fleet:ruler:AlertmanagerConfig: (create)" in preview, "who is notified"
    assert not re.search(r"(?m)^ *warning:", preview), preview
