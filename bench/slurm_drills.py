"""How long until nodes on which Slurm and the health of the GPUs disagree are named, and until Slurm's faults are? Needs root.

A real Slurm on systemd hosts of the lab with all that a stack places. Their Alloy pushes to a real Prometheus, which has our
rules and answers the queries of the dashboard Slurm queue. A drill breaks a GPU of a node that takes jobs, or drains a healthy
node, at a random moment. Faults of the controller and of the queue last longer than anybody waits: what the collector says of
them is given to the rules as an hour of samples, by promtool.

    python -m bench.slurm_drills [--drills 50] [--slurm newer-slurm]
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

import alerts
from alerts.inventory import inventory_groups
from alerts.readiness import table
from bench.comparison import sink
from dashboards.queries import slurm as panels
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.jobs import ASKS_QUEUE, HOOKS, QUEUE_SAID, Jobs
from gpu_fleet.host.parts.readiness import SLURM, Readiness
from gpu_fleet.toolchain import find
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.host import PRESENT
from lab.hosts.slurm import ORDER, USER, Slurm
from lab.standins.programs import gather
from tests.hosts.placed import PlacedHost
from tests.prometheus_server import PrometheusServer

NODES: Final = ("slurm-a", "slurm-b", "slurm-c", "slurm-d")
WHERE: Final = 'datacenter="lab-west", cluster="training"'
SOON_S: Final = 90
MOST_S: Final = 300  # afterwards it was not named
SICK, DRAINED = "sick node that takes jobs", "healthy node that is drained"
PANELS: Final = {SICK: panels.sick_and_schedulable(WHERE), DRAINED: panels.healthy_and_drained(WHERE)}
XIDS: Final = (79, 95)
_EVERY_S: Final = 30  # of the samples that are given to the rules


@dataclass(frozen=True)
class Drill:
    """Seconds until the node is on the dashboard, and until the condition of the alert HostNotDrained holds; None: not within
    MOST_S, or there is no alert about it for a day."""

    kind: str
    node: str
    panel_s: float | None
    alert_s: float | None


@dataclass(frozen=True)
class Fault:
    """`said`: what the collector wrote, so many seconds after the fault. `fires`: minutes after which the alert fires then."""

    alert: str
    after_s: float | None
    fires: float | None
    said: str


class Lab:
    def __init__(self, slurm: Slurm, store: PrometheusServer) -> None:
        self.slurm, self.store = slurm, store
        self._random = random.Random(33)  # noqa: S311

    def drills(self, count: int) -> Iterator[Drill]:
        """On all nodes at once: nothing of a node is seen by another one."""
        with ThreadPoolExecutor(len(self.slurm.nodes)) as pool:
            for begin in range(0, count, len(self.slurm.nodes)):
                self._wait_until_well()
                chosen = [
                    (node, (SICK, DRAINED)[(begin // len(self.slurm.nodes) + place) % 2], self._random.uniform(0, 60))
                    for place, node in enumerate(self.slurm.nodes)
                ]
                yield from list(pool.map(lambda one: self._drill(*one), chosen))[: count - begin]

    def _drill(self, node: Host, kind: str, later_s: float) -> Drill:
        time.sleep(later_s)
        began = time.monotonic()
        if kind == SICK:
            node.inject_xid(XIDS[int(later_s) % 2], gpu_index=int(later_s) % 8)
        else:
            self.slurm.ask(f"scontrol update nodename={node.name} state=drain reason=drill")
        panel_s = alert_s = None
        while (waited := time.monotonic() - began) < MOST_S and (panel_s is None or (kind == SICK and alert_s is None)):
            if panel_s is None and any(one["metric"]["node"] == node.name for one in self.store.query(PANELS[kind])):
                panel_s = waited
            if alert_s is None and self.store.query(f'ALERTS{{alertname="HostNotDrained", instance="{node.name}"}}'):
                alert_s = waited
            time.sleep(1)
        self._repair(node, kind)
        return Drill(kind, node.name, panel_s, alert_s)

    def _repair(self, node: Host, kind: str) -> None:
        if kind == DRAINED:
            self.slurm.ask(f"scontrol update nodename={node.name} state=resume")
            return
        node.ssh("/opt/gpu-fleet/bin/gpu-fleet-maintenance start drill")
        node.repair_gpus()
        node.ssh("systemctl restart gpu-fleet-nvidia-gpu-exporter; sleep 1; /opt/gpu-fleet/bin/gpu-fleet-maintenance stop")

    def _wait_until_well(self) -> None:
        """Every node is ready, takes jobs, and is on none of the lists."""
        count = len(self.slurm.nodes)
        well = f"count(gpu_fleet_ready_state == 0 and gpu_fleet_ready_schedulable == 1) == {count}"
        seen = f'count(gpu_fleet_slurm_node_info{{state=~"idle|mixed"}}) == {count} and count(gpu:info) == {count * len(ORDER)}'

        def is_well() -> bool:
            named = self.store.query("ALERTS{alertname='HostNotDrained'}") or any(map(self.store.query, PANELS.values()))
            return bool(self.store.query(well) and self.store.query(seen)) and not named

        shown = lambda: [self.store.query(one) for one in (well, seen, *PANELS.values(), "gpu_fleet_ready_state")]  # noqa: E731
        self.store.wait_for("all nodes are well", is_well, within_s=900, shown=shown)

    def faults(self) -> Iterator[Fault]:
        """Last: they change the configuration of Slurm."""
        waits = r'slurm_partition_jobs_pending{partition="train"} [1-9]'
        with self._configured("SchedulerType=sched/builtin", "SchedulerParameters=sched_interval=-1,defer"):
            self.slurm.submit("sleep 1")
            yield self._fault("SlurmQueueStuck", lambda said: re.search(waits, said) is not None)
        with self._slow_submissions():
            yield self._fault("SlurmControllerSlow", lambda said: float(_value(said, "gpu_fleet_slurm_duration_seconds")) > 3)
        self.slurm.ask("systemctl stop slurmctld")
        yield self._fault("SlurmNotAnswering", lambda said: _value(said, "gpu_fleet_slurm_success") == "0")

    def _fault(self, alert: str, is_said: Callable[[str], bool]) -> Fault:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < MOST_S:
            said = self.slurm.controller.ssh(f"cat {QUEUE_SAID}").stdout
            if is_said(said):
                return Fault(alert, waited, fires_after(alert, said), said)
            time.sleep(1)
        return Fault(alert, None, None, said)

    @contextmanager
    def _slow_submissions(self) -> Iterator[None]:
        """A site's script that is run for each job that is submitted, with slurmctld's locks held. With many more submitters the
        collector's own calls time out after ten seconds: SlurmNotAnswering."""
        script = (
            "function slurm_job_submit() os.execute('sleep 2') return 0 end function slurm_job_modify() return 0 end return 0"
        )
        self.slurm.ask(f'echo "{script}" >/etc/slurm/job_submit.lua')
        submits = f"cd /tmp; while sleep 0.2; do timeout 60 runuser -u {USER} -- sbatch --output=/dev/null --wrap true; done"
        with self._configured("JobSubmitPlugins=lua"):
            node = self.slurm.nodes[-1]
            node.ssh(f"for n in 1 2 3; do systemd-run --quiet --unit=submits-$n sh -c '{submits}'; done")
            yield
            node.ssh("systemctl stop 'submits-*'")

    @contextmanager
    def _configured(self, *lines: str) -> Iterator[None]:
        conf = "/etc/slurm/slurm.conf"
        self.slurm.ask(f"cp {conf} /root/slurm.conf; printf '%s\\n' {' '.join(lines)} >>{conf}; systemctl restart slurmctld")
        self.slurm.all_ready()
        yield
        self.slurm.ask(f"scancel --user=ops; cp /root/slurm.conf {conf}; systemctl restart slurmctld")
        self.slurm.all_ready()


def _value(said: str, series: str) -> str:
    found = re.search(rf"^{series} (\S+)$", said, re.MULTILINE)
    return found[1] if found else "0"


def fires_after(alert: str, said: str) -> float | None:
    """Minutes of these samples after which the alert fires; None: not in 90."""
    with tempfile.TemporaryDirectory() as directory:
        minutes = range(1, 91)
        asked = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
        test = {
            "rule_files": [str(Path(alerts.__file__).parent / "rules/slurm.yaml")],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": f"{_EVERY_S}s",
                    "input_series": list(_hours(said)),
                    "promql_expr_test": [
                        {"expr": asked, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 1}]}
                        for minute in minutes
                    ],
                }
            ],
        }
        (Path(directory) / "test.yaml").write_text(yaml.safe_dump(test))
        done = subprocess.run(
            [find("promtool"), "test", "rules", "test.yaml"], cwd=directory, capture_output=True, text=True, check=False
        )
        found = re.findall(r"time: (?:(\d+)h)?(?:(\d+)m)?", done.stdout + done.stderr)
        silent = {60 * int(hours or 0) + int(rest or 0) for hours, rest in found}
        return next((float(minute) for minute in minutes if minute not in silent), None)


def _hours(said: str) -> Iterator[Mapping[str, str]]:
    """Time stands still in them, but for that of the answer."""
    for line in said.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.rstrip("}").partition("{")
            values = f"{value}x200" if name != "gpu_fleet_slurm_timestamp_seconds" else f"0+{_EVERY_S}x200"
            yield {"series": f'{name}{{{WHERE}, instance="slurm-a", {labels}}}', "values": values}


@contextmanager
def lab(variant: str) -> Iterator[Lab]:
    hosts = dict.fromkeys(NODES, VARIANTS[variant])
    with tempfile.TemporaryDirectory() as name, sink() as logs, Site.up(hosts) as site, _store(Path(name, "store")) as store:
        artifacts, nodes = Path(name, "artifacts"), list(site.hosts.values())
        gather(artifacts, PROGRAMS, present=PRESENT)
        port = int(store.url.rpartition(":")[2])
        urls = {
            "GPU_FLEET_METRICS_URL": f"http://{site.relay(port)}/api/v1/write",
            "GPU_FLEET_LOGS_URL": f"http://{site.relay(logs)}/loki/api/v1/push",
        }
        for node in nodes:
            options = {"jobs": Jobs(), "readiness": Readiness(table=table())}
            settings = {**urls, **({ASKS_QUEUE: "yes"} if node is nodes[0] else {})}
            errors = PlacedHost(node, artifacts, settings=settings, options=options).apply().errors
            assert errors == {}, errors
        slurm = Slurm(nodes[0], nodes)
        health = {"HealthCheckProgram": SLURM[0], "HealthCheckInterval": "60", "HealthCheckNodeState": "ANY"}
        slurm.start({"Prolog": HOOKS[0], "Epilog": HOOKS[1], **health})
        yield Lab(slurm, store)


@contextmanager
def _store(directory: Path) -> Iterator[PrometheusServer]:
    directory.mkdir()
    groups = [*alerts.rule_groups("mimir"), *inventory_groups("lab-west", "training", dict.fromkeys(NODES, len(ORDER)))]
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": [group.as_dict for group in groups]}))
    settings = {"rule_files": ["rules.yaml"]}
    with PrometheusServer(directory, settings, "--web.enable-remote-write-receiver") as server:
        yield server


def report(drills: Sequence[Drill]) -> Iterator[str]:
    for kind in (SICK, DRAINED):
        of_kind = [drill for drill in drills if drill.kind == kind]
        named = sorted(drill.panel_s for drill in of_kind if drill.panel_s is not None)
        if named:
            soon = sum(seconds <= SOON_S for seconds in named)
            yield (
                f"{kind}: {soon} of {len(of_kind)} named within {SOON_S} s; on the dashboard after "
                f"{named[len(named) // 2]:.0f} s (median), {named[-1]:.0f} s (most)"
            )
        alerted = sorted(drill.alert_s for drill in of_kind if drill.alert_s is not None)
        if alerted and kind == SICK:
            yield f"  condition of HostNotDrained: after {alerted[len(alerted) // 2]:.0f} s (median), {alerted[-1]:.0f} s (most)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.slurm_drills", description="How long until disagreements are named.")
    parser.add_argument("--drills", type=int, default=50)
    parser.add_argument("--slurm", choices=("slurm", "newer-slurm", "newest-slurm"), default="newer-slurm")
    given = parser.parse_args(arguments)
    drills = []
    with lab(given.slurm) as here:
        for drill in here.drills(given.drills):
            print(drill, flush=True)
            drills.append(drill)
        for fault in here.faults():
            said = "not said" if fault.after_s is None else f"said after {fault.after_s:.0f} s"
            print(f"{fault.alert}: {said}, fires after {fault.fires} min of it", flush=True)
    for line in report(drills):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
