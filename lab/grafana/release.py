"""The stand-in as an archive like those of Grafana's releases, for hosts that have Python and nothing of this checkout."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import re
import tarfile
from pathlib import Path

from lab import grafana

_HERE = Path(grafana.__file__).parent
_START = b"""#!/bin/sh
# The lab's stand-in of Grafana, not Grafana.
home=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd -P)
PYTHONPATH=$home/packages PYTHONDONTWRITEBYTECODE=1 exec python3 "$home/lab/grafana" "$@"
"""


def pack_grafana(archive: Path) -> Path:
    """Its code, and the packages that it imports."""
    with gzip.GzipFile(archive, "wb", compresslevel=1, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        start = tarfile.TarInfo("grafana-stand-in/bin/grafana")
        start.mode, start.size = 0o755, len(_START)
        tar.addfile(start, io.BytesIO(_START))
        tar.add(_HERE, "grafana-stand-in/lab/grafana", filter=_readable)
        for package in sorted(_needed("aiohttp")):
            for file in importlib.metadata.files(package) or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    tar.add(Path(str(file.locate())), f"grafana-stand-in/packages/{file}", filter=_readable)
    return archive


def _needed(package: str) -> set[str]:
    """The package and what it requires, as installed here."""
    found, left = set(), [package]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # for another platform or Python
            continue
        found.add(name)
        left += [re.split(r"[^A-Za-z0-9._-]", each)[0] for each in requirements if "extra ==" not in each]
    return found


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The checkout may be readable by its owner alone. The same bytes each time, whoever packs."""
    if "__pycache__" in member.name:
        return None
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
