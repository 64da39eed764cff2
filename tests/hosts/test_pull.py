"""Hosts that provision themselves, under real systemd and in a container: the timer's confined service does what push does."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from components.fleet import bundle
from gpu_fleet.host.part import File, Part
from gpu_fleet.host.parts import HostOptions, standard_parts
from gpu_fleet.host.pull.publish import SigningKey
from gpu_fleet.operations import pull_bundle as command
from gpu_fleet.stackfile.stand_ins import LAB_STACKS
from lab.hosts import Host, Site
from tests.host.pull.pulled import make_key
from tests.hosts.served import serving

PASSWORD = "planted-secret-of-pull"
STACK = """
config:
  gpu-fleet:datacenter: lab-west
  gpu-fleet:cluster: training
  gpu-fleet:metrics: {{url: "http://127.0.0.1:9/api/v1/push", username: writer}}
  gpu-fleet:metricsPassword: {{secure: "v1:encrypted"}}
  gpu-fleet:pull: {{url: "{url}", insecure: true}}
  gpu-fleet:artifacts: {{source: controller, directory: "{artifacts}"}}
"""


@dataclass
class Published:
    """`url`: where the hosts find `directory`."""

    root: Path
    url: str

    @property
    def directory(self) -> Path:
        return self.root / "site"

    def publish(self) -> str:
        publication = command.read_publication("pulled", self.url)
        publication.write(self.directory, [self.key], now_s=int(time.time()))
        return publication.bundle.digest

    @functools.cached_property
    def key(self) -> SigningKey:
        return make_key(self.root / "signing")


@pytest.fixture
def published(site: Site, artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Published]:
    monkeypatch.setattr("gpu_fleet.operations.stack.ROOT", tmp_path)
    monkeypatch.setenv(LAB_STACKS, "pulled")
    (tmp_path / "Pulumi.yaml").write_text("name: gpu-fleet\n")
    (tmp_path / "site").mkdir()
    with serving(site, tmp_path / "site") as url:
        (tmp_path / "Pulumi.pulled.yaml").write_text(STACK.format(artifacts=artifacts, url=url))
        yield Published(tmp_path, url)


def _with_broken_alloy(options: HostOptions) -> list[Part]:
    """The parts of a bundle whose Alloy cannot read its configuration."""
    bad = File(path="/etc/gpu-fleet/alloy/discover.alloy", content=b"this is no Alloy\n")
    parts = standard_parts(options)
    return [replace(part, files=tuple(bad if file.path == bad.path else file for file in part.files)) for part in parts]


def _install(host: Host, published: Published) -> str:
    host.ssh(
        f"umask 077; cat >/root/password; curl -fsS -o /root/install-gpu-fleet {published.url}/install-gpu-fleet", stdin=PASSWORD
    )
    done = host.ssh(
        f"sh /root/install-gpu-fleet --instance {host.name} --password-file /root/password; rm /root/password", timeout_s=600
    )
    return done.stdout + done.stderr


def _pull(host: Host, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A run that began after this call. `systemctl start` alone would wait for that of the timer, which may have seen nothing yet
    of what the test did."""
    over = "while systemctl is-active gpu-fleet-pull.service | grep -q activating; do sleep 0.1; done"
    return host.ssh(f"{over}; systemctl start gpu-fleet-pull.service", check=check, timeout_s=600)


@pytest.fixture
def pulling(site: Site, published: Published, request: pytest.FixtureRequest) -> Iterator[Host]:
    host = site.hosts[request.param]
    try:
        yield host
    finally:
        host.ssh("test ! -x /opt/gpu-fleet/bin/gpu-fleet-pull || /opt/gpu-fleet/bin/gpu-fleet-pull --remove", check=False)
        host.ssh("rm -f /root/install-gpu-fleet /root/password")


@pytest.mark.parametrize("pulling", ["metal"], indirect=True)
def test_a_machine_keeps_itself_at_what_is_published(
    pulling: Host, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = pulling
    before = host.ssh("find /etc /opt /var/lib /run/gpu-fleet ! -path '*/systemd/*' -print 2>/dev/null | sort").stdout
    good = published.publish()
    host.ssh(f"curl -fsS -o /root/install-gpu-fleet {published.url}/install-gpu-fleet")
    for hidden in ("/root", "/home/ops", "/tmp"):
        refused = host.ssh(f"sh /root/install-gpu-fleet --from {hidden}", check=False)
        assert refused.returncode == 1 and refused.stderr == (
            f"install-gpu-fleet: {hidden} is hidden from the service that will read it later; first copy the directory "
            "elsewhere, such as to /srv/gpu-fleet\n"
        )
    said = _install(host, published)
    assert host.ssh("cat /var/lib/gpu-fleet/digest").stdout.strip() == good, said
    active = host.ssh("systemctl is-active gpu-fleet-pull.timer gpu-fleet-alloy gpu-fleet-node-exporter").stdout.split()
    assert active == ["active"] * 3
    assert "gpu-fleet-pull.timer" in host.ssh("systemctl list-timers --no-legend").stdout

    host.ssh(
        "echo by hand >>/etc/gpu-fleet/alloy/discover.alloy; rm /opt/gpu-fleet/bin/node_exporter; systemctl stop gpu-fleet-alloy;"
        "userdel --force gpu-fleet-textfile"  # the timer's service may make accounts, and little else
    )
    _pull(host)
    assert "repaired" in host.ssh("journalctl --sync; journalctl --quiet --unit gpu-fleet-pull --output cat").stdout
    assert host.ssh("sh /var/lib/gpu-fleet/current/converge check --prefix ''", check=False).returncode == 0

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "standard_parts", _with_broken_alloy)
        published.publish()
    assert _pull(host, check=False).returncode != 0
    assert f"bundle {good[:12]} is running" in host.ssh("/opt/gpu-fleet/bin/gpu-fleet-pull --status", check=False).stdout
    assert host.ssh("systemctl is-active gpu-fleet-alloy").stdout.strip() == "active"

    published.publish()
    _pull(host)
    assert host.ssh("systemctl is-active gpu-fleet-pull.timer").stdout.strip() == "active"
    assert PASSWORD not in host.ssh("journalctl --sync; journalctl --quiet --no-pager").stdout
    holding = host.ssh(f"grep -rls '{PASSWORD}' /etc /opt /run /tmp /var | xargs stat -c '%A %n'").stdout.split()
    assert set(holding[1::2]) == {
        "/etc/gpu-fleet/secrets/metrics-password",
        "/var/lib/gpu-fleet/pull/good/secrets/metrics-password",
    }
    assert all(mode.endswith("---") for mode in holding[::2])

    host.ssh("/opt/gpu-fleet/bin/gpu-fleet-pull --remove")
    after = host.ssh("find /etc /opt /var/lib /run/gpu-fleet ! -path '*/systemd/*' -print 2>/dev/null | sort").stdout
    assert set(after.splitlines()) - set(before.splitlines()) == set()
    assert host.ssh("systemctl list-unit-files --no-legend 'gpu-fleet*'", check=False).stdout == ""


@pytest.mark.parametrize("pulling", ["container"], indirect=True)
def test_a_container_under_supervisor_keeps_itself_too(pulling: Host, published: Published) -> None:
    host = pulling
    good = published.publish()
    said = _install(host, published)
    assert host.ssh("cat /var/lib/gpu-fleet/digest").stdout.strip() == good, said
    host.ssh("echo by hand >>/etc/gpu-fleet/supervisord.conf; echo by hand >>/etc/gpu-fleet/alloy/discover.alloy")
    done = host.ssh("/opt/gpu-fleet/bin/gpu-fleet-pull", timeout_s=600)
    assert "repaired" in done.stderr
    assert host.ssh("sh /var/lib/gpu-fleet/current/converge check --prefix ''", check=False).returncode == 0
    host.ssh("/opt/gpu-fleet/bin/gpu-fleet-pull --remove")
    assert host.ssh("ls -d /etc/gpu-fleet /opt/gpu-fleet /var/lib/gpu-fleet 2>/dev/null", check=False).stdout == ""
