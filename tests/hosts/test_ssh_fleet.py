"""A fleet of real hosts over real SSH: brought to its state, kept there, watched, taken away. Pulumi, sshd, systemd, journald,
Alloy, Mimir and Loki are real; GPUs and their exporters are simulated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.fleet.series import of_fleet
from gpu_fleet.operations.deploy import targets
from lab.dev import query
from lab.hosts import Host, Site
from lab.powercut import disks
from lab.powercut.waits import until
from tests.host.parts.test_alloy_kernel_text import IN_A_JOURNAL
from tests.hosts.stack import CLUSTER, DATACENTER, Backend, Stack, config_of, left_as_found, logins

HOSTS = ("metal", "docker", "container", "amd")
GPU_COUNTS = {"metal": 8, "docker": 8, "container": 2, "amd": 4}
MODES = {"metal": "nvidia_gpu_exporter", "docker": "nvidia_gpu_exporter", "container": "nvidia_gpu_exporter", "amd": "textfile"}


@dataclass
class FirstHost:
    """What the run for one host alone printed, and the hosts that had anything of ours afterwards."""

    stack: Stack
    output: str
    touched: list[str]


@pytest.fixture(scope="module")
def first_host(site: Site, backend: Backend, artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstHost]:
    """`make up HOST=metal` on a new stack. Destroyed at the end, after which the hosts must be as they were."""
    hosts = {name: entry for name, entry in site.stack_hosts().items() if name in HOSTS}
    hosts["docker"]["exporter"] = "nvidia_gpu_exporter"
    # node_exporter in the place of a model server: one more exporter that answers on loopback.
    target = {"url": "http://127.0.0.1:9100", "hosts": ["metal", "container"], "keep": ["node_uname_*"], "labels": {"model": "m"}}
    config = config_of(site, hosts, artifacts, backend) | {
        "pull": {"url": "https://files.example.com/fleet"},
        "evidence": {},
        "scrapeTargets": {"vllm": {**target, "interval": "5s"}},
    }
    stack = Stack(tmp_path_factory.mktemp("fleet"), "fleet", config).create()
    with left_as_found(*(site.hosts[name] for name in HOSTS)):
        try:
            output = stack.up(*targets(["metal"], config))
            touched = [name for name in HOSTS if "yes" in site.hosts[name].ssh("[ ! -e /opt/gpu-fleet ] || echo yes").stdout]
            yield FirstHost(stack, output, touched)
        finally:
            _leave_a_process(site.hosts["container"], "gpu-fleet-nvidia-gpu-exporter")
            stack.destroy()


def _leave_a_process(host: Host, user: str) -> None:
    """As `timeout nvidia-smi` is left, in its own process group, when supervisord stops an exporter in the middle of a query."""
    as_user = f"setpriv --reuid={user} --regid={user} --clear-groups"
    host.ssh(f"{{ ! id {user} || GPU_FLEET_PREFIX= setsid {as_user} sleep 600; }} >/dev/null 2>&1 </dev/null &")


@pytest.fixture(scope="module")
def fleet(first_host: FirstHost) -> Stack:
    """Up, for the tests of this module; each leaves it so."""
    first_host.stack.up()
    return first_host.stack


def test_a_run_for_one_host_deploys_it_with_what_it_needs_and_touches_no_other(first_host: FirstHost) -> None:
    assert first_host.touched == ["metal"], first_host.output
    assert re.search(r"Resources:\s+\+ 5 created\b", first_host.output), "stack, provider, Fleet, bundle, host"


@contextmanager
def directory_that_hangs(host: Host, at: str, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A directory of the host whose writers wait in the kernel, where nothing can kill them, until the function is called."""
    image, device = tmp_path / "image", "/dev/hangs"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    disks.run("mkfs.ext4", "-q", "-F", image)
    loop = disks.run("losetup", "--find", "--show", image)
    number = os.minor(Path(loop).stat().st_rdev)
    inside = ("nsenter", f"--target={host.leader}", "--mount")

    def let_go() -> None:
        subprocess.run([*inside, "fsfreeze", "--unfreeze", at], capture_output=True, check=False)

    host.ssh(f"mkdir {at}")
    disks.run(*inside, "mknod", device, "b", "7", str(number))
    try:
        disks.run(*inside, "mount", device, at)
        disks.run("losetup", "--detach", loop)  # by the kernel, once it is no longer mounted
        disks.run(*inside, "chmod", "777", at)
        disks.run(*inside, "fsfreeze", "--freeze", at)
        yield at, let_go
    finally:
        let_go()
        until(lambda: host.ssh(f"umount {at}", check=False).returncode == 0, f"for {at} to be unmounted")
        host.ssh(f"rmdir {at} && rm {device}")


@pytest.mark.parametrize("name", HOSTS)
def test_each_kind_of_host_pushes_the_metrics_of_its_gpus(
    fleet: Stack, backend: Backend, name: str, eventually: Callable
) -> None:
    labels = f'datacenter="{DATACENTER}",cluster="{CLUSTER}",instance="{name}",exporter_mode="{MODES[name]}"'
    metric = "node_gpu_utilization_percent" if MODES[name] == "textfile" else "nvidia_smi_utilization_gpu_ratio"
    eventually(
        f"{GPU_COUNTS[name]} GPUs of {name} in Mimir",
        lambda: len(query.metrics(backend.mimir, f"{metric}{{{labels}}}")) == GPU_COUNTS[name],
    )


@pytest.mark.parametrize("name", HOSTS)
def test_each_kind_of_host_pushes_its_own_state(fleet: Stack, backend: Backend, name: str, eventually: Callable) -> None:
    eventually(
        f"node_exporter of {name} in Mimir",
        lambda: query.metrics(backend.mimir, f'node_uname_info{{instance="{name}",nodename="{name}"}}'),
    )


def test_a_further_exporter_is_scraped_on_its_hosts_with_our_labels_and_what_is_kept(
    fleet: Stack, backend: Backend, eventually: Callable
) -> None:
    """Under systemd and under supervisor."""
    series = '{job="vllm",model="m",__name__!~"up|scrape_.*"}'
    up = lambda: sorted((one["metric"]["instance"], one["value"][1]) for one in query.metrics(backend.mimir, 'up{job="vllm"}'))  # noqa: E731
    eventually("both targets are up in Mimir", lambda: up() == [("container", "1"), ("metal", "1")], shown=up)
    found: dict[str, dict[str, str]] = {}

    def in_mimir() -> bool:
        found.update({one["metric"]["instance"]: one["metric"] for one in query.metrics(backend.mimir, series)})
        return found.keys() >= {"metal", "container"}

    eventually("both hosts in Mimir", in_mimir, shown=lambda: found)
    assert found.keys() == {"metal", "container"}
    assert {metric["__name__"] for metric in found.values()} == {"node_uname_info"}
    for name, metric in found.items():
        ours = {"datacenter": DATACENTER, "cluster": CLUSTER, "exporter_mode": MODES[name]}
        assert metric.items() >= ours.items()


def test_a_second_up_changes_nothing_and_logs_in_nowhere(fleet: Stack, site: Site) -> None:
    before = {name: logins(site.hosts[name]) for name in HOSTS}
    output = fleet.up("--expect-no-changes")
    assert re.search(r"Resources:\s+\d+ unchanged", output), output
    assert all(before.values())
    assert {name: logins(site.hosts[name]) for name in HOSTS} == before


def test_hosts_that_pull_are_to_get_the_bundle_that_the_others_have(fleet: Stack, site: Site) -> None:
    pull = json.loads(fleet.pulumi("stack", "output", "pull"))
    assert site.hosts["metal"].ssh("cat /var/lib/gpu-fleet/digest").stdout == f"{pull['bundle']}\n"
    assert pull["install"] == "curl -fsSLO https://files.example.com/fleet/install-gpu-fleet && sudo sh install-gpu-fleet"


def test_an_edited_file_and_a_stopped_service_are_seen_by_refresh_and_repaired_by_up_and_untouched_hosts_have_no_drift(
    fleet: Stack, site: Site
) -> None:
    host = site.hosts["metal"]
    original = host.ssh("cat /etc/gpu-fleet/alloy/discover.alloy").stdout
    host.ssh("echo '// by hand' >>/etc/gpu-fleet/alloy/discover.alloy; systemctl stop gpu-fleet-node-exporter")

    output = fleet.up("--refresh", "--diff")
    assert "/etc/gpu-fleet/alloy/discover.alloy" in output, output
    assert "gpu-fleet-node-exporter" in output, output
    assert re.search(r"(?m)^ +~ 1 updated$", output), output

    assert host.ssh("cat /etc/gpu-fleet/alloy/discover.alloy").stdout == original
    assert host.ssh("systemctl is-active gpu-fleet-node-exporter").stdout.strip() == "active"
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")


@pytest.mark.parametrize("name", ["metal", "container"])
def test_a_host_reports_its_drift_by_itself(fleet: Stack, site: Site, backend: Backend, name: str, eventually: Callable) -> None:
    """As its timer, or the loop under supervisor, makes it do."""
    host = site.hosts[name]
    check = "systemctl start gpu-fleet-check" if host.variant.has_systemd else "/opt/gpu-fleet/libexec/run check"
    # One that has begun knows nothing of a change after it, and a second `systemctl start` waits for that one.
    others = "while pgrep -f '[c]onverge.pyz check' >/dev/null; do sleep 0.1; done"
    drift = f'sum(gpu_fleet_drift_items{{datacenter="{DATACENTER}",cluster="{CLUSTER}",instance="{name}"}})'

    def items() -> list[float]:
        return [float(series["value"][1]) for series in query.metrics(backend.mimir, drift)]

    host.ssh(f"{others}; echo '// by hand' >>/etc/gpu-fleet/alloy/collect_agent.alloy; {check}")
    eventually(f"the drift of {name} in Mimir", lambda: items() == [1])
    host.ssh(f"sh /var/lib/gpu-fleet/current/converge apply --prefix '' && {others} && {check}")
    eventually(f"no drift of {name} in Mimir", lambda: items() == [0])
    # Of this minute: for five minutes Mimir answers with what another test's stack sent under this name, too.
    own_series = f'last_over_time({{instance="{name}",__name__=~"gpu_fleet_(bundle|drift|check|pull)_.*|node_textfile_.*"}}[1m])'

    def is_as_a_preview_says() -> bool:
        """A container has no journal, and parts for scrape targets and evidence are rare. Series of one scrape arrive in several
        pushes."""
        rare = 2
        return abs(len(query.metrics(backend.mimir, own_series)) - rare - of_fleet(MODES[name])) <= 2

    eventually(f"as many series about itself of {name} in Mimir as a preview says", is_as_a_preview_says)


def test_evidence_of_a_host_is_fetched_with_an_hour_of_its_metrics(fleet: Stack, site: Site, tmp_path: Path) -> None:
    printed = fleet.operation("evidence", "--host", "metal", "--to", str(tmp_path))
    [directory] = tmp_path.iterdir()
    [archive] = directory.glob("evidence-metal-*.tar.gz")
    assert str(archive) in printed
    with tarfile.open(archive) as tar:
        files = {Path(member.name).name: tar.extractfile(member).read() for member in tar}
    # The simulated nvidia-smi prints links, and no XML.
    assert b"GB/s" in files["nvidia-smi-nvlink.txt"] and b"node_gpu" in files["textfile-gpu_links.prom"]
    assert {"MANIFEST.json", "nvidia-smi-q.xml", "kernel.log", "exporter.prom", "alloy.prom", "proc-version"} <= files.keys()
    metrics = json.loads((directory / "metrics.json").read_text())["data"]["result"]
    assert {"up", "node_load1"} <= {series["metric"]["__name__"] for series in metrics}
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=directory, capture_output=True, check=False).returncode == 0
    assert site.hosts["metal"].ssh("ls -l /var/lib/gpu-fleet/evidence").stdout.count("-rw------- 1 root root") == 1


def test_nothing_of_ours_listens_beyond_loopback(fleet: Stack, site: Site) -> None:
    for name in HOSTS:
        listening = site.hosts[name].ssh("ss --no-header --listening --tcp --udp --numeric | awk '{print $5}'").stdout.split()
        beyond = {address for address in listening if not re.match(r"127\.|\[::1\]", address)}
        assert beyond <= {"0.0.0.0:22", "[::]:22"}, f"on {name}"


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_a_service_that_is_killed_comes_back_by_itself(fleet: Stack, site: Site, signal: str, eventually: Callable) -> None:
    host, unit = site.hosts["metal"], "gpu-fleet-nvidia-gpu-exporter"
    before = host.ssh(f"systemctl show --property MainPID --value {unit}").stdout
    host.ssh(f"systemctl kill --signal {signal} {unit}")
    eventually(
        "another process that answers",
        lambda: (
            host.ssh(f"systemctl show --property MainPID --value {unit}").stdout not in (before, "0\n")
            and "nvidia_smi_" in host.ssh("curl --silent http://127.0.0.1:9400/metrics", check=False).stdout
        ),
    )


def test_a_tool_that_hangs_in_the_kernel_is_reported_and_stops_nothing_else(
    fleet: Stack, site: Site, eventually: Callable, tmp_path: Path
) -> None:
    host, written, tool = site.hosts["amd"], "/var/lib/gpu-fleet/textfile/gpu_amd.prom", "/opt/rocm/bin/rocm-smi"
    of_the_tool = "ps -C rocm-smi -o pid=,s= || true"
    with directory_that_hangs(host, "/var/lib/gpu-fleet/textfile/hangs", tmp_path) as (at, let_go):
        host.ssh(f"mv {tool} {tool}.real && printf '#!/bin/sh\\nexec 3>{at}/file\\n' >{tool} && chmod 755 {tool}")
        try:
            read = (host.inside / written.lstrip("/")).read_text
            host.ssh("systemctl start --no-block gpu-fleet-textfile")
            eventually("the failure in its file", lambda: "cannot be killed" in read(), shown=read)
            [pid, state] = host.ssh(of_the_tool).stdout.split()
            assert state == "D" and f"# says: rocm-smi (process {pid}) cannot be killed" in read()
            first = read()
            eventually("the next run of the timer", lambda: read() != first)
            assert host.ssh(of_the_tool).stdout.split() == [pid, "D"], "and it starts no other"
            assert 'node_gpu_collector_success{collector="amd"} 0' in host.ssh("curl -s http://127.0.0.1:9100/metrics").stdout
        finally:
            let_go()
            host.ssh(f"mv {tool}.real {tool} && systemctl start --no-block gpu-fleet-textfile")
        eventually("the GPUs again", lambda: 'node_gpu_collector_success{collector="amd"} 1' in read(), shown=read)
        eventually("nothing left of the failure", lambda: not host.ssh("systemctl --failed --no-legend").stdout)


def test_services_come_back_after_a_reboot_and_nothing_has_drifted(fleet: Stack, site: Site, eventually: Callable) -> None:
    host = site.hosts["metal"]
    host.reboot()
    answer = "curl --silent --output /dev/null"
    places = ("9100/metrics", "9400/metrics", "12345/-/ready")
    services = " && ".join(f"{answer} --fail http://127.0.0.1:{place}" for place in places)
    eventually("the services answer", lambda: host.ssh(services, check=False).returncode == 0)
    assert host.ssh("systemctl --failed --no-legend").stdout == ""
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")


def test_an_xid_in_the_kernel_log_reaches_loki_with_its_labels(
    fleet: Stack, site: Site, backend: Backend, eventually: Callable
) -> None:
    """After the reboot test on purpose: the journal then has an older boot."""
    host = site.hosts["metal"]
    lines = host.inject_xid(79, gpu_index=3)
    try:
        # The driver says twice that the GPU is lost: with the code, and without it.
        found = lambda: sorted(query.kernel_lines(backend.loki, xid=79))  # noqa: E731
        eventually("the XID's lines in Loki", lambda: found() == sorted(lines[:2]), shown=found)
        labels = f'datacenter="{DATACENTER}",cluster="{CLUSTER}",instance="metal",xid="79"'
        counter = f'sum by (xid) ({{__name__=~".*gpu_fleet_xid_events_total",{labels}}})'
        eventually(
            "the XID's counter in Mimir", lambda: [float(s["value"][1]) for s in query.metrics(backend.mimir, counter)] == [1]
        )
    finally:
        host.repair_gpus()


def test_nothing_that_a_user_of_the_host_can_log_becomes_an_xid(
    fleet: Stack, site: Site, backend: Backend, eventually: Callable
) -> None:
    host, forged = site.hosts["metal"], "NVRM: Xid (PCI:f0f0:4b:00): 62, pid=1, name=x, GPU has fallen off the bus."
    crash = f"NVRM: Xid (PCI:[4711]: segfault at 0 ip 55d0 sp 7ffd error 4 in {forged[:37]}[55d0,1000]"
    host.ssh(f"logger -p kern.err '{forged}' && logger -t kernel '{forged}' && systemd-run --wait --quiet echo '{forged}'")
    host.kernel_line(forged, facility=1)  # a program wrote it to /dev/kmsg, as a privileged container can
    # Text of users that the kernel prints. It is worth a line; lines of different labels arrive in any order.
    printed = [crash, f"a crash in\n{forged}", *IN_A_JOURNAL[:60], "NVRM: the last of these lines"]
    host.kernel_line(*printed)
    lines = '{job="kernel", instance="metal"}'
    found = lambda: query.log_lines(backend.loki, lines)  # noqa: E731
    eventually("the lines in Loki", lambda: set(printed) <= set(found()), shown=found)
    assert query.log_lines(backend.loki, '{xid="62"}') == [] and forged not in found()
    assert query.log_lines(backend.loki, '{job="kernel", instance="metal", event=~".+"}') == [], "the host has no AMD GPU"
    assert query.metrics(backend.mimir, '{__name__=~"gpu_fleet_.+", pci=~"f0f0.*"}') == []
    started = query.log_lines(backend.loki, f'{lines} | booted!="" or loaded!=""')
    assert not set(printed) & set(started), "it would end the incidents of the host"
