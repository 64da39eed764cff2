"""A good stack with two hosts, two GPU vendors and a missing option, and ways to break it."""

from __future__ import annotations

import copy
from pathlib import Path

from gpu_fleet.stackfile.config import ConfigErrors, StackConfig

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMr2lzzJNsTWXYnmJQ40JDtxB6tMUpvuAoPEaDG8HZ5c"
REMOVED = object()

GOOD = {
    "datacenter": "us-west",
    "cluster": "training",
    "ssh": {"user": "ops", "knownHostsFile": "known_hosts"},
    "hosts": {
        "gpu-node-[001:002]": {"address": "10.0.1.[1:2]", "gpus": 8},
        "old-amd-node": {"address": "10.0.9.9", "exporter": "textfile", "vendor": "amd"},
    },
    "metrics": {"url": "https://mimir.example.com/api/v1/push", "tenant": "us-west"},
    "logs": {"url": "https://loki.example.com/loki/api/v1/push"},
    "rulers": {"mimir": {"url": "https://mimir.example.com"}, "loki": {"url": "https://loki.example.com"}},
    "alerts": {"receivers": {"team": {"webhook": {"url": "https://hooks.example.com/gpu"}}}},
}


def stack(**changes: object) -> dict[str, object]:
    """The good stack with changes: `hosts__old-amd-node__gpus=2` goes down the mappings, REMOVED deletes a key."""
    raw = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *above, last = path.split("__")
        node: dict = raw
        for step in above:
            node = node.setdefault(step, {})
        if value is REMOVED:
            del node[last]
        else:
            node[last] = value
    return raw


def write_known_hosts(base: Path) -> None:
    (base / "known_hosts").write_text(f"10.0.*,192.168.1.*,gpu1.corp*,fd00* {HOST_KEY}\n")


def problems(raw: dict[str, object], base: Path, secrets: set[str] = frozenset()) -> ConfigErrors | None:
    try:
        StackConfig.load(raw, base, secrets)
    except ConfigErrors as errors:
        return errors
    return None


def write_private(file: Path, text: str, mode: int = 0o600) -> Path:
    """A file that only its owner can read, unless `mode` is another."""
    file.write_text(text)
    file.chmod(mode)
    return file
