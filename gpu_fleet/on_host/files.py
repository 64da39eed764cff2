"""Small files of ours on a host."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def text_of(path: Path | str) -> str:
    """Empty when there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  of hundreds of processes
            return file.read()
    except OSError:
        return ""


def bytes_of_regular(path: Path, most: int) -> bytes:
    """For root, where others may write: not what a link of theirs names, and not of a pipe, which could last for ever. Empty
    when there is no such file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Whoever reads it sees the old text or the new one. By default anybody may: node_exporter runs as another user."""
    new = path.with_name(f".{path.name}.new")  # not .prom: node_exporter reads hidden files too
    # Root writes where others may: a link of theirs under this name is not followed.
    new.unlink(missing_ok=True)
    with new.open("x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    new.replace(path)
