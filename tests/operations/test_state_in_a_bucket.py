"""A stack whose state is in a bucket of a real S3 server: every command that reads or writes the state, by its make target."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from lab.ports import free_ports
from tests import checkout
from tests.hosts.stack import Stack
from tests.operations.test_pr_report import git

PASSWORD = "a password of the writer"
KEYS = {"AWS_ACCESS_KEY_ID": "gpu-fleet", "AWS_SECRET_ACCESS_KEY": "a key of the bucket"}
CONFIG = {
    "datacenter": "us-west",
    "cluster": "edge",
    "hosts": {"edge-node-[01:02]": {"connection": "pull", "gpus": 8}},
    "metrics": {"url": "http://127.0.0.1:9/api/v1/push", "username": "writer"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL of the backend, and the directory that holds the bucket's objects."""
    directory = tmp_path_factory.mktemp("s3")
    for name in ("buckets/state", "metadata"):
        (directory / name).mkdir(parents=True)
    [port] = free_ports(1)
    command = [str(toolchain.find("versitygw")), "--port", f"127.0.0.1:{port}", "--quiet"]
    command += ["posix", "--sidecar", str(directory / "metadata"), str(directory / "buckets")]
    root = {"ROOT_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    with subprocess.Popen(command, env={**os.environ, **root}, cwd=directory) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/", process)
            yield (
                f"s3://state?endpoint=http://127.0.0.1:{port}&s3ForcePathStyle=true&region=us-east-1",
                directory / "buckets/state",
            )
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url, timeout=60)
        except urllib.error.HTTPError:
            return  # it answers, and refuses who has not signed
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)


class Bucket(Stack):
    """The stack in the bucket. `url`: of the backend."""

    url: str = ""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **KEYS, "PULUMI_BACKEND_URL": self.url, "METRICS_PASSWORD": PASSWORD}

    def make(self, target: str, status: int = 0, **environment: str) -> str:
        """What a target does after its set-up, as make runs it."""
        dry = ["make", "--dry-run", "--no-print-directory", "STAND_INS=1", *shlex.split(target)]
        printed = subprocess.run(dry, cwd=self.directory, capture_output=True, text=True, check=True).stdout
        command = printed.replace("\\\n", "").splitlines()[-1]
        variables = {**os.environ, **self._environment(), "STAND_INS": "1", **environment}  # which the Makefile exports
        variables["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        assert "Traceback" not in done.stdout and PASSWORD not in done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def stack(server: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    made = Bucket(tmp_path_factory.mktemp("stacks"), "us-west-edge", CONFIG)
    made.url = server[0]
    checkout.copy_to(made.directory)
    made.make("new-stack DATACENTER=us-west CLUSTER=edge METRICS_URL=http://127.0.0.1:9/api/v1/push PUSH_USER=writer")
    made.write()
    return made


def test_every_command_works_on_a_stack_whose_state_is_in_a_bucket(stack: Bucket, server: tuple[str, Path]) -> None:
    state = server[1] / f".pulumi/stacks/gpu-fleet/{stack.name}.json"
    assert state.is_file(), "`make new-stack` created it"
    assert "gpu-fleet:host:Bundle: (create)" in stack.make(f"preview STACK={stack.name}")
    assert "+ " in stack.make(f"up STACK={stack.name} YES=1")
    assert "gpu-fleet:host:Bundle" in state.read_text() and PASSWORD not in state.read_text()
    assert not list((server[1] / ".pulumi/locks").rglob("*.json")), "the lock is released"
    assert "edge-node-02" in stack.make(f"status STACK={stack.name}", status=1), "the store of the metrics does not answer"
    checked = stack.make(f"check STACK={stack.name}", status=1)
    assert "2 hosts: 2 unknown." in checked and "only the metrics store knows of it" in checked, checked

    git(stack.directory, "init", "--quiet", "--initial-branch=main")
    git(stack.directory, "add", "--all")
    git(stack.directory, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=base")
    stack.config = {**CONFIG, "hosts": {"edge-node-[01:03]": {"connection": "pull", "gpus": 8}}}
    stack.write()
    report = stack.make("pr-report BASE=main PREVIEW=1")
    assert f"### Preview of `{stack.name}`" in report and "~ series" in report and "4 unchanged" in report, report

    refused = stack.make(f"preview STACK={stack.name}", status=1, AWS_SECRET_ACCESS_KEY="a wrong one")
    assert "SignatureDoesNotMatch" in refused
    stack.destroy()
    stack.pulumi("stack", "rm", "--yes", "--preserve-config", stack.name)
    assert not state.exists()
