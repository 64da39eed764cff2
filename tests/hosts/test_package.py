"""The package in a program of somebody else, on a real host: deployed, repaired, and left as it was found."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from lab.hosts import Site
from tests.hosts.stack import Backend, config_of, left_as_found
from tests.package.platform import Platform

FILE = "/etc/gpu-fleet/alloy/discover.alloy"


def test_the_example_in_python_deploys_a_host_and_a_rule_repairs_drift_and_removes_both(
    site: Site, backend: Backend, artifacts: Path, tmp_path: Path
) -> None:
    host = site.hosts["metal"]
    entry = {**site.stack_hosts()["metal"], "exporter": "nvidia_gpu_exporter"}
    config = config_of(site, {"metal": entry}, artifacts, backend)
    platform = Platform(tmp_path)
    platform.configure({key: config[key] for key in ("ssh", "hosts", "artifacts")})
    platform.configure({"metricsUrl": backend.metrics, "mimirUrl": backend.mimir})
    rules = f"{backend.mimir}/prometheus/config/v1/rules"
    with left_as_found(host):
        platform.up()
        status = platform.outputs()["hosts"]["metal"]
        assert (status["exporter"], status["gpus"], status["drift"]) == ("nvidia_gpu_exporter", entry["gpus"], []), status
        assert status["driver"] and status["facts"]["GPU_MODELS"]
        assert host.ssh("systemctl is-active gpu-fleet-alloy").stdout == "active\n"
        with urllib.request.urlopen(rules) as answer:
            assert "cluster:gpu_busy:count" in answer.read().decode()
        host.ssh(f"echo '// by hand' >>{FILE}")
        assert "discover.alloy: content differs" in platform.run("refresh", "--yes", "--skip-preview", "--diff")
        platform.up()
        assert "by hand" not in host.ssh(f"cat {FILE}").stdout
        platform.run("up", "--yes", "--skip-preview", "--expect-no-changes")
        platform.run("destroy", "--yes", "--skip-preview")
