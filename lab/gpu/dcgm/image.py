"""The simulated dcgm-exporter as a container image, in the form of `docker save`: hosts load it under the real image's name.

Python comes out of a Debian root, everything else from this directory. What is not in the image is the GPUs: as the driver's
files are on real hosts, the machine's state is mounted into the container by the container toolkit (lab/hosts/toolkit).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lab.gpu.machine import STATE_VARIABLE

GENERATION = "4.8.3"  # of the exporter that gpu_fleet/toolchain/versions.yaml pins
STATE_INSIDE = "/var/lib/gpu-lab"
ENTRYPOINT = "/usr/bin/dcgm-exporter-entrypoint.sh"  # as in NVIDIA's distroless image
_CODE_INSIDE = "usr/local/lib/gpu-lab/lab/gpu"
_CODE = Path(__file__).parents[1]
_LEFT_OUT = re.compile(r"/(__pycache__|test|tests|idlelib|tkinter|lib2to3|ensurepip|config-[^/]*|dist-packages)(/|$)")


def write_archive(archive: Path, *, debian_root: Path, reference: str, architecture: str = "amd64") -> None:
    """`debian_root`: a Debian file system with python3. `reference`: repository:tag. The same input gives the same bytes."""
    layer = _layer(debian_root)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [ENTRYPOINT],
            "Env": [
                "PATH=/usr/bin:/bin",
                "NVIDIA_VISIBLE_DEVICES=all",
                f"{STATE_VARIABLE}={STATE_INSIDE}",
                f"DCGM_LAB_GENERATION={GENERATION}",
            ],
            "Labels": {"description": "Stand-in of dcgm-exporter of gpu-fleet's lab, not NVIDIA's image"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "gpu-fleet lab"}],
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in (
            (config_name, config_bytes),
            ("layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(tar, name, content)
    partial.rename(archive)


def _layer(root: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, target in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(link)
        for directory in ("etc", "tmp", "var/lib"):
            made = tarfile.TarInfo(directory)
            made.type, made.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(made)
        for path in sorted(_files_of_python(root)):
            _add(tar, path, (root / path).resolve().read_bytes(), (root / path).stat().st_mode & 0o777)
        for path in sorted(_CODE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                _add(tar, f"{_CODE_INSIDE}/{path.relative_to(_CODE)}", path.read_bytes(), 0o644)
        start = f'#!/bin/sh\nexec /usr/bin/python3 -I -S -B /{_CODE_INSIDE}/bin/dcgm-exporter "$@"\n'
        _add(tar, ENTRYPOINT.lstrip("/"), start.encode(), 0o755)
    return buffer.getvalue()


def _files_of_python(root: Path) -> Iterator[str]:
    """Interpreter, shell, the libraries both are linked with, and the standard library; paths below the root."""
    found = {"usr/bin/dash", "usr/bin/python3"}
    for program in tuple(found):
        listed = subprocess.run(["chroot", str(root), "ldd", f"/{program}"], check=True, capture_output=True, text=True).stdout
        for library in re.findall(r"(?:=> |^\t)(/\S+)", listed, re.MULTILINE):
            found.add(f"usr{library}" if not library.startswith("/usr/") else library[1:])
    yield from found
    for path in (root / "usr/lib").glob("python3.*/**/*"):
        if path.is_file() and not path.is_symlink() and not _LEFT_OUT.search(str(path.relative_to(root))):
            yield str(path.relative_to(root))


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
