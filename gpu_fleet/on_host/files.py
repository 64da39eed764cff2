"""Small files of ours on a host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def text_of(path: Path) -> str:
    """Empty when there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Whoever reads it sees the old text or the new one. By default anybody may: node_exporter runs as another user."""
    new = path.with_name(f".{path.name}.new")  # not .prom: node_exporter reads hidden files too
    # Root writes where others may: a link of theirs under this name is not followed.
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with new.open("x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    new.replace(path)
