"""Builds from the Go module proxy: what they need, how they are run, what is left of them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet.toolchain import Cache, Program, ToolchainError, system
from gpu_fleet.toolchain.programs import GoBuild
from tests.toolchain.fakes import NOBODY, Run, Upstream, executable, module, until

DEBIAN = 'ID=debian\nVERSION_ID="12"\n'
FEDORA = 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'


@pytest.fixture
def tool(upstream: Upstream, go_build: GoBuild) -> Program:
    return Program(release=upstream.release(url=f"{NOBODY}/tool"), go=go_build)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Makes this machine one with that /etc/os-release, and us the user with that id."""

    def become(os_release: str, user: int) -> None:
        (tmp_path / "os-release").write_text(os_release)
        monkeypatch.setattr(system, "OS_RELEASE", tmp_path / "os-release")
        monkeypatch.setattr("os.geteuid", lambda: user)

    return become


def test_a_build_is_pinned_and_keeps_to_the_cache(tool: Program, run: Run, go: Path, go_build: GoBuild, cache: Cache) -> None:
    run.install(replace(tool, go=replace(go_build, tags="netgo extra", ldflags="-X a.B=1")), keep_go_caches=True)
    notes = go.read_text()
    assert "-mod=readonly" in notes and "-tags netgo extra" in notes and "-ldflags -s -w -X a.B=1" in notes
    assert f"modules={cache.root}/go/mod" in notes and "flags=-modcacherw" in notes and "cgo=0" in notes
    assert "built from the Go module proxy in" in run.seen


def test_a_build_that_is_not_the_release_says_in_what_it_differs(tool: Program, run: Run, go: Path, go_build: GoBuild) -> None:
    run.install(replace(tool, go=replace(go_build, differs="commit abc of main")))
    assert "not the upstream release but commit abc of main" in run.seen


def test_what_upstreams_build_generates_beside_the_main_package_is_taken_from_the_module(
    tool: Program, run: Run, go: Path, go_build: GoBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_LISTS", "/modules/x@v1/cmd/tool")
    run.install(replace(tool, go=replace(go_build, embeds=("example.com/x/cmd/tool/schema.json",))))
    overlay = {"Replace": {str(go_build.module / "schema.json"): "/modules/x@v1/cmd/tool/schema.json"}}
    assert f"overlay={json.dumps(overlay)}\n" in go.read_text()
    monkeypatch.setenv("FAKE_GO_LISTS", "")
    with pytest.raises(ToolchainError, match=r"`go list example\.com/x/cmd/tool` failed"):
        run.install(
            replace(tool, release=replace(tool.release, version="2"), go=replace(go_build, embeds=("example.com/x/cmd/tool/a",)))
        )


def test_without_go_it_says_which_go_and_where_to_get_it(tool: Program, run: Run) -> None:
    with pytest.raises(ToolchainError, match=r"Go 1\.26\.5 or newer is missing: install it as https://go\.dev/doc/install"):
        run.install(tool)


@pytest.mark.parametrize(("version", "toolchain"), [("go1.19.8", "auto"), ("go1.26.0", "local"), ("go1.19.8", "")])
def test_a_go_that_is_too_old_is_reported_with_both_versions(
    version: str, toolchain: str, tool: Program, run: Run, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", version)
    monkeypatch.setenv("FAKE_GOTOOLCHAIN", toolchain)
    with pytest.raises(ToolchainError, match=rf"Go is {version[2:]}, 1\.26\.5 or newer is needed"):
        run.install(tool)
    assert not go.exists()


def test_a_go_that_fetches_a_newer_one_itself_is_good_enough(
    tool: Program, run: Run, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.24.1")
    monkeypatch.setenv("FAKE_GOTOOLCHAIN", "auto")
    run.install(tool)
    assert run.installed(tool)


@pytest.mark.parametrize(
    ("os_release", "command"),
    [
        (DEBIAN, "sudo apt-get install gcc libc6-dev libsystemd-dev"),
        (FEDORA, "sudo dnf install gcc glibc-devel systemd-devel"),
        ("ID=arch\n", "install your distribution's packages of gcc, libc6-dev, libsystemd-dev"),
    ],
)
def test_a_missing_compiler_is_reported_with_the_command_and_stops_that_program_alone(
    os_release: str,
    command: str,
    tool: Program,
    run: Run,
    go: Path,
    go_build: GoBuild,
    upstream: Upstream,
    distribution: Callable,
) -> None:
    distribution(os_release, 1000)
    needs_c = Program(
        release=upstream.release("agent", url=f"{NOBODY}/agent"), go=replace(go_build, needs=("gcc", "systemd/sd-journal.h"))
    )
    with pytest.raises(ToolchainError) as failed:
        run.install(needs_c, tool)
    assert f"gcc and the C header systemd/sd-journal.h are missing: {command}" in str(failed.value)
    assert run.installed(tool) and not run.installed(needs_c)


def test_missing_headers_are_reported_although_the_compiler_is_there(
    tool: Program, run: Run, go: Path, go_build: GoBuild, machine: Path, distribution: Callable
) -> None:
    distribution(DEBIAN, 1000)
    executable(machine / "gcc", b"#!/bin/sh\nexit 1\n")
    with pytest.raises(
        ToolchainError, match=r"the C header systemd/sd-journal\.h is missing: sudo apt-get install libsystemd-dev"
    ):
        run.install(replace(tool, go=replace(go_build, needs=("gcc", "systemd/sd-journal.h"))))
    assert not go.exists(), "it must not be built without the journal"


def test_root_on_debian_gets_the_packages_and_is_reported(
    tool: Program, run: Run, go: Path, go_build: GoBuild, machine: Path, distribution: Callable, tmp_path: Path
) -> None:
    distribution(DEBIAN, 0)
    executable(
        machine / "apt-get",
        f"#!/bin/sh\necho \"$*\" >> {tmp_path}/apt\nprintf '#!/bin/sh\\n' > {machine}/gcc\nchmod 755 {machine}/gcc\n".encode(),
    )
    with_c = replace(tool, go=replace(go_build, needs=("gcc", "systemd/sd-journal.h")))
    run.install(with_c)
    assert run.installed(with_c) and "cgo=1" in go.read_text()
    assert "Running as root on Debian: apt-get install gcc libc6-dev libsystemd-dev" in run.seen
    assert (tmp_path / "apt").read_text().splitlines()[0] == "update"


def test_packages_are_not_installed_for_a_build_that_go_cannot_do(
    tool: Program, run: Run, go_build: GoBuild, machine: Path, distribution: Callable, tmp_path: Path
) -> None:
    distribution(DEBIAN, 0)
    executable(machine / "apt-get", f"#!/bin/sh\ntouch {tmp_path}/apt\n".encode())
    with pytest.raises(ToolchainError, match=r"(?s)Go .* is missing.*gcc is missing"):
        run.install(replace(tool, go=replace(go_build, needs=("gcc",))))
    assert not (tmp_path / "apt").exists()


def test_a_failed_apt_get_is_reported_with_its_reason(
    tool: Program, run: Run, go: Path, go_build: GoBuild, machine: Path, distribution: Callable
) -> None:
    distribution(DEBIAN, 0)
    executable(machine / "apt-get", b"#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    with pytest.raises(ToolchainError, match="gcc is missing: sudo apt-get install gcc libc6-dev"):
        run.install(replace(tool, go=replace(go_build, needs=("gcc",))))
    assert "E: no network" in run.seen


def test_a_failed_build_shows_the_end_of_its_log_and_does_not_hinder_the_others(
    tool: Program, run: Run, go: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    monkeypatch.setenv("FAKE_GO_SAYS", "missing go.sum entry")
    other = Program(release=upstream.release("other"))
    with pytest.raises(ToolchainError) as failed:
        run.install(tool, other)
    assert "missing go.sum entry" in str(failed.value) and str(cache.log("tool")) in str(failed.value)
    assert run.installed(other) and run.installed(tool) is None


def test_a_disk_that_fills_during_a_build_is_reported_as_such(
    tool: Program, run: Run, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_SAYS", "write: no space left on device")
    with pytest.raises(ToolchainError, match=r"The disk of .* is full"):
        run.install(tool)


def test_gos_caches_are_removed_when_everything_is_built(tool: Program, run: Run, go: Path, cache: Cache) -> None:
    run.install(tool)
    assert not (cache.root / "go").exists()
    assert "Everything is built: removed Go's caches" in run.seen


def test_gos_caches_stay_while_something_is_left_to_build(
    tool: Program, run: Run, go: Path, upstream: Upstream, go_build: GoBuild, cache: Cache
) -> None:
    later = Program(release=upstream.release("later"), go=go_build)
    run.install(tool, later, names=["tool"])
    assert cache.go_modules.exists()
    assert "toolchain clean` removes them" in run.seen


def test_gos_caches_stay_on_request_and_while_in_use(tool: Program, run: Run, go: Path, cache: Cache) -> None:
    run.install(tool, keep_go_caches=True)
    assert cache.go_modules.exists()
    with cache.using_go():
        assert cache.free_go() is None
    assert cache.free_go() is not None and not cache.go_modules.exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_with_its_compilers_and_the_next_run_goes_on(
    ending: signal.Signals, go: Path, command: Callable[..., subprocess.Popen[str]], tmp_path: Path, cache: Cache
) -> None:
    hold = tmp_path / "go.hold"
    hold.touch()
    interrupted = command("install", "node_exporter")
    until((tmp_path / "go.began").exists)
    interrupted.send_signal(ending)
    said = interrupted.communicate()[0]
    assert interrupted.returncode == 130 and "Interrupted. Installed programs" in said and "Traceback" not in said
    assert not list((cache.root / "partial").iterdir()) and not (cache.root / "tools").exists()
    hold.unlink()
    again = command("install", "--keep-go-caches", "node_exporter")
    assert "built from the Go module proxy" in again.communicate()[0] and again.returncode == 0


def test_a_killed_run_leaves_nothing_that_hinders_the_next(
    go: Path, command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    hold = tmp_path / "go.hold"
    hold.touch()
    killed = command("install", "node_exporter")
    until((tmp_path / "go.began").exists)
    killed.kill()
    killed.communicate()
    hold.unlink()
    again = command("install", "node_exporter")
    assert "built from the Go module proxy" in again.communicate()[0] and again.returncode == 0


def test_two_runs_at_once_build_once_and_the_second_says_for_whom_it_waits(
    go: Path, command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    hold = tmp_path / "go.hold"
    hold.touch()
    first = command("install", "node_exporter")
    until((tmp_path / "go.began").exists)
    second = command("install", "node_exporter")
    assert second.stdout
    lines = iter(second.stdout.readline, "")
    assert any(f"waiting: another run (pid {first.pid}) is installing it" in line for line in lines)
    hold.unlink()
    rest = second.communicate()[0]
    assert first.communicate() and (first.returncode, second.returncode) == (0, 0)
    assert "in the cache (built from the Go module proxy)" in rest
    assert go.read_text().count(" build ") == 1, "the second run must not build what the first has built"


def test_the_needed_go_is_read_from_the_module(run: Run, tool: Program, tmp_path: Path, go_build: GoBuild) -> None:
    with pytest.raises(ToolchainError, match=r"Go 1\.99\.1 or newer"):
        run.install(replace(tool, go=replace(go_build, module=module(tmp_path / "newer", "1.99.1"))))


def test_gos_caches_do_not_wait_for_what_only_tests_need(
    tool: Program, run: Run, go: Path, cache: Cache, upstream: Upstream
) -> None:
    cluster = replace(tool, release=upstream.release("cluster", url=f"{NOBODY}/cluster"), purpose="tests")
    run.install(tool, cluster)
    assert not (cache.root / "go").exists()
