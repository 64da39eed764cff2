"""What Helm keeps of a release in the cluster: one Secret per revision. Knows no Pulumi.

Source: helm.sh/helm/v3 3.22, pkg/storage/driver/secrets.go (names and labels) and util.go (the record: JSON, gzip, base64), read
2026-11-27.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.safetext.terminal import printable_line

_OWNED: Final = "owner=helm"
_LARGEST: Final = 32 << 20  # bytes of a record: Helm compresses it to less than the 1 MiB that a Secret may have
_GZIP: Final = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, kw_only=True)
class HelmRelease:
    """The newest revision of a release. `description`: as `helm history` shows it; an unfinished one has Helm's own words.

    `values`: what the chart was given. `path`: of the Secret that holds the record.
    """

    name: str
    revision: int
    status: str  # deployed, failed, uninstalling, pending-install, ...
    description: str
    values: Mapping[str, Any]
    path: str


def helm_releases(api: ClusterApi, namespace: str, names: Iterable[str]) -> dict[str, HelmRelease]:
    """Those of the names that the namespace has. Raises the exceptions of ClusterApi."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    path = f"/api/v1/namespaces/{namespace}/secrets"
    found: dict[str, HelmRelease] = {}
    for secret in api.list(path, labelSelector=f"{_OWNED},name in ({','.join(wanted)})"):
        release = _release(path, secret)
        if release.name not in found or found[release.name].revision < release.revision:
            found[release.name] = release
    return found


def _release(path: str, secret: Mapping[str, Any]) -> HelmRelease:
    labels, record = secret["metadata"]["labels"], _record(secret)
    version = str(labels.get("version", ""))
    return HelmRelease(
        name=str(labels["name"]),
        revision=int(version) if version.isdigit() else 0,
        status=printable_line(str(labels.get("status", "unknown"))),
        description=printable_line(str((record.get("info") or {}).get("description") or "")),
        values=record.get("config") or {},
        path=f"{path}/{secret['metadata']['name']}",
    )


def _record(secret: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty for one that is not readable: another version of Helm may keep it otherwise."""
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {}).get("release", "")))
        loaded = json.loads(zlib.decompressobj(_GZIP).decompress(packed, _LARGEST))
    except (ValueError, zlib.error):
        return {}
    return loaded if isinstance(loaded, dict) else {}
