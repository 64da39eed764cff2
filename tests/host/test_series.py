"""The estimate of series in a preview against what the simulated exporters and the real node_exporter serve: within a tenth."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.fleet.series import HostShape, gives, of_host, of_node_exporter, summary
from gpu_fleet import toolchain
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.on_host import nvidia_gpu_exporter
from gpu_fleet.stackfile.counters import counters
from lab.gpu import setup
from lab.gpu.dcgm import counters as dcgm_counters
from lab.gpu.dcgm import fields
from lab.gpu.dcgm.body import Renderer
from lab.gpu.fixtures import exporter_in_process
from lab.gpu.machine import STATE_VARIABLE, Machine
from lab.ports import free_ports

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
STANDARD = counters("standard")
NOTHING = HostShape(gpus=0, cpus=0, cores=0, network_devices=0, disks=0, filesystems=0, infiniband_ports=0, units=0, nvlinks=0)
# What hardware adds that a usual server's shape does not count one by one.
OTHER_HARDWARE = (
    "hwmon|edac|nvme|zfs|md|rapl|powersupply|bonding|infiniband|nfs|nfsd|xfs|btrfs|bcache|ipvs|wifi|fibrechannel|dmi|power"
)


def within_a_tenth(estimated: float, counted: int) -> bool:
    return abs(estimated - counted) <= 0.1 * counted


def samples(body: str) -> list[str]:
    return [line for line in body.splitlines() if line and not line.startswith("#")]


def of_exporter(mode: str, gpus: int, nvlinks: int = 0, **options) -> int:
    """What the exporter of so many GPUs adds to a host without any."""
    with_gpus = of_host(mode, replace(NOTHING, gpus=gpus, nvlinks=nvlinks), options.pop("counters", STANDARD), **options)
    return with_gpus.sent - of_host(mode, NOTHING, STANDARD, **options).sent


@pytest.mark.parametrize("preset", ["standard", "profiling"])
def test_dcgm_exporter_s_series_follow_from_its_list_of_counters(preset, tmp_path):
    listed = counters(preset)
    parsed = dcgm_counters.parse(listed.text.splitlines(), fields.known((4, 8, 4)), (4, 8, 4))
    setup.init(state=tmp_path, scenario="h100x8")
    given = len(samples(Renderer(parsed, (4, 8, 4), started_s=0).render(Machine.load(tmp_path))))
    traffic = 8 * 2  # by textfile, beside the exporter
    assert within_a_tenth(of_exporter("dcgm-exporter", 8, counters=listed) - traffic, given)


def test_nvidia_gpu_exporter_s_series(tmp_path, monkeypatch):
    """With the fields that its start asks for; the fixture has those of an adopted exporter, which asks for all."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    setup.init(state=tmp_path, scenario="h100x4")
    asked = ",".join(field.partition("|")[0] for field in nvidia_gpu_exporter.FIELDS)
    given = len(samples(exporter_in_process(tmp_path, f"--query-field-names={asked}")()))
    assert within_a_tenth(of_exporter("nvidia_gpu_exporter", 4) - 4 * 2, given)


def test_the_textfile_collectors_series_with_all_links():
    given = len(samples((FIXTURES / "textfile-nvidia.prom").read_text()))
    assert within_a_tenth(of_exporter("textfile", 4, nvlinks=18), given)


def test_profiling_counters_are_expected_of_lists_that_have_them(tmp_path):
    engine, memory = "gpu:graphics_engine_active:ratio", "gpu:ecc_uncorrected_volatile:total"
    own = tmp_path / "own.csv"
    own.write_text("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, gauge, as DCGM 4.6 names it\nDCGM_FI_DEV_GPU_TEMP, gauge, heat\n")
    lists = ("standard", "profiling", str(own))
    assert [[gives(counters(name), word) for word in (engine, memory)] for name in lists] == [
        [False, True],
        [True, True],
        [True, False],
    ]


def test_amd_s_textfile_series():
    given = len(samples((FIXTURES / "textfile-amd.prom").read_text())) - 5  # of the collector itself
    assert within_a_tenth(of_exporter("textfile", 4, is_amd=True), given)


def test_node_exporter_s_series_on_this_machine():
    flags = re.findall(
        r"^  (--(?:no-)?collector\S+?)(?: \\)?$", (ROOTFS / "opt/gpu-fleet/libexec/start-node-exporter").read_text(), re.MULTILINE
    )
    virtual = re.search(r"^virtual='(.*)'$", (ROOTFS / "opt/gpu-fleet/libexec/start-node-exporter").read_text(), re.MULTILINE)[1]
    flags = [flag.replace('"$virtual"', virtual) for flag in flags if "textfile" not in flag]
    assert len(flags) > 5
    [port] = free_ports(1)
    with tempfile.TemporaryFile() as log:
        command = [
            toolchain.find("node_exporter"),
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.disable-exporter-metrics",
            *flags,
        ]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                body = answered(f"http://127.0.0.1:{port}/metrics")
            finally:
                process.terminate()
    lines = [line for line in samples(body) if not re.match(rf"node_(?:{OTHER_HARDWARE})_", line)]

    def different(metric: str, label: str) -> int:
        return len({re.search(rf'{label}="([^"]*)"', line)[1] for line in lines if line.startswith(metric + "{")})

    shape = replace(
        NOTHING,
        cpus=different("node_cpu_seconds_total", "cpu"),
        network_devices=different("node_network_up", "device"),
        disks=different("node_disk_info", "device"),
        filesystems=different("node_filesystem_readonly", "mountpoint"),
    )
    assert within_a_tenth(of_node_exporter(shape), len(lines))


def answered(url: str) -> str:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.read().decode()
        except OSError as error:
            assert time.monotonic() < deadline, f"{url} did not answer within 120 s: {error}"
            time.sleep(0.05)


def host(**given):
    return SimpleNamespace(**{"exporter": "auto", "vendor": "auto", "gpus": 8, "lost": False, "connection": "ssh", **given})


def test_a_preview_says_what_each_kind_of_host_may_cost_and_the_sum_of_the_most():
    text, total = summary(
        [host(), host(), host(exporter="textfile", vendor="amd", gpus=None), host(lost=True)], STANDARD, "standard"
    )
    each = {mode: of_host(mode, HostShape(), STANDARD) for mode in ("dcgm-exporter", "nvidia_gpu_exporter")}
    amd = of_host("textfile", HostShape(), STANDARD, is_amd=True)
    assert total.sent == 2 * max(series.sent for series in each.values()) + amd.sent
    assert f"up to {total.sent:,} sent by 3 hosts, and {total.recorded:,} recorded from them" in text
    assert (
        f"2 hosts with 8 GPUs: {each['dcgm-exporter'].sent:,} with dcgm-exporter (standard counters) or "
        f"{each['nvidia_gpu_exporter'].sent:,} with nvidia_gpu_exporter\n"
    ) in text
    assert f"1 host with 8 GPUs (assumed): {amd.sent:,} with textfile\n" in text


def test_a_host_in_pull_mode_reports_its_runs_too():
    text, total = summary([host(exporter="textfile"), host(exporter="textfile", connection="pull")], STANDARD, "standard")
    assert total.sent == 2 * of_host("textfile", HostShape(), STANDARD).sent + 8
    assert text.count("1 host with 8 GPUs: ") == 2


def test_readiness_and_jobs_cost_what_they_add() -> None:
    _, without = summary([host(exporter="textfile")], STANDARD, "standard")
    _, total = summary([host(exporter="textfile")], STANDARD, "standard", readiness=True, jobs=True)
    assert (total.sent - without.sent, total.recorded - without.recorded) == (6 + 4 + 8, 8 + 4)


def test_a_host_that_asks_slurm_reports_the_whole_cluster() -> None:
    hosts = [host(exporter="textfile"), host(exporter="textfile")]
    _, without = summary(hosts, STANDARD, "standard", jobs=True)
    text, total = summary(hosts, STANDARD, "standard", jobs=True, queue_hosts=1)
    assert total.sent - without.sent == 160 + 2 and total.recorded == without.recorded
    assert "1 host with Slurm's queue: 162 more each" in text


def test_a_stack_without_hosts_has_no_estimate_of_series():
    assert summary([host(lost=True)], STANDARD, "standard") is None
