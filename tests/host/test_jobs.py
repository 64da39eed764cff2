"""Which job has which GPU, from answers as Slurm 22.05 and 24.11 give them; tests/hosts/test_slurm.py runs both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.on_host import jobs, slurm_gpus, slurm_tools
from gpu_fleet.on_host.jobs import Job, Store
from gpu_fleet.on_host.slurm_gpus import Gpu
from gpu_fleet.on_host.slurm_tools import SlurmError, expanded

NOW = 1_800_000_000.0
PROLOG = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_JOB_PARTITION": "train",
    "SLURM_JOB_GPUS": "1,3",
    "SLURMD_NODENAME": "gpu-001",
}
LISTED = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
NO_STEPS = "No job steps exist on this node.\n"


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Four GPUs of NVIDIA; the minor numbers are not in the order of the addresses."""
    for number, minor in enumerate((2, 3, 0, 1)):
        directory = tmp_path / f"proc/driver/nvidia/gpus/0000:{number + 1}b:00.0"
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: \t\t H100\nGPU UUID: \t {uuid(number)}\nDevice Minor: \t {minor}\n")
    return tmp_path


def in_order(said: str, root: Path) -> list[Gpu]:
    return slurm_gpus.known(slurm_gpus.files(said), root)


def test_a_number_of_slurm_is_the_place_in_its_list_and_the_driver_says_which_gpu_a_minor_is(driver: Path) -> None:
    said = """\
slurmd: Gres Name=gpu Type=h100 Count=2 Index=0 ID=7696487 File=/dev/nvidia[1,3] Links=(null) Flags=HAS_FILE,HAS_TYPE
slurmd: Gres Name=shard Type=(null) Count=8 Index=0 ID=1 File=/dev/nvidia2
slurmd: Gres Name=gpu Type=h100 Count=1 Index=2 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE,HAS_TYPE
"""
    assert in_order(said, driver) == [Gpu(uuid(3), "3"), Gpu(uuid(1), "1"), Gpu(uuid(2), "2")]


def test_a_gpu_that_fell_off_the_bus_is_known_by_its_place(driver: Path) -> None:
    lost = driver / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    lost.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 2\n")
    assert in_order("Gres Name=gpu Count=1 File=/dev/nvidia2", driver) == [Gpu("", "0")]


def test_an_instance_of_mig_is_that_of_its_capability(driver: Path) -> None:
    minors = driver / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir()
    minors.write_text(
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"
    )
    files = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap{},/dev/nvidia-caps/nvidia-cap{}"
    said = "".join(f"Gres Name=gpu Type=1g.10gb Count=1 ID=7 File={files.format(*caps)}\n" for caps in ((12, 13), (21, 22)))
    assert in_order(said, driver) == [Gpu(uuid(2), "2", "1"), Gpu(uuid(2), "2", "2")]


def test_gpus_of_amd_are_numbered_by_their_address(tmp_path: Path) -> None:
    for render, address, vendor in (("renderD128", "0000:83:00.0", "0x1002"), ("renderD129", "0000:03:00.0", "0x1002")):
        device = tmp_path / "sys/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        node = tmp_path / "sys/class/drm" / render
        node.mkdir(parents=True)
        (node / "device").symlink_to(device)
    said = "Gres Name=gpu Type=mi300x Count=2 File=/dev/dri/renderD[128-129]"
    assert in_order(said, tmp_path) == [Gpu("", "1"), Gpu("", "0")]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("gpu-001", ["gpu-001"]),
        ("gpu-[008-010,12],login", ["gpu-008", "gpu-009", "gpu-010", "gpu-12", "login"]),
        ("rack[1-2]-[1-2]", ["rack1-1", "rack1-2", "rack2-1", "rack2-2"]),
        ("", []),
    ],
)
def test_slurm_s_lists_of_names(names: str, found: list[str]) -> None:
    assert list(expanded(names)) == found


@pytest.fixture
def slurm(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory whose files Slurm's programs answer with: `listpids`, and `job-ID` for jobs that the controller knows."""
    directory = tmp_path / "slurm"
    directory.mkdir()
    controller = (
        '[ ! -e "$d/away" ] || { echo "Unable to contact slurm controller" >&2; exit 1; }\n'
        'cat "$d/FILE" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }'
    )
    programs = {
        "scontrol": 'echo "$@" >>"$d/asked"; [ "$1" != listpids ] || { cat "$d/listpids"; exit; }\n'
        + controller.replace("FILE", "job-$4"),
        "squeue": 'echo squeue "$@" >>"$d/asked"; for each; do id=${id:-$(expr "$each" : "--job=\\(.*\\)")}; done\n'
        + controller.replace("FILE", "row-$id"),
        "slurmd": 'echo "slurmd: Gres Name=gpu Type=(null) Count=4 Index=0 ID=7 File=/dev/nvidia[0-3]" >&2',
    }
    for name, text in programs.items():
        (directory / name).write_text(f"#!/bin/sh\nd={directory}\n{text}\n")
        (directory / name).chmod(0o755)
    (directory / "listpids").write_text(LISTED)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(tmp_path))
    monkeypatch.setenv("GPU_FLEET_ROOT", str(driver))
    monkeypatch.setattr(jobs, "slurmd", lambda: (100, "5"))
    monkeypatch.setattr(jobs, "log", lambda *_: None)
    monkeypatch.setattr(jobs.time, "time", lambda: NOW)
    (tmp_path / "var/lib/gpu-fleet/textfile").mkdir(parents=True)
    return directory


def called(verb: str, monkeypatch: pytest.MonkeyPatch, at: float = NOW, **environment: str) -> None:
    monkeypatch.setattr(jobs.time, "time", lambda: at)
    with monkeypatch.context() as during:
        for name, value in environment.items():
            during.setenv(name, value)
        assert jobs.main([verb]) == 0


def series(slurm: Path) -> list[str]:
    text = (slurm.parent / "var/lib/gpu-fleet/textfile/jobs.prom").read_text()
    return [line for line in text.splitlines() if line.startswith("gpu_fleet_job_info")]


def controller_says(
    slurm: Path,
    job_id: str,
    state: str = "RUNNING",
    nodes: str = "gpu-[001-002]",
    name: str = "x",
    comment: str = "",
    gres: str = "gpu:h100:2(IDX:0,2)",
) -> None:
    (slurm / f"row-{job_id}").write_text(f"{job_id}|{state}|alice|(null)|train|{nodes}|\n")
    (slurm / f"job-{job_id}").write_text(
        f"JobId={job_id} JobName={name} UserId=alice(1000) GroupId=alice(1000) Account=(null) JobState={state} Reason=None "
        f"Partition=train NodeList={nodes} BatchHost=gpu-001 JOB_GRES=gpu:h100:3   "
        f"Nodes=gpu-001 CPU_IDs=0-1 Mem=0 GRES={gres}   Nodes=gpu-002 CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:3) "
        f"MinCPUsNode=1 Command=(null) Comment={comment}\n"
    )


def test_a_job_is_shown_from_its_prolog_to_its_epilog(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("sweep", monkeypatch)
    assert series(slurm) == []
    called("prolog", monkeypatch, **PROLOG)
    same = 'gpu_instance="",job_id="4711",user="alice",account="vision",partition="train"} 1'
    assert series(slurm) == [
        f'gpu_fleet_job_info{{uuid="{uuid(3)}",gpu="3",{same}',
        f'gpu_fleet_job_info{{uuid="{uuid(1)}",gpu="1",{same}',
    ]
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ID": "4712", "SLURM_JOB_GPUS": "0"})
    called("epilog", monkeypatch, **PROLOG)
    assert [line.count('job_id="4712"') for line in series(slurm)] == [1]


def test_a_prolog_never_fails_and_a_job_without_gpus_has_no_series(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("prolog", monkeypatch)
    called("prolog", monkeypatch, SLURM_JOB_ID="12")
    assert series(slurm) == []
    (slurm.parent / "run/gpu-fleet/jobs/jobs.json").write_text("half a fi")
    called("prolog", monkeypatch, **PROLOG)
    monkeypatch.setenv("GPU_FLEET_PREFIX", "/proc/no-such-place")
    called("prolog", monkeypatch, **PROLOG)


def test_until_the_first_prolog_the_node_has_the_name_that_the_host_has_now(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "listpids").write_text(f"{LISTED}1234     4711     batch    0       0\n")
    controller_says(slurm, "4711")
    monkeypatch.setattr(slurm_tools.socket, "gethostname", lambda: "installer")
    called("sweep", monkeypatch)
    assert series(slurm) == []
    monkeypatch.setattr(slurm_tools.socket, "gethostname", lambda: "gpu-001.example.com")
    called("sweep", monkeypatch, NOW + 15)
    assert len(series(slurm)) == 2


def test_a_job_whose_epilog_was_killed_ends_with_the_next_sweep(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **PROLOG)
    (slurm / "listpids").write_text(f"{LISTED}1234     4711     batch    0       0\n")
    called("sweep", monkeypatch, NOW + 15)
    assert len(series(slurm)) == 2 and "show" not in (slurm / "asked").read_text(), "no controller is asked about what is here"
    (slurm / "listpids").write_text(LISTED)
    called("sweep", monkeypatch, NOW + 30)
    assert series(slurm) == []


def test_a_job_without_processes_stays_while_the_controller_says_so_and_is_asked_about_ever_more_rarely(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most nodes of a job of several may have none; and 10,000 hosts must not poll the controller."""
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **PROLOG)
    controller_says(slurm, "4711")
    for passed in range(15, 3600, 15):
        called("sweep", monkeypatch, NOW + passed)
        assert len(series(slurm)) == 2
    asked = (slurm / "asked").read_text().count("--job=4711")
    assert asked < 20, asked
    controller_says(slurm, "4711", "COMPLETING")
    for passed in range(3600, 3600 + 301, 15):
        called("sweep", monkeypatch, NOW + passed)
    assert series(slurm) == []


def test_a_job_without_processes_is_asked_about_also_when_the_clock_was_set_back(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, NOW + 3600, **PROLOG)
    called("prolog", monkeypatch, NOW + 3600, **{**PROLOG, "SLURM_JOB_ID": "4712", "SLURM_JOB_GPUS": "0"})
    controller_says(slurm, "4712")
    called("sweep", monkeypatch, NOW + 3620)
    controller_says(slurm, "4712", "COMPLETING")
    called("prolog", monkeypatch, NOW + 3640, **PROLOG)
    monkeypatch.setattr(jobs.time, "time", lambda: NOW)
    jobs.main([])
    assert capsys.readouterr().out.count("0 min") == 3
    called("sweep", monkeypatch, NOW)
    assert series(slurm) == [], "neither the one that was never asked about nor the one that was"


def test_a_job_that_was_requeued_elsewhere_is_over_here(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **PROLOG)
    controller_says(slurm, "4711", nodes="gpu-002")
    called("sweep", monkeypatch, NOW + 15)
    assert series(slurm) == []


def test_a_job_whose_prolog_was_not_seen_is_asked_for_once(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": ""})
    (slurm / "listpids").write_text(
        f"{LISTED}9 1 0 0 0\n1234     88     batch    0       0\n-1       88     extern   0       0\n"
    )
    controller_says(slurm, "88")
    for passed in (15, 30):
        called("sweep", monkeypatch, NOW + passed)
    assert [(line.partition(",")[0], 'user="alice",account=""' in line) for line in series(slurm)] == [
        (f'gpu_fleet_job_info{{uuid="{uuid(2)}"', True),
        (f'gpu_fleet_job_info{{uuid="{uuid(0)}"', True),
    ]
    assert (slurm / "asked").read_text().count("show job 88") == 1


@pytest.mark.parametrize(
    ("gres", "numbers"),
    [
        ("shard:6(2/4,4/4,0/4,0/4)", [0, 1]),  # 24.11 and 26.05
        ("shard:2(IDX:3)", [3]),  # 22.05
        ("mps:h100:50(0/100,0/100,50/100,0/100)", [2]),
        ("gpu:h100:1(IDX:0),shard:0(-/4,0/4,0/4,0/4)", [0]),
    ],
)
def test_a_sweep_finds_jobs_that_share_a_gpu(slurm: Path, monkeypatch: pytest.MonkeyPatch, gres: str, numbers: list[int]) -> None:
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": ""})
    (slurm / "listpids").write_text(f"{LISTED}9 1 0 0 0\n1234     88     batch    0       0\n")
    controller_says(slurm, "88", gres=gres)
    called("sweep", monkeypatch, NOW + 15)
    found = [re.search(r'uuid="([^"]*)"', line)[1] for line in series(slurm)]  # type: ignore[index]
    assert sorted(found) == sorted(uuid((2, 3, 0, 1).index(number)) for number in numbers)


@pytest.mark.parametrize(
    ("name", "comment", "gpus"),
    [
        ("x Account=vip NodeList=none", "JobState=COMPLETED UserId=root(0) NodeList=q Account=vip", 2),
        ("a\nb", "two\nlines", 2),
        ("a\n   Nodes=gpu-001 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:1-3)", "Nodes=gpu-001 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3)", 2),
        ("a\nJobId=88 x", "b\nJobId=89 y", 2),
        ("x", "JOB_GRES=gpu:1 Nodes=gpu-001 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3) MinCPUsNode=1", 0),
    ],
)
def test_what_users_write_about_their_jobs_changes_nothing(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, name: str, comment: str, gpus: int
) -> None:
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": ""})
    (slurm / "listpids").write_text(f"{LISTED}9 1 0 0 0\n1234     88     batch    0       0\n")
    controller_says(slurm, "88", name=name, comment=comment)
    called("sweep", monkeypatch, NOW + 15)
    found = series(slurm)
    assert len(found) == gpus and all('user="alice",account="",partition="train"' in line for line in found), found
    (slurm / "listpids").write_text(f"{LISTED}9 1 0 0 0\n")
    called("sweep", monkeypatch, NOW + 30)
    assert series(slurm) == found, "it still runs, here without a process"


@pytest.mark.parametrize(
    ("slurmd", "why"),
    [
        ("echo 'slurmd: error: fetch_config: DNS SRV lookup failed' >&2; exit 1", "slurmd -G: slurmd: error: fetch_config"),
        # gres.conf without File=.
        (
            "echo 'slurmd: Gres Name=gpu Type=(null) Count=4 ID=7 Links=(null)' >&2",
            "job 4711 has Slurm's GPU 3, and slurmd -G lists 0",
        ),
    ],
)
def test_jobs_whose_gpus_are_not_known_are_no_success(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, slurmd: str, why: str
) -> None:
    (slurm / "slurmd").write_text(f"#!/bin/sh\n{slurmd}\n")
    called("prolog", monkeypatch, **PROLOG)
    (slurm / "listpids").write_text(f"{LISTED}1234     4711     batch    0       0\n")
    called("sweep", monkeypatch, NOW + 15)
    text = (slurm.parent / "var/lib/gpu-fleet/textfile/jobs.prom").read_text()
    assert "gpu_fleet_jobs_success 0" in text and f"# says: {why}" in text


@pytest.mark.parametrize(
    ("command", "unit", "found"),
    [
        ("/usr/sbin/slurmd\0-D\0", "", "default"),
        ("/usr/sbin/slurmd\0-D\0--conf-server\0ctl-1:6817,ctl-2\0", "", "FETCHED"),
        ("/usr/sbin/slurmd\0--conf-server=ctl-1\0", "", "FETCHED"),
        ("/usr/sbin/slurmd\0-D\0-f\0/shared/slurm.conf\0", "", "/shared/slurm.conf"),
        ("/usr/sbin/slurmd\0-D\0", "[Service]\nEnvironment=SLURM_CONF=/cm/shared/slurm.conf\n", "/cm/shared/slurm.conf"),
        ("/usr/sbin/slurmd\0-D\0", "SLURMD_OPTIONS=\nSLURM_CONF='/shared/slurm.conf'\n", "/shared/slurm.conf"),
        ("/usr/sbin/slurmd\0-D\0", "# SLURM_CONF=/etc/slurm.conf\n", "default"),
    ],
)
def test_programs_of_slurm_have_the_configuration_of_slurmd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, unit: str, found: str
) -> None:
    """slurmd -G of 24.11 and 26.05 looks by DNS for a controller for ever on a node without a slurm.conf of its own."""
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho ${SLURM_CONF:-default}\n")
    program.chmod(0o755)
    (tmp_path / "unit").write_text(unit)
    (tmp_path / "fetched.conf").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_tools, "FETCHED", str(tmp_path / "fetched.conf"))
    monkeypatch.setattr(slurm_tools, "UNITS", (str(tmp_path / "uni*"),))
    monkeypatch.setattr(slurm_tools, "_command_of_slurmd", lambda: command.rstrip("\0").split("\0"))
    said = slurm_tools.run("scontrol").strip()
    assert said == found.replace("FETCHED", str(tmp_path / "fetched.conf"))
    monkeypatch.setenv("SLURM_CONF", "/from/slurmd")
    assert slurm_tools.run("scontrol").strip() == "/from/slurmd", "as slurmd gives it to prologs"


@pytest.fixture
def tenants() -> Iterator[Path]:
    """A directory of user 4711's, with a program named slurmd."""
    directory = Path(tempfile.mkdtemp(prefix="slurm"))
    shutil.copy("/bin/sleep", directory / "slurmd")
    for name in ("scontrol", "slurm.conf"):
        (directory / name).write_text("#!/bin/sh\necho of the user\n")
        (directory / name).chmod(0o755)
    for path in (directory, *directory.iterdir()):
        os.chown(path, 4711, 4711)
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_a_users_process_named_slurmd_is_not_slurmd(tenants: Path) -> None:
    # As of su, which waits for a password under a link of this name.
    running = subprocess.Popen([tenants / "slurmd", "60"], preexec_fn=lambda: os.setresuid(4711, 0, 0))
    try:
        while Path(f"/proc/{running.pid}/comm").read_text() != "slurmd\n":
            time.sleep(0.01)
        assert Path(f"/proc/{running.pid}").stat().st_uid == 0, "or this test shows nothing"
        with pytest.raises(SlurmError, match="does not run on this host"):
            slurm_tools.slurmd()
    finally:
        running.kill()
        running.wait()


def test_root_runs_no_program_and_reads_no_configuration_that_a_process_names_and_a_user_wrote(
    tenants: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurm.conf names libraries that Slurm's programs load."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm_tools, "_PLACES", ())
    monkeypatch.setattr(slurm_tools, "UNITS", ())
    monkeypatch.setattr(slurm_tools, "_command_of_slurmd", lambda: [f"{tenants}/slurmd", "-f", f"{tenants}/slurm.conf"])
    assert slurm_tools._configuration() == {}
    with pytest.raises(SlurmError, match="no such program"):
        slurm_tools.run("scontrol")
    for path in (tenants, *tenants.iterdir()):
        os.chown(path, 0, 0)
    with pytest.raises(SlurmError, match="no such program"):  # below /tmp, where others may put another one
        slurm_tools.run("scontrol")


def test_while_the_controller_does_not_answer_what_is_known_stays_and_it_is_said(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **PROLOG)
    (slurm / "away").touch()
    called("sweep", monkeypatch, NOW + 30)
    assert len(series(slurm)) == 2
    text = (slurm.parent / "var/lib/gpu-fleet/textfile/jobs.prom").read_text()
    assert "gpu_fleet_jobs_success 0" in text
    assert "# says: squeue: Unable to contact slurm controller" in text


@pytest.mark.parametrize("said", [NO_STEPS, "Unable to connect to slurmstepd: Connection refused\n"])
def test_a_node_without_steps_is_no_error_in_any_version(slurm: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """The second: 24.11 after a slurmstepd was killed."""
    scontrol = slurm / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nprintf '{said}' >&2\nexit 1\n")
    called("sweep", monkeypatch)
    assert "gpu_fleet_jobs_success 1" in (slurm.parent / "var/lib/gpu-fleet/textfile/jobs.prom").read_text()


def test_a_job_that_ends_while_slurm_is_asked_does_not_come_back() -> None:
    job = Job("alice", "", "train", [0], NOW)
    before = Store({"1": job, "2": job})
    changes = {"1": job._replace(unseen=NOW), "2": None, "3": job}
    assert jobs.corrected(Store({"2": job._replace(started=NOW + 1)}), before, changes) == {
        "2": job._replace(started=NOW + 1),  # requeued here, with a new prolog
        "3": job,
    }


def test_what_a_user_is_named_cannot_break_the_file(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ACCOUNT": 'a"b\\c\nd\x1b' + "x" * 500, "SLURM_JOB_GPUS": "0"})
    [line] = series(slurm)
    assert 'account="a\\"b\\\\c?d?xxx' in line and len(line) < 400


def test_accounts_outside_of_ascii_keep_their_names(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With question marks two of them were one."""
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **{**PROLOG, "SLURM_JOB_ACCOUNT": "größe-物理\u202ex\udcff", "SLURM_JOB_GPUS": "0"})
    assert 'account="größe-物理?x?"' in series(slurm)[0]


def test_who_has_which_gpu_is_shown_to_people(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.main([]) == 0
    assert capsys.readouterr().out == "no job has a GPU of this host\n"
    called("sweep", monkeypatch)
    called("prolog", monkeypatch, **PROLOG)
    monkeypatch.setattr(jobs.time, "time", lambda: NOW + 600)
    jobs.main([])
    assert capsys.readouterr().out.splitlines() == [
        f"GPU 1  {uuid(1)}  job 4711  alice  vision  train  10 min",
        f"GPU 3  {uuid(3)}  job 4711  alice  vision  train  10 min",
    ]


def test_gpus_that_the_driver_lists_only_after_slurmd_started_are_known_with_the_next_sweep(
    slurm: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those without persistence mode, whose UUID has question marks until something opens them."""
    gpus = driver / "proc/driver/nvidia/gpus"
    gpus.rename(driver / "later")
    called("prolog", monkeypatch, **PROLOG)
    called("sweep", monkeypatch)
    text = (slurm.parent / "var/lib/gpu-fleet/textfile/jobs.prom").read_text()
    assert series(slurm) == [] and "gpu_fleet_jobs_success 0" in text
    assert "# says: job 4711 has Slurm's GPU 3, and the driver does not list its device file" in text
    (driver / "later").rename(gpus)
    closed = gpus / "0000:2b:00.0/information"
    opened = closed.read_text()
    closed.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 3\n")
    controller_says(slurm, "4711", gres="gpu:h100:2(IDX:1,3)")
    called("sweep", monkeypatch, NOW + 15)
    assert [line.split(",")[:2] for line in series(slurm)] == [
        [f'gpu_fleet_job_info{{uuid="{uuid(3)}"', 'gpu="3"'],
        ['gpu_fleet_job_info{uuid=""', 'gpu="1"'],
    ]
    closed.write_text(opened)
    called("sweep", monkeypatch, NOW + 30)
    known = series(slurm)
    assert f'uuid="{uuid(1)}"' in known[1]
    closed.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 3\n")
    called("sweep", monkeypatch, NOW + 45)
    assert series(slurm) == known, "it fell off the bus, and the job is still on it"


def test_of_two_prologs_at_once_the_later_writes_what_both_know(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is held up just before it writes the metrics."""
    called("sweep", monkeypatch)
    second = threading.Thread(target=jobs.main, args=[["prolog"]])
    write = jobs.replace

    def held_up(path: Path, text: str, mode: int = 0o644) -> None:
        if path.name == "jobs.prom" and second.ident is None:
            monkeypatch.setenv("SLURM_JOB_ID", "4712")
            second.start()
            second.join(0.5)
        write(path, text, mode)

    monkeypatch.setattr(jobs, "replace", held_up)
    for name, value in PROLOG.items():
        monkeypatch.setenv(name, value)
    jobs.main(["prolog"])
    second.join()
    assert {job for line in series(slurm) for job in re.findall(r'job_id="(\d+)"', line)} == {"4711", "4712"}


def test_the_store_is_for_root_alone(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("prolog", monkeypatch, **PROLOG)
    store = slurm.parent / "run/gpu-fleet/jobs/jobs.json"
    assert store.stat().st_mode & 0o777 == 0o600 and "4711" in json.loads(store.read_text())[0]


def test_without_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gpu_fleet.on_host.slurm_tools._PLACES", ())
    monkeypatch.setattr("gpu_fleet.on_host.slurm_tools._beside_slurmd", lambda: iter(()))
    with pytest.raises(SlurmError, match="scontrol: this host has no such program"):
        jobs._with_processes()
