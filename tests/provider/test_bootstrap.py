"""The command that starts everything on a host, under every shell this machine has and with busybox in place of GNU's tools."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpu_fleet.provider.envelope import Archive, gzipped
from gpu_fleet.provider.host import BOOTSTRAP, Place, start_command
from tests.provider.plugin import CONVERGE, bundle_tar
from tests.provider.test_host import is_gone_soon

SHELLS = {
    name: command
    for name, command in {
        "dash": ["dash"],
        "bash": ["bash"],
        "busybox": ["busybox", "sh"],
        "busybox alone": ["sh"],
    }.items()
    if shutil.which(name.split()[0])
}


def start(shell: str, directory: Path, verb: str, do: str = "", programs: str = "") -> subprocess.Popen[bytes]:
    """The bootstrap with an envelope on its standard input, which stays open. `programs`: a directory ahead of the PATH."""
    path = f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    if shell == "busybox alone":
        path = str(directory / "busybox")
        Path(path).mkdir(exist_ok=True)
        for applet in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
            if not (Path(path) / applet).is_symlink():
                (Path(path) / applet).symlink_to(shutil.which("busybox"))
    members = (
        {"bundle.tar.gz": gzipped(bundle_tar(CONVERGE.read_text())), "settings": f"DO={do}\n".encode()}
        if verb in ("plan", "apply")
        else {}
    )
    archive = Archive(members)
    place = Place(connection={"kind": "local", "prefix": str(directory / "a host")}, stack="us-west/training")
    process = subprocess.Popen(
        [*SHELLS[shell], *start_command(verb, place, archive)[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": path},
        start_new_session=True,
    )
    assert process.stdout.readline() == b'{"event":"ready"}\n'
    process.stdin.write(BOOTSTRAP + b"".join(archive.chunks()))
    process.stdin.flush()
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and output after the host's clock; the process has to end although its standard input stays open."""
    code = process.wait(300)
    clock, _, output = process.stdout.read().decode().partition("\n")
    assert abs(json.loads(clock)["now"] - time.time()) < 600
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return code, output


@pytest.mark.parametrize("shell", SHELLS)
def test_a_life_of_a_host(shell: str, tmp_path: Path) -> None:
    code, output = ended(start(shell, tmp_path, "plan"))
    assert (code, "would-change" in output) == (0, True)
    assert not (tmp_path / "a host").exists(), "a plan leaves nothing"

    code, output = ended(start(shell, tmp_path, "apply"))
    assert (code, '"verb":"apply","ok":true' in output) == (0, True)
    assert (tmp_path / "a host/etc/gpu-fleet/gpu-fleet.env").read_text() == "DO=\n"

    assert ended(start(shell, tmp_path, "check"))[0] == 0
    assert ended(start(shell, tmp_path, "remove"))[0] == 0
    assert not list((tmp_path / "a host").iterdir())
    assert ended(start(shell, tmp_path, "check")) == (3, '{"event":"absent"}\n')


def test_a_whole_host_has_its_tools_where_the_login_finds_them(tmp_path: Path) -> None:
    """NixOS has none in /usr/bin."""
    (tmp_path / "only-here").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "only-here").chmod(0o755)
    state = "/var/lib/gpu-fleet/current"
    placed = f'mount -t tmpfs none /var/lib && mkdir -p {state} && echo only-here >{state}/converge && exec "$@"'
    command = start_command("check", Place(connection={"kind": "local"}), Archive({}))
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", placed, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": f"/usr/sbin:/usr/bin:/sbin:/bin:{tmp_path}"},
    )
    process.stdin.write(BOOTSTRAP)
    process.stdin.flush()
    assert process.stdout.readline() == b'{"event":"ready"}\n'
    assert ended(process) == (0, "found\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_work_ends_when_nobody_listens_any_more(shell: str, tmp_path: Path) -> None:
    process = start(shell, tmp_path, "apply", "hang")
    while b"waiting" not in process.stderr.readline():
        pass
    process.stdin.close()
    code, _ = ended(process)
    assert code != 0
    state = tmp_path / "a host/var/lib/gpu-fleet"
    assert is_gone_soon(Path("/proc") / (state / "child").read_text().strip())
    assert not list(state.glob("incoming.*")), "secrets must not stay in temporary files"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_check_beside_a_first_apply_leaves_its_files_and_removes_those_of_a_killed_one(shell: str, tmp_path: Path) -> None:
    process = start(shell, tmp_path, "apply", "hang")
    while b"waiting" not in process.stderr.readline():
        pass
    state = tmp_path / "a host/var/lib/gpu-fleet"
    (state / "current").rename(tmp_path / "not yet")
    (state / "incoming.killed").mkdir()
    [at_work] = [path for path in state.glob("incoming.*") if path.name != "incoming.killed"]
    for verb in ("check", "remove"):
        assert ended(start(shell, tmp_path, verb)) == (3, '{"event":"absent"}\n')
        assert list(state.glob("incoming.*")) == [at_work]
        assert (at_work / "bundle/converge").exists()
    process.stdin.close()
    ended(process)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_removal_removes_what_a_killed_pull_left(shell: str, tmp_path: Path) -> None:
    state = tmp_path / "a host/var/lib/gpu-fleet"
    (state / "current").mkdir(parents=True)
    (state / "current/converge").write_text("exit 0 # knows --instance\n")
    (state / "incoming.killed").mkdir()
    ended(start(shell, tmp_path, "remove"))
    assert not (state / "incoming.killed").exists(), "it may hold secrets"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_next_removal_removes_what_is_left_of_one_that_was_killed_at_its_end(shell: str, tmp_path: Path) -> None:
    """It has deleted its records, and not yet its program. A check changes nothing, and a first apply holds the lock."""
    state = tmp_path / "a host/var/lib/gpu-fleet"
    (state / "bundles/0a1b").mkdir(parents=True)
    (state / "bundles/0a1b/converge").write_text("exit 1\n")
    (state / "placed").write_text("format\t3\n")
    absent = (3, '{"event":"absent"}\n')
    assert ended(start(shell, tmp_path, "check")) == absent
    assert (state / "bundles/0a1b/converge").exists()
    with (state / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        removal = start(shell, tmp_path, "remove")
        time.sleep(1.5)  # by now it waits
        (state / "current").symlink_to("bundles/0a1b")
    assert ended(removal) == absent
    assert (state / "current/converge").exists(), "an apply has placed it meanwhile"
    (state / "current").unlink()
    assert ended(start(shell, tmp_path, "remove")) == absent
    assert not (tmp_path / "a host/var").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_removal_during_which_another_one_took_the_program_away_finds_nothing(shell: str, tmp_path: Path) -> None:
    """After an interrupted rename a machine has two names in the state, and `pulumi destroy` removes both at once."""
    state = tmp_path / "a host/var/lib/gpu-fleet"
    (state / "bundles/0a1b").mkdir(parents=True)
    converge = state / "bundles/0a1b/converge"
    for code, missing in ((2, ". lib/gone.sh"), (11, "exit 11"), (127, "exit 127")):
        converge.write_text(f"# knows --instance\nrm '{state}/current'\necho 'format 1' >'{state}/placed'\n{missing}\n")
        (state / "current").symlink_to("bundles/0a1b")
        answer, printed = ended(start(shell, tmp_path, "remove"))
        assert (answer, printed) == (3, '{"event":"absent"}\n'), code
        state.mkdir(parents=True, exist_ok=True)
        converge.parent.mkdir(parents=True, exist_ok=True)
    converge.write_text("# knows --instance\nexit 2\n")
    (state / "current").symlink_to("bundles/0a1b")
    assert ended(start(shell, tmp_path, "remove")) == (2, ""), "a program that is broken is an error"


def test_a_small_tmp_is_passed_over_by_what_only_looks(tmp_path: Path) -> None:
    programs, asked = tmp_path / "programs", tmp_path / "asked"
    programs.mkdir()
    (programs / "df").write_text('#!/bin/sh\n[ "$2" = /tmp ] && room=200 || room=9000000\necho "tmpfs 200 0 $room 0% $2"\n')
    (programs / "mktemp").write_text(f'#!/bin/sh\necho "$*" >>{asked}\nexec /usr/bin/mktemp "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    code, _ = ended(start("dash", tmp_path, "plan", programs=str(programs)))
    assert (code, asked.read_text()) == (0, "-d /var/tmp/incoming.XXXXXX\n")


def test_the_command_line_is_short_enough_for_the_log_of_sudo() -> None:
    """Each login of each host would write the whole program there."""
    place = Place(connection={"kind": "ssh"}, stack="us-west/training")
    assert sum(map(len, start_command("apply", place, Archive({"bundle.tar": bytes(400_000)})))) < 200
