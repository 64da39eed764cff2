"""Who may use the API: basic authentication or a token, as Grafana takes both."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """`credentials`: "user:password" for basic authentication, anything without a colon is a token."""

    credentials: Collection[str]

    @classmethod
    def of_admin(cls, password: str) -> Access:
        return cls([f"admin:{password}"])

    def allows(self, header: str) -> bool:
        """`header`: the value of Authorization; empty when there is none."""
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif scheme.lower() != "bearer" or ":" in value:
            return False
        return any(hmac.compare_digest(value.encode(), known.encode()) for known in self.credentials)
