"""Hosts opened for a Prometheus elsewhere, with systemd and without, and closed again: its configuration, what strangers get, and
which files are where."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from gpu_fleet import toolchain
from lab.dev import query
from lab.hosts import Site
from lab.ports import free_ports
from tests.hosts.outside import KEY, LOGIN, PASSWORD, SECTION, asked, with_certificate
from tests.hosts.stack import Backend, Stack, config_of, left_as_found

HOSTS = ("metal-b", "container")
PORTS = {9110: "node_uname_info", 9111: "nvidia_smi_gpu_info"}
ELSEWHERE = "elsewhere"  # label of what that Prometheus stores


@pytest.fixture(scope="module")
def authority(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of a Prometheus, with the authority of the hosts' certificates as the output names it."""
    directory = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        own = [stack.enter_context(with_certificate(site.hosts[name], tmp_path_factory.mktemp(name))) for name in HOSTS]
        (directory / "gpu-fleet-ca.pem").write_text("".join(path.read_text() for path in own))
        yield directory


@pytest.fixture(scope="module")
def fleet(
    site: Site, backend: Backend, artifacts: Path, authority: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Not up yet."""
    hosts = {name: {**site.stack_hosts()[name], "exporter": "nvidia_gpu_exporter"} for name in HOSTS}
    config = {**config_of(site, hosts, artifacts, backend, username="writer"), "scrape": SECTION}
    secrets = {"scrapePassword": PASSWORD, "metricsPassword": "of-metrics", "logsPassword": "of-logs"}
    stack = Stack(tmp_path_factory.mktemp("scraped") / "checkout", "scraped", config, secrets).create()
    with left_as_found(*(site.hosts[name] for name in HOSTS)):
        try:
            yield stack
        finally:
            stack.destroy()


@pytest.fixture(scope="module")
def opened(fleet: Stack) -> str:
    """What the `up` printed that opens the hosts."""
    return fleet.up()


def test_a_key_that_the_exporter_may_not_read_is_the_cause(fleet: Stack, site: Site) -> None:
    host = site.hosts["container"]
    host.ssh(f"chmod 600 {KEY}")
    output = fleet.up(ok=False)
    host.ssh(f"chmod 644 {KEY}")
    cause = rf"container: service did not start: scrape-node: .*{re.escape(KEY)}: permission denied"
    assert re.search(cause, output), output
    assert "Host metal-b created" in output, output
    assert asked(f"https://{host.address}:9110/metrics", Path("/dev/null"), LOGIN)[0] == "000"


def test_hosts_let_the_login_in_and_nobody_else_and_keep_no_password(
    fleet: Stack, opened: str, site: Site, authority: Path
) -> None:
    shown = opened + fleet.state.read_text() + fleet.pulumi("stack", "output", "--json")
    assert PASSWORD not in shown
    ca = authority / "gpu-fleet-ca.pem"
    for name in HOSTS:
        host = site.hosts[name]
        for port, series in PORTS.items():
            url = f"https://{host.address}:{port}/metrics"
            status, body = asked(url, ca, LOGIN)
            assert status == "200" and series in body, url
            assert asked(url, ca)[0] == asked(url, ca, "prometheus:wrong")[0] == "401", url
            assert asked(url.replace("https:", "http:"), ca)[0] in ("400", "000"), "no clear text"
        assert asked(f"http://{host.address}:9100/metrics", ca)[0] == "000", "Alloy's stays on loopback"
        assert host.ssh(f"grep -rlF {PASSWORD} /etc /var /opt /run", check=False).stdout == "", "no host has it"
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")


@pytest.mark.usefixtures("opened")
def test_each_secret_can_be_read_by_the_programs_that_use_it_and_by_no_other(site: Site) -> None:
    """What answers to the network must not give away what Alloy logs in with."""
    readers = {
        "metrics-password": {"gpu-fleet-alloy"},
        "logs-password": {"gpu-fleet-alloy"},
        "scrape-web-config": {"gpu-fleet-scrape-node", "gpu-fleet-scrape-gpu"},
    }
    for name in HOSTS:
        host = site.hosts[name]
        assert set(host.ssh("ls /etc/gpu-fleet/secrets").stdout.split()) == set(readers)
        users = host.ssh("getent passwd | cut -d : -f 1 | grep ^gpu-fleet-").stdout.split()
        assert len(users) >= 5
        for secret, expected in readers.items():
            read = f"cat /etc/gpu-fleet/secrets/{secret} >/dev/null 2>&1"
            script = (
                f'for u in {" ".join(users)} ops; do setpriv --reuid=$u --regid=$u --init-groups sh -c "{read}" && echo $u; done'
            )
            assert set(host.ssh(script, check=False).stdout.split()) == expected, f"{secret} on {name}"


@pytest.mark.usefixtures("opened")
def test_prometheus_takes_the_output_as_it_is_and_finds_every_host(
    fleet: Stack, backend: Backend, authority: Path, eventually: Callable
) -> None:
    given = authority / "gpu-fleet.yml"
    given.write_text(fleet.pulumi("stack", "output", "scrapeConfig"))
    (authority / "gpu-fleet-scrape.password").write_text(PASSWORD)
    own = {"global": {"external_labels": {"store": ELSEWHERE}}, "remote_write": [{"url": f"{backend.mimir}/api/v1/push"}]}
    main = authority / "prometheus.yml"
    main.write_text(yaml.safe_dump({**own, "scrape_config_files": [given.name]}))
    checked = subprocess.run([toolchain.find("promtool"), "check", "config", main], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    since_s = time.time()
    scraping = yaml.safe_load(given.read_text())
    for job in scraping["scrape_configs"]:
        job["scrape_interval"] = "2s"
    # Alloy is a Prometheus too, but for files of scrape configurations.
    main.write_text(yaml.safe_dump({**own, **scraping}))
    with running_prometheus(main):
        up = f'up{{store="{ELSEWHERE}"}}'
        eventually("two jobs on two hosts", lambda: [one["value"][1] for one in query.metrics(backend.mimir, up)] == ["1"] * 4)
        labels = 'datacenter="lab-west",cluster="training",instance="container",exporter_mode="nvidia_gpu_exporter"'
        ours = f'nvidia_smi_gpu_info{{store="{ELSEWHERE}",job="gpu-exporter",{labels}}}'
        eventually("its GPUs under the labels of those that are pushed", lambda: len(query.metrics(backend.mimir, ours)) == 2)
        pushed = f'timestamp(nvidia_smi_gpu_info{{store="",{labels}}}) > {since_s:.0f}'
        eventually("pushed as before", lambda: len(query.metrics(backend.mimir, pushed)) == 2)


@contextmanager
def running_prometheus(config: Path) -> Iterator[None]:
    (port,) = free_ports(1)
    options = ["--config.format=prometheus", f"--server.http.listen-addr=127.0.0.1:{port}", "--disable-reporting"]
    command = [toolchain.find("alloy"), "run", *options, f"--storage.path={config.parent / 'alloy'}", config]
    process = subprocess.Popen(command, cwd=config.parent, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.usefixtures("opened")
def test_without_the_section_the_ports_close_and_nothing_stays(fleet: Stack, site: Site, authority: Path) -> None:
    fleet.pulumi("config", "rm", "gpu-fleet:scrapePassword")
    del fleet.config["scrape"]
    fleet.write()
    fleet.up()
    for name in HOSTS:
        host = site.hosts[name]
        assert asked(f"https://{host.address}:9110/metrics", authority / "gpu-fleet-ca.pem", LOGIN)[0] == "000"
        # supervisor's logs stay until the host is removed, as the journal does; a check at work has a list of all parts
        left = "find /etc /opt /run /var/lib -xdev -name 'scratch.*' -prune -o -name '*scrape*' -path '*gpu-fleet*' -print"
        assert host.ssh(left, check=False).stdout == ""
    assert "scrapeConfig" not in json.loads(fleet.pulumi("stack", "output", "--json"))
