"""Names that outlive a deployment: resource names, type tokens, Grafana uids, labels. Pure.

Whoever changes a result changes the identity of things that exist: add the alias (or the migration) with it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

PROJECT: Final = "gpu-fleet"

# Labels of every series and log line.
DATACENTER: Final = "datacenter"
CLUSTER: Final = "cluster"
INSTANCE: Final = "instance"  # the name in the inventory, never the address
GPU: Final = "gpu"
XID: Final = "xid"
EXPORTER_MODE: Final = "exporter_mode"

LONGEST_UID: Final = 40  # Grafana refuses longer ones


def type_token(module: str, class_name: str) -> str:
    """`gpu-fleet:host:Fleet`."""
    return f"{PROJECT}:{module}:{class_name}"


def resource_name(host: str, part: str = "", piece: str = "") -> str:
    """`<host>-<part>[-<piece>]`; the host's own resource has its name alone."""
    return "-".join(filter(None, (host, part, piece)))


def release_mark(stack: str) -> str:
    """How the description of a Helm release begins that this stack installed: `helm list` and `helm history` show it."""
    return f"{PROJECT}, stack {stack}"


def slug(text: str) -> str:
    """Lower-case letters and digits with single hyphens between: what uids, file names and anchors may hold."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def grafana_uid(kind: str, *names: str) -> str:
    """`<kind>-<name>-…`, at most 40 characters, the same for the same names forever.

    A uid from which its names cannot be read back (characters lost, shortened, or a hyphen that could be the border between
    two names) ends with a hash of them, so that two never meet.
    """
    parts = (kind, *names)
    readable = "-".join(slug(part) for part in parts)
    is_exact = readable == "-".join(parts) and (len(names) < 2 or not any("-" in name for name in names))
    if is_exact and len(readable) <= LONGEST_UID:
        return readable
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]
    return f"{readable[: LONGEST_UID - 9].rstrip('-')}-{digest}"
