"""`pin`: upstreams' checksums into the versions file, and nothing else of it touched."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.toolchain.fakes import NOBODY, Upstream, script, sha256
from toolchain import ToolchainError, versions
from toolchain.pin import pin
from toolchain.progress import Progress


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
    pin([], Progress(out), file)
    expected = before.replace("amd64: unpinned", f"amd64: {sha256(script('amd64'))}")
    assert file.read_text() == expected.replace("arm64: unpinned", f"arm64: {sha256(script('arm64'))}")
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
    with pytest.raises(ToolchainError, match=r"tool arm64: .* answers 404"):
        pin([], Progress(io.StringIO()), file)
    files = versions.read_releases(file)["tool"].files
    assert files["amd64"].sha256 == sha256(script("amd64")) and files["arm64"].sha256 is None


def test_nothing_to_pin_changes_nothing(file: Path) -> None:
    before, out = file.read_text(), io.StringIO()
    pin(["other"], Progress(out), file)
    assert file.read_text() == before and out.getvalue() == ""
