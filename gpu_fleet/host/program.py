"""Our programs that change a host, each as one file that Python runs: a zip with the same bytes on any machine.

Not done here: choosing what a bundle has besides it (bundle.py).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from gpu_fleet.host.part import ON_HOST

PROGRAM = "lib/converge.pyz"  # in a bundle
_SHARED = ("__init__", "distribution", "dnf", "files", "nvidia_smi", "output", "package_errors", "page", "tools", "trust")
# What pull mode has of it; the host may have another release's converge.
_SHARED_BY_PULL = (
    "__init__",
    "files",
    "output",
    *(f"converge/{name}" for name in ("__init__", "causes", "disk", "errors", "events")),
)
_SHARED_BY_PULL += ("converge/fetch", "converge/lock", "converge/programs", "converge/proxies", "converge/records")
_NOT_OF_INSTALLER = ("on_host/pull/main.py", "on_host/pull/update.py", "on_host/converge/records.py")


def zipped(modules: Mapping[str, bytes]) -> bytes:
    """Not compressed: another version of zlib would give other bytes, and a bundle is compressed when it is sent."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(modules.items()):
            info = zipfile.ZipInfo(name)  # its time is always that of 1980
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def host_modules() -> dict[str, bytes]:
    """The files of the host program's zip by their names in it."""
    modules = {"__main__.py": (ON_HOST / "converge/__main__.py").read_bytes()}
    shared = (ON_HOST / f"{name}.py" for name in _SHARED)
    for source in (*shared, *ON_HOST.glob("converge/*.py"), *ON_HOST.glob("probe/*.py")):
        if source.name != "__main__.py":
            modules[f"on_host/{source.relative_to(ON_HOST).as_posix()}"] = source.read_bytes()
    return modules


def installer_modules() -> dict[str, bytes]:
    return {name: source for name, source in pull_modules().items() if name not in _NOT_OF_INSTALLER}


def pull_modules() -> dict[str, bytes]:
    """Those of gpu-fleet-pull and its installer."""
    sources = (*(ON_HOST / f"{name}.py" for name in _SHARED_BY_PULL), *ON_HOST.glob("pull/*.py"))
    modules = {f"on_host/{source.relative_to(ON_HOST).as_posix()}": source.read_bytes() for source in sources}
    modules["__main__.py"] = modules.pop("on_host/pull/__main__.py")
    return modules
