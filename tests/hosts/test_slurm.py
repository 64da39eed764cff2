"""Jobs, the queue and readiness on hosts of a real Slurm: prologs, lost epilogs, nodes without processes, reboots, drains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from alerts.readiness import table
from gpu_fleet.host.parts.jobs import ASKS_QUEUE, COMMAND, HOOKS, QUEUE_SAID, QUEUE_WAITS, SAID, STORE, Jobs
from gpu_fleet.host.parts.readiness import SLURM, Readiness
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.slurm import USER, Slurm, uuids
from tests.hosts.placed import PlacedHost

SEEN_S = 90  # 20 on an idle machine (bench/jobs.py)
FOREVER = "sleep 1000000"


class Cluster(NamedTuple):
    slurm: Slurm
    placed: list[PlacedHost]

    def shown(self, node: int) -> dict[str, set[str]]:
        """Job -> its GPUs' uuids, as Alloy reads them."""
        text = self.placed[node].host.ssh(f"cat {SAID}").stdout
        found: dict[str, set[str]] = {}
        for uuid, job_id in re.findall(r'gpu_fleet_job_info\{uuid="([^"]*)".*?job_id="(\d+)"', text):
            found.setdefault(job_id, set()).add(uuid)
        return found


@pytest.fixture(scope="module", params=["slurm", "newer-slurm", "newest-slurm"])
def cluster(request: pytest.FixtureRequest, artifacts: Path) -> Iterator[Cluster]:
    with Site.up(dict.fromkeys(("slurm-a", "slurm-b"), VARIANTS[request.param])) as site:
        nodes = list(site.hosts.values())
        slurm = Slurm(nodes[0], nodes)
        slurm.start({})
        options = {"jobs": Jobs(), "readiness": Readiness(table=table(), slurm="drain")}
        placed = [PlacedHost(node, artifacts, options=dict(options)) for node in nodes]
        placed[0].settings[ASKS_QUEUE] = "yes"
        yield Cluster(slurm, placed)


def test_a_job_that_ran_before_us_is_found_and_later_ones_by_their_prolog(
    cluster: Cluster, eventually: Callable[..., None]
) -> None:
    slurm, node = cluster.slurm, cluster.placed[0].host
    before = slurm.submit(FOREVER, "--gpus=3", "--nodelist=slurm-a")
    eventually("it runs", lambda: slurm.gpus_of(before, node), within_s=120)
    for placed in cluster.placed:
        assert placed.apply().errors == {}
    truth = slurm.gpus_of(before, node)
    assert len(truth) == 3
    shown = lambda: f"{cluster.shown(0)} instead of {truth}: {_said(node)}"  # noqa: E731
    eventually("it is found", lambda: cluster.shown(0) == {before: truth}, within_s=SEEN_S, shown=shown)

    for host in slurm.nodes:
        host.ssh(f"printf '%s\\n' Prolog={HOOKS[0]} Epilog={HOOKS[1]} >>/etc/slurm/slurm.conf")
    slurm.ask("scontrol reconfigure")
    slurm.all_ready()
    job = slurm.submit(FOREVER, "--gpus=2", "--nodelist=slurm-a")
    eventually("its prolog ran", lambda: job in cluster.shown(0), within_s=120, shown=lambda: _said(node))
    assert cluster.shown(0)[job] == slurm.gpus_of(job, node) and len(cluster.shown(0)[job]) == 2
    listed = node.ssh(COMMAND).stdout
    assert listed.count(f"job {job}  {USER}") == 2 and listed.count("train") == 5
    slurm.ask(f"scancel {before} {job}")
    eventually("both are over", lambda: cluster.shown(0) == {}, within_s=SEEN_S, shown=lambda: cluster.shown(0))
    assert node.ssh("systemctl is-failed gpu-fleet-jobs.service", check=False).stdout.strip() != "failed"


def test_jobs_that_share_gpus_are_shown_on_them(cluster: Cluster, eventually: Callable[..., None]) -> None:
    slurm, node = cluster.slurm, cluster.placed[0].host
    keeps = "echo $SLURM_JOB_GPUS >/tmp/gpus.$SLURM_JOB_ID; " + FOREVER
    jobs = [slurm.submit(keeps, f"--gres=shard:{count}", "--nodelist=slurm-a") for count in (3, 1, 2)]
    eventually("they run", lambda: node.ssh("ls /tmp/gpus.*", check=False).stdout.count("gpus") == len(jobs), within_s=120)
    truth = {job: uuids(node, [int(node.ssh(f"cat /tmp/gpus.{job}").stdout)]) for job in jobs}
    assert len(set.union(*truth.values())) < len(jobs), f"two of them share a GPU: {truth}"
    shown = lambda: f"{cluster.shown(0)} instead of {truth}: {_said(node)}"  # noqa: E731
    eventually("their prologs ran", lambda: cluster.shown(0) == truth, within_s=SEEN_S, shown=shown)
    node.ssh(f"systemctl stop gpu-fleet-jobs; rm {STORE}/jobs.json; systemctl start gpu-fleet-jobs")
    eventually("the sweep finds them", lambda: cluster.shown(0) == truth, within_s=SEEN_S, shown=shown)
    slurm.ask(f"scancel {' '.join(jobs)}; rm /tmp/gpus.*")
    eventually("they are over", lambda: cluster.shown(0) == {}, within_s=SEEN_S, shown=shown)


def test_a_node_on_which_a_job_has_no_process_keeps_it(cluster: Cluster, eventually: Callable[..., None]) -> None:
    slurm = cluster.slurm
    job = slurm.submit(FOREVER, "--nodes=2", "--gpus-per-node=4")
    eventually("both nodes have it", lambda: job in cluster.shown(0) and job in cluster.shown(1), within_s=120)
    node = cluster.placed[1].host
    assert "slurm-a" in slurm.ask(f"squeue --noheader --job={job} --format=%B"), "the batch script runs on the first"
    # One sweep may come before the job is asked about.
    sweep = "/opt/gpu-fleet/libexec/run jobs"
    node.ssh(f"systemctl stop gpu-fleet-jobs; sleep 11; {sweep}; {sweep}")
    assert cluster.shown(1) == {job: slurm.gpus_of(job, node)}
    node.ssh("systemctl start gpu-fleet-jobs")
    slurm.ask(f"scancel {job}")
    eventually("it is over", lambda: cluster.shown(0) == cluster.shown(1) == {}, within_s=SEEN_S)


def test_the_queue_is_that_of_the_controller_and_gone_while_it_is_away(cluster: Cluster, eventually: Callable[..., None]) -> None:
    slurm, node = cluster.slurm, cluster.placed[0].host
    slurm.all_ready()

    def reported() -> dict[str, str]:
        # Of a run that is on its way this waits for the end: it may have asked before what the test did.
        node.ssh("systemctl start gpu-fleet-slurm-queue.service")
        return dict(re.findall(r"^([a-z]\S+) (\S+)$", node.ssh(f"cat {QUEUE_SAID}").stdout, re.MULTILINE))

    job = slurm.submit(FOREVER, "--gpus=3", "--nodelist=slurm-a")
    waiting = slurm.submit(FOREVER, "--array=0-4", "--nodes=1", "--gpus-per-node=8", "--nodelist=slurm-a")
    held = slurm.submit(FOREVER, "--hold", "--gpus=2")
    eventually("it runs", lambda: slurm.gpus_of(job, node), within_s=120)
    expected = {
        'gpu_fleet_slurm_partition_gpus{partition="train",state="allocated"}': "3",
        'gpu_fleet_slurm_partition_gpus{partition="train",state="idle"}': "5",
        'gpu_fleet_slurm_gpus{state="unusable"}': "8",
        'gpu_fleet_slurm_partition_gpus_pending{partition="train"}': "40",
        'slurm_partition_jobs_hold{partition="train"}': "1",
        'slurm_partition_jobs_pending{partition="train"}': "6",
    }
    slurm.ask("scontrol update nodename=slurm-b state=drain reason='fan | 3'")
    try:
        eventually("all is reported", lambda: expected.items() <= reported().items(), within_s=SEEN_S, shown=reported)
        drained = 'gpu_fleet_slurm_node_info{node="slurm-b",state="drained",reason="fan | 3"}'
        assert drained in node.ssh(f"cat {QUEUE_SAID}").stdout

        def counted() -> bool:
            reported()
            starts = r'^gpu_fleet_slurm_start_wait_seconds_count\{partition="train"\} [1-9]'
            return re.search(starts, node.ssh(f"cat {QUEUE_WAITS}").stdout, re.MULTILINE) is not None

        eventually("its start is counted", counted, within_s=SEEN_S)
    finally:
        slurm.ask(f"scancel {job} {waiting} {held}; scontrol update nodename=slurm-b state=resume")

    slurm.ask("systemctl stop slurmctld")
    failed = {"gpu_fleet_slurm_success", "gpu_fleet_slurm_timestamp_seconds"}
    eventually("it is away", lambda: set(reported()) == failed, within_s=SEEN_S, shown=reported)
    assert reported()["gpu_fleet_slurm_success"] == "0"
    slurm.ask("systemctl start slurmctld")
    eventually("it is back", lambda: reported()["gpu_fleet_slurm_success"] == "1", within_s=SEEN_S, shown=reported)
    slurm.all_ready()


def test_a_job_whose_epilog_never_ran_is_shown_until_slurm_ends_it(cluster: Cluster, eventually: Callable[..., None]) -> None:
    slurm, node = cluster.slurm, cluster.placed[1].host
    job = slurm.submit(FOREVER, "--gpus=1", "--nodelist=slurm-b", "--no-requeue")
    eventually("it is shown", lambda: job in cluster.shown(1), within_s=120)
    slurm.kill(node)
    slurm.ask(f"scancel {job}")
    over = lambda: f" {job} " not in slurm.ask("squeue --noheader --format=' %A '")  # noqa: E731
    eventually("Slurm ended it", over, within_s=300, shown=lambda: slurm.ask("squeue; sinfo"))
    eventually("it is over", lambda: cluster.shown(1) == {}, within_s=SEEN_S + 15, shown=lambda: _said(node))
    slurm.all_ready()


def test_after_a_reboot_no_job_of_before_is_shown(cluster: Cluster, eventually: Callable[..., None]) -> None:
    slurm, node = cluster.slurm, cluster.placed[1].host
    job = slurm.submit(FOREVER, "--gpus=2", "--nodelist=slurm-b", "--no-requeue")
    eventually("it is shown", lambda: job in cluster.shown(1), within_s=120)
    node.reboot()
    slurm.boot(node)
    eventually("it is over", lambda: cluster.shown(1) == {}, within_s=SEEN_S, shown=lambda: _said(node))
    assert [line for line in cluster.placed[1].check().drift if "jobs" in line] == [], "its directory was made again"
    slurm.ask(f"scancel {job}")
    slurm.all_ready()
    job = slurm.submit(FOREVER, "--gpus=2", "--nodelist=slurm-b")
    eventually("a new one is shown", lambda: job in cluster.shown(1), within_s=120, shown=lambda: _said(node))
    assert cluster.shown(1)[job] == slurm.gpus_of(job, node)
    slurm.ask(f"scancel {job}")


def test_a_node_that_is_not_ready_is_drained_within_the_limit_and_resumed_when_it_is_again(
    cluster: Cluster, eventually: Callable[..., None]
) -> None:
    slurm, [first, second] = cluster.slurm, cluster.slurm.nodes
    slurm.all_ready()
    for host in slurm.nodes:
        lines = f"HealthCheckProgram={SLURM[0]} HealthCheckInterval=10 HealthCheckNodeState=ANY"
        host.ssh(f"printf '%s\\n' {lines} >>/etc/slurm/slurm.conf")
    slurm.ask("scontrol reconfigure")
    job = slurm.submit(FOREVER, "--gpus=1", "--nodelist=slurm-b")
    eventually("it runs", lambda: job in cluster.shown(1), within_s=120)
    reasons = lambda: slurm.ask("sinfo --noheader --Node --format='%N %t %E'")  # noqa: E731
    try:
        second.inject_xid(79, gpu_index=3)
        eventually("it is drained", lambda: "slurm-b drng gpu-fleet: " in reasons(), within_s=240, shown=reasons)
        assert job in slurm.ask("squeue --noheader --format=%A"), "what runs goes on"
        first.inject_xid(79, gpu_index=0)
        refused = "grep -q 'ready_drain_refused 1' /var/lib/gpu-fleet/textfile/ready_slurm.prom"
        eventually("it is one too many", lambda: first.ssh(refused, check=False).returncode == 0, within_s=240, shown=reasons)
        assert "slurm-a idle" in reasons()
        said = first.ssh("cat /var/lib/gpu-fleet/textfile/ready_slurm.prom").stdout
        assert "gpu_fleet_ready_schedulable 1" in said
    finally:
        for host in (second, first):
            host.ssh("/opt/gpu-fleet/bin/gpu-fleet-maintenance start repair")
            host.repair_gpus()
            host.ssh("systemctl restart gpu-fleet-nvidia-gpu-exporter; sleep 1; /opt/gpu-fleet/bin/gpu-fleet-maintenance stop")
    eventually("it is resumed", lambda: "slurm-b mix " in reasons(), within_s=300, shown=reasons)

    slurm.ask("scontrol update nodename=slurm-b state=drain reason=fan")
    second.ssh(SLURM[0])
    assert "slurm-b drng fan" in reasons(), "what an administrator drained stays"
    slurm.ask(f"scontrol update nodename=slurm-b state=resume; scancel {job}")


def test_without_the_section_nothing_of_it_is_left(cluster: Cluster, eventually: Callable[..., None]) -> None:
    for placed in cluster.placed:
        placed.options.clear()
        assert placed.apply().errors == {}
        files = " ".join((COMMAND, STORE, *HOOKS, SAID, QUEUE_SAID, QUEUE_WAITS))
        pattern = f"{files} /etc/systemd/system/gpu-fleet-{{jobs,slurm-queue}}.*"
        ls = f"bash -c 'ls -d {pattern} 2>/dev/null'"
        left = lambda ls=ls, host=placed.host: host.ssh(ls, check=False).stdout  # noqa: E731
        eventually("nothing is left", lambda left=left: left() == "", within_s=120, shown=left)


def _said(node: Host) -> str:
    return node.ssh(
        f"cat {SAID}; scontrol listpids; journalctl -u gpu-fleet-jobs -n 20; tail /var/log/slurm/*", check=False
    ).stdout
