"""Takes one member out of a .tar.gz or .zip archive, and files out of the compression in which the controller sends them."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib

from .disk import create
from .errors import Failure, attempt


def unpack(archive: str, member: str, url: str, to: str) -> None:
    create(to, b"")
    try:
        with attempt(f"cannot unpack {member}"), open(to, "wb") as target:
            if url.endswith(".zip"):
                with zipfile.ZipFile(archive) as package, package.open(member) as source:
                    shutil.copyfileobj(source, target, 1 << 20)
            else:
                with tarfile.open(archive, "r:*") as tar:
                    found = tar.extractfile(member)
                    if found is None:
                        raise KeyError(member)
                    shutil.copyfileobj(found, target, 1 << 20)
    except (KeyError, NotImplementedError) as error:
        raise Failure("download", f"the archive has no member {member} that this program can unpack") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise Failure("internal", f"cannot unpack {member}: {error}") from error


def inflate(compressed: str, to: str) -> None:
    """One gzip member. By hand: `gzip` reads 8 kB at a time, and takes twice as long."""
    create(to, b"")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        with attempt(f"cannot write {to}"), open(compressed, "rb") as source, open(to, "wb") as target:
            for block in iter(lambda: source.read(1 << 20), b""):
                target.write(inflater.decompress(block))
            target.write(inflater.flush())
    except zlib.error as error:
        raise Failure("internal", f"cannot unpack {compressed}: {error}") from error
