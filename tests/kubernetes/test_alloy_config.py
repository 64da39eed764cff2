"""Alloy's configuration on a cluster, read by Alloy itself."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from components.kubernetes.alloy_config import HOSTS, OURS, alloy_config, alloy_files
from components.kubernetes.values import alloy
from gpu_fleet.toolchain import find
from tests.kubernetes.plans import LOKI, MIMIR, plan

NO_LOGIN = {"url": MIMIR["url"]}
LOGGED_IN = {**LOKI, "username": "writer"}
VARIANTS = [
    plan(
        metrics=metrics,
        logs=logs,
        readiness=readiness,
        prometheusOperator=operator,
        nodeExporter=exporter,
        podLogs=["jobs"] if logs else [],
    )
    for metrics, logs in itertools.product((NO_LOGIN, MIMIR), (None, LOKI, LOGGED_IN))
    for operator, exporter, readiness in (
        ("none", "install", None),
        ("none", "none", {}),
        ("existing", "install", None),
    )
]


@pytest.mark.parametrize("file", sorted(OURS.glob("*.alloy")), ids=lambda file: file.name)
def test_a_file_is_written_as_alloy_formats_it(file: Path) -> None:
    assert subprocess.run([find("alloy"), "fmt", "--test", file]).returncode == 0, f"run `alloy fmt --write {file}`"


def test_every_file_is_used() -> None:
    used = {
        file for of in VARIANTS for file in alloy_files(of.section, of.metrics, of.logs, has_readiness=of.readiness is not None)
    }
    assert set(OURS.glob("*.alloy")) <= used


def test_an_agent_watches_its_own_node_and_the_pods_on_it_once() -> None:
    """The API server of 1,000 nodes would otherwise send every change of every node to 1,000 agents."""
    of = plan(podLogs=["jobs"])
    config = alloy_config(of.section, of.metrics, of.logs, has_readiness=of.readiness is not None)
    watches = config.split("\ndiscovery.kubernetes ")[1:]
    fields = [watch.partition("field = ")[2].partition("\n")[0].strip() for watch in watches]
    node = 'sys.env("GPU_FLEET_INSTANCE")'
    assert sorted(fields) == [f'"metadata.name=" + {node}', f'"spec.nodeName=" + {node}'] and "clustering" not in config


def test_every_scrape_has_limits() -> None:
    for file in sorted(OURS.glob("*.alloy")) + sorted(HOSTS.glob("*.alloy")):
        for scrape in file.read_text().split("\nprometheus.scrape ")[1:]:
            block = scrape.partition("\n}\n")[0]
            assert "sample_limit" in block and "body_size_limit" in block, file.name
            assert "label_value_length_limit" in block or file.name == "collect_agent.alloy", "Alloy's own labels are known"


def test_alloy_validates_every_variant(tmp_path: Path) -> None:
    """All at once: each starts a program of 300 MB."""
    found = {alloy_config(of.section, of.metrics, of.logs, has_readiness=of.readiness is not None): of for of in VARIANTS}
    for number, (text, of) in enumerate(found.items()):
        file = tmp_path / f"{number}.alloy"
        file.write_text(text)
        environment = {one["name"]: one.get("value", "gpu-node-1") for one in alloy(of)["alloy"]["extraEnv"]}
        done = subprocess.run(
            [find("alloy"), "validate", file], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
