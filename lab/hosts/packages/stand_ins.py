"""NVIDIA's packages as the lab has them: what is in them, and as .deb files."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lab.gpu.dcgm.cli import SHIPPED
from lab.gpu.machine import STATE_VARIABLE
from lab.hosts import gpus

_HERE = Path(__file__).parent
VERSION = "1.20.0-1"

# As github.com/NVIDIA/DCGM has it (config-files/systemd, scripts/deb/postinst; read 2026-11-21): nothing enables the unit, and
# nothing stops it when the package goes.
_HOST_ENGINE = """\
[Unit]
Description=NVIDIA DCGM service (stand-in of gpu-fleet's lab)
Conflicts=dcgm.service
[Service]
User=root
PrivateTmp=false
Environment="DCGM_HOME_DIR=/var/log/nvidia-dcgm"
ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm
Restart=on-abort
[Install]
WantedBy=multi-user.target
"""
_HOST_ENGINE_INSTALLED = """\
id nvidia-dcgm >/dev/null 2>&1 || useradd --user-group --system --shell /usr/sbin/nologin nvidia-dcgm
install -d -o nvidia-dcgm -g nvidia-dcgm /var/log/nvidia-dcgm
"""
# As github.com/NVIDIA/dcgm-exporter packages it (packaging, hack/package/stage-payload.sh; read 2026-11-21).
_EXPORTER_UNIT = """\
[Unit]
Description=NVIDIA DCGM-exporter service (stand-in of gpu-fleet's lab)
Wants=nvidia-dcgm.service
After=nvidia-dcgm.service
[Service]
User=root
ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv
Restart=on-abort
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
    """`files`: path -> content and mode. `depends`, `conflicts`: the name of another. `installed`: sh, run when it is."""

    name: str
    depends: str = ""
    conflicts: str = ""
    installed: str = ""
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
            name="datacenter-gpu-manager-4-core",
            conflicts="datacenter-gpu-manager",
            installed=_HOST_ENGINE_INSTALLED,
            files={
                "usr/bin/nv-hostengine": ((_HERE / "nv-hostengine").read_text(), 0o755),
                "usr/lib/systemd/system/nvidia-dcgm.service": (_HOST_ENGINE, 0o644),
            },
        ),
        Package(name="datacenter-gpu-manager-4-proprietary"),
        Package(name="datacenter-gpu-manager"),  # DCGM 3
        Package(
            name="datacenter-gpu-manager-exporter",
            depends="datacenter-gpu-manager-4-core",
            files={
                "usr/bin/dcgm-exporter": (_EXPORTER, 0o755),
                "usr/lib/systemd/system/nvidia-dcgm-exporter.service": (_EXPORTER_UNIT, 0o644),
                "etc/dcgm-exporter/default-counters.csv": ((SHIPPED / "default-counters-4.8.csv").read_text(), 0o644),
            },
        ),
    ]


def build_stand_ins(directory: Path) -> list[Path]:
    """Their .deb files in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return [build_deb(package, directory) for package in packages()]


def build_deb(package: Package, directory: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        control = root / "DEBIAN" / "control"
        control.parent.mkdir(parents=True)
        relations = {"Depends": package.depends, "Conflicts": package.conflicts}
        related = "".join(f"{relation}: {other}\n" for relation, other in relations.items() if other)
        control.write_text(
            f"Package: {package.name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: gpu-fleet lab <lab@example.com>\n"
            f"{related}Description: stand-in of gpu-fleet's lab, not NVIDIA's package\n"
        )
        if package.installed:
            (control.parent / "postinst").write_text(f"#!/bin/sh\nset -e\n{package.installed}")
            (control.parent / "postinst").chmod(0o755)
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
