"""The versions file: what may be downloaded, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.host.artifacts import DCGM_IMAGE, ArtifactsError, image_reference, program_sources
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.toolchain import versions
from gpu_fleet.toolchain.versions import ARCHITECTURES, VersionsError, image, read_releases, release

ENTRY = """programs:
  tool:
    version: 1.2.3
    url: https://example.com/v{{version}}/tool-{{arch}}.tar.gz
    arch: {{amd64: x64, arm64: arm64}}
    member: tool-{{version}}/tool
    checksums: https://example.com/v{{version}}/sums
    sha256:
      amd64: {amd64}
      arm64: {arm64}
"""


@pytest.fixture
def tool(tmp_path: Path):  # type: ignore[no-untyped-def]
    def read(amd64: str = "a" * 64, arm64: str = "unpinned") -> versions.Release:
        file = tmp_path / "versions.yaml"
        file.write_text(ENTRY.format(amd64=amd64, arm64=arm64))
        return read_releases(file)["tool"]

    return read


# No public copy of its sum was found (November 2026): an arm64 host that is to run it says so, `make pin` adds the sum.
NOT_PUBLISHED = {("nvidia_gpu_exporter", "arm64")}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_hosts_get_by_default_is_pinned(name: str, arch: str) -> None:
    is_pinned = arch in program_sources("upstream", [name])[name]
    assert is_pinned is ((name, arch) not in NOT_PUBLISHED), f"{name} for {arch}: the default stack cannot be deployed unpinned"


def test_the_image_that_hosts_get_by_default_is_pinned() -> None:
    assert "@sha256:" in image_reference(None, {}), f"{image(DCGM_IMAGE).reference} has no digest"


def test_version_and_architecture_are_filled_in(tool) -> None:  # type: ignore[no-untyped-def]
    file = tool().files["amd64"]
    assert file.url == "https://example.com/v1.2.3/tool-x64.tar.gz" and file.member == "tool-1.2.3/tool"


def test_a_host_downloads_only_what_is_pinned(tool, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("gpu_fleet.host.artifacts.release", lambda _: tool())
    sources = program_sources("upstream", ["tool"])["tool"]
    assert set(sources) == {"amd64"} and sources["amd64"].sha256 == "a" * 64


def test_a_release_without_any_pinned_sum_is_refused_with_the_next_step(tool, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("gpu_fleet.host.artifacts.release", lambda _: tool(amd64="unpinned"))
    with pytest.raises(
        ArtifactsError, match=r"no checksum for tool 1\.2\.3 .*`make pin`.*directory: build/artifacts.*`make artifacts`"
    ):
        program_sources("upstream", ["tool"])


@pytest.mark.parametrize("sha256", ["a" * 63, "A" * 64, "g" * 64, "latest"])
def test_something_that_is_no_sha256_is_refused_with_its_key(sha256: str, tool) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(VersionsError, match=rf"programs\.tool\.sha256\.amd64 is '{sha256}'"):
        tool(amd64=sha256)


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    with pytest.raises(VersionsError, match=r"no programs\.aloy; it has: .*alloy"):
        release("aloy")
    with pytest.raises(VersionsError, match=r"no images\.dcgm-exporter2; it has: .*dcgm-exporter"):
        image("dcgm-exporter2")


def test_an_image_is_named_by_its_digest_when_there_is_one() -> None:
    pinned = versions.Image(repository="r.example/x", tag="1", digest="sha256:" + "a" * 64)
    assert pinned.reference == "r.example/x:1@sha256:" + "a" * 64
    assert versions.Image(repository="r.example/x", tag="1", digest=None).reference == "r.example/x:1"
