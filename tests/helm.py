"""Helm on the lab's cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpu_fleet.toolchain import find
from lab.kubernetes import Cluster


def helm(cluster: Cluster, *arguments: str | Path) -> str:
    """What it printed; fails the test with what it said of a failure."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run([find("helm"), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
