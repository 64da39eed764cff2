"""The directory that a controller sends programs from, with dcgm-exporter's image among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.host.artifacts import ArtifactsError, image_archives, image_reference
from gpu_fleet.host.part import Source
from gpu_fleet.operations.artifacts import gather_artifacts
from gpu_fleet.toolchain import ToolchainError
from gpu_fleet.toolchain.versions import Image, image


def test_an_image_is_added_found_again_and_kept_by_the_next_run(tmp_path: Path) -> None:
    archive, directory = tmp_path / "image.tar", tmp_path / "artifacts"
    archive.write_bytes(b"an image")
    gather_artifacts(directory, (), image_archive=archive)
    [found] = image_archives("controller", directory=directory).values()
    assert (directory / found.sha256).read_bytes() == b"an image" and not found.url
    gather_artifacts(directory, ())
    assert image_archives("controller", directory=directory) and (directory / found.sha256).exists()


def test_another_tag_s_image_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, directory = tmp_path / "image.tar", tmp_path / "artifacts"
    archive.write_bytes(b"an image")
    gather_artifacts(directory, (), image_archive=archive)
    newer = Image(repository="r.example/x", tag="9.9", digest=None)
    monkeypatch.setattr("gpu_fleet.operations.artifacts.image", lambda _: newer)
    gather_artifacts(directory, ())
    assert [path.name for path in directory.iterdir()] == ["SHA256SUMS"]


def test_a_missing_file_is_reported_with_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"docker save nvcr\.io"):
        gather_artifacts(tmp_path / "artifacts", (), image_archive=tmp_path / "none.tar")


def test_an_image_that_is_not_pinned_is_refused_unless_the_stack_gives_an_image_or_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpinned = Image(repository="r.example/x", tag="1", digest=None)
    monkeypatch.setattr("gpu_fleet.host.artifacts.image", lambda _: unpinned)
    with pytest.raises(
        ArtifactsError, match=r"no digest for the image r\.example/x:1 \(unpinned\).*make pin.*gpu-fleet:dcgm\.image"
    ):
        image_reference(None, {})
    assert image_reference("r.example/mine@sha256:0", {}) == "r.example/mine@sha256:0"
    assert image_reference(None, {"amd64": Source(sha256="0" * 64)}) == "r.example/x:1"


def test_the_pinned_image_is_pulled_by_its_digest() -> None:
    assert image_reference(None, {}).endswith(f"@{image('dcgm-exporter').digest}")
