"""How a run of the whole program ends: by a failed host, by Ctrl-C, by a stack file that is refused. Never with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
import yaml

from gpu_fleet import toolchain
from gpu_fleet.host.artifacts import DCGM_IMAGE, INDEX
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.toolchain.versions import ARCHITECTURES, image, release
from lab.standins import programs
from tests.checkout import copy_to
from tests.provider.ssh_server import SshServers


class Stack:
    """A host that accepts connections and says nothing (25 s), and one that refuses them."""

    def __init__(self, directory: Path, stalling_port: int) -> None:
        self.directory = directory
        copy_to(directory)
        (directory / "state").mkdir()
        (directory / "artifacts").mkdir()
        files = [*(f"{name}-{release(name).version}" for name in PROGRAMS), f"{DCGM_IMAGE}-{image(DCGM_IMAGE).tag}"]
        index = "".join(f"{'0' * 64}  {file}.linux-{arch}\n" for file in files for arch in ARCHITECTURES)
        (directory / "artifacts" / INDEX).write_text(index)
        key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        self.config = {
            "datacenter": "us-west",
            "cluster": "training",
            "ssh": {"user": "ops"},
            "hosts": {
                "gpu-1": {"address": "127.0.0.1", "port": stalling_port, "hostKey": key},
                "gpu-2": {"address": "127.0.0.1", "port": 1, "hostKey": key},
            },
            "artifacts": {"source": "controller", "directory": "artifacts"},
            "metrics": {"url": "http://127.0.0.1:1/api/v1/push"},
        }
        self.run("stack", "init", "test")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        config = {f"gpu-fleet:{key}": value for key, value in self.config.items()}
        file = self.directory / "Pulumi.test.yaml"
        there = yaml.safe_load(file.read_text()) if file.exists() else {}  # the key of the stack
        file.write_text(yaml.safe_dump({**there, "config": config}))
        return subprocess.Popen(
            [str(toolchain.find("pulumi")), "--non-interactive", "--color", "never", *arguments],
            cwd=self.directory,
            env={
                **os.environ,
                **programs.environment("test"),
                "PULUMI_BACKEND_URL": f"file://{self.directory}/state",
                "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
                "PULUMI_STACK": "test",
                "PLAN": "hosts",
            },
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=900)
        return process.returncode, output

    def interrupted(self, line: str, *arguments: str) -> tuple[int, str]:
        """With Ctrl-C once a line with this text was printed."""
        process = self.start(*arguments)
        assert process.stdout is not None
        output = ""
        for printed in process.stdout:
            output += printed
            if line in printed:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=600)
        return process.returncode, output + rest


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    servers = SshServers(tmp_path_factory.mktemp("servers"))
    yield Stack(tmp_path_factory.mktemp("stack"), servers.silent(accepts=True))
    servers.close()


UP = ("up", "--yes", "--skip-preview")
WORKING = "unreachable: 127.0.0.1:1"  # the one host was tried, and the other keeps the program waiting


@pytest.mark.parametrize("arguments", [UP, ("preview",)], ids=["up", "preview"])
def test_ctrl_c_ends_without_a_traceback(stack: Stack, arguments: tuple[str, ...]) -> None:
    code, output = stack.interrupted(WORKING, *arguments)
    assert code != 0
    assert "^C received; cancelling" in output, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output and "exit code" not in output


def test_a_run_whose_hosts_fail_ends_with_their_causes_alone(stack: Stack) -> None:
    code, output = stack.run(*UP)
    assert code != 0
    assert "gpu-2: unreachable" in output, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output and "exit code" not in output


@pytest.mark.parametrize("arguments", [UP, ("preview",)], ids=["up", "preview"])
def test_a_refused_stack_file_ends_with_what_is_wrong_in_it(stack: Stack, arguments: tuple[str, ...]) -> None:
    before = stack.config
    stack.config = {**before, "colour": "blue"}
    try:
        code, output = stack.run(*arguments)
    finally:
        stack.config = before
    assert code != 0
    assert "gpu-fleet:colour: unknown key" in output, output
    assert "Traceback" not in output
