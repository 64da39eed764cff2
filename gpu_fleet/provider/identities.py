"""Which keys a login offers, in ssh's order: a named key alone, or else those of the agent and of ~/.ssh.

A named key is offered alone, as with `IdentitiesOnly yes`: each further one counts as a failed attempt. Where the agent holds it,
the agent signs, so that a key with a passphrase or a public key can be named. A certificate beside it (KEY-cert.pub) goes first.
"""

from __future__ import annotations

import asyncio
import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncssh
from asyncssh.public_key import CERT_TYPE_USER, SSHOpenSSHCertificate

from gpu_fleet.provider.transport import TransportError

# Source: ssh(1) of OpenSSH 9.2, -i.
_DEFAULTS: Final = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
_PUTTY: Final = b"PuTTY-User-Key-File"


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """`public` is known of a key with a passphrase, too. `why_not`: why it cannot sign by itself, empty if it can."""

    public: asyncssh.SSHKey
    private: asyncssh.SSHKey | None = None
    certificate: asyncssh.SSHCertificate | None = None
    why_not: str = ""


class Identities:
    """`secret`: the key of gpu-fleet:sshPrivateKey, which takes precedence over all others. `agent`: the path of its socket."""

    def __init__(self, *, secret: str | None, agent: str | None, agent_timeout_s: float):
        self._secret = secret
        self._agent_path = agent
        self._agent_timeout_s = agent_timeout_s
        self._agent: asyncio.Task[list[asyncssh.SSHKeyPair]] | None = None
        self._files: dict[str, KeyFile] = {}

    async def of(self, path: str | None) -> list[asyncssh.SSHKeyPair]:
        """The keys of a login, first one first; `path`: the named one. Raises TransportError."""
        if self._secret:
            return list(asyncssh.load_keypairs([_secret_key(self._secret)]))
        if path:
            return await self._named(path)
        files = list(filter(None, map(_default, _DEFAULTS)))
        held = await self._held()
        known = {file.public.public_data for file in files}
        first = [pair for file in files for pair in self._signed_by_agent(file, held)]
        rest = [copy.copy(pair) for pair in held if pair.public_data not in known]
        return [*first, *rest, *(pair for file in files if not _in(file, held) for pair in _signed_here(file))]

    def validity(self, path: str | None, user: str | None) -> str:
        """What is wrong with the certificate of a named key, which sshd writes only to its own log."""
        certificate = self._files[path].certificate if path in self._files else None
        try:
            if isinstance(certificate, SSHOpenSSHCertificate) and user:
                certificate.validate(CERT_TYPE_USER, user)
        except ValueError as error:
            return f"; {path}-cert.pub: {error}"
        return ""

    async def _named(self, path: str) -> list[asyncssh.SSHKeyPair]:
        if path not in self._files:
            self._files[path] = _read(path)
        file = self._files[path]
        held = await self._held()
        if pairs := self._signed_by_agent(file, held) or _signed_here(file):
            return pairs
        if self._agent_path:
            raise TransportError("auth", f"{file.why_not}, and the ssh-agent does not hold it; add it with `ssh-add`")
        raise TransportError("auth", f"{file.why_not}, and there is no ssh-agent to hold it (SSH_AUTH_SOCK is not set)")

    async def _held(self) -> list[asyncssh.SSHKeyPair]:
        """What the agent holds: asked once, since it answers one request after the other."""
        if not self._agent_path:
            return []
        if self._agent is None:
            self._agent = asyncio.create_task(self._ask_agent(self._agent_path))
        return await asyncio.shield(self._agent)

    async def _ask_agent(self, path: str) -> list[asyncssh.SSHKeyPair]:
        try:
            async with asyncio.timeout(self._agent_timeout_s):
                return list(await asyncssh.SSHAgentClient(path).get_keys())
        except TimeoutError:
            raise TransportError("auth", f"the ssh-agent does not answer (SSH_AUTH_SOCK={path})") from None
        except ValueError:  # a socket that a past session left
            return []

    @staticmethod
    def _signed_by_agent(file: KeyFile, held: list[asyncssh.SSHKeyPair]) -> list[asyncssh.SSHKeyPair]:
        """Copies: a login sets the algorithm of a pair."""
        for pair in held:
            if pair.public_data == file.public.public_data:
                if not file.certificate:
                    return [copy.copy(pair)]
                certified = copy.copy(pair)
                certified.set_certificate(file.certificate)
                return [certified, copy.copy(pair)]
        return []


def _in(file: KeyFile, held: list[asyncssh.SSHKeyPair]) -> bool:
    return any(pair.public_data == file.public.public_data for pair in held)


def _signed_here(file: KeyFile) -> list[asyncssh.SSHKeyPair]:
    if not file.private:
        return []
    return list(asyncssh.load_keypairs([(file.private, file.certificate) if file.certificate else file.private]))


def _secret_key(text: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(text)
    except asyncssh.KeyImportError as error:
        raise TransportError("auth", f"gpu-fleet:sshPrivateKey is not a usable private key: {error}") from None


def _default(name: str) -> KeyFile | None:
    path = Path("~/.ssh").expanduser() / name
    try:
        return _read(str(path)) if path.exists() else None
    except TransportError:
        return None  # as ssh does, which warns


def _read(path: str) -> KeyFile:
    """A private key, or a public one whose private half the agent may hold. Raises TransportError."""
    file = Path(path).expanduser()
    beside, certificate = _public(file.with_name(f"{file.name}.pub")), _certificate(file.with_name(f"{file.name}-cert.pub"))
    try:
        content = file.read_bytes()
        status = file.stat()
    except OSError as error:
        if beside and isinstance(error, FileNotFoundError):  # a key on a token, say
            return KeyFile(
                public=beside, certificate=certificate, why_not=f"the private key {path} does not exist, {path}.pub does"
            )
        raise TransportError("auth", f"the private key {path} cannot be read: {error.strerror}") from None
    try:
        private = asyncssh.import_private_key(content)
    except asyncssh.KeyImportError as error:
        public = _imported(content) or beside
        if "assphrase" in str(error) and public:
            return KeyFile(public=public, certificate=certificate, why_not=f"the private key {path} has a passphrase")
        if "assphrase" in str(error):
            raise TransportError("auth", f"the private key {path} has a passphrase, and there is no {path}.pub") from None
        if public:
            return KeyFile(public=public, why_not=f"{path} is a public key")
        form = (
            "PuTTY's format; `puttygen KEY -O private-openssh -o KEY` converts it" if content.startswith(_PUTTY) else str(error)
        )
        raise TransportError("auth", f"{path} is not a usable private key: {form}") from None
    public = private.convert_to_public()
    if private.algorithm.startswith(b"sk-"):
        touch = f"the private key {path} is on a security key (FIDO2), which is touched for each login"
        return KeyFile(public=public, certificate=certificate, why_not=touch)
    if status.st_mode & 0o077 and status.st_uid == os.getuid():
        mode = f"{status.st_mode & 0o777:04o}"
        raise TransportError("auth", f"the private key {path} can be read by others (mode {mode}); `chmod 600 {path}`")
    return KeyFile(public=public, private=private, certificate=certificate)


def _public(file: Path) -> asyncssh.SSHKey | None:
    try:
        return _imported(file.read_bytes())
    except OSError:
        return None


def _imported(content: bytes) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(content)
    except asyncssh.KeyImportError:
        return None


def _certificate(file: Path) -> asyncssh.SSHCertificate | None:
    try:
        return asyncssh.read_certificate(file)
    except (OSError, asyncssh.KeyImportError):
        return None
