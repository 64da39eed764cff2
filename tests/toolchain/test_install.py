"""From which source a program is installed, and what is printed about it."""

from __future__ import annotations

import errno
import json
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_fleet.toolchain import Cache, Program, ToolchainError, WrongChecksum
from gpu_fleet.toolchain import upstream as upstream_module
from gpu_fleet.toolchain.install import RETRY_S
from gpu_fleet.toolchain.programs import GoBuild
from gpu_fleet.toolchain.versions import Release
from tests.toolchain.fakes import NOBODY, Run, Upstream, executable, script, sha256, tar_gz, zip_of


def out_of_reach(upstream: Upstream, **fields: object) -> Release:
    return upstream.release(url=f"{NOBODY}/tool-1.2.3", **fields)


def test_the_right_version_on_the_path_is_used_and_nothing_is_downloaded(machine: Path, upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    executable(machine / "tool", script("1.2.3"))
    run.install(tool)
    assert upstream.requests == []
    assert f"{machine}/tool, found on this machine" in run.seen


def test_a_wrong_version_on_the_path_is_not_used(machine: Path, upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    executable(machine / "tool", script("1.2.30"))
    run.install(tool)
    assert run.installed(tool), "1.2.30 must not pass for 1.2.3"


def test_a_broken_program_on_the_path_is_not_used(machine: Path, upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    executable(machine / "tool", b"\x7fELF not really")
    run.install(tool)
    assert run.installed(tool)


def test_a_pinned_release_is_installed_with_its_record(upstream: Upstream, run: Run, cache: Cache) -> None:
    tool = Program(release=upstream.release())
    run.install(tool)
    installed = run.installed(tool)
    assert installed and installed.read_bytes() == script("1.2.3") and installed.stat().st_mode & 0o111
    record = cache.record("tool", "1.2.3")
    assert record and record.how == "upstream" and record.sha256 == {"tool": sha256(script("1.2.3"))}
    assert "upstream release, matches its pinned sha256" in run.seen


@pytest.mark.parametrize("archive", [tar_gz, zip_of])
def test_an_archive_contains_the_program_and_what_it_needs_beside_it(archive, upstream: Upstream, run: Run) -> None:  # type: ignore[no-untyped-def]
    body = archive({"top/tool-amd64": script("1.2.3"), "top/tool-exec": b"helper", "top/LICENSE": b"words"})
    tool = Program(release=upstream.release(body=body, member="top/tool-amd64", also=("top/tool-exec",)))
    run.install(tool)
    installed = run.installed(tool)
    assert installed and installed.name == "tool" and installed.with_name("tool-exec").stat().st_mode & 0o111
    assert not installed.with_name("LICENSE").exists()


@pytest.fixture(params=["this Python", "3.11.2"])
def tar_of_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this one, or as of Debian 12's, which has no filters yet."""
    if request.param == "this Python":
        return
    unpack = tarfile.TarFile.extractall

    def extractall(
        self: tarfile.TarFile, path: str = ".", members: Iterable[tarfile.TarInfo] | None = None, *, numeric_owner: bool = False
    ) -> None:
        unpack(self, path, members, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.usefixtures("tar_of_python")
def test_a_whole_tree_is_installed_without_its_first_directory(upstream: Upstream, run: Run) -> None:
    body = tar_gz({"tool-v1/bin/tool": script("1.2.3"), "tool-v1/public/index.html": b"page"})
    tool = Program(release=upstream.release(body=body, tree="bin/tool"))
    run.install(tool)
    installed = run.installed(tool)
    assert installed and installed.parent.name == "bin"
    assert (installed.parents[1] / "public/index.html").read_bytes() == b"page"


@pytest.mark.usefixtures("tar_of_python")
def test_a_tree_cannot_write_outside_the_cache(upstream: Upstream, run: Run, cache: Cache) -> None:
    tool = Program(release=upstream.release(body=tar_gz({"top/../../escaped": b"x"}), tree="bin/tool"))
    with pytest.raises(ToolchainError, match="not the archive"):
        run.install(tool)
    assert not list(cache.root.rglob("escaped")) and run.installed(tool) is None


def test_a_wrong_checksum_stops_with_both_sums_and_keeps_nothing(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache
) -> None:
    tool = Program(release=upstream.release(sha256="0" * 64), go=go_build)
    other = Program(release=upstream.release("other"))
    with pytest.raises(WrongChecksum) as stopped:
        run.install(tool, other)
    assert "0" * 64 in str(stopped.value) and sha256(script("1.2.3")) in str(stopped.value)
    assert run.installed(tool) is None and run.installed(other) is None
    assert not go.exists(), "a wrong checksum must not be papered over by a build"
    assert not [file for file in cache.root.rglob("*") if file.is_file() and file.read_bytes() == script("1.2.3")]


def test_a_download_that_breaks_off_once_is_retried(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    upstream.cuts["/tool-1.2.3"] = 1
    run.install(tool)
    assert run.installed(tool) and upstream.requests == ["/tool-1.2.3"] * 2


def test_a_download_that_keeps_breaking_off_is_reported_and_built_instead(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache
) -> None:
    tool = Program(release=upstream.release(), go=go_build)
    upstream.cuts["/tool-1.2.3"] = 99
    run.install(tool)
    record = cache.record("tool", "1.2.3")
    assert run.installed(tool) and record and record.how == "go"
    assert "the download broke off 2 times" in run.seen


def test_a_redirect_to_an_unreachable_host_is_reported_and_not_tried_again(upstream: Upstream, run: Run) -> None:
    upstream.moved["/tool-1.2.3"] = f"{NOBODY}/elsewhere"
    missing = run.install(*[Program(release=upstream.release(name)) for name in ("tool", "two")], optional=("tool", "two"))
    assert upstream.requests == ["/tool-1.2.3"]
    assert missing["tool"] == f"{upstream.url}/tool-1.2.3 cannot be fetched: Connection refused"


def test_a_file_that_upstream_does_not_have_is_reported_with_its_address(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    upstream.files.clear()
    with pytest.raises(ToolchainError, match=rf"{upstream.url}/tool-1.2.3 answers 404 Not Found"):
        run.install(tool)


def test_a_release_that_is_not_pinned_is_taken_when_it_matches_the_published_list(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release(sha256=None))
    upstream.files["/sums"] = f"{'1' * 64}  other\n{sha256(script('1.2.3'))} *./tool-1.2.3\n".encode()
    run.install(tool)
    assert run.installed(tool)
    assert "matches its published checksum list, not pinned here" in run.seen


def test_a_release_that_is_not_pinned_and_does_not_match_the_published_list_stops(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release(sha256=None))
    upstream.files["/sums"] = f"{'1' * 64}  tool-1.2.3\n".encode()
    with pytest.raises(WrongChecksum, match="1" * 64):
        run.install(tool)
    assert run.installed(tool) is None


@pytest.mark.parametrize("sums", [None, b"c2f1 *tool-1.2.3\n", b"da39a3ee5e6b4b0d3255bfef95601890afd80709  tool-1.2.3\n"])
def test_a_release_that_nothing_verifies_is_not_taken(sums: bytes | None, upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release(sha256=None))
    if sums is not None:
        upstream.files["/sums"] = sums
    with pytest.raises(ToolchainError, match=rf"its sha256 is not pinned .*{upstream.url}/sums"):
        run.install(tool)
    assert "/tool-1.2.3" not in upstream.requests


def test_an_unreachable_upstream_is_reported_and_the_program_is_built(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache
) -> None:
    tool = Program(release=out_of_reach(upstream), go=go_build)
    run.install(tool)
    record = cache.record("tool", "1.2.3")
    assert record and record.how == "go" and "127.0.0.1 cannot be reached (Connection refused)" in record.why
    assert "Not from upstream: 127.0.0.1 cannot be reached (Connection refused)." in run.seen
    assert "about 1 min 01 s in all" in run.seen, "a person must know how long it may take"


def test_an_unreachable_upstream_is_contacted_once_for_all_programs(
    upstream: Upstream, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    contacted = []
    monkeypatch.setattr(upstream_module, "_probe", lambda url: contacted.append(url) or "no route")
    names = ("one", "two", "three")
    run.install(*[Program(release=upstream.release(name)) for name in names], optional=names)
    assert len(contacted) == 1, "an offline machine must lose seconds, not minutes"


def test_a_program_that_no_source_has_is_reported_with_how_to_install_it_and_does_not_hinder_the_others(
    upstream: Upstream, run: Run
) -> None:
    lost, kept = Program(release=out_of_reach(upstream)), Program(release=upstream.release("kept"))
    wanted = rf"tool 1\.2\.3: 127\.0\.0\.1 cannot be reached .* by hand: unpack tool from {NOBODY}/tool-1\.2\.3 into a directory"
    with pytest.raises(ToolchainError, match=wanted):
        run.install(lost, kept)
    assert run.installed(kept)


def test_a_plugin_that_no_source_has_is_reported_with_pulumis_own_command_for_it(upstream: Upstream, run: Run) -> None:
    with pytest.raises(ToolchainError, match=r"run `pulumi plugin install resource x v1\.2\.3 --file FILE`"):
        run.install(Program(release=upstream.release("pulumi-resource-x", url=f"{NOBODY}/x")))


def test_an_optional_program_that_no_source_has_is_no_failure(upstream: Upstream, run: Run, cache: Cache) -> None:
    missing = run.install(Program(release=out_of_reach(upstream)), optional=["tool"])
    assert missing == {"tool": "127.0.0.1 cannot be reached (Connection refused)"}
    assert cache.record("tool", "1.2.3") is None


def test_a_stand_in_that_an_earlier_toolchain_recorded_is_not_the_program(upstream: Upstream, run: Run, cache: Cache) -> None:
    record = cache.directory("tool", "1.2.3") / "record.json"
    record.parent.mkdir(parents=True)
    old = {"how": "stand-in", "why": "", "program": "lab/x", "sha256": {}, "at": "2026-11-01T00:00:00+00:00"}
    record.write_text(json.dumps(old))
    assert cache.record("tool", "1.2.3") is None
    tool = Program(release=upstream.release())
    run.install(tool)
    assert run.installed(tool)


def test_a_build_of_another_version_says_so_and_serves_until_the_release_can_be_downloaded(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache
) -> None:
    build = replace(go_build, version="1.2.0", differs="tool 1.2.0: nothing later builds")
    run.install(Program(release=out_of_reach(upstream), go=build))
    assert "not the upstream release but tool 1.2.0" in run.seen
    reachable = Program(release=upstream.release(), go=build)
    run.install(reachable)
    assert "in the cache (built from the Go module proxy; not the upstream release but tool 1.2.0" in run.seen
    assert upstream.requests == [], "upstream is tried once a day, not on every run"
    run.install(reachable, retry_upstream=True)
    record = cache.record("tool", "1.2.3")
    assert record and record.how == "upstream" and "matches its pinned sha256" in run.seen


def test_a_build_of_another_version_stays_while_the_release_is_out_of_reach(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache
) -> None:
    tool = Program(release=out_of_reach(upstream), go=replace(go_build, version="1.2.0", differs="tool 1.2.0"))
    run.install(tool)
    built = cache.record("tool", "1.2.3")
    assert built
    long_ago = replace(built, at=(datetime.now(UTC) - timedelta(seconds=2 * RETRY_S)).isoformat())
    cache.note("tool", "1.2.3", long_ago)
    run.install(tool)
    kept = cache.record("tool", "1.2.3")
    assert len(go.read_text().splitlines()) == 1, "nothing is built again"
    assert run.installed(tool) and kept and kept.sha256 == built.sha256 and kept.age_s < RETRY_S


def test_a_plugin_of_another_version_is_built_for_the_lab_and_never_reaches_a_real_stack(
    upstream: Upstream, run: Run, go: Path, go_build: GoBuild, cache: Cache, tmp_path: Path
) -> None:
    release = upstream.release("pulumi-resource-x", url=f"{NOBODY}/x")
    plugin = Program(release=release, go=replace(go_build, version="1.2.0", differs="x 1.2.0"))
    offered = cache.root / "pulumi-home/plugins"
    with pytest.raises(ToolchainError, match=r"run `pulumi plugin install resource x v1\.2\.3 --file FILE`"):
        run.install(plugin)
    assert not go.exists()
    run.install(plugin, of_lab=True)
    run.install(plugin, of_lab=True)
    assert run.installed(plugin) and not offered.exists(), "found in the cache, it is offered no more than when it was built"
    with pytest.raises(ToolchainError, match="pulumi plugin install resource x"):
        run.install(plugin)
    by_hand = executable(tmp_path / "home/.pulumi/plugins/resource-x-v1.2.3/pulumi-resource-x", b"#!/bin/sh\n")
    run.install(plugin)
    assert str(by_hand) in (offered / "resource-x-v1.2.3/pulumi-resource-x").read_text()


def test_a_damaged_program_is_noticed_and_installed_again(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    run.install(tool)
    installed = run.installed(tool)
    assert installed
    installed.write_bytes(b"half a file")
    run.install(tool)
    assert installed.read_bytes() == script("1.2.3")
    assert "is damaged and installed again: tool was changed since" in run.seen


def test_a_deleted_program_is_noticed_and_installed_again(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    run.install(tool)
    installed = run.installed(tool)
    assert installed
    installed.unlink()
    run.install(tool)
    assert installed.exists()


@pytest.mark.parametrize("record", [b"", b"{}", b"not json", b'{"how": "upstream"}'])
def test_an_unreadable_record_means_not_installed(record: bytes, upstream: Upstream, run: Run, cache: Cache) -> None:
    tool = Program(release=upstream.release())
    executable(cache.directory("tool", "1.2.3") / "record.json", record)
    run.install(tool)
    assert run.installed(tool)


def test_what_is_in_the_cache_is_not_installed_again(upstream: Upstream, run: Run) -> None:
    tool = Program(release=upstream.release())
    run.install(tool)
    run.install(tool)
    assert upstream.requests == ["/tool-1.2.3"]
    assert "in the cache (upstream release)" in run.seen


def test_another_version_is_installed_beside_the_first(upstream: Upstream, run: Run) -> None:
    old, new = Program(release=upstream.release()), Program(release=upstream.release(version="1.3.0"))
    run.install(old)
    run.install(new)
    assert run.installed(old) and run.installed(new), "two checkouts may need different versions"


def test_unfinished_work_of_a_killed_run_is_removed(upstream: Upstream, run: Run, cache: Cache) -> None:
    executable(cache.root / "partial" / "tool.4194305" / "download", b"half")
    tool = Program(release=upstream.release())
    run.install(tool)
    assert run.installed(tool)


def test_an_unknown_name_is_reported_with_the_known_ones(upstream: Upstream, run: Run) -> None:
    with pytest.raises(ToolchainError, match=r"Unknown program: tol\. Known: tool\."):
        run.install(Program(release=upstream.release()), names=["tol"])


def test_a_cache_that_cannot_be_made_is_reported_with_what_to_do(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    with pytest.raises(ToolchainError, match=r"Cannot write to the cache .*set XDG_CACHE_HOME"):
        Run(Cache()).install(Program(release=upstream.release()))


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS])
def test_a_cache_that_cannot_be_written_is_reported_with_what_to_do(
    error: int, upstream: Upstream, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, "refused", "/some/file")

    monkeypatch.setattr(upstream_module, "_stream", refuse)
    with pytest.raises(ToolchainError, match=r"Cannot write to the cache .*refused .*/some/file"):
        run.install(Program(release=upstream.release()))


def test_a_full_disk_is_reported_with_what_to_do_and_nothing_half_done_stays(
    upstream: Upstream, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(url: str, to: Path, step: object) -> str:
        to.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(upstream_module, "_stream", fill)
    tool = Program(release=upstream.release())
    with pytest.raises(ToolchainError, match=r"is full .*python -m gpu_fleet.toolchain clean"):
        run.install(tool)
    assert run.installed(tool) is None


def test_a_plugin_is_offered_to_pulumi_under_its_version(upstream: Upstream, run: Run, cache: Cache) -> None:
    plugin = Program(release=upstream.release("pulumi-resource-x"))
    run.install(plugin, Program(release=upstream.release()))
    offered = cache.root / "pulumi-home" / "plugins"
    assert [path.name for path in offered.iterdir()] == ["resource-x-v1.2.3"]
    assert (offered / "resource-x-v1.2.3" / "pulumi-resource-x").stat().st_mode & 0o111


def test_what_work_on_stacks_does_not_need_is_installed_by_name_alone(upstream: Upstream, run: Run) -> None:
    tool, cluster = Program(release=upstream.release()), Program(release=upstream.release("cluster"), purpose="tests")
    run.install(tool, cluster)
    assert run.installed(tool) and not run.installed(cluster)
    run.install(tool, cluster, names=["cluster"])
    assert run.installed(cluster)
