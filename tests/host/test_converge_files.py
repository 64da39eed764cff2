"""Files and directories: brought to their state, watched for drift, taken away; with what others had there kept."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from gpu_fleet.host.part import Directory, Download, File, Source
from gpu_fleet.on_host.converge import attributes
from gpu_fleet.on_host.converge.disk import Disk, create
from gpu_fleet.on_host.converge.errors import Failure
from gpu_fleet.on_host.converge.files import Files
from gpu_fleet.on_host.converge.host import Host
from gpu_fleet.on_host.converge.records import Placed
from tests.host.hosts import SimulatedHost, golden, page, snapshot


def test_what_the_verbs_print_from_the_first_run_to_the_last(host: SimulatedHost, regen: bool) -> None:
    runs = {"plan on an empty host": host.run("plan", [page()]), "check on an empty host": host.run("check", [page()])}
    runs["first apply"] = host.run("apply", [page()])
    runs["second apply: nothing to do"] = host.run("apply", [page()])
    runs["check"] = host.check()
    runs["plan of a changed page"] = host.run("plan", [page("good bye\n")])
    runs["apply of a changed page"] = host.run("apply", [page("good bye\n")])
    host.at("/etc/page/index.html").write_text("by hand\n")
    runs["check of a page edited by hand"] = host.check()
    runs["apply without the part"] = host.run("apply", [])
    runs["remove"] = host.remove()
    runs["remove once more"] = host.run("remove", [page()])
    golden("files.jsonl", runs, regen=regen)


def test_a_plan_changes_nothing_whatsoever(host: SimulatedHost) -> None:
    host.apply([page()])
    host.at("/etc/page/index.html").write_text("by hand\n")
    before = snapshot(host.prefix)
    plan = host.run("plan", [page("new\n", name="other")])
    assert plan.code == 0
    assert snapshot(host.prefix) == before


def test_a_check_changes_nothing_whatsoever(host: SimulatedHost) -> None:
    host.apply([page()])
    host.at("/etc/page/index.html").unlink()
    before = snapshot(host.prefix)
    assert host.check().code == 4
    assert snapshot(host.prefix) == before


def test_remove_leaves_what_existed_before_and_nothing_else(host: SimulatedHost) -> None:
    host.at("/etc/page").mkdir(parents=True)
    host.at("/etc/page/index.html").write_text("the administrator's page\n")
    host.at("/etc/page/index.html").chmod(0o640)
    host.at("/etc/page/other.html").write_text("in a directory that will be ours\n")
    before = snapshot(host.prefix)
    host.apply([page()])
    assert host.at("/etc/page/index.html").read_text() == "hello\n"
    assert not host.at("/etc/page/other.html").exists(), "a service that reads the whole directory would read it too"
    assert host.remove().code == 0
    assert snapshot(host.prefix) == before


def test_what_was_put_into_a_directory_we_made_goes_with_it(host: SimulatedHost) -> None:
    host.apply([page()])
    host.at("/etc/page/extra").write_text("by hand\n")
    host.apply([page()])
    assert host.remove().code == 0
    assert snapshot(host.prefix) == {}


def test_remove_keeps_what_others_put_into_shared_directories(host: SimulatedHost) -> None:
    shared = page(directories=(Directory(path="/etc/page"),))
    host.apply([shared])
    host.at("/etc/page/theirs").write_text("not ours\n")
    assert host.check().code == 0
    host.remove()
    assert [path.name for path in host.prefix.rglob("*") if path.is_file()] == ["theirs"]


def test_remove_takes_what_our_programs_wrote_with_their_directory(host: SimulatedHost) -> None:
    host.apply([page(directories=(Directory(path="/var/lib/gpu-fleet/wal", contents="runtime"),))])
    (host.at("/var/lib/gpu-fleet/wal") / "segment").write_text("0001")
    assert host.check().code == 0
    host.remove()
    assert snapshot(host.prefix) == {}


def _swap_for_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("nowhere")


def _swap_for_file(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_text("x")


def _swap_for_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


# What else people change is in tests/hosts/by_hand.yaml, for a host that was booted.
DRIFTS: dict[str, tuple[Callable[[SimulatedHost], object], str]] = {
    "program not executable": (
        lambda host: host.at("/opt/gpu-fleet/libexec/greet").chmod(0o644),
        "file /opt/gpu-fleet/libexec/greet: mode is 644, not 755",
    ),
    "directory swapped for a file": (
        lambda host: _swap_for_file(host.at("/opt/gpu-fleet/libexec")),
        "directory /opt/gpu-fleet/libexec: is not a directory",
    ),
    "directory swapped for a link to nowhere": (
        lambda host: _swap_for_link(host.at("/etc/page")),
        "directory /etc/page: is a symbolic link",
    ),
    "file swapped for a directory": (
        lambda host: _swap_for_directory(host.at("/etc/page/index.html")),
        "file /etc/page/index.html: is not a file",
    ),
    "foreign hidden file": (
        lambda host: host.at("/etc/page/.extra").write_text("x"),
        "file /etc/page/.extra: foreign file in our directory",
    ),
    "secret deleted": (
        lambda host: host.at("/etc/gpu-fleet/secrets/page-password").unlink(),
        "file /etc/gpu-fleet/secrets/page-password: missing",
    ),
}


@pytest.mark.parametrize("kind", DRIFTS)
def test_drift_is_found_and_repaired(host: SimulatedHost, kind: str) -> None:
    host.secrets = {"page-password": "planted-secret"}
    part = page(secrets=("page-password",))
    host.apply([part])
    clean = host.snapshot()
    make, expected = DRIFTS[kind]
    make(host)
    check = host.check()
    assert check.code == 4
    assert expected in [line for name in check.statuses for line in check.drift(name)]
    assert check.result["drift"] == 1 or "directory swapped" in kind, "one change by hand is drift of one part, and of no other"
    host.apply([part])
    assert host.check().code == 0
    left_over = [host.at(f"/{path}/elsewhere") for path in ("opt/gpu-fleet/libexec", "opt/gpu-fleet", "etc")]  # what was swapped
    assert {k: v for k, v in host.snapshot().items() if not any(host.at(k).is_relative_to(p) for p in left_over)} == clean


@pytest.mark.parametrize("kind", DRIFTS)
def test_what_was_changed_by_hand_does_not_outlive_us(host: SimulatedHost, kind: str) -> None:
    part = page(secrets=("page-password",))
    host.secrets = {"page-password": "planted-secret"}
    host.apply([part])
    DRIFTS[kind][0](host)
    host.apply([part])
    assert host.remove().code == 0
    assert [path for path in host.prefix.rglob("*") if path.is_file() and "elsewhere" not in str(path)] == []
    assert [path for path in host.prefix.rglob("*") if path.is_symlink()] == []


def test_without_our_records_what_has_our_name_is_ours_and_the_rest_is_kept(host: SimulatedHost) -> None:
    host.at("/etc/page").mkdir(parents=True)
    host.at("/etc/page/index.html").write_text("the administrator's page\n")
    host.apply([page()])
    shutil.rmtree(host.at("/var/lib/gpu-fleet"))
    host.at("/opt/gpu-fleet/libexec/greet").unlink()
    host.at("/opt/gpu-fleet/libexec/greet").symlink_to("/dev/null")
    assert host.run("check", [page()]).code == 3, "nothing says what this host should be; the next apply restores it"
    host.apply([page()])
    host.remove()
    left = [path for path in snapshot(host.prefix) if "gpu-fleet" in path or path.startswith("etc/page/")]
    assert left == ["etc/page/index.html"]


def test_a_file_of_others_under_our_name_is_kept_and_restored(host: SimulatedHost) -> None:
    theirs = host.at("/etc/systemd/system/gpu-fleet-page.service")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[Unit]\nDescription=of another package\n")
    part = page(files=(File(path="/etc/systemd/system/gpu-fleet-page.service", content=b"[Unit]\nDescription=ours\n"),))
    apply = host.apply([page(), replace(part, name="later", directories=())])
    assert "ours" in theirs.read_text()
    assert "/etc/systemd/system/gpu-fleet-page.service existed before: a copy is kept" in apply.stderr
    host.apply([page(), replace(part, name="later", directories=())])
    host.remove()
    assert theirs.read_text() == "[Unit]\nDescription=of another package\n"


def test_what_a_failed_first_try_put_back_is_not_put_back_again_later(host: SimulatedHost) -> None:
    theirs = host.at("/etc/page/index.html")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the administrator's page\n")
    missing = Download(path="/opt/gpu-fleet/bin/tool", sources={arch: Source(sha256="0" * 64) for arch in ("amd64", "arm64")})
    assert host.run("apply", [page(downloads=(missing,))]).statuses["page"] == "failed"
    assert theirs.read_text() == "the administrator's page\n"
    theirs.unlink()
    host.apply([page(directories=())])
    host.remove()
    assert not theirs.exists(), "its owner took it away"


def test_packages_for_other_distributions_alone_are_a_clear_error(host: SimulatedHost) -> None:
    part = page(packages={"plan9": ("troff",)})
    for verb in ("plan", "apply"):
        run = host.run(verb, [part, page(name="other", files=(), directories=())])
        assert run.code == 1
        error = run.error("page")
        assert error["code"] == "unsupported"
        assert re.fullmatch(
            r"part page needs distribution packages, which are defined only for: plan9, not for this distribution \(\w+\)",
            error["message"],
        )
        assert run.statuses["other"] == "unchanged"


METRICS = "/var/lib/gpu-fleet/fleet.prom"


def _metrics(host: SimulatedHost) -> dict[str, float]:
    host.run("check", None, "--metrics", METRICS)
    lines = host.at(METRICS).read_text().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def test_a_check_writes_what_it_found_as_metrics(host: SimulatedHost) -> None:
    host.apply([page()])
    begun = int(time.time())
    clean = _metrics(host)
    assert begun <= clean.pop("gpu_fleet_check_timestamp_seconds") <= time.time()
    items = {f'gpu_fleet_drift_items{{part="{part}"}}': 0 for part in ("host", "page")}
    assert clean == {**items, "gpu_fleet_check_success": 1}
    host.at("/etc/page/index.html").unlink()
    host.at("/etc/page/extra").write_text("x")
    drifted = _metrics(host)
    assert drifted['gpu_fleet_drift_items{part="page"}'] == 2
    assert drifted['gpu_fleet_drift_items{part="host"}'] == 0
    assert drifted["gpu_fleet_check_success"] == 1, "drift was found: the check itself worked"
    host.at("/var/lib/gpu-fleet/settings").write_text("broken\n")
    assert _metrics(host)["gpu_fleet_check_success"] == 0
    assert not list(host.at("/var/lib/gpu-fleet").glob("*.new"))


def test_metrics_follow_no_link(host: SimulatedHost) -> None:
    """The collectors' user may write in that directory; what it puts there must not lead root elsewhere."""
    host.apply([page()])
    theirs = host.at("/theirs")
    theirs.mkdir()
    host.at(METRICS).symlink_to(theirs)
    assert _metrics(host)
    assert not host.at(METRICS).is_symlink() and not list(theirs.iterdir())


def test_prometheus_reads_the_metrics(host: SimulatedHost) -> None:
    host.apply([page()])
    _metrics(host)
    command = [toolchain.find("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=host.at(METRICS).read_text(), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_file_that_left_the_bundle_leaves_the_host(host: SimulatedHost) -> None:
    host.apply([page(), page(name="more", files=(File(path="/etc/more/a", content=b"a"),), directories=())])
    apply = host.apply([page(files=page().files[:1])])
    assert apply.changes("page") == ["file /opt/gpu-fleet/libexec/greet: no longer wanted"]
    assert apply.statuses["more"] == "removed"
    assert not host.at("/opt/gpu-fleet/libexec/greet").exists()
    assert not host.at("/etc/more").exists()
    assert host.check().code == 0


def test_a_file_that_moves_to_another_part_stays(host: SimulatedHost) -> None:
    def parts(owner: str):
        moving = File(path="/etc/page/moving", content=b"x")
        return [
            page(files=(*page().files, *([moving] if owner == "page" else []))),
            page(name="other", files=(moving,) if owner == "other" else (), directories=()),
        ]

    host.apply(parts("page"))
    host.apply(parts("other"))
    assert host.at("/etc/page/moving").exists()
    assert host.check().code == 0
    host.apply(parts("page")[:1])
    assert host.check().code == 0
    host.remove()
    assert snapshot(host.prefix) == {}


def test_a_directory_at_the_path_of_a_file_is_reported_and_not_destroyed(host: SimulatedHost) -> None:
    host.at("/etc/page/index.html/keep").mkdir(parents=True)
    shared = page(directories=(Directory(path="/etc/page"),))
    apply = host.run("apply", [shared])
    assert apply.code == 1
    assert "is a directory, expected a file" in apply.error("page")["message"]
    assert host.at("/etc/page/index.html/keep").is_dir()
    assert not host.at("/opt/gpu-fleet/libexec/greet").exists(), "the part was put back to what it was: nothing"


def test_a_prefix_that_cannot_be_written_is_reported_before_anything_is_tried(host: SimulatedHost) -> None:
    host.at("/var").write_text("in the way")
    apply = host.run("apply", [page()])
    assert apply.code == 1
    assert apply.error("host")["code"] == "no-write"


def test_a_second_stack_is_refused_and_touches_nothing(host: SimulatedHost) -> None:
    host.settings["GPU_FLEET_STACK"] = "us-west"
    host.apply([page()])
    before = host.snapshot()
    host.settings["GPU_FLEET_STACK"] = "eu-north"
    apply = host.run("apply", [page("theirs\n")])
    assert apply.code == 1
    assert apply.error("host") == {
        "code": "other-stack",
        "message": "this host belongs to stack us-west, not to eu-north; "
        "remove it from that stack first, or remove it from this stack's inventory",
    }
    assert host.snapshot() == before
    assert host.run("remove", None, "--stack", "eu-north").code == 1
    assert host.run("remove", None, "--stack", "us-west").code == 0


def test_on_a_host_with_selinux_each_new_directory_is_labelled_before_anything_is_in_it(host: SimulatedHost) -> None:
    """What is made in a directory is labelled like it, so a program in one that is not would have no domain of its own."""
    tools = host.directory / "tools"
    tools.mkdir()
    (tools / "restorecon").write_text(f'#!/bin/sh\necho "$1: $(ls -A "$1")" >>{host.directory}/labelled\n')
    (tools / "restorecon").chmod(0o755)
    host.path = f"{tools}:{host.path}"
    host.apply([page()])
    labelled = (host.directory / "labelled").read_text().splitlines()
    assert f"{host.prefix}/opt/gpu-fleet/libexec: " in labelled and f"{host.prefix}/etc/page: " in labelled
    host.apply([page("good bye\n")])
    assert (host.directory / "labelled").read_text().splitlines() == labelled, "labels that others set are kept"


_READ_ONLY = """
import os
access, statvfs = os.access, os.statvfs
class ReadOnly:
    f_flag = os.ST_RDONLY
os.access = lambda path, mode: access(path, mode) and not (mode == os.W_OK and path.endswith("/opt"))
os.statvfs = lambda path: ReadOnly if path.endswith("/opt") else statvfs(path)
"""


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_read_only_file_system_is_named_before_anything_is_changed(host: SimulatedHost, verb: str) -> None:
    """The images of ostree and bootc: /opt is read-only, /etc and /var are not."""
    host.at("/opt").mkdir()
    host.run_first(_READ_ONLY)
    error = host.run(verb, [page()]).error("host")
    assert error["code"] == "no-write"
    assert f"{host.prefix}/opt is on a read-only file system" in error["message"]
    assert not list(host.at("/opt").iterdir()) and not host.at("/etc").exists()


@pytest.mark.parametrize("exists", [True, False], ids=["to a directory", "to nowhere yet"])
def test_a_link_to_another_disk_is_the_administrators(host: SimulatedHost, exists: bool) -> None:
    disk = host.directory / "disk"
    if exists:
        disk.mkdir()
    host.at("/opt").mkdir()
    host.at("/opt/gpu-fleet").symlink_to(disk)
    host.apply([page()])
    assert host.apply([page()]).result["changed"] == 0
    assert (disk / "libexec/greet").exists() and host.check().code == 0
    assert host.remove().code == 0
    assert host.at("/opt/gpu-fleet").is_symlink() and not list(disk.iterdir())


def test_the_lock_of_a_directory_that_is_not_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked: list[str] = []
    monkeypatch.setattr(attributes, "flags_of", lambda _: 0x10)
    monkeypatch.setattr(
        attributes.fcntl, "ioctl", lambda descriptor, *_: unlocked.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    host = Host("apply", "", prefix=str(tmp_path))
    files = Files(host, Disk(), Placed(f"{tmp_path}/state", Disk()))
    for path in ("/etc/systemd/system", "/opt/gpu-fleet/bin"):
        (tmp_path / path[1:]).mkdir(parents=True)
        file = f"{path}/gpu-fleet-alloy.service"
        (tmp_path / file[1:]).touch()
        files.unusual |= dict.fromkeys((path, file), "is locked against changes (chattr +i)")
        files.unlock(file)
    assert unlocked == [
        f"{tmp_path}/etc/systemd/system/gpu-fleet-alloy.service",
        f"{tmp_path}/opt/gpu-fleet/bin/gpu-fleet-alloy.service",
        f"{tmp_path}/opt/gpu-fleet/bin",
    ]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Failure, match=r"/etc/systemd/system is locked against changes \(chattr \+i\)$"):
        files.refuse_unwritable("/etc/systemd/system/gpu-fleet-alloy.service")
    files.refuse_unwritable("/opt/gpu-fleet/bin/gpu-fleet-alloy.service")


@pytest.mark.parametrize("is_link", [False, True], ids=["/opt", "a link of /opt"])
def test_a_directory_that_only_root_may_enter_is_refused_where_services_have_to_reach_a_program(
    tmp_path: Path, is_link: bool
) -> None:
    """Hardening gives /opt the mode 0700. Before, each service failed to start, with everything in place."""
    closed = tmp_path / "mnt" if is_link else tmp_path / "opt"
    (tmp_path / "opt").mkdir()
    closed.mkdir(exist_ok=True)
    if is_link:
        (tmp_path / "opt/gpu-fleet").symlink_to(closed)
    files = Files(Host("apply", "", prefix=str(tmp_path), owners=True), Disk(), Placed(f"{tmp_path}/state", Disk()))
    files.refuse_unwritable("/opt/gpu-fleet/bin/alloy")
    closed.chmod(0o700)
    with pytest.raises(Failure, match=rf"{closed} has mode 0700, and services .* `chmod o\+x {closed}`"):
        files.refuse_unwritable("/opt/gpu-fleet/bin/alloy")
    files.refuse_unwritable("/etc/gpu-fleet/gpu-fleet.env")


def test_the_copy_of_the_bundle_has_no_attributes_of_temporary_files(host: SimulatedHost) -> None:
    """SELinux keeps its label in one: files of /tmp have user_tmp_t, and those of /var/lib var_lib_t."""
    mark = "os.setxattr(os.path.dirname(sys.argv[1]) + name, 'user.label', b'user_tmp_t')"
    host.run_first(f"import os, sys\nfor name in '/manifest', '/lib': {mark}\n")
    host.apply([page()])
    current = host.at("/var/lib/gpu-fleet/current")
    assert [os.listxattr(path) for path in (current / "manifest", current / "lib")] == [[], []]
    assert (current / "manifest").stat().st_mode & 0o777 == 0o644 and os.access(current / "converge", os.R_OK)


def test_an_access_control_list_of_a_secret_is_drift_and_is_not_inherited(tmp_path: Path) -> None:
    """`setfacl -m u:1234:r` on a secret leaves its mode as it is; `setfacl -d` on /etc gives it to each new file below."""
    of_a_user = ((1, 6, -1), (2, 4, 1234), (4, 4, -1), (16, 4, -1), (32, 0, -1))  # tag, permissions, id: acl_ea.h of Linux
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in of_a_user)
    os.setxattr(tmp_path, "system.posix_acl_default", acl)
    secret, page = tmp_path / "secret", tmp_path / "page"
    create(str(secret), b"password", 0o640)
    create(str(page), b"hello", 0o644)
    assert not [name for name in os.listxattr(secret) if "acl" in name]
    for file in (secret, page):
        os.setxattr(file, "system.posix_acl_access", acl)
    page.chmod(0o644)
    assert oct(secret.stat().st_mode)[-3:] == "640", "the mode does not show it"
    host = Host("check", "", prefix=str(tmp_path), owners=True)
    assert attributes.survey(host, ["/secret", "/page"]) == {"/secret": "has an access control list (see getfacl)"}
