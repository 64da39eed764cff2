"""What a kubeconfig says of reaching a cluster: the server, whom to trust, who we are.

Source: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ (read November 2026). Not done here: merging several
files, exec and auth-provider plugins; they are refused.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

AUTHORITY = "gpu-fleet lab authority"  # common name of what signs the servers of a cluster of the lab


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; the text says which key and why."""


@dataclass(frozen=True)
class Connection:
    server: str
    namespace: str
    tls: ssl.SSLContext | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def read(path_or_text: str) -> dict[str, Any]:
    """A kubeconfig from its path or from its text, paths in it made absolute."""
    if "\n" in path_or_text or path_or_text.lstrip().startswith("{"):
        text, base = path_or_text, Path.cwd()
    else:
        path = Path(path_or_text).expanduser()
        try:
            text, base = path.read_text(), path.parent
        except OSError as error:
            raise KubeconfigError(f"kubeconfig {path}: {error.strerror}") from None
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        raise KubeconfigError("kubeconfig is not valid YAML") from None  # its text may hold secrets
    if not isinstance(config, dict):
        raise KubeconfigError("kubeconfig is not a mapping with clusters, users and contexts")
    for kind, keys in (("cluster", ("certificate-authority",)), ("user", ("client-certificate", "client-key", "tokenFile"))):
        for entry in config.get(f"{kind}s") or []:
            about = entry.get(kind) or {}
            about.update({key: str(base / about[key]) for key in keys if about.get(key)})
    return config


def connection(config: Mapping[str, Any], context: str = "") -> Connection:
    """How to reach the cluster of `context`, or of the current one."""
    name = context or config.get("current-context") or ""
    chosen = _entry(config, "context", name)
    cluster = _entry(config, "cluster", chosen.get("cluster", ""))
    user = _entry(config, "user", chosen["user"]) if chosen.get("user") else {}
    for key in ("exec", "auth-provider"):
        if user.get(key):
            raise KubeconfigError(f"kubeconfig: user {chosen['user']} logs in by `{key}`, which the lab does not know")
    server = str(cluster.get("server", "")).rstrip("/")
    tls = _tls(cluster, user) if server.startswith("https:") else None
    return Connection(server=server, namespace=chosen.get("namespace", "default"), tls=tls, headers=_login(user))


def is_of_lab(path_or_text: str, context: str = "") -> bool:
    """Whether the cluster is one of lab/kubernetes: whoever uses this kubeconfig trusts no other."""
    try:
        tls = connection(read(path_or_text), context).tls
    except KubeconfigError:
        return False
    subjects = [dict(pair for part in ca["subject"] for pair in part) for ca in tls.get_ca_certs()] if tls else []
    verifies = tls is not None and tls.verify_mode == ssl.CERT_REQUIRED
    return verifies and bool(subjects) and all(subject.get("commonName") == AUTHORITY for subject in subjects)


def _entry(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    entries = {entry["name"]: entry.get(kind) or {} for entry in config.get(f"{kind}s") or []}
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise KubeconfigError(f"kubeconfig: {kind} {name!r} does not exist; it has: {known}")
    return entries[name]


def _login(user: Mapping[str, Any]) -> dict[str, str]:
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if user.get("tokenFile") else "")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user.get("username"):
        login = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode()).decode()
        return {"Authorization": f"Basic {login}"}
    return {}


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        with _file(cluster, "certificate-authority") as authority:
            context = ssl.create_default_context(cafile=authority)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with _file(user, "client-certificate") as certificate, _file(user, "client-key") as key:
            if certificate:
                context.load_cert_chain(certificate, key)
    except OSError as error:  # of ssl too
        raise KubeconfigError(f"kubeconfig: its certificates cannot be loaded: {error.strerror or error}") from None
    return context


@contextlib.contextmanager
def _file(entry: Mapping[str, Any], key: str) -> Iterator[str | None]:
    """The file of `key`, or a short-lived one with what its `-data` holds: ssl takes a client's key from files alone."""
    if not (data := entry.get(f"{key}-data")):
        yield entry.get(key)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(base64.b64decode(data))
        file.flush()
        yield file.name
