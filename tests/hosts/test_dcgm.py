"""dcgm-exporter as a container under real Docker, brought and kept by a real stack. The image and NVIDIA's Container Toolkit are
the lab's stand-ins; the image comes as an archive, as to a site that reaches no registry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lab.dev import query
from lab.hosts import Host, Site
from tests.hosts.outside import LOGIN, PASSWORD, SECTION, asked, with_certificate
from tests.hosts.placed import CONVERGE
from tests.hosts.stack import CLUSTER, DATACENTER, Backend, Stack, config_of, left_as_found

CONTAINER = "gpu-fleet-dcgm-exporter"
UNIT = f"{CONTAINER}.service"


@pytest.fixture(scope="module")
def host(docker: Host) -> Host:
    return docker


@pytest.fixture(scope="module")
def fleet(
    site: Site, host: Host, backend: Backend, dcgm_artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Up with that one host. At its end nothing of it is on the host, neither container nor image."""
    entry = site.stack_hosts()["docker"]
    config = config_of(site, {"docker": entry}, dcgm_artifacts, backend)
    config["logs"]["docker"] = True
    stack = Stack(tmp_path_factory.mktemp("dcgm"), "dcgm", config).create()
    with left_as_found(host):
        try:
            stack.up()
            yield stack
        finally:
            stack.destroy()
    assert host.ssh("docker ps --all --quiet; docker image ls --all --quiet").stdout == ""


def container(host: Host) -> dict:
    return json.loads(host.ssh(f"docker inspect {CONTAINER}").stdout)[0]


def test_the_metrics_of_its_gpus_reach_mimir_under_the_exporter_s_name(
    fleet: Stack, backend: Backend, eventually: Callable
) -> None:
    labels = f'datacenter="{DATACENTER}",cluster="{CLUSTER}",instance="docker",exporter_mode="dcgm-exporter"'
    eventually("8 GPUs in Mimir", lambda: len(query.metrics(backend.mimir, f"DCGM_FI_DEV_GPU_UTIL{{{labels}}}")) == 8)


def test_what_a_container_prints_is_in_loki_with_its_labels(
    fleet: Stack, host: Host, backend: Backend, eventually: Callable
) -> None:
    image = container(host)["Config"]["Image"]
    job = "docker run --detach --interactive --network none --name job --entrypoint sh"  # the image has no sleep
    host.ssh(f"{job} {image} -c 'echo step 1 loss 0.25; echo a warning >&2; read end'")
    try:
        labels = f'job="docker", datacenter="{DATACENTER}", cluster="{CLUSTER}", instance="docker"'
        line = f'{{{labels}, exporter_mode="dcgm-exporter"}} | container="job"'
        found = lambda: sorted(query.log_lines(backend.loki, line))  # noqa: E731
        eventually("both lines in Loki", lambda: found() == ["a warning", "step 1 loss 0.25"], shown=found)
    finally:
        host.ssh("docker rm --force job")


def test_the_choice_and_its_reason_are_facts_of_the_host(fleet: Stack, host: Host) -> None:
    facts = dict(line.split("=", 1) for line in host.ssh("cat /var/lib/gpu-fleet/facts").stdout.splitlines())
    assert facts["GPU_FLEET_EXPORTER_MODE"] == "dcgm-exporter"
    assert facts["GPU_FLEET_EXPORTER_REASON"].endswith("with Docker")
    assert (facts["GPU_FLEET_DCGM_RUN"], facts["GPU_FLEET_INSTALL_RUNTIME"], facts["GPU_FLEET_INSTALL_TOOLKIT"]) == (
        "docker",
        "none",
        "no",
    )


def test_the_container_has_no_right_it_does_not_need(fleet: Stack, host: Host) -> None:
    config = container(host)["HostConfig"]
    assert (config["Privileged"], config["CapAdd"], config["CapDrop"]) == (False, None, ["ALL"])
    assert "no-new-privileges" in config["SecurityOpt"]
    assert host.ssh("ss --no-header --listening --tcp --numeric 'sport = :9400' | awk '{print $4}'").stdout == "127.0.0.1:9400\n"


def test_it_comes_back_after_docker_was_restarted_or_stopped_and_started(fleet: Stack, host: Host, eventually: Callable) -> None:
    for command in ("systemctl restart docker", "systemctl stop docker docker.socket && systemctl start docker"):
        before = container(host)["Id"]
        host.ssh(command)
        eventually(
            f"another container after {command}",
            lambda before=before: (
                before not in host.ssh(f"docker inspect --format '{{{{.Id}}}}' {CONTAINER}", check=False).stdout
                and "DCGM_FI_DEV_GPU_TEMP" in host.ssh("curl --silent http://127.0.0.1:9400/metrics", check=False).stdout
            ),
        )
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")


def test_maintenance_frees_the_gpus_for_a_reset_and_its_end_brings_the_exporter_back(fleet: Stack, host: Host) -> None:
    """The driver refuses a reset while DCGM has the GPUs open."""
    maintenance = "/opt/gpu-fleet/bin/gpu-fleet-maintenance"
    host.ssh(f"{maintenance} start drained")
    assert host.ssh(f"systemctl is-active {UNIT}").stdout == "active\n", "a drained host is still observed"
    started = host.ssh(f"{maintenance} start --free-gpus reset 2>&1").stdout
    assert f"stopped {UNIT} until `gpu-fleet-maintenance stop`\n" in started
    assert host.ssh("docker ps --quiet").stdout == ""
    host.ssh(f"{maintenance} stop")
    assert host.ssh(f"systemctl is-active {UNIT}").stdout == "active\n"
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")


def test_a_container_that_no_longer_answers_is_drift_and_is_repaired(fleet: Stack, host: Host) -> None:
    host.ssh(f"docker pause {CONTAINER}")
    refreshed = fleet.pulumi("refresh", "--yes", "--diff")
    assert "gpu-fleet-dcgm-exporter: http://127.0.0.1:9400/metrics does not respond" in refreshed, refreshed
    fleet.up()
    assert "DCGM_FI_DEV_GPU_TEMP" in host.ssh("curl --silent http://127.0.0.1:9400/metrics").stdout


def test_sys_admin_is_added_by_profiling_alone_and_removed_with_it(fleet: Stack, host: Host) -> None:
    fleet.config["dcgm"] = {"counters": "profiling"}
    fleet.write()
    fleet.up()
    assert container(host)["HostConfig"]["CapAdd"] == ["SYS_ADMIN"]
    assert "DCGM_FI_PROF_SM_ACTIVE" in host.ssh("curl --silent http://127.0.0.1:9400/metrics").stdout
    del fleet.config["dcgm"]
    fleet.write()
    fleet.up()
    assert container(host)["HostConfig"]["CapAdd"] is None


def test_only_a_prometheus_with_the_login_can_scrape(
    fleet: Stack, host: Host, backend: Backend, tmp_path: Path, eventually: Callable
) -> None:
    url = f"https://{host.address}:9111/metrics"
    fleet.pulumi("config", "set", "--secret", "gpu-fleet:scrapePassword", stdin=PASSWORD)
    fleet.config["scrape"] = SECTION
    fleet.write()
    with with_certificate(host, tmp_path) as ca:
        fleet.up()
        opened_s = time.time()
        status, body = asked(url, ca, LOGIN)
        assert status == "200" and body.count("\nDCGM_FI_DEV_GPU_UTIL{") == 8
        assert asked(url, ca)[0] == asked(url, ca, "prometheus:wrong")[0] == "401"
        assert asked(url.replace("https:", "http:"), ca)[0] in ("400", "000"), "no clear text"
        assert asked(f"http://{host.address}:9400/metrics", ca)[0] == "000", "Alloy's stays on loopback"
        scrape_config = yaml.safe_load(fleet.pulumi("stack", "output", "scrapeConfig"))
        targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scrape_config["scrape_configs"]}
        assert targets == {"node-exporter": [f"{host.address}:9110"], "gpu-exporter": [f"{host.address}:9111"]}
        host.ssh(f"{CONVERGE} check --prefix ''")  # exits with 4 where it sees drift

        host.ssh(f"systemctl stop {UNIT}")
        eventually("no old numbers", lambda: asked(url, ca, LOGIN)[0] == "000")
        host.ssh(f"systemctl start {UNIT}")
        eventually("open again", lambda: asked(url, ca, LOGIN)[0] == "200")
        pushed = f'timestamp(DCGM_FI_DEV_GPU_UTIL{{instance="docker",exporter_mode="dcgm-exporter"}}) > {opened_s:.0f}'
        eventually("pushed as before", lambda: len(query.metrics(backend.mimir, pushed)) == 8)

        fleet.pulumi("config", "rm", "gpu-fleet:scrapePassword")
        del fleet.config["scrape"]
        fleet.write()
        fleet.up()
        assert asked(url, ca, LOGIN)[0] == "000"
    # A check at work has a list of all parts.
    left = "find /etc /opt /run /var -xdev -name 'scratch.*' -prune -o -name '*scrape*' -path '*gpu-fleet*' -print"
    assert host.ssh(left, check=False).stdout == ""


def test_an_exporter_of_another_kind_takes_container_and_image_away(fleet: Stack, host: Host) -> None:
    fleet.config["hosts"]["docker"]["exporter"] = "nvidia_gpu_exporter"
    fleet.write()
    fleet.up()
    assert host.ssh("docker ps --all --quiet; docker image ls --all --quiet").stdout == ""
    assert host.ssh(f"systemctl cat {UNIT}", check=False).returncode != 0
    assert "nvidia_smi_" in host.ssh("curl --silent http://127.0.0.1:9400/metrics").stdout
