"""An envelope, as converge takes it: bundle.tar, settings, secrets/ and artifacts/, and how it is applied."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from typing import Any, Iterator, NamedTuple

from ..converge.errors import Failure, attempt
from ..converge.events import say
from ..converge.programs import run
from .index import Index
from .kept import Kept
from .origin import Origin, Refused

_MOST_ARTIFACT = 2 << 30  # bytes; the bundle's own size is in the signed index


class Envelope(NamedTuple):
    """`path`: its directory. `former`: the datacenter/cluster that this host had, which it may leave; empty on a host that did
    not pull from this stack."""

    path: str
    kept: Kept
    origin: Origin
    former: str

    def get_bundle(self, index: Index) -> None:
        tar = f"{self.path}/bundle.tar"
        if self.kept.good_bundle == index.bundle:
            with attempt(f"cannot write below {self.kept.state}"):
                shutil.copyfile(f"{self.kept.good}/bundle.tar", tar)
        else:
            self.origin.fetch(f"bundle-{index.bundle}.tar", tar, index.bundle_bytes, index.bundle)

    @property
    def manifest(self) -> list[list[str]]:
        """The fields of its lines."""
        with tarfile.open(f"{self.path}/bundle.tar") as tar:
            member = tar.extractfile("manifest")
            assert member is not None
            return [line.split("\t") for line in member.read().decode().split("\n")]

    def apply(self, stack: str, offline: bool = False) -> int:
        """How many parts changed. `offline`: a file that cannot be fetched fails only the part that needs it. Raises Failure,
        with the first cause."""
        with attempt("cannot unpack the bundle"):
            os.makedirs(f"{self.path}/artifacts", exist_ok=True)
            with tarfile.open(f"{self.path}/bundle.tar") as tar:
                tar.extractall(f"{self.path}/bundle")  # noqa: S202 # its sha256 is signed
        try:
            self._get_artifacts()
        except Failure:
            if not offline:
                raise
        given = ("--artifacts", f"{self.kept.good}/artifacts", "--stack", f"{stack} {self.former}")
        done = run_converge(f"{self.path}/bundle", "apply", self.kept.prefix, "--envelope", self.path, *given)
        if done.problem:
            raise Refused(done.problem)
        return done.changed

    def _get_artifacts(self) -> None:
        """The programs that this host lacks and that the bundle does not download from upstream."""
        needs = ("sh", f"{self.path}/bundle/converge", "needs", "--prefix", self.kept.prefix, "--envelope", self.path)
        for artifact in run(*needs).stdout.split():
            if not os.path.isfile(f"{self.kept.good}/artifacts/{artifact}"):
                say(f"fetching a program ({artifact})")
                self.origin.fetch(f"artifacts/{artifact}", f"{self.path}/artifacts/{artifact}", _MOST_ARTIFACT, artifact)


class Outcome(NamedTuple):
    """`problem`: the first cause; empty where the program reports success. `changed`: parts."""

    code: int
    has_result: bool
    changed: int
    problem: str


def run_converge(bundle: str, verb: str, prefix: str, *arguments: str) -> Outcome:
    """An exit code of 0 without a result means that the program was damaged or missing."""
    done = run("sh", f"{bundle}/converge", verb, "--prefix", prefix, *arguments, shown=True)
    events = list(_events(done.stdout))
    result = next((event for event in events if event["event"] == "result"), {})
    if done.ok and result.get("ok"):
        return Outcome(0, True, result["changed"], "")
    failed = (event for event in events if event.get("status") == "failed")
    causes = (f"{event['part']}: {event['error']['message']}".split("\n")[0] for event in failed)
    return Outcome(done.code or 1, bool(result), 0, next(causes, "the converge program ended without a result"))


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
