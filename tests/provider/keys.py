"""Private keys that no program here makes."""

from __future__ import annotations

import base64
import os
import textwrap
from pathlib import Path

from asyncssh.packet import Byte, String, UInt32


def security_key(file: Path) -> None:
    """As `ssh-keygen -t ed25519-sk` writes it: a handle that only the FIDO2 token it came from can use.

    Source: PROTOCOL.key and PROTOCOL.u2f of OpenSSH 9.2.
    """
    kind = b"sk-ssh-ed25519@openssh.com"
    public = String(os.urandom(32)) + String(b"ssh:")
    check = os.urandom(4) * 2
    private = check + String(kind) + public + Byte(1) + String(os.urandom(64)) + String(b"") + String(b"fido")
    private += bytes(range(1, 8))[: -len(private) % 8]
    blob = b"openssh-key-v1\0" + String(b"none") * 2 + String(b"") + UInt32(1) + String(String(kind) + public) + String(private)
    text = "\n".join(textwrap.wrap(base64.b64encode(blob).decode(), 70))
    file.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}\n-----END OPENSSH PRIVATE KEY-----\n")
    file.chmod(0o600)
