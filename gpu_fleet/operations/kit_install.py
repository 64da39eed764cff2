"""Installs an offline kit on a machine without internet access: `python3 install.py [DIRECTORY]`, inside the unpacked kit.

This file is copied into every kit as install.py: it uses the standard library alone and nothing else of the checkout.
It needs python3, bash and tar; `make`, which the commands afterwards need, is only looked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

KIT = Path(__file__).resolve().parent
ABOUT, SUMS = "kit.json", "SHA256SUMS"
WHEELS, TOOLS, ARTIFACTS, CHARTS, REPOSITORY = "wheels", "tools", "artifacts", "charts", "repository.tar"


class KitError(Exception):
    """Why the kit cannot be installed here; nothing was changed."""


def check_machine(about: dict[str, list[str] | str | bool]) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    if machine != about["architecture"]:
        raise KitError(f"this kit is for {about['architecture']} and this machine is {machine}: make one on such a machine")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = about["pythons"]
    assert isinstance(pythons, list)
    if here not in pythons:
        raise KitError(
            f"this kit has packages for Python {', '.join(pythons)}, and this is {here}: run install.py with one of them, "
            f'or make the kit with `PYTHONS="{here}"`'
        )


def check_sums() -> None:
    """Every file of the kit, and no other, has the checksum that the kit lists."""
    lines = (line.partition("  ") for line in (KIT / SUMS).read_text().splitlines())
    listed = {path: digest for digest, _, path in lines}
    present = {str(path.relative_to(KIT)) for path in KIT.rglob("*") if path.is_file()} - {SUMS}
    if missing := sorted(listed.keys() - present):
        raise KitError(f"the kit is incomplete: {missing[0]} is missing (of {len(missing)}); unpack it again")
    if foreign := sorted(path for path in present - listed.keys() if "__pycache__" not in path):
        raise KitError(f"{foreign[0]} is not a file of the kit; unpack it into an empty directory")
    for path, expected in sorted(listed.items()):
        with (KIT / path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise KitError(f"{path} is damaged: sha256 {found}, expected {expected}; copy the kit again")


def install(directory: Path) -> None:
    about = json.loads((KIT / ABOUT).read_text())
    check_machine(about)
    if directory.exists() and any(directory.iterdir()):
        raise KitError(
            f"{directory} is not empty: name another directory, and copy your stack files and inventory/ there afterwards"
        )
    say("comparing the kit with its checksums")
    check_sums()
    say(f"repository: {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(KIT / REPOSITORY) as tar:
        # Not the argument `filter`, which Python has since 3.11.4: Debian 12's is older. check_sums has verified the archive.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(directory)  # noqa: S202
    python_packages(directory)
    tools = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-fleet" / "tools"
    for source in sorted((KIT / TOOLS).glob("*/*")):
        target = tools / source.relative_to(KIT / TOOLS)
        if not target.exists():
            say(f"program: {source.parent.name} {source.name}")
            copy_whole(source, target)
    for name in (ARTIFACTS, CHARTS):
        if (KIT / name).is_dir():
            say(f"{name}: {directory / 'build' / name}")
            shutil.copytree(KIT / name, directory / "build" / name)


def python_packages(directory: Path) -> None:
    """As `make .venv/installed` does it, without Debian's python3-venv: pip comes with the kit."""
    say("Python packages")
    environment = directory / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python, wheels = environment / "bin" / "python", KIT / WHEELS
    (pip,) = wheels.glob("pip-*.whl")
    offline = ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels), "--no-compile"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    bootstrap = [str(python), f"{pip}/pip", "install", *offline, "--no-deps", str(pip)]
    subprocess.run(bootstrap, check=True, env=clean)
    locked = [str(python), "-m", "pip", "install", *offline, "--require-hashes", "-r", str(directory / "requirements.txt")]
    subprocess.run(locked, check=True, env=clean)
    (environment / "installed").touch()


def copy_whole(source: Path, target: Path) -> None:
    """Under its name only when it is complete."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copytree(source, partial, symlinks=True)
    partial.rename(target)


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Install this offline kit.")
    parser.add_argument("directory", type=Path, nargs="?", default=Path("gpu-fleet"), help="new; default: %(default)s")
    directory = parser.parse_args(arguments).directory.resolve()
    try:
        install(directory)
    except KitError as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"install.py: {error}; remove {directory} and run this again", file=sys.stderr)
        return 1
    about = json.loads((KIT / ABOUT).read_text())
    if about["standIns"]:
        print("\nThis kit has stand-ins of the lab in place of programs: see CONTENTS. It deploys nothing real.")
    if shutil.which("make") is None:
        print("\n`make` is not installed here; the commands need it: install the package of your distribution.")
    print(f"\nNext: cd {directory} && make setup, then docs/air-gapped.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
