"""The provider with the real bundle and the real converge program: what the tests beside this one only imitate."""

from __future__ import annotations

import base64
import gzip
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.provider.values import decode
from lab.ports import free_ports
from tests.host.hosts import SUPERVISORD, SimulatedHost, page, web
from tests.provider.plugin import BUNDLE, HOST, PASSWORD, Failure, Plugin
from tests.provider.ssh_server import SshServers

Inputs = Callable[..., dict[str, Any]]


@pytest.fixture(params=["local", "ssh"])
def connection(request: pytest.FixtureRequest, plugin: Plugin, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The same life on both transports."""
    if request.param == "local":
        yield {"kind": "local"}
        return
    servers = SshServers(tmp_path)
    server = servers.ssh()
    ssh = {"user": "ops", "privateKeyFile": servers.key_file(), "knownHostsFile": servers.known_hosts(server), "sudo": False}
    plugin.configure(ssh=ssh, secrets={"metrics-password": PASSWORD})
    yield {"kind": "ssh", "address": "127.0.0.1", "port": server.port}
    servers.close()


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedHost]:
    host = SimulatedHost.below(tmp_path, "a host")
    yield host
    host.stop()


@pytest.fixture
def inputs(plugin: Plugin, connection: dict[str, Any], simulated: SimulatedHost) -> Inputs:
    """Checked inputs of one host with a page and a service that greets."""
    [port] = free_ports(1)

    def inputs(greeting: str = "hello", stack: str = "us-west/training") -> dict[str, Any]:
        bundle = Bundle.of([page(secrets=("metrics-password",)), web(simulated, greeting)], rootfs=simulated.directory / "rootfs")
        archive = base64.b64encode(gzip.compress(bundle.tar)).decode()
        assert plugin.checked(BUNDLE, {"files": bundle.texts, "archive": archive})["digest"] == bundle.digest
        settings = {
            "GPU_FLEET_STACK": stack,
            "GPU_FLEET_SERVICE_MANAGER": "supervisor",
            "GPU_FLEET_SUPERVISORD": str(SUPERVISORD),
            "WEB_PORT": str(port),
        }
        place = {**connection, "prefix": str(simulated.prefix)}
        return plugin.checked(HOST, {"host": "node-1", "connection": place, "bundle": bundle.digest, "settings": settings})

    return inputs


def page_of(inputs: dict[str, Any]) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{inputs['settings']['WEB_PORT']}/") as answer:
        return answer.read().decode()


def test_a_life_of_a_host(plugin: Plugin, simulated: SimulatedHost, inputs: Inputs) -> None:
    wanted = inputs()
    id_, outputs = plugin.create(HOST, wanted)
    assert outputs["drift"] == []
    assert page_of(wanted).startswith("hello answers")
    assert simulated.at("/etc/gpu-fleet/secrets/metrics-password").read_text() == PASSWORD
    assert decode(plugin.read(HOST, id_, wanted, outputs).properties) == outputs

    simulated.at("/etc/page/index.html").write_text("by hand")
    drifted = decode(plugin.read(HOST, id_, wanted, outputs).properties)
    assert drifted["drift"] == ["page: file /etc/page/index.html: content differs"]
    assert plugin.update(HOST, id_, wanted, wanted) == outputs
    assert simulated.at("/etc/page/index.html").read_text() == "hello\n"

    changed = inputs("goodbye")
    assert plugin.update(HOST, id_, wanted, changed) == outputs
    assert page_of(changed).startswith("goodbye answers")

    plugin.delete(HOST, id_, changed)
    assert not list(simulated.prefix.iterdir())


@pytest.mark.parametrize("connection", ["local"], indirect=True)
def test_a_host_whose_state_is_not_mounted_is_neither_gone_nor_removed(
    plugin: Plugin, simulated: SimulatedHost, inputs: Inputs
) -> None:
    """A disk for /var, which was not mounted at boot: a removal that says it is done would leave everything."""
    wanted = inputs()
    id_, outputs = plugin.create(HOST, wanted)
    unmounted = simulated.at("/unmounted")
    state = simulated.at("/var/lib/gpu-fleet")
    state.rename(unmounted)
    state.mkdir()
    for what in (lambda: plugin.delete(HOST, id_, wanted), lambda: plugin.read(HOST, id_, wanted, outputs)):
        with pytest.raises(
            Failure, match=r"damaged: .*/var/lib/gpu-fleet is empty, and what it lists is still .*: mount its file"
        ):
            what()
    assert page_of(wanted).startswith("hello answers")
    state.rmdir()
    unmounted.rename(state)
    assert decode(plugin.read(HOST, id_, wanted, outputs).properties) == outputs
    plugin.delete(HOST, id_, wanted)
    assert not list(simulated.prefix.iterdir())


@pytest.mark.parametrize("connection", ["local"], indirect=True)
def test_a_host_of_another_stack_is_refused_and_left_alone(plugin: Plugin, inputs: Inputs) -> None:
    mine, theirs = inputs(), inputs("intruder", stack="eu-north/research")
    plugin.create(HOST, mine)
    with pytest.raises(Failure, match=r"^node-1: belongs to another stack: host: ") as refused:
        plugin.create(HOST, theirs)
    assert refused.value.kept is None, "kept in the state of a stack that it does not belong to, it could never leave it"
    assert page_of(mine).startswith("hello answers")


@pytest.mark.parametrize("connection", ["local"], indirect=True)
def test_a_host_that_another_stack_took_over_leaves_the_state_and_nothing_else(plugin: Plugin, inputs: Inputs) -> None:
    mine = inputs()
    plugin.create(HOST, mine)
    plugin.delete(HOST, "node-1", inputs("intruder", stack="eu-north/research"))
    assert page_of(mine).startswith("hello answers")
    (warning,) = [line.message for line in plugin.engine.lines if "nothing was removed from it" in line.message]
    assert "this host belongs to stack us-west/training, not to eu-north/research" in warning
