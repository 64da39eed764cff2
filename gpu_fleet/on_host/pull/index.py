"""The index: describes the newest publication, in one file with its signatures, so that the two always match."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Mapping, NamedTuple, Sequence

from ..converge.disk import create
from ..converge.programs import text
from .origin import Origin, Refused

NAME = "latest"
DAY_S = 86_400
_MOST = 65_536  # bytes
_MOST_SIGNATURES = 8
_SIGNATURE = b"\n-----BEGIN SSH SIGNATURE-----\n"
_VERIFY = ("ssh-keygen", "-Y", "verify", "-I", "gpu-fleet", "-n", "gpu-fleet")
_SPARE = "spare "


class Trust(NamedTuple):
    """What a host accepts. `keys`: public keys, the spare one after the word `spare`. `floor`: the oldest version."""

    stack: str
    keys: Sequence[str]
    floor: int


class Index(NamedTuple):
    """A verified one. `keys`: those trusted from now on. `waves`: the share of the hosts, of 10,000, when its first may start,
    and over how many seconds the others follow."""

    version: int
    expires: int
    bundle: str
    bundle_bytes: int
    settings: Mapping[str, str]
    keys: Sequence[str]
    waves: Sequence[Sequence[int]]
    is_stopped: bool

    def turn(self, place: int) -> int:
        """When the host at this place, from 0 to 9999, may apply it: seconds since 1970."""
        before = 0
        for share, begins, spread in self.waves:
            if place < share:
                return round(begins + spread * (place - before) / (share - before))
            before = share
        return 0


def read_index(origin: Origin, trust: Trust, work: str) -> Index:
    """`work`: a directory for temporary files. Raises Failure."""
    name = f"{origin.url}/{NAME}"
    origin.fetch(NAME, f"{work}/{NAME}", _MOST)
    with open(f"{work}/{NAME}", "rb") as file:
        content, *signatures = (b"\n" + file.read()).split(_SIGNATURE)
    content = content[1:] + b"\n"
    signer = _signer(name, content, signatures[:_MOST_SIGNATURES], trust.keys, work)
    values: dict[str, list[str]] = {}
    for line in text(content).split("\n"):
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    stack, version, expires = (values.get(key, [""])[0] for key in ("stack", "version", "expires"))
    if values.get("gpu-fleet") != ["1"]:
        raise Refused(f"{name} has a format that this program cannot read; reinstall with the installer published beside it")
    if stack != trust.stack:
        raise Refused(f"{name} belongs to stack {stack}, but this host belongs to {trust.stack}; nothing was run")
    if not is_number(version) or not is_number(expires):
        hint = "publish it again with the release that this host has, or a newer one"
        raise Refused(f"{name} has no version or no expiry time; {hint}")
    untimely = _untimely(int(version), int(expires), trust.floor)
    if untimely:
        raise Refused(f"{name} {untimely}; nothing was run")
    digest, size = values["bundle"][0].split()
    return Index(
        version=int(version),
        expires=int(expires),
        bundle=digest,
        bundle_bytes=int(size),
        settings={name: value for name, _, value in (line.partition("=") for line in values.get("setting", []))},
        keys=_next_keys(trust.keys, signer, values),
        waves=[[int(word) for word in line.split()] for line in values.get("wave", [])],
        is_stopped="stop" in values,
    )


def _untimely(version: int, expires: int, floor: int) -> str:
    now = int(time.time())
    if version > now + DAY_S:
        # Otherwise one index with a huge version, signed with a stolen key, would make every later one too old forever.
        why = f"was published on {at_time(version)}, but this host's clock says {at_time(now)}: correct the clock"
        return f"{why}; if it is right, publish again on a machine with a correct clock"
    if version < floor:
        return f"is older (version {version}) than one seen before ({floor}): an old copy, or a replay attack"
    if expires < now:
        why = f"expired on {at_time(expires)}: publish again (make pull-bundle)"
        return f"{why}, or find out which server delivers an old copy"
    return ""


def _signer(name: str, content: bytes, signatures: Sequence[bytes], keys: Sequence[str], work: str) -> str:
    """The trusted key that signed it. Each signature is by one key."""
    said = "it has no signature"
    for key in keys:
        signer = key[len(_SPARE) :] if key.startswith(_SPARE) else key
        create(f"{work}/signers", f'gpu-fleet namespaces="gpu-fleet" {signer}\n'.encode())
        for signature in signatures:
            create(f"{work}/signature", _SIGNATURE[1:] + signature + b"\n")
            command = [*_VERIFY, "-f", f"{work}/signers", "-s", f"{work}/signature"]
            try:
                done = subprocess.run(command, input=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            except FileNotFoundError:
                packages = "openssh-client, openssh-clients"
                raise Refused(
                    f"this host has no ssh-keygen, which verifies signatures; install OpenSSH's client ({packages})"
                ) from None
            if done.returncode == 0:
                return key
            said = text(done.stdout).strip()[-200:].split("\n")[-1]
    if "option" in said:
        raise Refused("this host's ssh-keygen cannot verify signatures; OpenSSH 8.1 or newer is needed")
    raise Refused(f"{name} does not have a valid signature by this fleet's key ({said}); nothing was run")


def _next_keys(trusted: Sequence[str], signer: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Those listed replace ours. Only an index signed by the spare key can replace the spare key, so that a thief of the key in
    use cannot lock it out."""
    if "key" not in values:
        return list(trusted)
    spare = [key for key in trusted if key.startswith(_SPARE)]
    if signer.startswith(_SPARE) or not spare:
        spare = [_SPARE + key for key in values.get("spare", [])]
    return [*spare, *values["key"]]


def is_number(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,12}", text))


def at_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
