"""What people change on a host by hand: each kind is found by a check, named so that a person knows what it is, and repaired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.hosts import Site
from tests.hosts.placed import CONVERGE, PlacedHost
from tests.hosts.stack import left_as_found

UNITS = "/etc/systemd/system"
BY_HAND = yaml.safe_load(Path(__file__).with_name("by_hand.yaml").read_text())


@pytest.fixture(scope="module")
def placed(site: Site, artifacts: Path) -> Iterator[PlacedHost]:
    placed = PlacedHost(site.hosts["metal-b"], artifacts)
    with left_as_found(placed.host):
        try:
            assert placed.apply().errors == {}
            yield placed
        finally:
            placed.leave()  # which puts the site's link back
            placed.host.ssh(
                f"rm -rf /root/elsewhere /srv/site.d {UNITS}/gpu-fleet-node-exporter.service.d /usr/local/lib/systemd; "
                f"chmod g-s {UNITS}; chgrp root {UNITS}"
            )


@pytest.mark.parametrize("changes", BY_HAND.values(), ids=["each part", "each part again"])
def test_what_people_change_is_found_named_and_repaired(placed: PlacedHost, changes: list[dict[str, Any]]) -> None:
    placed.host.ssh("set -e\n" + "\n".join(one["do"] for one in changes))
    check = placed.check()
    assert sorted(check.drift) == sorted(line for one in changes for line in one["found"])
    assert check.code == 4
    assert placed.apply().errors == {}
    assert placed.check().drift == []
    for path in [one["stays"] for one in changes if "stays" in one]:
        placed.host.ssh(f"test -s {path}")


def test_a_host_that_nobody_touched_is_never_called_drifted(placed: PlacedHost) -> None:
    checks = f"for i in $(seq 20); do {CONVERGE} check --prefix '' 2>/dev/null | tail -n 1; done"
    results = placed.host.ssh(checks, timeout_s=600).stdout.splitlines()
    assert len(results) == 20
    assert [line for line in results if '"ok":true' not in line] == []
