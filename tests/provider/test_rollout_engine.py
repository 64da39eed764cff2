"""A staged rollout by the real engine, with the program's own Fleet: who is contacted, in which order, and what people read."""

from __future__ import annotations

import os
import re
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.provider.plugin import CONVERGE
from tests.provider.test_engine import REPO, Stack

PROGRAM = """
import os
import signal

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # as the real program does
import io
import json
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, {repo!r})
import pulumi
from components.fleet.fleet import Fleet, FleetArgs
from gpu_fleet.host.bundle import Bundle
from components.provider import Provider, ProviderArgs

desired = json.loads(Path("desired.json").read_text())
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    text = desired["converge"].encode()
    info = tarfile.TarInfo("converge")
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
spec = lambda name: SimpleNamespace(name=name, connection="local", prefix=str(Path("hosts", name).absolute()))
args = FleetArgs(
    bundle=SimpleNamespace(texts={{"converge": desired["converge"]}}, tar=archive.getvalue()),
    waves=[[spec(name) for name in wave] for wave in desired["waves"]],
    settings={{name: {{"DO": desired["do"].get(name, "")}} for wave in desired["waves"] for name in wave}},
)
provider = Provider("fleet", ProviderArgs(rollout=desired["rollout"]))
Fleet("fleet", args, pulumi.ResourceOptions(provider=provider))
"""
WAVES = [["canary"], ["a-1", "a-2", "a-3", "a-4"], ["b-1", "b-2", "b-3", "b-4"]]
TWO_AT_ONCE = ("--parallel", "2", "--continue-on-error")  # fewer than a wave has: nothing may wait for what cannot start


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    stack = Stack(tmp_path)
    (tmp_path / "__main__.py").write_text(PROGRAM.format(repo=str(REPO)))
    rollout = {"hasCanary": True, "maxFailures": 1, "pauseSeconds": 0}
    stack.desired = {"waves": WAVES, "do": {}, "rollout": rollout, "converge": CONVERGE.read_text()}
    return stack


def contacted(stack: Stack, since: float = 0) -> set[str]:
    files = stack.directory.glob("hosts/*/etc/gpu-fleet/gpu-fleet.env")
    return {path.parents[2].name for path in files if path.stat().st_mtime > since}


def test_a_rollout_stops_at_its_canary_continues_wave_by_wave_and_stops_at_a_bad_batch(stack: Stack) -> None:
    stack.desired["do"] = {"canary": "fail"}
    output = stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE, fails=True)
    assert contacted(stack) == {"canary"}
    for name in ("a-1", "b-4"):
        assert f"{name}: held back: canary canary failed: service did not start" in output, output
    assert "Traceback" not in output

    stack.desired["do"] = {}
    stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE)
    done = [
        [(stack.directory / "hosts" / name / "etc/gpu-fleet/gpu-fleet.env").stat().st_mtime for name in wave] for wave in WAVES
    ]
    for earlier, later in pairwise(done):
        assert max(earlier) < min(later), "a wave began before the one before it was finished"

    stack.desired["rollout"]["pauseSeconds"] = 500
    assert "12 unchanged" in stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE), "waves without a change need no pause"

    stack.desired |= {"converge": CONVERGE.read_text() + "# changed\n", "do": {"a-1": "fail", "a-2": "fail"}}
    stack.desired["rollout"]["pauseSeconds"] = 0
    before = time.time()
    output = stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE, fails=True)
    assert not contacted(stack, before) & set(WAVES[2])
    assert re.search(r"b-1: held back: 2 hosts before it failed, maxFailures is 1; first a-\d: service did not start", output)

    stack.desired["do"] = {}
    assert "~ 6 updated" in stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE), "those that failed and were held back"


def test_a_host_named_by_target_waits_for_no_wave(stack: Stack) -> None:
    stack.desired["rollout"]["pauseSeconds"] = 500
    targets = [word for kind in ("Fleet::**", "Bundle::**", "Host::b-1") for word in ("--target", f"**:host:{kind}")]
    stack.run("up", "--yes", "--skip-preview", *TWO_AT_ONCE, *targets)
    assert contacted(stack) == {"b-1"}


def test_ctrl_c_ends_a_pause_at_once(stack: Stack) -> None:
    stack.desired["rollout"]["pauseSeconds"] = 500
    process = stack.start("up", "--yes", "--skip-preview", *TWO_AT_ONCE)
    deadline = time.monotonic() + 300
    while contacted(stack) != {"canary"}:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    for line in process.stdout:
        if "wave 2 begins in" in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=400)
    assert process.returncode != 0
    assert "Traceback" not in output, output
    assert contacted(stack) == {"canary"}
