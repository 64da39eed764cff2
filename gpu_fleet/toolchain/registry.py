"""The digest of a container image, queried from its registry by the OCI distribution protocol. No image is downloaded."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request

from gpu_fleet.toolchain.errors import Unavailable

_TIMEOUT_S = 20
_LONGEST_MANIFEST = 4_000_000  # the most that registries take
# The index of all architectures first, so that one digest serves every host.
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError, ValueError)


def digest_of(repository: str, tag: str) -> str:
    """`sha256:...` of what the tag names now. `repository`: with its registry, `nvcr.io/nvidia/k8s/dcgm-exporter`.

    Asked anonymously, with the token that the registry hands to everybody. Raises Unavailable.
    """
    registry, _, name = repository.partition("/")
    scheme = "http" if registry.startswith("127.") else "https"  # Docker's own rule
    url = f"{scheme}://{registry}/v2/{name}/manifests/{tag}"
    try:
        try:
            body, named = _get(url, {})
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            body, named = _get(url, {"Authorization": f"Bearer {_token(error.headers.get('WWW-Authenticate', ''))}"})
    except _NETWORK_ERRORS as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unavailable(f"the registry {registry} gave no digest of {name}:{tag}: {reason}") from None
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if named and named != digest:
        raise Unavailable(f"the registry {registry} names {named} for {name}:{tag} and sends {digest}; nothing is pinned")
    return digest


def _get(url: str, headers: dict[str, str]) -> tuple[bytes, str]:
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT, **headers})  # noqa: S310  http on loopback alone
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        return answer.read(_LONGEST_MANIFEST), answer.headers.get("Docker-Content-Digest", "")


def _token(challenge: str) -> str:
    """`Bearer realm="https://...",service="...",scope="..."` says where to get a token."""
    values = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = values.pop("realm", "")
    if not realm.startswith(("https://", "http://127.")):
        raise ValueError(f"unsupported authentication challenge: {challenge[:80]!r}")
    with urllib.request.urlopen(f"{realm}?{urllib.parse.urlencode(values)}", timeout=_TIMEOUT_S) as answer:  # noqa: S310
        given = json.load(answer)
    token: str = given.get("token") or given["access_token"]
    return token
