"""Where Debian's and Ubuntu's packages are downloaded from: the mirror that this machine itself uses, or theirs."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

_APT = Path("/etc/apt")
_OWN = {"debian": "https://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}  # apt verifies signatures


def mirror(distribution: str, suite: str, apt: Path = _APT) -> str:
    """`distribution`: debian, ubuntu. A site's mirror usually has both beside each other, of which a machine names its own."""
    texts = [file.read_text() for file in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))) if file.is_file()]
    addresses = re.findall(r"^(?:deb\s+(?:\[[^]]*\]\s+)?|URIs:\s*)(https?://\S+)", "\n".join(texts), re.MULTILINE)
    roots = [address.rstrip("/") for address in addresses if urlsplit(address).path.rstrip("/").endswith(("/debian", "/ubuntu"))]
    beside = [root.rpartition("/")[0] + f"/{distribution}" for root in roots]
    return next(
        (root for root in dict.fromkeys(beside) if root in roots or _serves(root, suite)),
        _OWN[distribution],
    )


def _serves(root: str, suite: str) -> bool:
    try:
        with urllib.request.urlopen(f"{root}/dists/{suite}/Release", timeout=20) as answer:  # noqa: S310
            return answer.status == 200
    except (OSError, ValueError):
        return False
