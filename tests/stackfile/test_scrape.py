"""Hosts that a Prometheus may scrape: the settings it needs, the login that exporters require, the scrape configuration."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bcrypt
import pulumi
import pytest
import yaml

from components.fleet.scrape import scrape_config, web_config
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.scrape import Scrape
from gpu_fleet.toolchain import find
from tests.stackfile.stacks import problems, stack

TLS = {"certificateFile": "/etc/ssl/host.pem", "keyFile": "/etc/ssl/host.key"}
SECTION = {"username": "prometheus", "tls": TLS}
PASSWORD = "planted-password"
LOCAL = {"here": {}, "there": {"gpuExporter": 9401, "nodeExporter": 9101, "alloy": 12346}}


def test_hosts_that_share_this_machine_cannot_share_its_ports(base: Path) -> None:
    local = {name: {"connection": "local", "prefix": f".dev/{name}", "ports": ports} for name, ports in LOCAL.items()}
    one = {"scrape": SECTION, "hosts": {"here": local["here"]}}
    assert problems(stack(**one), base, {"scrapePassword"}) is None
    errors = problems(stack(**{**one, "hosts": local}), base, {"scrapePassword"})
    assert [problem.where for problem in errors.problems] == ["gpu-fleet:scrape"], str(errors)
    assert "here, there are on this machine" in str(errors)
    taken = problems(stack(**one, backend={"mimir": {"port": 9110}}), base, {"scrapePassword"})
    assert [problem.where for problem in taken.problems] == ["gpu-fleet:scrape.nodeExporterPort"], str(taken)
    assert "9110 is gpu-fleet:backend.mimir.port too" in str(taken)


def test_scraping_from_outside_and_its_password_need_each_other(base: Path) -> None:
    assert problems(stack(scrape=SECTION), base, {"scrapePassword"}) is None
    assert "`pulumi config set --secret gpu-fleet:scrapePassword`" in str(problems(stack(scrape=SECTION), base))
    assert "`pulumi config rm gpu-fleet:scrapePassword`" in str(problems(stack(), base, {"scrapePassword"}))


def test_hosts_get_a_hash_that_changes_only_with_the_login() -> None:
    section = Scrape.model_validate(SECTION)
    text = web_config(section, "us-west/training", PASSWORD)
    assert text == web_config(section, "us-west/training", PASSWORD), "else every run would change every host"
    assert PASSWORD not in text
    hashed = yaml.safe_load(text)["basic_auth_users"]["prometheus"].encode()
    assert bcrypt.checkpw(PASSWORD.encode(), hashed) and not bcrypt.checkpw(b"other", hashed)
    assert text != web_config(section, "us-west/training", "other") != web_config(section, "eu/training", "other")


@pytest.mark.parametrize("password", ["", "p" * 73, "with\0nul"])
def test_a_password_that_cannot_be_hashed_is_refused_unshown(password: str) -> None:
    with pytest.raises(pulumi.RunError, match="scrapePassword: expected 1 to 72 bytes") as refused:
        web_config(Scrape.model_validate(SECTION), "us-west/training", password)
    assert "ppp" not in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "adopted", "jobs"),
    [
        ("dcgm-exporter", "", ["node-exporter", "gpu-exporter"]),
        ("dcgm-exporter", "GPU", ["node-exporter"]),
        ("dcgm-exporter", "NODE", []),  # it is shown by a node_exporter of ours
        ("nvidia_gpu_exporter", "NODE", ["gpu-exporter"]),
        ("textfile", "", ["node-exporter"]),
    ],
)
def test_the_targets_are_the_opened_ports(base: Path, mode: str, adopted: str, jobs: list[str]) -> None:
    config = StackConfig.load(stack(scrape=SECTION), base, {"scrapePassword"})
    facts = {"GPU_FLEET_EXPORTER_MODE": mode, **({f"GPU_FLEET_{adopted}_EXPORTER_ADOPTED": "yes"} if adopted else {})}
    text = scrape_config(config, {"gpu-node-001": facts})
    assert [job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]] == jobs


def test_prometheus_accepts_the_scrape_configuration_of_the_stack(base: Path) -> None:
    config = StackConfig.load(stack(scrape=SECTION), base, {"scrapePassword"})
    facts = {
        "gpu-node-001": {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter"},
        "gpu-node-002": {"GPU_FLEET_EXPORTER_MODE": "dcgm-exporter"},
        "old-amd-node": {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes"},
    }
    text = scrape_config(config, facts)
    targets = {
        job["job_name"]: [target for entry in job["static_configs"] for target in entry["targets"]]
        for job in yaml.safe_load(text)["scrape_configs"]
    }
    assert targets == {"node-exporter": ["10.0.1.1:9110", "10.0.1.2:9110"], "gpu-exporter": ["10.0.1.1:9111", "10.0.1.2:9111"]}
    labels = yaml.safe_load(text)["scrape_configs"][1]["static_configs"][0]["labels"]
    assert labels == {
        "instance": "gpu-node-001",
        "datacenter": "us-west",
        "cluster": "training",
        "exporter_mode": "nvidia_gpu_exporter",
    }
    (base / "prometheus.yml").write_text(text)
    (base / "gpu-fleet-scrape.password").write_text(PASSWORD)
    (base / "gpu-fleet-ca.pem").write_text("")
    done = subprocess.run([find("promtool"), "check", "config", "prometheus.yml"], cwd=base, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
