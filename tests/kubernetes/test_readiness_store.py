"""From a node's GPU to its condition, and back to the store: simulated exporters, real Alloy, Mimir, API server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
from components.kubernetes import readiness, values
from gpu_fleet.on_cluster.__main__ import PORT, serve
from lab.gpu.inject import remap_row
from lab.kubernetes import Cluster
from lab.kubernetes.gpu_nodes import GpuNodes
from tests.helm import helm
from tests.kubernetes.agents import agent
from tests.kubernetes.plans import plan
from tests.kubernetes.test_readiness import Running, cleared
from tests.kubernetes.test_scraping import asked, install, mimir_server
from tests.waiting import eventually

NODES = ("gpu-node-1", "gpu-node-2")
GROUPS = ("gpu-info", "gpu-memory-errors", "xid-reported")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with mimir_server(tmp_path / "backend") as url:
        for group in alerts.rule_groups("mimir"):
            if group.name in GROUPS:
                body = yaml.safe_dump({**group.as_dict, "interval": "1s"}).encode()
                rules = f"{url}/prometheus/config/v1/rules/test"
                urllib.request.urlopen(urllib.request.Request(rules, data=body, method="POST"), timeout=60).close()
        yield url


@pytest.fixture
def space(cluster: Cluster, namespace: str) -> Iterator[str]:
    yield namespace
    for release in helm(cluster, "list", "--short", "--namespace", namespace).split():
        helm(cluster, "uninstall", release, "--namespace", namespace)
    cleared(cluster)


def test_a_gpu_that_fails_is_seen_on_its_node_and_in_the_store_under_the_nodes_name(
    cluster: Cluster, space: str, server: str, tmp_path: Path
) -> None:
    wanted = plan(metrics={"url": f"{server}/api/v1/push"}, logs=None, namespace=space, readiness={"kubernetes": "condition"})
    install(cluster, wanted, "dcgm-exporter", values.dcgm_exporter(wanted), tmp_path)
    url = f"{server}/prometheus"
    here = Running(cluster, wanted, url, tmp_path / "program")
    (deployment,) = [one for one in readiness.objects(wanted) if one["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    spec["nodeSelector"]["nvidia.com/gpu.present"] = "true"  # where there is an agent
    cluster.apply(deployment)
    pods = lambda: cluster.api.list("v1", "Pod", space, f"app.kubernetes.io/name={readiness.NAME}")  # noqa: E731
    running = lambda: [pod for pod in pods() if pod["status"].get("phase") == "Running"]  # noqa: E731
    (pod,) = cluster.wait_for("the pod", running)
    program = serve(here.program, pod["status"]["podIP"], PORT)
    with GpuNodes(cluster, interval_s=0.2) as gpus, ExitStack() as agents:
        for node in NODES:
            agents.enter_context(agent(cluster, wanted, node, tmp_path / node))
        try:
            eventually("both nodes to be ready", lambda: statuses(here) == ["True", "True"], lambda: shown(here))
            remap_row(gpus.state(NODES[1]), gpu=3, failed=True)
            eventually("the failure", lambda: statuses(here) == ["True", "False"], lambda: shown(here))
            text = "GPU 3: the driver asks to reset the GPU; GPU 3: the remapping of a memory row failed"
            said = lambda: tuple(here.condition(NODES[1])[key] for key in ("reason", "message"))  # noqa: E731
            eventually("both reasons", lambda: said() == ("RecoveryAction", text), lambda: shown(here))
            states = lambda: by_node(url, 'gpu_fleet_ready_state{job="gpu-fleet-ready"}')  # noqa: E731
            eventually("its state in the store", lambda: states() == {NODES[0]: "0", NODES[1]: "2"}, states)
            (series,) = asked(url, f'gpu_fleet_ready_state{{instance="{NODES[1]}"}}')
            assert (series["metric"]["datacenter"], series["metric"]["cluster"]) == ("us-west", "training")
        finally:
            program.shutdown()
            program.server_close()
    # The agents are gone, and the store still answers.
    eventually("what is old", lambda: statuses(here) == ["Unknown", "Unknown"], lambda: shown(here))


def statuses(here: Running) -> list[str]:
    here.round()
    return [here.condition(node).get("status", "") for node in NODES]


def shown(here: Running) -> Any:
    return [here.condition(node) for node in NODES]


def by_node(url: str, query: str) -> dict[str, str]:
    return {series["metric"]["instance"]: series["value"][1] for series in asked(url, query)}
