"""The modules of this program, compiled: Python takes longer to compile them than a run that changes nothing takes.

STORED, in the copy of the bundle on this host and not in its SHA256SUMS: a digest, and what `marshal` makes of
{module: (is it a package, its code)}. Any host may be without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import marshal
import os
import sys
import types

STORED = "var/lib/gpu-fleet/current/lib/compiled"


class _Finder:
    def __init__(self, modules: dict[str, tuple[bool, types.CodeType]]) -> None:
        self._modules = modules

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name not in self._modules:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=self._modules[name][0])  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """As Python makes any other module."""

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self._modules[module.__name__][1], module.__dict__)  # noqa: S102


def use(program: str, arguments: list[str]) -> None:
    """What is imported from now on is what was stored, if that was compiled from this program by this Python, and written by this
    user: below a prefix others may write."""
    prefix = arguments[arguments.index("--prefix") + 1] if "--prefix" in arguments[:-1] else ""
    with contextlib.suppress(OSError), open(f"{prefix}/{STORED}", "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read() if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else b""
        if content[:32] == _digest(program, content[32:]):
            sys.meta_path.insert(0, _Finder(marshal.loads(content[32:])))  # noqa: S302


def store(program: str, path: str) -> None:
    """Unless this run uses what is stored already."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path) or not os.path.isfile(program):
        return
    import zipfile

    from .disk import create

    modules = {}
    with contextlib.suppress(OSError):
        with zipfile.ZipFile(program) as archive:
            for file in archive.namelist():
                name, is_package = file[: -len(".py")].replace("/", "."), file.endswith("/__init__.py")
                code = compile(archive.read(file), f"{program}/{file}", "exec", dont_inherit=True)
                modules[name[: -len(".__init__")] if is_package else name] = is_package, code
        content = marshal.dumps(modules)
        create(f"{path}.new", _digest(program, content) + content, 0o644)
        os.rename(f"{path}.new", path)


def _digest(program: str, content: bytes) -> bytes:
    with open(program, "rb") as file:
        return hashlib.sha256(b"\0".join((sys.version.encode(), content, file.read()))).digest()
