"""Distribution packages by real apt and by real dnf: what another installer brings at the same time is not ours, a transaction
that has begun is not cut, and one that was killed is repaired."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Part
from gpu_fleet.host.program import host_modules
from gpu_fleet.provider.envelope import Archive, Envelope
from gpu_fleet.provider.host import BOOTSTRAP, Place, start_command
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.image import package_files
from lab.hosts.packages.repository import Repository
from lab.hosts.packages.rpms import spec
from lab.hosts.packages.stand_ins import Package, build_deb
from tests.hosts.placed import PlacedHost, Run

REPOSITORY = "/srv/packages"
UNIT = "gpu-fleet-packages"


def slow(name: str) -> list[Package]:
    """A package whose installation waits for /run/NAME-go, and one that it needs."""
    installed = f"touch /run/{name}-began\nwhile [ ! -e /run/{name}-go ]; do sleep 0.1; done\ntouch /run/{name}-done\n"
    return [Package(name=name, depends=f"{name}-helper", installed=installed), Package(name=f"{name}-helper")]


# An entry that is no package, as it stays where a page of the database was lost.
_DAMAGE = """
import sqlite3
with sqlite3.connect("/var/lib/rpm/rpmdb.sqlite") as database:
    database.execute("INSERT INTO Packages (hnum, blob) VALUES (99999, x'0011223344')")
"""
PACKAGES = [*slow("ours"), *slow("theirs")]
FAILING = Package(name="failing", installed="exit 1\n")
CLASHING = Package(name="clashing", files={"usr/bin/site-tool": ("#!/bin/sh\n", 0o755)})
NEWER = Package(name="newer", depends="ours-helper (>= 1.0)")  # Debian's notation
# A job daemon with a C library of its own, which the test replaces under it.
_SLURMD = """
mkdir -p /opt/site/lib && cp /bin/sleep /opt/site/slurmd && cp /lib/x86_64-linux-gnu/libc.so.6 /opt/site/lib/
cat >/run/systemd/system/slurmd.service <<END
[Service]
Environment=LD_LIBRARY_PATH=/opt/site/lib
ExecStart=/opt/site/slurmd infinity
END
systemctl daemon-reload && systemctl restart slurmd
cp /opt/site/lib/libc.so.6 /opt/site/lib/new && mv /opt/site/lib/new /opt/site/lib/libc.so.6
echo '$nrconf{restart} = "a";' >/etc/needrestart/conf.d/auto.conf
"""
# Holds a lock as apt does, for 20 s.
_HOLD = "import fcntl, time; file = open('{}', 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(20)"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site.up({name: VARIANTS[name] for name in ("metal", "rhel", "container")}) as site:
        yield site


@dataclass
class Installing(PlacedHost):
    """Its bundle is one part that needs the package `ours`."""

    pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    def parts(self) -> list[Part]:
        return [Part(name="tools", packages={"debian": ("ours",), "rhel": ("ours",)})]

    def bring_artifacts(self) -> None:
        pass

    @property
    def is_debian(self) -> bool:
        return self.host.name != "rhel"

    def applying(self) -> Future[Run]:
        return self.pool.submit(self.apply)

    def install(self, name: str) -> Future:
        """As an administrator, or another tool."""
        command = "apt-get install --yes" if self.is_debian else "dnf --assumeyes install"
        return self.pool.submit(self.host.ssh, f"DEBIAN_FRONTEND=noninteractive {command} {name}")

    def packages(self) -> set[str]:
        """Those of the tests that are on the host, however far."""
        query = (
            "dpkg-query --show --showformat '${db:Status-Status} ${Package}\\n'"
            if self.is_debian
            else "rpm --query --all --qf 'installed %{NAME}\\n'"
        )
        lines = self.host.ssh(query).stdout.splitlines()
        present = {line.split()[1] for line in lines if line.split()[0] not in ("not-installed", "config-files")}
        return present & {package.name for package in PACKAGES}

    def wait_for(self, condition: str) -> None:
        wait = f"end=$(($(date +%s) + 300)); until {condition}; do [ $(date +%s) -lt $end ] || exit 1; sleep 0.1; done"
        self.host.ssh(wait, timeout_s=400)

    def go(self, name: str) -> None:
        self.host.ssh(f"touch /run/{name}-go")


@pytest.fixture(scope="module", params=["metal", "rhel"])
def host(request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Its only repository is a directory of its own."""
    host = site.hosts[request.param]
    host.ssh(f"mkdir -p {REPOSITORY}")
    if request.param != "rhel":
        repository = Repository(tmp_path_factory.mktemp("debs"), packages_below=".")
        for package in (*PACKAGES, FAILING, CLASHING, NEWER):
            build_deb(package, repository.packages)
        repository.publish()
        for file in repository.packages.iterdir():
            host.copy(file, f"{REPOSITORY}/{file.name}")
        host.ssh(f"echo 'deb [trusted=yes] file:{REPOSITORY} /' >/etc/apt/sources.list && apt-get update")
        return host
    for package in (*PACKAGES, CLASHING):
        build = f"rpmbuild --quiet -bb --define '_topdir /tmp/build' --define '_rpmdir {REPOSITORY}' /tmp/{package.name}.spec"
        host.ssh(f"cat >/tmp/{package.name}.spec && {build}", stdin=spec(package))
    listed = f"[lab]\nname=lab\nbaseurl=file://{REPOSITORY}\ngpgcheck=0\n"
    host.ssh(f"createrepo_c --quiet {REPOSITORY} && cat >/etc/yum.repos.d/lab.repo", stdin=listed)
    return host


@pytest.fixture
def placed(host: Host) -> Iterator[Installing]:
    """Nothing of the tests' packages is on it, before and after."""
    placed = Installing(host, Path("/nonexistent"), secrets={})
    yield placed
    placed.go("ours")
    placed.go("theirs")
    placed.pool.shutdown()
    placed.leave()
    names = " ".join(package.name for package in PACKAGES)
    purge = "dpkg --force-depends --purge" if placed.is_debian else "rpm --erase --nodeps"
    host.ssh(f"for n in {names}; do {purge} $n; done", check=False)
    host.ssh("rm -f /run/ours-* /run/theirs-*")
    assert placed.packages() == set()


def test_what_another_installer_brings_at_the_same_time_stays_on_removal(placed: Installing) -> None:
    placed.go("ours")
    theirs = placed.install("theirs")
    placed.wait_for("[ -e /run/theirs-began ]")
    apply = placed.applying()
    placed.wait_for(f"systemctl --quiet is-active {UNIT}")
    time.sleep(1)  # by now ours waits for the lock of theirs
    assert not apply.done()
    placed.go("theirs")
    assert (apply.result().errors, theirs.result().returncode) == ({}, 0)
    assert placed.packages() == {package.name for package in PACKAGES}
    removed = placed.remove()
    assert {line for line in removed.changes["tools"] if line.startswith("package")} == {
        "package ours: removed",
        "package ours-helper: removed",
    }
    assert placed.packages() == {"theirs", "theirs-helper"}


def test_a_package_that_somebody_installs_while_ours_waits_is_theirs(placed: Installing) -> None:
    """The very package that the bundle needs."""
    theirs = placed.install("ours")
    placed.wait_for("[ -e /run/ours-began ]")
    apply = placed.applying()
    time.sleep(2)
    placed.go("ours")
    assert (apply.result().errors, theirs.result().returncode) == ({}, 0)
    placed.remove()
    assert placed.packages() == {"ours", "ours-helper"}


@pytest.mark.parametrize("host", ["metal", "rhel", "container"], indirect=True)
def test_a_cut_connection_does_not_cut_the_package_manager_and_the_next_run_takes_its_result(
    placed: Installing, site: Site, eventually: Callable
) -> None:
    members = Envelope(
        bundle=Bundle.of(placed.parts()).tar, settings={"GPU_FLEET_INSTANCE": placed.host.name}, secrets={}
    ).members()
    archive = Archive(members)
    command = shlex.join(start_command("apply", Place(connection={"kind": "ssh"}, stack="lab-west/training"), archive))
    ssh = ["ssh", "-F", str(site.directory / "ssh_config"), "-l", "root", placed.host.name, command]
    with subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(BOOTSTRAP + b"".join(archive.chunks()))
        process.stdin.flush()
        placed.wait_for("[ -e /run/ours-began ]")
        process.kill()
    placed.wait_for("! pgrep -f '[c]onverge.pyz apply' >/dev/null")
    placed.host.ssh("pgrep -f '[p]ackages/program.pyz'")
    placed.wait_for("! ls -d /var/lib/gpu-fleet/incoming.* >/dev/null 2>&1")

    again = placed.applying()
    time.sleep(2)
    assert not again.done(), "it waits for what the first one began"
    placed.go("ours")
    assert (again.result().code, again.result().errors) == (0, {})
    assert placed.host.ssh("ls /run/ours-done /var/lib/gpu-fleet/packages 2>/dev/null", check=False).stdout == "/run/ours-done\n"
    assert placed.check().drift == []
    placed.remove()
    assert placed.packages() == set(), "both packages were ours, though no run saw the end of their installation"


def test_a_removal_waits_for_what_a_lost_run_began(placed: Installing) -> None:
    apply = placed.applying()
    placed.wait_for("[ -e /run/ours-began ]")
    placed.host.ssh("kill -KILL $(pgrep -f '[c]onverge.pyz apply')")
    apply.result()
    removal = placed.pool.submit(placed.remove)
    time.sleep(2)
    assert not removal.done()
    placed.go("ours")
    assert removal.result().code == 0
    assert placed.packages() == set()


def test_a_killed_package_manager_is_repaired_by_the_next_apply_and_said(placed: Installing) -> None:
    apply = placed.applying()
    placed.wait_for("[ -e /run/ours-began ]")
    placed.host.ssh(f"systemctl kill --signal KILL {UNIT}")
    assert "the package manager was killed before it finished; apply again" in apply.result().errors["tools"]
    placed.go("ours")
    again = placed.apply()
    assert again.errors == {}
    repaired = [line for line in again.changes["tools"] if "interrupted" in line]
    if placed.is_debian:
        assert repaired == ["dpkg had been interrupted; it was repaired by dpkg --configure -a"]
    else:
        assert repaired == ["rpm had been interrupted; it was repaired by dnf reinstall ours ours-helper"]
    placed.host.ssh("test -e /run/ours-done")
    assert placed.check().drift == []
    placed.remove()
    assert placed.packages() == set()


def test_a_shutdown_waits_for_the_package_manager(placed: Installing) -> None:
    """As systemd stops the unit then."""
    apply = placed.applying()
    placed.wait_for("[ -e /run/ours-began ]")
    placed.host.ssh(f"systemctl stop --no-block {UNIT}")
    placed.wait_for(f"systemctl is-active {UNIT} | grep -qx deactivating")
    time.sleep(2)
    assert placed.host.ssh(f"systemctl is-active {UNIT}", check=False).stdout == "deactivating\n"
    placed.go("ours")
    assert apply.result().errors == {}
    assert placed.packages() == {"ours", "ours-helper"}


def test_a_package_manager_that_hangs_is_left_alone_and_the_next_run_takes_its_result(
    placed: Installing, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = host_modules()
    packages = "on_host/converge/packages.py"
    impatient = {packages: modules[packages].replace(b"_AWAIT_LONGEST_S = 7200", b"_AWAIT_LONGEST_S = 3")}
    assert impatient[packages] != modules[packages]
    monkeypatch.setattr("gpu_fleet.host.bundle.host_modules", lambda: {**modules, **impatient})
    for run in (placed.apply, placed.apply, placed.remove):  # each waits for it again, and none cuts it
        (error,) = run().errors.values()
        assert re.search(r"the package manager has been running for \d+ minutes? \(install ours\); it was left alone", error)
        assert placed.host.ssh(f"systemctl is-active {UNIT}").stdout == "active\n"
    monkeypatch.undo()
    placed.go("ours")
    assert placed.apply().errors == {} and placed.check().drift == []
    placed.remove()
    assert placed.packages() == set(), "its packages were recorded as ours"


@pytest.mark.parametrize("host", ["rhel"], indirect=True)
def test_a_damaged_database_of_rpm_is_rebuilt_before_packages_are_installed_and_said(placed: Installing) -> None:
    placed.go("ours")
    # rpm puts a new directory in its place, which an overlay refuses for one that is in a lower layer.
    placed.host.ssh("cd /var/lib && cp --archive rpm rpm.own && rm --recursive rpm && mv rpm.own rpm")
    placed.host.ssh("python3", stdin=_DAMAGE)
    assert "error: " in placed.host.ssh("rpm --query --all 2>&1 >/dev/null", check=False).stdout
    run = placed.apply()
    assert run.errors == {}
    assert "rpm's database had been damaged; it was repaired by rpm --rebuilddb" in run.changes["tools"]
    assert placed.host.ssh("rpm --query --all 2>&1 >/dev/null").stdout == ""
    placed.remove()
    assert placed.packages() == set()


def site_pid(host: Host) -> str:
    return host.ssh("systemctl show --property=MainPID --value slurmd").stdout


@pytest.fixture
def needrestart(host: Host) -> Iterator[None]:
    """In automatic mode, as Ubuntu 24.04 sets it up, beside a daemon that it would restart."""
    debs = [file for file in package_files() if "docker" not in file.name]
    for file in debs:
        host.copy(file, f"/tmp/{file.name}")
    host.ssh("dpkg --install " + " ".join(f"/tmp/{file.name}" for file in debs))
    names = [file.name.partition("_")[0] for file in debs]
    host.ssh(_SLURMD)
    yield
    host.ssh(
        f"systemctl stop slurmd; rm -r /opt/site /run/systemd/system/slurmd.service; dpkg --purge {' '.join(names)}", check=False
    )


@pytest.mark.parametrize("host", ["metal"], indirect=True)
def test_no_service_of_the_host_is_restarted_by_an_installation_or_a_removal(
    placed: Installing, needrestart: None, eventually: Callable[..., None]
) -> None:
    placed.go("ours")
    placed.go("theirs")
    before = site_pid(placed.host)
    assert placed.apply().errors == {} and site_pid(placed.host) == before
    assert placed.remove().errors == {} and site_pid(placed.host) == before
    placed.install("theirs").result()

    def is_restarted() -> bool:
        placed.host.ssh("needrestart -q -r a", check=False)  # on a busy machine it does not see every process at once
        return site_pid(placed.host) != before

    what = "an administrator's installation restarts it, so needrestart works here"
    eventually(what, lambda: site_pid(placed.host) != before or is_restarted())


@pytest.mark.parametrize("host", ["metal"], indirect=True)
@pytest.mark.parametrize("lock", ["/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock", "/var/lib/dpkg/lock-frontend"])
def test_each_lock_of_apt_is_waited_for(placed: Installing, lock: str) -> None:
    """As the daily upgrade holds them at a host's first boot, when it has no package lists yet."""
    placed.go("ours")
    placed.host.ssh("rm -rf /var/lib/apt/lists/* && mkdir -p /var/lib/apt/lists/partial")
    placed.host.ssh(f'systemd-run --quiet --unit holder --collect python3 -c "{_HOLD.format(lock)}"')
    placed.wait_for("journalctl --unit holder --output cat | grep -q held")
    assert placed.apply().errors == {}
    assert placed.host.ssh("systemctl is-active holder", check=False).stdout == "inactive\n"


@pytest.mark.parametrize("host", ["rhel"], indirect=True)
def test_an_rpm_at_work_is_waited_for(placed: Installing) -> None:
    """A configuration manager's, for which dnf itself does not wait."""
    placed.go("ours")
    hold = _HOLD.format("/var/lib/rpm/.rpm.lock")
    placed.host.ssh(f'systemd-run --quiet --unit holder --collect python3 -c "{hold}"; sleep 1')
    assert placed.apply().errors == {}
    assert placed.host.ssh("systemctl is-active holder", check=False).stdout == "inactive\n"


@pytest.mark.parametrize(
    ("host", "hold", "release", "said"),
    [
        (
            "metal",
            "apt-mark hold ours-helper",
            "apt-mark unhold ours-helper",
            "ours-helper is held on this host; release it (apt-mark unhold ours-helper), or install ours yourself",
        ),
        (
            "rhel",
            "cp /etc/dnf/dnf.conf /root/; echo exclude=ours-helper >>/etc/dnf/dnf.conf",
            "mv /root/dnf.conf /etc/dnf/dnf.conf",
            "filtered out by exclude filtering; it is locked or excluded on this host (dnf versionlock list; exclude= in",
        ),
    ],
    indirect=["host"],
)
def test_a_package_that_the_site_holds_back_is_named_with_how_to_release_it(
    placed: Installing, hold: str, release: str, said: str
) -> None:
    placed.host.ssh(hold)
    try:
        assert said in placed.apply().errors["tools"]
        assert placed.packages() == set()
    finally:
        placed.host.ssh(release)


@pytest.mark.parametrize("host", ["metal"], indirect=True)
def test_a_broken_repository_without_our_packages_does_not_matter(placed: Installing) -> None:
    placed.go("ours")
    broken = "deb file:/srv/nothing ./\ndeb http://127.0.0.1:9/ ./\n"
    placed.host.ssh("rm -rf /var/lib/apt/lists/*; cat >/etc/apt/sources.list.d/broken.list", stdin=broken)
    try:
        assert placed.host.ssh("apt-get update", check=False).returncode == 100
        placed.host.ssh("rm -rf /var/lib/apt/lists/*")
        assert placed.apply().errors == {}
        failed = placed.apply([*placed.parts(), Part(name="more", packages={"debian": ("failing",)})])
        said = "failing (--configure): installed failing package post-installation script subprocess returned error"
        assert said in failed.errors["more"], "not the repository"
    finally:
        placed.host.ssh("rm /etc/apt/sources.list.d/broken.list; apt-get update; dpkg --purge failing")


@pytest.mark.parametrize("host", ["metal"], indirect=True)
def test_packages_are_downloaded_through_the_proxy_of_etc_environment(placed: Installing) -> None:
    """The only way to packages.invalid, a name that no resolver knows, is the proxy."""
    placed.go("ours")
    placed.host.ssh(
        f"""
        mkdir -p /srv/proxy/http: && ln -sfn {REPOSITORY} /srv/proxy/http:/packages.invalid
        systemd-run --quiet --unit proxy --collect python3 -m http.server --directory /srv/proxy --bind 127.0.0.1 3128
        cp /etc/apt/sources.list /root/sources.list
        echo 'deb [trusted=yes] http://packages.invalid/ ./' >/etc/apt/sources.list
        printf 'PATH="/usr/bin"\\nhttp_proxy="http://127.0.0.1:3128/"\\n' >/etc/environment
        rm -rf /var/lib/apt/lists/*
        """
    )
    try:
        assert placed.apply().errors == {}
    finally:
        placed.host.ssh("systemctl stop proxy; : >/etc/environment; mv /root/sources.list /etc/apt/sources.list; apt-get update")


@pytest.mark.parametrize("host", ["metal"], indirect=True)
def test_a_package_that_would_upgrade_another_one_is_refused(placed: Installing) -> None:
    control = "Package: ours-helper\nVersion: 0.1\nArchitecture: all\nMaintainer: site <x@example.com>\nDescription: older\n"
    placed.host.ssh("mkdir -p /tmp/old/DEBIAN && cat >/tmp/old/DEBIAN/control", stdin=control)
    placed.host.ssh("dpkg-deb --build /tmp/old /tmp/old.deb && dpkg --install /tmp/old.deb")
    refused = placed.apply([Part(name="tools", packages={"debian": ("newer",)})])
    assert "nothing was changed: it would replace ours-helper 0.1 by 1.20.0-1" in refused.errors["tools"]
    assert placed.host.ssh("dpkg-query --show --showformat '${Version}' ours-helper").stdout == "0.1"


@pytest.mark.parametrize("host", ["metal"], indirect=True)
def test_a_package_that_somebody_left_half_installed_is_not_finished(placed: Installing) -> None:
    placed.host.ssh(f"dpkg --unpack {REPOSITORY}/theirs_*.deb {REPOSITORY}/theirs-helper_*.deb")
    refused = placed.apply()
    assert re.search("nothing was changed: theirs(-helper)?, which is not ours, is not fully installed", refused.errors["tools"])
    assert placed.host.ssh("dpkg-query --show --showformat '${db:Status-Status}' theirs").stdout == "unpacked"
    assert placed.packages() == {"theirs", "theirs-helper"}


@pytest.mark.parametrize("path", ["/usr/bin/site-tool", "/usr/local/bin/site-tool"])
def test_a_package_with_a_program_that_the_site_has_is_refused(placed: Installing, path: str) -> None:
    """dpkg and rpm replace a file that belongs to no package without a word."""
    placed.host.ssh(f"echo site >{path}")
    try:
        refused = placed.apply([Part(name="tools", packages={"debian": ("clashing",), "rhel": ("clashing",)})])
        assert "nothing was changed: clashing contains " in refused.errors["tools"] and path in refused.errors["tools"]
        assert placed.host.ssh(f"cat {path}; ls /var/lib/gpu-fleet/packages 2>/dev/null", check=False).stdout == "site\n"
    finally:
        placed.host.ssh(f"rm {path}")
