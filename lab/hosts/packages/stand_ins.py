"""NVIDIA's packages as the lab has them: what is in them, and as .deb files."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lab.gpu.machine import STATE_VARIABLE
from lab.hosts import gpus

_HERE = Path(__file__).parent
VERSION = "1.20.0-1"

_HOST_ENGINE = """\
[Unit]
Description=Host engine of DCGM (stand-in of gpu-fleet's lab)
[Service]
ExecStart=/usr/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
_EXPORTER = f"""\
#!/bin/sh
# Stand-in of gpu-fleet's lab, not NVIDIA's dcgm-exporter.
export {STATE_VARIABLE}={gpus.STATE_INSIDE} DCGM_LAB_GENERATION=4.8.3
exec /usr/bin/python3 -I -S -B {gpus.CODE_INSIDE}/lab/gpu/bin/dcgm-exporter "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Package:
    """`files`: path -> content and mode. `depends`: the name of another, or nothing."""

    name: str
    depends: str = ""
    files: dict[str, tuple[str, int]] = field(default_factory=dict)


def packages() -> list[Package]:
    hook = (_HERE / "nvidia-container-runtime-hook").read_text()
    return [
        Package(
            name="nvidia-container-toolkit",
            files={
                "usr/bin/nvidia-container-runtime-hook": (hook, 0o755),
                "usr/bin/nvidia-ctk": ((_HERE / "nvidia-ctk").read_text(), 0o755),
            },
        ),
        Package(
            name="datacenter-gpu-manager-4-core", files={"usr/lib/systemd/system/nvidia-dcgm.service": (_HOST_ENGINE, 0o644)}
        ),
        Package(name="datacenter-gpu-manager-4-proprietary"),
        Package(
            name="datacenter-gpu-manager-exporter",
            depends="datacenter-gpu-manager-4-core",
            files={"usr/bin/dcgm-exporter": (_EXPORTER, 0o755)},
        ),
    ]


def build_stand_ins(directory: Path) -> list[Path]:
    """Their .deb files in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return [_build(package, directory) for package in packages()]


def _build(package: Package, directory: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        control = root / "DEBIAN" / "control"
        control.parent.mkdir(parents=True)
        depends = f"Depends: {package.depends}\n" if package.depends else ""
        control.write_text(
            f"Package: {package.name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: gpu-fleet lab <lab@example.com>\n"
            f"{depends}Description: stand-in of gpu-fleet's lab, not NVIDIA's package\n"
        )
        for path, (content, mode) in package.files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            file.chmod(mode)
        for made in (root, *root.rglob("*")):
            if made.is_dir():
                made.chmod(0o755)
        target = directory / f"{package.name}_{VERSION}_amd64.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, target], check=True, capture_output=True)
        return target
