"""Whether work may start on a host, from what its exporters, collectors and kernel log say."""

from __future__ import annotations

import json
import os
import stat
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from alerts.readiness import table
from gpu_fleet.on_host import ready, slurm
from gpu_fleet.on_host.ready import Facts, Reason, evaluated, state_of
from gpu_fleet.on_host.samples import Sample, parse
from lab.ports import free_ports

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
TABLE = json.loads(table())
NOW = 1_700_000_000.0


def facts(text: str, *kernel: Sample, mode: str = "dcgm-exporter", expected: int = 0, **more: Any) -> Facts:
    return Facts(expected, list(parse(text, r"\w+")), list(kernel), **more)


def body(fixture: str) -> str:
    return (FIXTURES / f"{fixture}.prom").read_text()


def xid(code: str, detail: str = "", at: float = NOW) -> Sample:
    return Sample("gpu_fleet_xid_last_timestamp_seconds", {"xid": code, "pci": "0000:4b:00", "detail": detail}, at)


def codes(reasons: list[Reason]) -> set[tuple[str, str]]:
    return {(reason.state, reason.code) for reason in reasons}


@pytest.mark.parametrize(
    "fixture",
    [
        *("dcgm-4.8", "dcgm-4.9", "nvidia_gpu_exporter-exec", "nvidia_gpu_exporter-nvml", "textfile-nvidia", "textfile-amd"),
        *("amd-device-metrics-exporter", "dcgm-4.8-v100", "nvidia_gpu_exporter-exec-v100", "amd-device-metrics-exporter-mi210"),
    ],
)
def test_a_healthy_host_passes_whichever_exporter_it_has(fixture: str) -> None:
    assert evaluated(facts(body(fixture)), TABLE) == []


@pytest.mark.parametrize(
    "fixture", ["dcgm-4.8-faulty", "dcgm-4.9-faulty", "nvidia_gpu_exporter-exec-faulty", "nvidia_gpu_exporter-nvml-faulty"]
)
def test_a_faulty_host_fails_and_names_the_gpu(fixture: str) -> None:
    reasons = evaluated(facts(body(fixture)), TABLE)
    assert {("fail", "row_remap_failed"), ("fail", "recovery_action")} <= codes(reasons)
    assert state_of(reasons) == "fail"
    assert all(reason.gpu.isdigit() and reason.text.startswith(f"GPU {reason.gpu}: ") for reason in reasons), reasons


def test_a_gpu_of_a_guest_warns_and_is_not_missing_and_one_beside_it_is() -> None:
    listed = len({s.labels["gpu"] for s in parse(body("dcgm-4.9"), "DCGM_FI_DEV_FB_USED_BYTES")})
    given = f'{body("dcgm-4.9")}\nnode_gpu_passed_through{{pci="0000:41:00"}} 1\n'
    [reason] = evaluated(facts(given, expected=listed + 1), TABLE)
    assert reason == Reason("warn", "passed_through", "0000:41:00", "GPU 0000:41:00 is given to a guest (vfio-pci)")
    assert ("fail", "gpus_missing") in codes(evaluated(facts(given, expected=listed + 2), TABLE))
    all_given = evaluated(facts('node_gpu_passed_through{pci="0000:41:00"} 1', expected=1), TABLE)
    assert state_of(all_given) == "unknown", "nothing is measured"


def test_a_gpu_of_a_guest_is_no_other_one_s_excuse(tmp_path: Path) -> None:
    """The host was brought up with six GPUs of its own and one of a guest, without a number in the stack file; one is lost."""
    textfiles = tmp_path / "var/lib/gpu-fleet/textfile"
    textfiles.mkdir(parents=True)
    (tmp_path / "var/lib/gpu-fleet/ready").mkdir()
    (textfiles / "gpu_links.prom").write_text('node_gpu_passed_through{pci="0000:41:00"} 1\n')
    environment = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_COUNT": "6", "GPU_GUESTS": "1"}
    read = ready.read_facts(str(tmp_path), environment, tmp_path / "var/lib/gpu-fleet/ready/kernel.json")
    lost = read._replace(samples=[*read.samples, *(Sample("node_gpu_info", {"gpu": str(n)}, 1) for n in range(5))])
    assert ("fail", "gpus_missing") in codes(evaluated(lost, TABLE))


def test_a_gpu_that_is_not_listed_fails_and_no_gpu_at_all_is_unknown() -> None:
    listed = len({s.labels["gpu"] for s in parse(body("dcgm-4.9"), "DCGM_FI_DEV_FB_USED_BYTES")})
    assert codes(evaluated(facts(body("dcgm-4.9"), expected=listed), TABLE)) == set()
    assert codes(evaluated(facts(body("dcgm-4.9"), expected=listed + 1), TABLE)) == {("fail", "gpus_missing")}
    assert codes(evaluated(facts("", expected=8), TABLE)) == {("unknown", "no_gpus")}
    assert codes(evaluated(facts("node_gpu_unreadable 1"), TABLE)) == {("fail", "unreadable"), ("unknown", "no_gpus")}


def test_what_could_not_be_asked_is_unknown_and_a_known_failure_counts_more() -> None:
    silent = ["Alloy, which reads the kernel log, does not answer: refused"]
    assert state_of(evaluated(facts(body("dcgm-4.9"), problems=silent), TABLE)) == "unknown"
    assert state_of(evaluated(facts(body("dcgm-4.9-faulty"), problems=silent), TABLE)) == "fail"
    hangs = "# says: nvidia-smi (process 7) cannot be killed, and has not ended for 90 s: the driver hangs\n"
    assert codes(evaluated(facts("", says=hangs), TABLE)) == {("fail", "driver_hangs")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (xid("79"), {("fail", "xid_79")}),
        (xid("31"), set()),
        (xid("154", "0x0 (None)"), set()),
        (xid("154", "0x2 (Node Reboot Required)"), {("fail", "xid_154")}),
        (xid("154", "0x5 (GPU on the bus)"), {("fail", "xid_154")}),
        (xid("999"), set()),
    ],
)
def test_a_line_of_the_kernel_counts_by_what_it_says(line: Sample, expected: set[tuple[str, str]]) -> None:
    assert codes(evaluated(facts(body("dcgm-4.9"), line), TABLE)) == expected


def last(kind: str, **labels: str) -> Sample:
    return Sample(f"gpu_fleet_{kind}_last_timestamp_seconds", labels, NOW)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (last("sxid", sxid="20034", pci="0000:c1:00.0", sxid_severity="Fatal", detail="x"), {("fail", "sxid_20034")}),
        (last("sxid", sxid="20034", pci="0000:c1:00.0", detail="x"), {("fail", "sxid_20034")}),
        (last("sxid", sxid="20034", pci="0000:c1:00.0", sxid_severity="Non-fatal"), set()),
        (last("sxid", sxid="99999", pci="0000:c1:00.0", sxid_severity="Fatal"), {("fail", "sxid_99999")}),
        (last("sxid", sxid="99999", pci="0000:c1:00.0"), set()),
        (last("sxid", sxid="12028", pci="0000:c1:00.0", sxid_severity="Fatal"), {("fail", "sxid_12028")}),
        (last("nic", nic="0000:18:00.0", nic_event="health_compromised"), {("fail", "health_compromised")}),
        (last("nic", nic="eth2", nic_event="tx_timeout"), set()),
        (last("pcie_error", pci="0000:03:00"), {("warn", "pcie_error")}),
        (last("nvlink_error", nvlink_event="setup"), {("warn", "nvlink_error")}),
    ],
)
def test_what_the_kernel_says_of_a_link_counts_until_a_maintenance_ends(line: Sample, expected: set[tuple[str, str]]) -> None:
    reasons = evaluated(facts(body("dcgm-4.9"), line), TABLE)
    about = line.labels.get("pci") or line.labels.get("nic", "NVLinks")
    assert codes(reasons) == expected and all(about in one.text for one in reasons)
    ended = body("dcgm-4.9") + f"\ngpu_fleet_maintenance_end_timestamp_seconds {NOW + 1:.0f}\n"
    assert codes(evaluated(facts(ended, line), TABLE)) == set()


def test_a_memory_error_fails_unless_the_driver_contained_it_or_its_gpu_was_reset() -> None:
    given = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 2'
    assert codes(evaluated(facts(given), TABLE)) == {("fail", "ecc_uncorrected")}
    assert ("fail", "ecc_uncorrected") not in codes(evaluated(facts(given, xid("94")), TABLE))
    assert codes(evaluated(facts(given, last("amd_event", event="reset_succeeded", pci="0000:05:00")), TABLE)) == set()


@pytest.mark.parametrize(
    ("model", "links", "expected"),
    [
        ("NVIDIA H200", (18, 17), {("fail", "nvlinks_down")}),
        ("NVIDIA H200", (17, 17), set()),  # built that way
        ("NVIDIA H200", (0, 0), set()),
        ("NVIDIA H100 NVL", (12, 6), set()),  # as many as its bridges
    ],
)
def test_a_gpu_with_fewer_links_than_the_others_fails(model: str, links: tuple[int, int], expected: set[Any]) -> None:
    given = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",modelName="{model}"}} 40' for gpu in (0, 1)]
    given += [f'node_gpu_nvlinks_active{{gpu="{gpu}"}} {number}' for gpu, number in enumerate(links)]
    assert codes(evaluated(facts("\n".join(given)), TABLE)) == expected


@pytest.mark.parametrize(("state", "fails"), [(0, False), (1, True), (2, True), (3, False), (4, True), (5, False)])
def test_a_gpu_that_is_not_registered_with_the_fabric_fails(state: int, fails: bool) -> None:
    given = f'nvidia_smi_gpu_info{{uuid="a",index="0"}} 1\nnvidia_smi_fabric_state{{uuid="a"}} {state}'
    assert codes(evaluated(facts(given), TABLE)) == ({("fail", "fabric_not_ready")} if fails else set())


def test_the_end_of_a_maintenance_confirms_what_was_before_and_amd_s_driver_its_own_resets() -> None:
    ended = body("dcgm-4.9") + f"\ngpu_fleet_maintenance_end_timestamp_seconds {NOW:.0f}\n"
    assert codes(evaluated(facts(ended, xid("79", at=NOW - 5)), TABLE)) == set()
    assert codes(evaluated(facts(ended, xid("79", at=NOW + 5)), TABLE)) == {("fail", "xid_79")}

    def event(name: str, at: float) -> Sample:
        return Sample("gpu_fleet_amd_event_last_timestamp_seconds", {"event": name, "pci": "0000:05:00"}, at)

    amd = body("amd-device-metrics-exporter")
    repaired = set(TABLE["kernel"]) - set(TABLE["ends"]["not"])
    fails = next(code for code in sorted(repaired) if not code.isdigit() and TABLE["kernel"][code][""][0] == "fail")
    assert codes(evaluated(facts(amd, event(fails, NOW)), TABLE)) == {("fail", fails)}
    assert codes(evaluated(facts(amd, event(fails, NOW), event(TABLE["ends"]["event"], NOW + 9)), TABLE)) == set()


def test_a_blank_value_is_no_recovery_action() -> None:
    given = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\nDCGM_FI_DEV_GET_GPU_RECOVERY_ACTION{gpu="0"} 2147483632'
    assert evaluated(facts(given), TABLE) == []


class _Exporter(BaseHTTPRequestHandler):
    bodies: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.bodies[str(self.server.server_address[1])].encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The directories of a host, and its exporter and Alloy: (prefix, environment, their answers by name)."""
    monkeypatch.setattr(ready, "TABLE", tmp_path / "table.json")
    ready.TABLE.write_text(table())
    for name in ("ready", "textfile"):
        (tmp_path / "var/lib/gpu-fleet" / name).mkdir(parents=True)
    ports = dict(zip(("exporter", "alloy"), free_ports(2), strict=True))
    servers = [HTTPServer(("127.0.0.1", port), _Exporter) for port in ports.values()]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    bodies = {"exporter": body("dcgm-4.9"), "alloy": ""}
    _Exporter.bodies = {str(port): bodies[name] for name, port in ports.items()}
    environment = {
        "GPU_FLEET_EXPORTER_MODE": "dcgm-exporter",
        "GPU_FLEET_GPU_EXPORTER_LISTEN": f"127.0.0.1:{ports['exporter']}",
        "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{ports['alloy']}",
    }

    def says(name: str, text: str) -> None:
        _Exporter.bodies[str(ports[name])] = text

    yield tmp_path, environment, says
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_service_writes_what_the_command_says_and_a_metric(
    host: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    prefix, environment, says = host
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(prefix))
    assert ready.main([]) == 3 and "nothing has been evaluated" in capsys.readouterr().out

    ready.service(str(prefix), environment)
    assert ready.main([]) == 0 and capsys.readouterr().out == "pass\n"
    prom = prefix / "var/lib/gpu-fleet/textfile/ready.prom"
    assert "gpu_fleet_ready_state 0\n" in prom.read_text() and stat.S_IMODE(prom.stat().st_mode) == 0o644

    line = f'gpu_fleet_xid_last_timestamp_seconds{{xid="79",pci="0000:4b:00",detail=""}} {time.time():.0f}\n'
    says("alloy", line)
    ready.service(str(prefix), environment)
    assert ready.main([]) == 2
    assert "fail: GPU 0000:4b:00: XID 79: Drain the node and reboot it." in capsys.readouterr().out
    assert 'gpu_fleet_ready_reason{reason="xid_79",gpu="0000:4b:00"} 2\n' in prom.read_text()

    says("alloy", "")  # Alloy was started again
    ready.service(str(prefix), environment)
    assert ready.main(["--json"]) == 2 and json.loads(capsys.readouterr().out)["reasons"][0]["code"] == "xid_79"

    kernel = prefix / "var/lib/gpu-fleet/ready/kernel.json"
    kernel.write_text(json.dumps({**json.loads(kernel.read_text()), "boot": "the one before"}))
    ready.service(str(prefix), environment)
    assert ready.main([]) == 0, "a reboot ends it"

    report = prefix / "var/lib/gpu-fleet/ready/ready.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "time": time.time() - 61}))
    assert ready.main([]) == 3, "what is a minute old is unknown"


def test_the_end_of_a_maintenance_by_a_clock_that_was_ahead_excuses_nothing() -> None:
    over = Sample("gpu_fleet_maintenance_end_timestamp_seconds", {}, time.time() + 86400)
    assert ("fail", "xid_79") in codes(evaluated(Facts(0, [over], [xid("79")]), TABLE))


def test_what_a_collector_wrote_by_a_clock_that_was_ahead_is_not_of_this_minute() -> None:
    def read(ago_s: float) -> list[Sample]:
        at = Sample("node_gpu_collector_timestamp_seconds", {"collector": "amd"}, time.time() - ago_s)
        return [Sample("node_gpu_collector_success", {"collector": "amd"}, 1), at]

    assert [ready._is_fresh(read(ago_s)) for ago_s in (3, 61, -3, -3600)] == [True, False, True, False]


def test_an_exporter_that_does_not_answer_is_unknown(host: Any) -> None:
    prefix, environment, _ = host
    ready.service(str(prefix), {**environment, "GPU_FLEET_GPU_EXPORTER_LISTEN": "127.0.0.1:9"})
    report = ready.current(str(prefix))
    assert report["state"] == "unknown" and "the GPU exporter does not answer" in report["reasons"][0]["text"]
    ready.service(str(prefix), {**environment, "GPU_FLEET_EXPORTER_MODE": "textfile"})
    assert ready.current(str(prefix))["state"] == "unknown", "no collector has written anything"


# --- Slurm: a stand-in for its commands, which answers as 24.11 does; tests/hosts/test_slurm.py has the real ones ---------------

SCONTROL = """#!/bin/sh
case $1 in
  show) echo "NodeName=$3 Arch=x86_64 CoresPerSocket=1 State=$(cat state) ThreadsPerCore=1 $(cat reason)" ;;
  update) echo "$*" >>updates
    case $3 in
      State=DRAIN) echo IDLE+DRAIN >state; echo "$4 [root@2026-11-26]" >reason; echo "${2#*=}|drained|gpu|${4#*=}" >nodes ;;
      *) echo IDLE >state; sed -i "s/drained/idle/" nodes ;; # the reason stays
    esac ;;
esac
"""


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "slurm"
    directory.mkdir()
    for name, text in {"scontrol": SCONTROL, "sinfo": "#!/bin/sh\ncat nodes\n"}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    (directory / "state").write_text("IDLE\n")
    (directory / "reason").write_text("")
    (directory / "nodes").write_text("".join(f"gpu-{number:03}|idle|gpu:8|none\n" for number in range(40)))
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.chdir(directory)
    monkeypatch.setattr(slurm, "SETTLED_S", 0)
    return directory


def report(state: str, code: str = "xid_79") -> dict[str, Any]:
    reasons = [] if state == "pass" else [Reason(state, code, "3", "GPU 3: it's off the bus\n")._asdict()]
    return {"state": state, "time": time.time(), "reasons": reasons}


DRAINS = slurm.Settings(node="gpu-003", drains=True, most_percent=5)


def updates(controller: Path) -> list[str]:
    return (controller / "updates").read_text().splitlines() if (controller / "updates").exists() else []


def test_a_node_that_fails_is_drained_once_and_resumed_when_it_is_ready_again(controller: Path, tmp_path: Path) -> None:
    record = tmp_path / "slurm-drained"
    assert (
        slurm.health_check(report("pass"), DRAINS, record) == "" and slurm.health_check(report("unknown"), DRAINS, record) == ""
    )
    assert slurm.health_check(report("fail"), DRAINS, record).startswith("drained gpu-003: gpu-fleet: GPU 3: its off the bus")
    assert slurm.health_check(report("fail"), DRAINS, record) == ""
    assert "gpu_fleet_ready_drained_timestamp_seconds" in slurm.metrics(tmp_path)
    assert slurm.health_check(report("unknown"), DRAINS, record) == "", "unknown is never pass"
    assert slurm.health_check(report("warn"), DRAINS, record) == "resumed gpu-003: it is ready again"
    assert updates(controller) == [
        "update NodeName=gpu-003 State=DRAIN Reason=gpu-fleet: GPU 3: its off the bus",
        "update NodeName=gpu-003 State=UNDRAIN",
    ]
    assert "drained_timestamp" not in slurm.metrics(tmp_path)
    # Its reason is still there, and it counts no more: one more of the forty may be drained.
    assert slurm.health_check(report("fail"), DRAINS._replace(most_percent=1), record).startswith("drained gpu-003")


def test_without_a_decision_nothing_is_changed(controller: Path, tmp_path: Path) -> None:
    said = slurm.health_check(report("fail"), DRAINS._replace(drains=False), tmp_path / "slurm-drained")
    assert said.startswith("dry run: would drain gpu-003: gpu-fleet: GPU 3") and updates(controller) == []


def test_no_more_than_a_share_of_the_cluster_is_drained_by_us(controller: Path, tmp_path: Path) -> None:
    record = tmp_path / "slurm-drained"
    nodes = ["gpu-fleet: XID 79", "gpu-fleet: XID 95", "disk full", *["none"] * 37]
    (controller / "nodes").write_text("".join(f"gpu-{number:03}|drained|gpu:8|{reason}\n" for number, reason in enumerate(nodes)))
    said = slurm.health_check(report("fail"), DRAINS, record)
    assert (
        said.startswith("not drained: of 40 nodes no more than 2 may be drained by us: gpu-fleet: GPU 3")
        and updates(controller) == []
    )
    assert "gpu_fleet_ready_drain_refused 1\n" in slurm.metrics(tmp_path)
    assert slurm.health_check(report("fail"), DRAINS._replace(most_percent=8), record).startswith("drained")
    assert "gpu_fleet_ready_drain_refused 0\n" in slurm.metrics(tmp_path)


def test_the_share_is_of_the_nodes_with_gpus(controller: Path, tmp_path: Path) -> None:
    """5 % of a thousand nodes would be all that have GPUs."""
    nodes = [f"gpu-{number:03}|idle|gpu:h100:8(S:0-1),shard:32|none\n" for number in range(8)]
    nodes[1] = nodes[1].replace("idle", "drained").replace("none", "gpu-fleet: XID 79")
    others = [f"cpu-{number:03}|idle|(null)|none\n" for number in range(1000)]
    (controller / "nodes").write_text("".join([*nodes, *others]))
    said = slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")
    assert said.startswith("not drained: of 8 nodes no more than 1") and updates(controller) == []
    (controller / "nodes").write_text("".join(line.replace("gpu:h100:8(S:0-1),shard:32", "(null)") for line in [*nodes, *others]))
    assert slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained").startswith("drained"), "no gres.conf names GPUs"


KILLED = """#!/bin/sh
case $1 in update) echo IDLE+DRAIN >state; echo "$4 [root@2026-11-26T12:00:00]" >reason; kill -9 $PPID ;; esac
echo "NodeName=$3 State=$(cat state) $(cat reason)"
"""


def test_a_health_check_that_is_killed_right_after_it_has_drained_undoes_it_later(controller: Path, tmp_path: Path) -> None:
    """Slurm ends one after a minute, and a host may lose its power."""
    (controller / "scontrol").write_text(KILLED)
    record = tmp_path / "slurm-drained"
    if (child := os.fork()) == 0:
        slurm.health_check(report("fail"), DRAINS, record)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert (controller / "state").read_text() == "IDLE+DRAIN\n"
    (controller / "scontrol").write_text(SCONTROL)
    assert slurm.health_check(report("pass"), DRAINS, record).startswith("resumed gpu-003")


def test_a_drain_that_the_controller_refuses_leaves_no_record_and_one_that_it_heard_does(
    controller: Path, tmp_path: Path
) -> None:
    record = tmp_path / "slurm-drained"
    refuses = SCONTROL.replace('echo "$*" >>updates', "exit 1")
    (controller / "scontrol").write_text(refuses)
    with pytest.raises(slurm.SlurmError):
        slurm.health_check(report("fail"), DRAINS, record)
    assert not record.exists()
    (controller / "scontrol").write_text(SCONTROL.replace("    esac ;;", "    esac; exit 1 ;;"))
    with pytest.raises(slurm.SlurmError):
        slurm.health_check(report("fail"), DRAINS, record)
    assert record.exists(), "its answer came too late"


# In a federation it lists the nodes of all clusters, unless it is asked about its own.
FEDERATED = """#!/bin/sh
cat nodes
case " $* " in
  *" --local "*) ;;
  *) for number in $(seq 200); do echo "sibling-$number|idle|gpu:8|none"; done ;;
esac
"""


def test_nodes_of_other_clusters_of_a_federation_do_not_raise_the_limit(controller: Path, tmp_path: Path) -> None:
    (controller / "nodes").write_text("gpu-001|drained|gpu:8|gpu-fleet: XID 79\n" + "gpu-003|idle|gpu:8|none\n")
    (controller / "sinfo").write_text(FEDERATED)
    said = slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")
    assert said.startswith("not drained: of 2 nodes no more than 1")


def test_nodes_of_hidden_partitions_count(controller: Path, tmp_path: Path) -> None:
    """Hidden=YES: without --all sinfo shows none of them, neither those that we drained nor those of which they are a share."""
    (controller / "nodes").write_text("gpu-003|idle|gpu:8|none\n")
    hidden = "gpu-001|drained|gpu:8|gpu-fleet: XID 79\\ngpu-002|idle|gpu:8|none\\n"
    (controller / "sinfo").write_text(f"#!/bin/sh\ncat nodes\ncase $* in *--all*) printf '{hidden}' ;; esac\n")
    said = slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")
    assert said.startswith("not drained: of 3 nodes no more than 1")


LATE = """#!/bin/sh
cat nodes
{ cat nodes; printf 'gpu-001|drained|gpu:8|gpu-fleet: XID 79\\ngpu-003|drained|gpu:8|gpu-fleet: XID 79\\n'; } >late
mv late nodes
"""


def test_of_nodes_that_fail_at_once_those_beyond_the_limit_undo_it(controller: Path, tmp_path: Path) -> None:
    """As two slurmd of a real 22.05 did: both had counted before either was drained."""
    first = "".join(f"gpu-{number:03}|idle|gpu:8|none\n" for number in range(20))  # one of them may be drained
    (controller / "nodes").write_text(first)
    (controller / "sinfo").write_text(LATE)
    (controller / "scontrol").write_text(SCONTROL.replace('echo "${2#*=}|drained|gpu|${4#*=}" >nodes', ":"))
    said = slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")
    assert said.startswith("not drained: of 20 nodes no more than 1")
    assert updates(controller)[-1] == "update NodeName=gpu-003 State=UNDRAIN"
    assert "drain_refused 1" in slurm.metrics(tmp_path) and "drained_timestamp" not in slurm.metrics(tmp_path)

    (controller / "nodes").write_text(first)
    (controller / "state").write_text("IDLE\n")
    said = slurm.health_check(report("fail"), DRAINS._replace(node="gpu-001"), tmp_path / "slurm-drained")
    assert said.startswith("drained gpu-001")


def test_what_others_drained_or_resumed_stays_and_a_maintenance_is_theirs(controller: Path, tmp_path: Path) -> None:
    record = tmp_path / "slurm-drained"
    (controller / "state").write_text("MIXED+DRAIN\n")
    (controller / "reason").write_text("Reason=fan of the chassis [root@2026-11-26T12:00:00]\n")
    assert slurm.health_check(report("fail"), DRAINS, record) == ""
    record.write_text("0 ours, before an administrator gave it another reason\n")
    assert slurm.health_check(report("pass"), DRAINS, record) == "" and updates(controller) == [] and not record.exists()
    (controller / "state").write_text("IDLE\n")
    busy = report("fail")
    busy["reasons"].append(Reason("warn", "maintenance", "", "in maintenance: repair")._asdict())
    assert slurm.health_check(busy, DRAINS, record) == "" and updates(controller) == []


def test_whether_jobs_start_is_looked_at_with_every_failure_and_else_every_ten_minutes(
    controller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slurm-schedulable"
    slurm.look(report("pass"), DRAINS, file)
    assert "gpu_fleet_ready_schedulable 1\n" in slurm.metrics(tmp_path)
    (controller / "state").write_text("IDLE+DRAIN\n")
    slurm.look(report("pass"), DRAINS, file)
    assert "gpu_fleet_ready_schedulable 1\n" in slurm.metrics(tmp_path), "ten thousand hosts would ask each minute"
    slurm.look(report("fail"), DRAINS, file)
    assert "gpu_fleet_ready_schedulable 0\n" in slurm.metrics(tmp_path)
    for since in (601, -3600):  # the second: the clock was set back
        (controller / "state").write_text("MIXED*\n")
        os.utime(file, (time.time() - since, time.time() - since))
        slurm.look(report("pass"), DRAINS, file)
        assert "gpu_fleet_ready_schedulable 1\n" in slurm.metrics(tmp_path)
        (controller / "state").write_text("IDLE+DRAIN\n")
        slurm.look(report("fail"), DRAINS, file)


def test_a_controller_that_does_not_answer_is_said_and_nothing_else(controller: Path, tmp_path: Path) -> None:
    (controller / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    with pytest.raises(slurm.SlurmError, match="Unable to contact slurm controller"):
        slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")


def test_what_slurm_says_is_one_bounded_line_without_control_characters(controller: Path, tmp_path: Path) -> None:
    """It goes to the log of slurmd and to syslog."""
    (controller / "scontrol").write_text("#!/bin/sh\nprintf 'Unable\\033[2J to\\ncontact '; yes x | head -c 1000000; exit 1\n")
    with pytest.raises(slurm.SlurmError) as caught:
        slurm.health_check(report("fail"), DRAINS, tmp_path / "slurm-drained")
    said = str(caught.value)
    assert said.startswith("scontrol show: Unable [2J to contact x x") and len(said) <= 300 and said.isprintable()
