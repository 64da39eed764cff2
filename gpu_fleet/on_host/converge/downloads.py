"""Downloaded programs: found by their sha256, verified before they can run, unpacked from their archive."""

from __future__ import annotations

import datetime
import os
import shutil
import zlib
from typing import Iterable

from .disk import create, sha256_of, unlink
from .errors import Failure, attempt
from .events import say, without_password
from .files import Files
from .host import Host
from .manifest import Download, Part
from .records import Placed, Record

MOST_DOWNLOAD_MIB = 4096  # the largest, an archive of dcgm-exporter's image, has about 1.5 GiB
KEEP_FREE_MIB = 128  # for everything else on this file system


def fingerprint(path: str) -> str:
    """Inode, size and time of change, as `stat -c %i:%s:%z` prints them in UTC: earlier versions of this program compare it."""
    status = os.stat(path, follow_symlinks=False)
    seconds, fraction = divmod(status.st_ctime_ns, 1_000_000_000)
    changed = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{status.st_ino}:{status.st_size}:{changed:%Y-%m-%d %H:%M:%S}.{fraction:09d} +0000"


class Downloads:
    def __init__(self, host: Host, files: Files, placed: Placed) -> None:
        self._host = host
        self._files = files
        self._placed = placed

    def difference(self, download: Download) -> str:
        return self.content_difference(download) or self._files.meta_difference(download.path, download.mode, "root", "root")

    def content_difference(self, download: Download) -> str:
        """The record of what was placed has the source of a file, because the checksum of an archive's member is not known
        beforehand; its inode, size and ctime avoid reading hundreds of megabytes."""
        kind = self._files.kind_difference(download.path)
        if kind:
            return kind
        at = self._host.at(download.path)
        record = self._placed.get("bin", download.path)
        if record is None or record.b != download.source:
            return "another version"
        return "content differs" if fingerprint(at) != record.c and sha256_of(at) != record.a else ""

    def missing(self, parts: Iterable[Part]) -> list[str]:
        """The sha256 of each file that this host does not have as it should be and that has no URL: who runs this sends it."""
        downloads = (download for part in parts for download in part.downloads)
        return sorted({each.sha256 for each in downloads if not each.url and self.content_difference(each)})

    def place(self, download: Download, part: str) -> None:
        self._files.make_parents(download.path)
        self._files.unlock(download.path)
        new, at = self._files.new_name(download.path), self._host.at(download.path)
        try:
            placed_sum = self._write(download, part, new)
            self._files.swap_in(download.path, download.mode, "root", "root")
        except Failure:
            unlink(new)
            raise
        self._placed.update([Record("bin", download.path, part, placed_sum, download.source, fingerprint(at))])

    def _write(self, download: Download, part: str, new: str) -> str:
        """Returns its sha256."""
        at, record = self._host.at(download.path), self._placed.get("bin", download.path)
        if record and not self.content_difference(
            download
        ):  # its mode or owner is wrong, and the controller has not sent it again
            with attempt(f"cannot write {at}"):
                create(new, at)
            return record.a
        source, name = self._find_source(download, part)
        if source.endswith(".gz"):
            _inflate(source, new)
            _verify(new, download.sha256, name)
            return download.sha256
        if download.member:
            _verify(source, download.sha256, name)
            _unpack(source, download.member, download.url, new)
            return sha256_of(new)
        with attempt(f"cannot write {at}"):
            create(new, source)
        _verify(new, download.sha256, name)
        return download.sha256

    def _find_source(self, download: Download, part: str) -> tuple[str, str]:
        """A local file that should have this checksum, as NAME.gz once that is unpacked; and its name in messages."""
        for directory in (self._host.artifacts, self._host.envelope and f"{self._host.envelope}/artifacts"):
            for path in (f"{directory}/{download.sha256}", f"{directory}/{download.sha256}.gz"):
                if directory and os.path.isfile(path):
                    return path, path
        if not download.url:
            raise Failure(
                "download",
                f"the file with sha256 {download.sha256} is not on this host and was not sent with the bundle; it has to be in "
                f"the controller's artifact directory",
            )
        path, name = f"{self._host.scratch}/{download.sha256}", without_password(download.url)
        if not os.path.isfile(path):
            self._fetch(download.url, path, name, part)
        return path, name

    def _fetch(self, url: str, path: str, name: str, part: str) -> None:
        from .fetch import TooLarge, fetch

        free_mib = shutil.disk_usage(self._host.scratch).free / (1 << 20) - KEEP_FREE_MIB
        if free_mib < 1:
            raise Failure(
                "disk-full",
                f"not enough space to download {name}: {KEEP_FREE_MIB} MiB below {self._host.state} must stay free; free some "
                f"space and apply again",
            )
        most_mib = min(free_mib, MOST_DOWNLOAD_MIB)
        say(f"downloading {name}")
        try:
            fetch(url, path, int(most_mib * (1 << 20)), f"{part}: still downloading")
        except TooLarge as error:
            if most_mib == MOST_DOWNLOAD_MIB:
                raise Failure(
                    "download",
                    f"{name} is larger than {MOST_DOWNLOAD_MIB} MiB, more than any program of this bundle; it was discarded; "
                    f"check what the server sends",
                ) from error
            raise Failure(
                "disk-full",
                f"{name} is larger than the {int(most_mib)} MiB that can be used below {self._host.state}; free some space and "
                f"apply again, or check what the server sends",
            ) from error


def _verify(path: str, expected: str, name: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise Failure(
            "checksum",
            f"{name} has sha256 {found} ({os.path.getsize(path)} bytes), but {expected} is expected; it was truncated or "
            f"replaced in transit and was not used",
        )


def _unpack(archive: str, member: str, url: str, to: str) -> None:
    """One member out of a .tar.gz or .zip archive."""
    import tarfile
    import zipfile

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


def _inflate(compressed: str, to: str) -> None:
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
