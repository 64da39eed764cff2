"""`pin`: upstreams' checksums into the versions file, and nothing else of it touched."""

from __future__ import annotations

import datetime
import io
import os
import subprocess
from itertools import zip_longest
from pathlib import Path

import pytest

from gpu_fleet.toolchain import ToolchainError, versions
from gpu_fleet.toolchain.pin import pin, reset_changed, reset_since
from gpu_fleet.toolchain.progress import Progress
from tests.checkout import REPO
from tests.toolchain.fakes import NOBODY, Upstream, script, sha256

PATH = os.environ["PATH"]  # with git; that of these tests has nothing that is installed


@pytest.fixture
def file(tmp_path: Path, upstream: Upstream) -> Path:
    upstream.files |= {f"/tool-1.2.3-{arch}": script(arch) for arch in ("amd64", "arm64")}
    path = tmp_path / "versions.yaml"
    path.write_text(f"""# A comment that must stay.
programs:
  other:
    version: 9.9.9
    url: {NOBODY}/other
    checksums: {NOBODY}/sums
    sha256:
      amd64: {"a" * 64}  # checked by hand
      arm64: {"b" * 64}

  tool:
    version: 1.2.3  # as on the hosts
    url: {upstream.url}/tool-{{version}}-{{arch}}
    checksums: {upstream.url}/sums
    sha256:
      amd64: unpinned
      arm64: unpinned
""")
    return path


def published(upstream: Upstream, arch: str) -> str:
    return f"{sha256(script(arch))}  tool-1.2.3-{arch}\n"


def test_published_checksums_are_written_and_the_rest_stays_as_it_is(file: Path, upstream: Upstream) -> None:
    before, out = file.read_text(), io.StringIO()
    upstream.files["/sums"] = (published(upstream, "amd64") + published(upstream, "arm64")).encode()
    days = [datetime.datetime.now(datetime.UTC).date()]
    pin([], Progress(out), file)
    days.append(datetime.datetime.now(datetime.UTC).date())  # another one around midnight
    expected = []
    for day in days:
        text = before
        for arch in ("amd64", "arm64"):
            text = text.replace(f"{arch}: unpinned", f"{arch}: {sha256(script(arch))}  # {upstream.url}/sums, {day}")
        expected.append(text)
    assert file.read_text() in expected
    assert "Review the change" in out.getvalue() and upstream.requests == ["/sums", "/sums"]


@pytest.mark.parametrize("sums", [None, b"da39a3ee5e6b4b0d3255bfef95601890afd80709  tool-1.2.3-amd64\n"])
def test_without_a_published_sha256_it_is_that_of_the_file_and_this_is_said(
    sums: bytes | None, file: Path, upstream: Upstream
) -> None:
    if sums:
        upstream.files["/sums"] = sums
    out = io.StringIO()
    pin(["tool"], Progress(out), file)
    assert versions.read_releases(file)["tool"].files["amd64"].sha256 == sha256(script("amd64"))
    assert "the file itself, downloaded now" in out.getvalue()


def test_what_can_be_pinned_is_written_although_the_rest_fails(file: Path, upstream: Upstream) -> None:
    upstream.files["/sums"] = published(upstream, "amd64").encode()
    del upstream.files["/tool-1.2.3-arm64"]
    with pytest.raises(ToolchainError, match=r"tool arm64: .* answers 404") as error:
        pin([], Progress(io.StringIO()), file)
    assert "1 of 2 could not be pinned" in str(error.value) and "run it on a machine that can reach them" in str(error.value)
    files = versions.read_releases(file)["tool"].files
    assert files["amd64"].sha256 == sha256(script("amd64")) and files["arm64"].sha256 is None


def test_nothing_to_pin_changes_nothing(file: Path) -> None:
    before, out = file.read_text(), io.StringIO()
    pin(["other"], Progress(out), file)
    assert file.read_text() == before and out.getvalue() == ""


INDEX = """
apiVersion: v1
entries:
  stack:
  - {{version: 2.0.0, digest: {newer}}}
  - {{version: 1.2.3, digest: {digest}}}
"""


def charts(tmp_path: Path, url: str) -> Path:
    """A program and a chart of one name, which is what a fleet has of Alloy and of dcgm-exporter's image."""
    file = tmp_path / "versions.yaml"
    file.write_text(
        f"programs: {{}}\nimages:\n  stack:\n    repository: r\n    tag: t\n    digest: sha256:{'d' * 64}\n"
        f"charts:\n  stack:\n    chart: stack\n    version: 1.2.3\n    repository: {url}\n    sha256: unpinned\n"
    )
    return file


def test_a_chart_is_pinned_from_the_index_of_its_repository(tmp_path: Path, upstream: Upstream) -> None:
    file = charts(tmp_path, upstream.url)
    upstream.files["/index.yaml"] = INDEX.format(newer="e" * 64, digest="c" * 64).encode()
    pin([], Progress(io.StringIO()), file)
    assert versions.read_charts(file)["stack"].sha256 == "c" * 64
    assert f"sha256: {'c' * 64}  # {upstream.url}/index.yaml, 20" in file.read_text()


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (INDEX.format(newer="e" * 64, digest="c" * 63), "which is no sha256"),
        (INDEX.format(newer="e" * 64, digest="c" * 64).replace("1.2.3", "1.2.4"), "lists no checksum of stack 1.2.3"),
        ("entries: [", "lists no checksum of stack 1.2.3"),
    ],
)
def test_an_index_without_the_chart_s_checksum_pins_nothing(tmp_path: Path, upstream: Upstream, index: str, reason: str) -> None:
    file = charts(tmp_path, upstream.url)
    before = file.read_text()
    upstream.files["/index.yaml"] = index.encode()
    with pytest.raises(ToolchainError, match=rf"chart stack: {upstream.url}/index.yaml .*{reason}"):
        pin(["stack"], Progress(io.StringIO()), file)
    assert file.read_text() == before


def test_a_changed_version_loses_the_checksums_of_the_old_one_and_nothing_else_changes() -> None:
    old = versions.FILE.read_text()
    new = old.replace("version: 1.18.1", "version: 1.19.0").replace("tag: v1.18.1", "tag: v1.19.0")
    new = new.replace("    chart: alloy\n    version: 1.11.1", "    chart: alloy\n    version: 1.12.0")
    text, reset = reset_changed(old, new)
    assert reset == ["alloy", "alloy", "alloy"], "the program, the image and the chart"
    changed = [(was, now) for was, now in zip_longest(without_comments(new), without_comments(text)) if was != now]
    assert [now.strip() for _, now in changed] == ["amd64: unpinned", "arm64: unpinned", "digest: unpinned", "sha256: unpinned"]
    assert "grafana/homebrew-grafana" in old and "grafana/homebrew-grafana" not in text, "where the old sums came from"
    assert reset_changed(old, text) == (text, [])


def without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def test_since_a_commit_what_changed_is_pinned_anew(
    file: Path, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", PATH)
    file.write_text(file.read_text().replace("unpinned", "f" * 64))
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    upstream.files |= {f"/tool-1.3.0-{arch}": script(arch) for arch in ("amd64", "arm64")}
    file.write_text(file.read_text().replace("version: 1.2.3", "version: 1.3.0"))
    reset_since("HEAD", Progress(io.StringIO()), file)
    pin([], Progress(io.StringIO()), file)
    pinned = versions.read_releases(file)
    assert pinned["tool"].files["arm64"].sha256 == sha256(script("arm64")) and pinned["other"].files["arm64"].sha256 == "b" * 64
    with pytest.raises(ToolchainError, match=r"git cannot show versions\.yaml of nowhere"):
        reset_since("nowhere", Progress(io.StringIO()), file)


def test_no_version_of_this_branch_has_the_checksum_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", PATH)
    done = subprocess.run(
        ["git", "show", "origin/main:gpu_fleet/toolchain/versions.yaml"], cwd=REPO, capture_output=True, text=True
    )
    if done.returncode == 0:  # a shallow clone has no main branch
        assert reset_changed(done.stdout, versions.FILE.read_text())[1] == [], "run `make pin SINCE=origin/main`"
