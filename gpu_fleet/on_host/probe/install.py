"""Could packages be installed here? Changes nothing: apt's package lists are written to a scratch directory (dnf's, which are
large and valid for a day or two, to its cache), and are used only to look up names."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Sequence

from .. import dnf, package_errors
from ..distribution import family
from .host import Host

if TYPE_CHECKING:
    from ..tools import Answer

PATIENCE_S = 45  # fresh package lists of a distribution take seconds; a server that does not respond must not delay the fleet
MOST = 200  # characters of a reason
_OURS = "gpu-fleet-nvidia.list"

Ask = Callable[..., "Answer"]


def obstacle(host: Host, repository: str, packages: Sequence[str]) -> str:
    """Why not, in a few words; empty where they could. `repository`: NVIDIA's or a mirror of it, beside the host's own."""

    def ask(*command: str) -> Answer:
        return host.ask(*command, within_s=PATIENCE_S, with_stderr=True)

    kind = family(host.text("/etc/os-release"))
    if kind == "unknown":
        return "this distribution is not supported"
    usr = host.path("/usr")
    if usr.exists() and not os.access(usr, os.W_OK):
        return "/usr is read-only: packages come with the image here"
    why, replaced = (_of_apt if kind == "debian" else _of_dnf)(host, ask, repository, packages)
    if why:
        return why
    # Those that earlier installations of ours brought may be upgraded, and no other.
    others = [name for name in replaced if not host.has_placed("package", name)]
    return f"another version of {others[0]} would have to be installed" if others else ""


def _of_apt(host: Host, ask: Ask, repository: str, packages: Sequence[str]) -> tuple[str, Sequence[str]]:
    with tempfile.TemporaryDirectory(dir=host.environment.get("TMPDIR")) as name:
        scratch = Path(name)
        scratch.chmod(0o755)  # apt fetches as a user of its own
        (scratch / "lists/partial").mkdir(parents=True)
        parts = scratch / "parts"
        parts.mkdir()
        for file in host.path("/etc/apt/sources.list.d").glob("*"):
            if file.suffix in (".list", ".sources") and file.name != _OURS:
                (parts / file.name).symlink_to(file)
        if repository:
            # apt does not know the repository's key yet; nothing is installed from it here.
            (parts / "gpu-fleet-asked.list").write_text(f"deb [trusted=yes] {repository} /\n")
        options = [
            *("-q", "-o", f"Dir::State::Lists={scratch}/lists", "-o", f"Dir::Etc::SourceParts={parts}"),
            *("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "Acquire::Retries=0"),
            *("-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"),
        ]
        # A failing source does not matter as long as the others have the packages.
        updated = ask("apt-get", *options, "update")
        simulation = ("--simulate", "--no-install-recommends", "--no-remove", "install", *packages)
        simulated = ask("apt-get", *options, *simulation)
    if simulated.status != 0:
        held = ask("apt-mark", "showhold").text.split()
        return _why("debian", packages, simulated.text, updated.text, held), ()
    return "", replaced_by_apt(simulated.text)


def _of_dnf(host: Host, ask: Ask, repository: str, packages: Sequence[str]) -> tuple[str, Sequence[str]]:
    tool = next(filter(host.has, ("dnf", "yum")), "")
    if not tool:
        return "this host has neither dnf nor yum", ()  # an image, such as Fedora CoreOS
    added = (f"--repofrompath=gpu-fleet-asked,{repository}", "--nogpgcheck") if repository else ()
    # Without -q, which would hide the address that failed. A mirror is tried four times.
    options = (*added, "--assumeno", "--setopt=timeout=10", "--setopt=*.skip_if_unavailable=1")
    answer = ask(tool, "install", *options, *packages)
    for cache in ("/var/cache/dnf", "/var/cache/libdnf5"):
        for left in host.path(cache).glob("gpu-fleet-asked*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
    # The prompt was reached and answered with no: everything was found.
    if answer.status != 0 and "Operation aborted" not in answer.text:
        return _why("rhel", packages, answer.text), ()
    return "", dnf.replaces(answer.text)


def _why(family: str, packages: Sequence[str], said: str, updated: str = "", held: Sequence[str] = ()) -> str:
    if not f"{said}{updated}".strip():
        return f"no answer within {PATIENCE_S} s"
    reason = package_errors.reason(family, packages[0], said, updated, held)
    # The repositories that were asked are not all the host's own; its clock is.
    fix = reason.fix if reason.code != "download" or reason.fix in package_errors.OF_CLOCK else ""
    return f"{reason.what[:MOST]}{'; ' if fix else ''}{fix}"


def replaced_by_apt(text: str) -> Sequence[str]:
    """Packages of which another version is there: `Inst NAME [version before] (version after ...)`."""
    return re.findall(r"^Inst (\S*) \[", text, re.MULTILINE)
