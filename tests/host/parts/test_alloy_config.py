"""Alloy's own word on every configuration that a host can get."""

from __future__ import annotations

import subprocess
import urllib.request
from itertools import product
from pathlib import Path

import pytest

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.toolchain import find
from tests.host.parts.conftest import IDENTITY, running_alloy
from tests.host.parts.places import defaults, parts_of, place

ALL_FILES = sorted((ROOTFS / "etc/gpu-fleet/alloy").glob("*.alloy"))
MODES = ["dcgm-exporter", "nvidia_gpu_exporter", "textfile"]
LOGS = [{"logs": False}, {"logs": True}, {"logs": True, "logs_login": True}, {"logs": True, "docker_logs": True}]
VARIANTS = [
    ({"GPU_FLEET_EXPORTER_MODE": mode, "GPU_FLEET_KERNEL_LOG_SOURCE": source}, {"metrics_login": login, **logs})
    for mode, source, login, logs in product(MODES, ["journal", "file", "none"], [False, True], LOGS)
]
VARIANTS.append(({"GPU_FLEET_EXPORTER_MODE": "dcgm-exporter", "GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes"}, {}))
VARIANTS.append(({"GPU_FLEET_EXPORTER_MODE": "dcgm-exporter"}, {"scrape_targets": True}))
URLS = {
    "GPU_FLEET_METRICS_URL": "http://127.0.0.1:9/api/v1/push",
    "GPU_FLEET_LOGS_URL": "http://127.0.0.1:9/loki/api/v1/push",
    "GPU_FLEET_KERNEL_LOG_FILE": "/var/log/kern.log",
}


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda file: file.name)
def test_a_file_is_written_as_alloy_formats_it(file: Path) -> None:
    assert subprocess.run([find("alloy"), "fmt", "--test", file]).returncode == 0, f"run `alloy fmt --write {file}`"


def test_every_file_is_shipped_to_some_host() -> None:
    shipped = {file.path for facts, options in VARIANTS for part in parts_of(facts, **options) for file in part.files}
    assert {f"/etc/gpu-fleet/alloy/{file.name}" for file in ALL_FILES} <= shipped


@pytest.mark.parametrize("variants", [VARIANTS[number::12] for number in range(12)], ids=range(12))
def test_alloy_validates_every_combination_of_files(tmp_path: Path, variants: list[tuple[dict, dict]]) -> None:
    for number, (facts, options) in enumerate(variants):
        parts = parts_of(facts, **options)
        place(parts, tmp_path / str(number))
        environment = {"GPU_FLEET_PREFIX": "", **defaults(parts), **IDENTITY, **URLS, **facts}
        command = [find("alloy"), "validate", tmp_path / str(number) / "etc/gpu-fleet/alloy"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (facts, options, done.stderr)


# validate passes what run refuses, so each file is also loaded once.
@pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({"GPU_FLEET_KERNEL_LOG_SOURCE": "journal"}, {"logs_login": True, "metrics_login": True}),
        ({"GPU_FLEET_KERNEL_LOG_SOURCE": "none", "GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes"}, {"docker_logs": True}),
    ],
    ids=["journal and logins", "docker"],
)
def test_alloy_loads_what_it_validates(tmp_path: Path, facts: dict[str, str], options: dict[str, bool]) -> None:
    secrets = tmp_path / "etc/gpu-fleet/secrets"
    secrets.mkdir(parents=True)
    for name in ("metrics-password", "logs-password"):
        (secrets / name).write_text("secret")
    with running_alloy(tmp_path, {"GPU_FLEET_EXPORTER_MODE": "textfile", **facts}, **options) as alloy:
        alloy.receiver.wait_for(lambda: is_ready(alloy.url))


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return b"ready" in answer.read()
    except OSError:
        return False
