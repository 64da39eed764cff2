"""What can go wrong with the lab's hosts that a person can mend."""

from __future__ import annotations


class HostsError(Exception):
    """str() says what is wrong and what to do."""
