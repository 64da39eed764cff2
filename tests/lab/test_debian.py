"""Getting the real programs of vendors out of Debian's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import debian
from lab.debian import NoPackages, Packages


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpu-fleet"


@pytest.mark.parametrize(
    ("suite", "component", "mirror"),
    [
        ("bookworm", "non-free", "http://127.0.0.1:1/debian"),
        ("nosuchsuite", "non-free", None),
        ("bookworm", "nosuchcomponent", None),
    ],
)
def test_packages_that_cannot_be_had_leave_nothing_and_say_what_to_do(
    suite: str, component: str, mirror: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mirror:
        monkeypatch.setattr(debian, "mirror", lambda *_: mirror)
    with pytest.raises(NoPackages) as error:
        Packages(suite=suite, component=component, names=("nvidia-smi",)).ensure()
    assert f"nvidia-smi of Debian {suite}, {component}, are not available from {debian.mirror('debian', suite)}" in str(
        error.value
    )
    assert "set a mirror that has them in /etc/apt, or https_proxy" in str(error.value)
    assert not list(cache.glob("debian/*")) and not list(cache.glob("partial/*"))


def test_a_repository_that_debian_did_not_sign_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = tmp_path / "mirror/dists/bookworm"
    (mirror / "non-free/binary-amd64").mkdir(parents=True)
    (mirror / "non-free/binary-amd64/Packages").touch()
    (mirror / "Release").write_text("Suite: bookworm\nCodename: bookworm\nComponents: non-free\nArchitectures: amd64\n")
    monkeypatch.setattr(debian, "mirror", lambda *_: f"file://{tmp_path}/mirror")
    with pytest.raises(NoPackages, match="is not signed"):
        Packages(suite="bookworm", component="non-free", names=("nvidia-smi",)).ensure()
