"""What is collected of a broken host: whole, within its limits, and without what must stay secret."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu_fleet.host.part import ON_HOST
from gpu_fleet.on_host import evidence
from gpu_fleet.on_host.tools import Tools
from lab.gpu.nvml.real import GENERATIONS
from tests.host.parts.real_machine import RealMachine

NVIDIA_SMI = """#!/bin/sh
case $* in
  "-q -x") echo "<nvidia_smi_log/>" ;;
  *) echo links ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix with the collectors' files, and tools of a driver."""
    for name in ("evidence", "textfile", "ready"):
        (tmp_path / "var/lib/gpu-fleet" / name).mkdir(parents=True)
    (tmp_path / "var/lib/gpu-fleet/textfile/gpu_links.prom").write_text("node_gpu_nvlinks_active 18\n")
    (tmp_path / "etc/gpu-fleet/secrets").mkdir(parents=True)
    (tmp_path / "etc/gpu-fleet/secrets/metrics-password").write_text("planted-secret")
    (tmp_path / "tools").mkdir()
    tool(tmp_path, "nvidia-smi", NVIDIA_SMI)
    monkeypatch.setenv("GPU_FLEET_TOOL_PATH", str(tmp_path / "tools"))
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(tmp_path))
    wanted = ("nvidia-smi-q.xml", "nvidia-smi-nvlink.txt", "processes.txt", "nvidia-bug-report.log", "ibstat.txt")
    monkeypatch.setattr(evidence, "SOURCES", tuple(source for source in evidence.SOURCES if source.file in wanted))
    return tmp_path


def tool(host: Path, name: str, text: str) -> None:
    (host / "tools" / name).write_text(text)
    (host / "tools" / name).chmod(0o755)


def opened(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        found = {Path(member.name).name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        assert {Path(member.name).parent.name for member in tar.getmembers()} == {archive.name.removesuffix(".tar.gz")}
        return found


def archives(host: Path) -> list[Path]:
    return sorted((host / "var/lib/gpu-fleet/evidence").iterdir())


def test_an_archive_has_what_tools_and_collectors_say_each_with_its_digest(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["XID 79"]) == 0
    archive = Path(capsys.readouterr().out.splitlines()[-1])
    assert archives(host) == [archive] and archive.stat().st_mode & 0o777 == 0o600
    files = opened(archive)
    manifest = json.loads(files.pop("MANIFEST.json"))
    assert manifest["reason"] == "XID 79" and manifest["host"] == os.uname().nodename
    assert (
        files["nvidia-smi-q.xml"] == b"<nvidia_smi_log/>\n"
        and files["textfile-gpu_links.prom"] == b"node_gpu_nvlinks_active 18\n"
    )
    assert {note["file"]: note["sha256"] for note in manifest["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    assert "ibstat.txt" not in files, "what a host does not have is no failure"
    assert not any(b"planted-secret" in data for data in files.values())


def test_a_tool_that_hangs_costs_its_time_and_the_others_are_asked(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(host, "nvidia-smi", NVIDIA_SMI.replace('"-q -x") echo', '"-q -x") sleep 60; echo'))
    short = [source._replace(within_s=1) if source.file == "nvidia-smi-q.xml" else source for source in evidence.SOURCES]
    monkeypatch.setattr(evidence, "SOURCES", tuple(short))
    assert evidence.main([]) == 0
    [archive] = archives(host)
    notes = {note["file"]: note for note in json.loads(opened(archive)["MANIFEST.json"])["files"]}
    assert notes["nvidia-smi-q.xml"]["failed"] == "ended after 1 s" and notes["nvidia-smi-nvlink.txt"]["status"] == 0


def test_what_nothing_can_kill_keeps_the_driver_s_other_tools_from_being_started(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tools, "hanging", lambda self: "nvidia-smi (process 7) cannot be killed")
    assert evidence.main([]) == 0
    notes = {note["file"]: note for note in json.loads(opened(archives(host)[0])["MANIFEST.json"])["files"]}
    assert notes["nvidia-smi-q.xml"]["failed"].startswith("nvidia-smi (process 7)") and notes["processes.txt"]["status"] == 0


def test_it_is_bounded_in_size_and_in_number(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(host, "nvidia-smi", "#!/bin/sh\nhead -c 30000000 /dev/zero\n")
    monkeypatch.setenv("GPU_FLEET_EVIDENCE_KEEP", "2")
    for number in range(4):
        (host / f"var/lib/gpu-fleet/evidence/evidence-a-2020010{number}T000000Z.tar.gz").touch()
    assert evidence.main([]) == 0
    kept = archives(host)
    assert len(kept) == 2
    notes = {note["file"]: note for note in json.loads(opened(kept[-1])["MANIFEST.json"])["files"]}
    assert notes["nvidia-smi-q.xml"]["cut"] and notes["nvidia-smi-q.xml"]["bytes"] == evidence.MOST_OF_A_FILE


@pytest.mark.parametrize("earlier", range(5))
def test_none_goes_before_there_are_more_than_are_kept(host: Path, earlier: int) -> None:
    for number in range(earlier):
        (host / f"var/lib/gpu-fleet/evidence/evidence-a-2020010{number}T000000Z.tar.gz").touch()
    assert evidence.main([]) == 0
    assert len(archives(host)) == earlier + 1, "five are kept"


def test_a_second_run_leaves_the_file_of_one_at_work(host: Path) -> None:
    directory = host / "var/lib/gpu-fleet/evidence"
    at_work = directory / f".evidence-a-20200101T000000Z.tar.gz.{os.getppid()}"
    killed = directory / ".evidence-a-20200101T000000Z.tar.gz.99999999"
    at_work.touch()
    killed.touch()
    assert evidence.main([]) == 0
    assert at_work.exists() and not killed.exists()


def test_of_a_host_that_was_renamed_the_oldest_archives_go(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names the new ones come first, and each would go as it is made."""
    monkeypatch.setenv("GPU_FLEET_EVIDENCE_KEEP", "2")
    monkeypatch.setattr(evidence.os, "uname", lambda: types.SimpleNamespace(nodename="a-new", release="6.8"))
    for name in ("z-old-20200101", "z-old-20200103", "b-old-20200102"):
        (host / f"var/lib/gpu-fleet/evidence/evidence-{name}T000000Z.tar.gz").touch()
    assert evidence.main([]) == 0
    new, old = archives(host)
    assert new.name.startswith("evidence-a-new-") and old.name == "evidence-z-old-20200103T000000Z.tar.gz"


def test_a_disk_that_is_full_is_said_and_nothing_half_is_left(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others write meanwhile: it had room when the run began."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(evidence.os, "fsync", full)
    assert evidence.main([]) == 1
    assert "no archive could be written below" in capsys.readouterr().err and archives(host) == []


def test_a_run_that_is_killed_at_any_moment_leaves_whole_archives_alone(host: Path) -> None:
    tool(host, "nvidia-smi", "#!/bin/sh\nhead -c 4000000 /dev/urandom | od\n")
    program = [sys.executable, "-I", "-S", "-B", str(ON_HOST), "evidence"]
    copy = host / "lib"
    copy.mkdir()
    (copy / "on_host").symlink_to(ON_HOST)
    (copy / "__main__.py").symlink_to(ON_HOST / "__main__.py")
    program[4] = str(copy)
    environment = {**os.environ, "PATH": f"{host}/tools:/usr/bin:/bin"}
    whole = subprocess.run(program, env=environment, check=True, capture_output=True, text=True)
    began = time.monotonic()
    subprocess.run(program, env=environment, check=True, capture_output=True)
    took_s = time.monotonic() - began
    for instant in range(12):
        running = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(took_s * instant / 11)
        running.send_signal(signal.SIGKILL)
        running.wait()
        for archive in (host / "var/lib/gpu-fleet/evidence").glob("evidence-*.tar.gz"):
            assert "MANIFEST.json" in opened(archive)
    assert Path(whole.stdout.splitlines()[-1]).name.startswith("evidence-")
    subprocess.run(program, env=environment, check=True, capture_output=True)
    assert not list((host / "var/lib/gpu-fleet/evidence").glob(".evidence-*")), "the next run clears what was left"


def test_without_the_right_to_write_it_says_what_to_do(host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(evidence.os, "access", lambda *_: False)
    assert evidence.main([]) == 1 and "run it as root (sudo)" in capsys.readouterr().err


@pytest.mark.parametrize("branch", GENERATIONS)
def test_the_real_nvidia_smi_s_xml_is_in_it_whole(host: Path, branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RealMachine(host, branch)
    (host / "tools/nvidia-smi").unlink()
    real.boot()
    assert evidence.main([]) == 0
    files = opened(archives(host)[0])
    log = ElementTree.fromstring(files["nvidia-smi-q.xml"])
    assert log.findtext("driver_version") == real.driver and len(log.findall("gpu")) == 4


def test_secrets_that_others_show_to_the_tools_are_not_in_it(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Titles of processes in nvidia-smi -q -x, and in the bug report the kernel's command line."""
    title = "vllm serve --api-key planted-1 --hf_token=planted-2 --max-tokens 4096"
    xml = f"<log><process_name>{title}</process_name><password>x</password></log>"
    tool(host, "nvidia-smi", f"#!/bin/sh\necho '{xml}'\n")
    line = 'rd.iscsi.password=planted-3 repo=https://admin:planted-4@host/x DB_PASSWORD="planted-5" "token": "planted-6"'
    tool(host, "nvidia-bug-report.sh", f"#!/bin/sh\necho '{line}'\necho 'a page table token was lost'\n")
    assert evidence.main([]) == 0
    files = opened(Path(capsys.readouterr().out.split()[-1]))
    assert not [name for name, data in files.items() if b"planted" in data]
    name = ElementTree.fromstring(files["nvidia-smi-q.xml"]).findtext("process_name")
    assert name == "vllm serve --api-key (removed) --hf_token=(removed) --max-tokens 4096"
    assert b"a page table token was lost" in files["nvidia-bug-report.log"]


@pytest.mark.parametrize("data", [b"-", b"--token", b"://:", b"token=", b"a", b"password "], ids=str)
def test_a_file_of_one_line_costs_little_time(data: bytes) -> None:
    began = time.process_time()
    evidence.without_secrets(data * ((1 << 20) // len(data)))
    assert time.process_time() - began < 5
