"""A host opened for a Prometheus elsewhere, and closed again: what strangers get, and what lies on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.host.parts.scrape import WEB_CONFIG, Scrape
from components.scrape import web_config
from components.stackfile.scrape import Scrape as Section
from lab.hosts import Site
from tests.hosts.outside import LOGIN, PASSWORD, SECTION, asked, with_certificate
from tests.hosts.placed import PlacedHost
from tests.hosts.stack import left_as_found

OPEN = Scrape(node_exporter_listen="0.0.0.0:9110", gpu_exporter_listen="0.0.0.0:9111")


@pytest.fixture
def placed(site: Site, artifacts: Path, tmp_path: Path) -> Iterator[PlacedHost]:
    """A host with its site's certificate; `tmp_path` has the authority's."""
    placed = PlacedHost(site.hosts["metal-b"], artifacts)
    with left_as_found(placed.host), with_certificate(placed.host, tmp_path):
        try:
            with left_as_found(placed.host):
                yield placed
                placed.leave()
        finally:
            placed.leave()


def test_a_prometheus_with_the_login_is_let_in_and_nobody_else(placed: PlacedHost, tmp_path: Path) -> None:
    host, ca = placed.host, tmp_path / "ca.pem"
    placed.options["scrape"] = OPEN
    placed.secrets[WEB_CONFIG] = web_config(Section.model_validate(SECTION), "lab-west/training", PASSWORD)
    assert placed.apply().errors == {}
    for port, series in ((9110, "node_uname_info"), (9111, "nvidia_smi_gpu_info")):
        url = f"https://{host.address}:{port}/metrics"
        status, body = asked(url, ca, LOGIN)
        assert status == "200" and series in body
        assert asked(url, ca)[0] == asked(url, ca, "prometheus:wrong")[0] == "401"
        assert asked(url.replace("https:", "http:"), ca)[0] in ("400", "000"), "no clear text"
    assert asked(f"http://{host.address}:9100/metrics", ca)[0] == "000", "Alloy's stays on loopback"
    assert host.ssh("curl -fsS http://127.0.0.1:9100/metrics | grep -c ^node_uname_info").stdout.strip() == "1"
    assert host.ssh(f"grep -rlF {PASSWORD} /etc /var /opt", check=False).stdout == "", "no host has it"
    assert placed.apply().changes == {} and placed.check().drift == []

    placed.options.clear()
    assert placed.apply().errors == {}
    assert asked(f"https://{host.address}:9110/metrics", ca, LOGIN)[0] == "000"
    assert host.ssh("find / -xdev -name '*scrape*' -path '*gpu-fleet*' -not -path '/root/*' -not -path '/proc/*'").stdout == ""
    assert placed.check().drift == []
