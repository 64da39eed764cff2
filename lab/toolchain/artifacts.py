"""The programs of a host as a directory of artifacts, in the form that `gpu-fleet:artifacts: {source: controller}` reads.

`make artifacts` (`python -m lab.toolchain artifacts DIRECTORY`) fills it for a fleet and refuses stand-ins and builds of another
version; the lab's own hosts take them. Only this machine's architecture: a fleet of the other one fills its directory on a
machine like it.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from components.host.artifacts import DCGM_IMAGE, INDEX
from components.host.parts import PROGRAMS
from components.versions import image, release
from lab.toolchain.errors import NotInstalled, ToolchainError
from lab.toolchain.install import architecture
from lab.toolchain.locate import located
from lab.toolchain.programs import PROGRAMS as TOOLS
from provider.envelope import compress


def gather_artifacts(directory: Path, *, stand_ins: bool = False, image_archive: Path | None = None) -> None:
    """One file per program, named by its sha256, and SHA256SUMS telling which is which. Other files there are removed.

    `stand_ins`: take the lab's stand-ins and builds of another version too, for simulated hosts. `image_archive`:
    dcgm-exporter's image as `docker save` wrote it, for hosts that reach no registry; one that is there from before stays while
    its tag is pinned. Raises ToolchainError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = _image_lines(directory, image_archive)
    for name in PROGRAMS:
        found = located(name)
        if found is None:
            raise NotInstalled(f"{name} is not installed: run `python -m lab.toolchain install {name}`.")
        if found.how == "stand-in" and not stand_ins:
            raise ToolchainError(
                f"{name} {release(name).version}: this machine has only the lab's stand-in ({found.path}), which is not for real "
                f"hosts. Fill the directory where the maker can be reached: `python -m lab.toolchain install --ask-again {name}`."
            )
        if found.how == "go" and (build := TOOLS[name].go) and build.version and not stand_ins:
            raise ToolchainError(
                f"{name} {release(name).version}: this machine has only its own build of version {build.version}, because the "
                "release could not be downloaded, and hosts get the release. Fill the directory on a machine that can download "
                f"it: `python -m lab.toolchain install --ask-again {name}`."
            )
        digest = _place(name, found.path.resolve(), directory)
        if not stand_ins and not (directory / f"{digest}.gz").exists():  # else the provider does it, when a host waits for it
            compress(directory / digest, directory / f"{digest}.gz")
        lines.append(f"{digest}  {name}-{release(name).version}.linux-{architecture()}\n")
    digests = {line.split()[0] for line in lines}
    # Beside each lies what is sent of it, compressed.
    for stale in {path.name for path in directory.iterdir()} - digests - {f"{digest}.gz" for digest in digests} - {INDEX}:
        (directory / stale).unlink()
    (directory / INDEX).write_text("".join(lines))


def _image_lines(directory: Path, archive: Path | None) -> list[str]:
    what = f"  {DCGM_IMAGE}-{image(DCGM_IMAGE).tag}.linux-"
    if archive is None:
        lines = (directory / INDEX).read_text().splitlines(keepends=True) if (directory / INDEX).exists() else []
        return [line for line in lines if what in line and (directory / line.split()[0]).exists()]
    if not archive.is_file():
        raise ToolchainError(f"{archive} is no file; `docker save {image(DCGM_IMAGE).reference} -o FILE` makes one.")
    return [f"{_place(DCGM_IMAGE, archive, directory)}{what}{architecture()}\n"]


def _place(name: str, program: Path, directory: Path) -> str:
    with program.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = directory / digest
    if not target.exists():
        partial = target.with_suffix(".partial")
        try:
            shutil.copyfile(program, partial)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ToolchainError(f"cannot copy {name} to {directory}: {error.strerror}") from None
        partial.chmod(0o755)
        partial.rename(target)
    return digest
