"""Errors of the lab's hosts that the user can fix."""

from __future__ import annotations


class HostsError(Exception):
    """str() says what is wrong and what to do."""
