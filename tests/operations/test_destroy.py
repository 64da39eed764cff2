"""What `make destroy` says, asks and leaves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.operations import destroy
from gpu_fleet.operations.deploy import SAVED_ONCE
from gpu_fleet.stackfile.config import HostSpec, hosts_of
from tests.hosts.stack import Stack
from tests.operations.test_deploy import make
from tests.provider.ruler_server import RulerServer
from tests.stackfile.stacks import write_known_hosts


def resource(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "urn": f"urn:pulumi:s::gpu-fleet::{kind}::x", "custom": True, "inputs": {}, **more}


def host(name: str) -> dict[str, Any]:
    return resource(destroy.HOST, inputs={"host": name}, urn=f"urn:pulumi:s::gpu-fleet::{destroy.HOST}::{name}")


RESOURCES = [
    resource("pulumi:pulumi:Stack", custom=False),
    resource("pulumi:providers:grafana"),
    *(host(f"gpu-{number:02}") for number in range(12)),
    resource("kubernetes:helm.sh/v3:Release"),
    resource("gpu-fleet:kubernetes:Manifest"),
    resource("kubernetes:networking.k8s.io/v1:NetworkPolicy"),
    resource("grafana:oss/folder:Folder"),
    resource("grafana:oss/dashboard:Dashboard"),
    resource("grafana:oss/dashboard:Dashboard"),
    resource("grafana:alerting/contactPoint:ContactPoint"),
    resource("gpu-fleet:ruler:RuleGroup"),
    resource("kubernetes:core/v1:Namespace", external=True),
]


def test_what_goes_is_listed_by_place_and_counted() -> None:
    first = ", ".join(f"gpu-{number:02}" for number in range(10))
    assert destroy.removed(RESOURCES) == [
        f"Hosts: all that gpu-fleet placed on {first} and 2 more: services, programs, files, users, packages",
        "Kubernetes: 1 Helm release, 1 object",  # what was only read stays
        "Grafana: 1 folder, 2 dashboards, 1 other object",
        "Rulers: 1 rule group",
    ]


def test_what_stays_names_hosts_that_destroy_does_not_reach(tmp_path: Path) -> None:
    of_file = {
        "gpu-1": {"address": "10.0.0.1"},
        "pulls": {"connection": "pull"},
        "m": {"address": "10.0.0.2", "role": "monitoring"},
    }
    hosts: list[HostSpec] = list(hosts_of({"datacenter": "d", "cluster": "c", "hosts": of_file}, tmp_path).hosts.values())
    lines = "\n".join(destroy.stays("s", RESOURCES, hosts))
    assert "pulls, which provision themselves: run `/opt/gpu-fleet/bin/gpu-fleet-pull --remove` there" in lines
    assert "On m: the data of Mimir, Loki and Grafana" in lines
    assert "In Grafana: a folder in which others have put something" in lines
    assert "`pulumi stack rm s` deletes both" in lines


def test_the_state_is_saved_once_only_where_all_can_be_removed_twice() -> None:
    assert destroy.environment([host("a"), resource("gpu-fleet:ruler:RuleGroup")], {}) == SAVED_ONCE
    assert destroy.environment(RESOURCES, {}) == {}


@pytest.fixture(scope="module")
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    yield ruler
    ruler.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, ruler: RulerServer) -> Stack:
    """Rules in a ruler, and a host in the state that does not answer any more."""
    directory = tmp_path_factory.mktemp("destroy")
    config = {
        "datacenter": "us-west",
        "cluster": "training",
        "ssh": {"user": "ops", "knownHostsFile": "known_hosts"},
        "hosts": {"gpu-node-001": {"address": "10.0.1.1"}},
        "metrics": {"url": f"{ruler.url}/api/v1/push"},
        "rulers": {"mimir": {"url": ruler.url}},
        "alerts": {"targets": ["ruler"]},
    }
    stack = Stack(directory, "us-west-training", config).create()
    write_known_hosts(directory)
    stack.up(ok=False)
    preview = json.loads(stack.pulumi("preview", "--json"))
    new = next(step["newState"] for step in preview["steps"] if step["newState"]["type"] == destroy.HOST)
    state = json.loads(stack.pulumi("stack", "export"))
    resources = [one for one in state["deployment"]["resources"] if one["type"] != destroy.HOST]
    ours = next(one["provider"] for one in resources if one["type"] == "gpu-fleet:ruler:RuleGroup")
    outputs = {"facts": {}, "drift": [], "address": "10.0.1.1"}
    known = {key: new[key] for key in ("urn", "custom", "type", "inputs", "parent")}
    resources.append({**known, "id": "gpu-node-001", "outputs": outputs, "provider": ours})
    state["deployment"]["resources"] = resources
    stack.pulumi("stack", "import", stdin=json.dumps(state))
    return stack


def test_a_dead_host_stops_nothing_and_is_named_with_the_way_out(stack: Stack, ruler: RulerServer) -> None:
    assert ruler.groups
    asked = make(stack, "destroy", "STACK=us-west-training")
    assert asked.returncode == 1 and "use `make destroy STACK=us-west-training YES=1`" in asked.stderr
    assert "  Hosts: all that gpu-fleet placed on gpu-node-001: " in asked.stdout
    assert re.search(r"^  Rulers: \d+ rule groups", asked.stdout, re.MULTILINE)
    assert ruler.groups, "nothing is removed before the answer"

    done = make(stack, "destroy", "STACK=us-west-training", "YES=1")
    assert done.returncode != 0
    assert not ruler.groups, "the rest is removed"
    assert re.search(r"^gpu-node-001 +failed ", done.stdout, re.MULTILINE), done.stdout
    assert "Not removed: gpu-node-001. Run it again once they answer." in done.stderr
    [command] = re.findall(r"^    (pulumi state delete .*)$", done.stderr, re.MULTILINE)
    subprocess.run(["sh", "-n", "-c", command], check=True)
    urn = command.rpartition("'urn:")[2].rstrip("'")
    stack.pulumi("state", "delete", "--yes", f"urn:{urn}")
    again = make(stack, "destroy", "STACK=us-west-training", "YES=1")
    assert again.returncode == 0, again.stdout + again.stderr
    empty = make(stack, "destroy", "STACK=us-west-training", "YES=1")
    assert (empty.returncode, empty.stdout) == (0, "The stack us-west-training has nothing that could be removed.\n")
