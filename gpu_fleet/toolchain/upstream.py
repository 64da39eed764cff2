"""Upstream releases: downloaded over TLS, verified by sha256, unpacked. Nothing of a file that does not match is kept.

A machine without internet must lose seconds here, not minutes: a server is contacted once per run, with a timeout that covers
name resolution too, and not again after it failed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import ssl
import tarfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import yaml

from gpu_fleet.toolchain.errors import Unavailable, WrongChecksum
from gpu_fleet.toolchain.progress import Step, size
from gpu_fleet.toolchain.versions import Chart, ReleaseFile

REACH_S = 8  # until a server counts as unreachable; a slow proxy needs 2-3 s
STALL_S = 20  # without a byte, or without a connection to the target of a redirect
ATTEMPTS = 2  # a broken download is retried once
CHECKSUM_LIST_BYTES = 1_000_000
CHART_INDEX_BYTES = 100_000_000  # prometheus-community's has 20 MB
PINNED = "matches its pinned sha256"

_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError)


class Upstream:
    """Downloads of one run. Proxies come from the environment (https_proxy, no_proxy), as urllib reads them."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}  # server -> why it is not contacted again; empty: it answers

    def get(self, file: ReleaseFile, name: str, into: Path, step: Step) -> str:
        """Downloads and verifies `file`, puts the program below the new directory `into` as `name`, or as `file.tree` says.

        Returns what it was verified against.
        Raises Unavailable with the reason, or WrongChecksum.
        """
        self._reach(file.url)
        expected, against = (file.sha256, PINNED) if file.sha256 else self._published(file)
        archive = into.with_name("download")
        found = self._download(file.url, archive, step)
        if found != expected:
            archive.unlink()
            raise WrongChecksum(
                file.url,
                expected=expected,
                found=found,
                next_step="Nothing of it was kept. Upstream replaced the release, or something on the way changes downloads. "
                "Compare with the list that upstream publishes before you change gpu_fleet/toolchain/versions.yaml "
                f"({file.checksums_url}).",
            )
        step.doing = "unpacking"
        unpack(archive, file, name, into)
        archive.unlink()
        return against

    def learn_sha256(self, file: ReleaseFile, scratch: Path, step: Step) -> tuple[str, str]:
        """The checksum to pin for a file and where it comes from. Raises Unavailable.

        Some projects publish no list, or one of SHA-1 sums: then it is that of the file as downloaded now.
        """
        self._reach(file.url)
        try:
            return self._published(file)[0], file.checksums_url
        except Unavailable:
            archive = scratch / "download"
            sha256 = self._download(file.url, archive, step)
            archive.unlink()
            return sha256, f"the file itself, downloaded now: no sha256 for it at {file.checksums_url}"

    def learn_chart_sha256(self, chart: Chart) -> tuple[str, str]:
        """The checksum of a chart's archive in the index of its repository, and that index. Raises Unavailable."""
        url = f"{chart.repository}/index.yaml"
        self._reach(url)
        try:
            with _open(url) as answer:
                entries = yaml.load(answer.read(CHART_INDEX_BYTES), yaml.CSafeLoader)["entries"][chart.chart]
            [found] = [entry["digest"] for entry in entries if entry["version"] == chart.version]
        except _NETWORK_ERRORS as error:
            raise self._given_up(url, f"{url} cannot be fetched: {_reason(error)}") from None
        except (yaml.YAMLError, KeyError, TypeError, ValueError):
            raise Unavailable(f"{url} lists no checksum of {chart.chart} {chart.version}") from None
        if not re.fullmatch(r"[0-9a-f]{64}", str(found)):
            raise Unavailable(f"{url} lists {found!r} for {chart.chart} {chart.version}, which is no sha256")
        return found, url

    def _published(self, file: ReleaseFile) -> tuple[str, str]:
        try:
            with _open(file.checksums_url) as answer:
                text = answer.read(CHECKSUM_LIST_BYTES).decode("ascii", "replace")
        except _NETWORK_ERRORS as error:
            raise Unavailable(
                f"its sha256 is not pinned and the checksum list of the release cannot be fetched: {_reason(error)} "
                f"({file.checksums_url})"
            ) from None
        found = checksum_in(text, PurePosixPath(urllib.parse.urlsplit(file.url).path).name)
        if not found:
            raise Unavailable(f"its sha256 is not pinned and not in the checksum list of the release ({file.checksums_url})")
        return found, "matches its published checksum list, not pinned here (`.venv/bin/python -m gpu_fleet.toolchain pin`)"

    def _reach(self, url: str) -> None:
        """Raises Unavailable when the server of `url` does not answer, at once if it was contacted before."""
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in self._hosts:
            self._hosts[parts.netloc] = _probe(f"{parts.scheme}://{parts.netloc}/")
        if reason := self._hosts[parts.netloc]:
            raise Unavailable(f"{parts.hostname} cannot be reached ({reason})")

    def _download(self, url: str, to: Path, step: Step) -> str:
        """Returns the sha256 of what arrived. Raises Unavailable; then nothing is left of it."""
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                return _stream(url, to, step)
            except urllib.error.HTTPError as error:
                raise Unavailable(f"{url} answers {error.code} {error.reason}") from None
            except urllib.error.URLError as error:
                raise self._given_up(url, f"{url} cannot be fetched: {_reason(error)}") from None
            except _NETWORK_ERRORS as error:
                to.unlink(missing_ok=True)
                reason = _reason(error)
                step.detail = "broke off, retrying"
        raise self._given_up(url, f"the download broke off {ATTEMPTS} times: {reason}")

    def _given_up(self, url: str, reason: str) -> Unavailable:
        """Nothing else is tried on that server in this run."""
        self._hosts[urllib.parse.urlsplit(url).netloc] = reason
        return Unavailable(reason)


def checksum_in(text: str, name: str) -> str:
    """The sha256 of the file `name` in a list as sha256sum writes it; a single sum without a name is that of the one file."""
    if re.fullmatch(r"\s*[0-9a-f]{64}\s*", text):
        return text.strip()
    for line in text.splitlines():
        if (match := re.fullmatch(r"([0-9a-f]{64})\s+\*?(?:\./)?(\S+)\s*", line)) and PurePosixPath(match[2]).name == name:
            return match[1]
    return ""


def unpack(archive: Path, file: ReleaseFile, name: str, into: Path) -> None:
    """Puts the program of a verified download, and what it needs, below `into`, executable. Raises Unavailable."""
    into.mkdir()
    try:
        if file.tree:
            _unpack_tree(archive, into)
        elif file.member:
            _unpack_member(archive, file.member, into / name)
            for member in file.also:
                _unpack_member(archive, member, into / PurePosixPath(member).name)
        else:
            shutil.copyfile(archive, into / name)
            (into / name).chmod(0o755)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{file.url} is not the archive that gpu_fleet/toolchain/versions.yaml describes: {error}") from None


def _unpack_member(archive: Path, member: str, to: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped, zipped.open(member) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target)
    else:
        with tarfile.open(archive) as tar:
            packed = tar.extractfile(member)
            if packed is None:
                raise KeyError(f"{member} is not a file")
            with packed, to.open("wb") as target:
                shutil.copyfileobj(packed, target)
    to.chmod(0o755)


def _unpack_tree(archive: Path, into: Path) -> None:
    """All of a .tar.gz without its first directory, whose name varies."""
    with tarfile.open(archive) as tar:
        members = []
        for member in tar:
            if below := PurePosixPath(member.name).parts[1:]:
                member.name = str(PurePosixPath(*below))
                members.append(member)
        extract(tar, into, members)


def extract(tar: tarfile.TarFile, into: Path, members: list[tarfile.TarInfo] | None = None) -> None:
    """All or some members of an archive whose sha256 is known. Raises tarfile.TarError for one that reaches outside `into`.

    Not by the argument `filter`, which Python has since 3.11.4: Debian 12's is older.
    """
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    place = into.resolve()
    for member in tar.getmembers() if members is None else members:
        target = place / member.name
        ends = [target, target.parent / member.linkname] if member.issym() else [target]
        if not all(Path(os.path.normpath(end)).is_relative_to(place) for end in ends):
            raise tarfile.TarError(f"{member.name} reaches outside the archive's directory")
    tar.extractall(into, members)  # noqa: S202 - verified by sha256


def _stream(url: str, to: Path, step: Step) -> str:
    digest = hashlib.sha256()
    with _open(url) as answer, to.open("wb") as target:
        total = int(answer.headers.get("Content-Length") or 0)
        arrived = 0
        while chunk := _read(answer):
            digest.update(chunk)
            target.write(chunk)
            arrived += len(chunk)
            step.detail = f"{size(arrived)} of {size(total)}" if total else size(arrived)
    if arrived < total:
        raise http.client.HTTPException(f"{arrived} of {total} bytes arrived")
    return digest.hexdigest()


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(1 << 20)
    except OSError as error:  # not those of the disk, which end the run
        raise ConnectionError(_reason(error)) from None


def _open(url: str) -> http.client.HTTPResponse:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname != "127.0.0.1":  # tests serve on loopback
        raise Unavailable(f"{url} is not an https address")
    answer: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=STALL_S)  # noqa: S310 - the scheme was checked
    return answer


def _probe(url: str) -> str:
    """Why `url` gives no HTTP answer at all; empty when it does. In a thread: name resolution has no timeout."""
    reasons: list[str] = []

    def probe() -> None:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - comes from versions.yaml, checked by _open
        try:
            urllib.request.urlopen(request, timeout=REACH_S).close()  # noqa: S310
            reasons.append("")
        except urllib.error.HTTPError:
            reasons.append("")  # also an answer
        except _NETWORK_ERRORS as error:
            reasons.append(_reason(error))

    thread = _daemon(probe)
    thread.join(REACH_S)
    return reasons[0] if reasons else f"no answer within {REACH_S} s"


def _daemon(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
