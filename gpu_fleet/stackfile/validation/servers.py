"""Servers that the stack talks to, their credentials, and where programs come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from gpu_fleet.stackfile.counters import PRESETS
from gpu_fleet.stackfile.counters import counters as read_counters
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem, nearest
from gpu_fleet.stackfile.sections import Dcgm, Server
from gpu_fleet.stackfile.validation.subject import Stack, problem


def check(stack: Stack) -> Iterator[Problem]:
    for section in ("metrics", "logs"):
        if section not in stack.broken:
            yield from _credentials(stack, {section: getattr(stack.file, section)}, section)
    if "rulers" not in stack.broken:
        rulers = stack.file.rulers
        servers = {"rulers.mimir": rulers.mimir if rulers else None, "rulers.loki": rulers.loki if rulers else None}
        yield from _credentials(stack, servers, "rulers")
    yield from _grafana(stack)
    if "artifacts" not in stack.broken:
        yield from _artifacts(stack)
    if "dcgm" not in stack.broken:
        yield from _counters(stack)
        yield from _of_the_image(stack)


# What a server may have that needs a secret: how the stack file's key is read, the key, the end of the secret's name.
_NEEDS: Final[tuple[tuple[Callable[[Server], object], str, str], ...]] = (
    (lambda server: server.username, "username", "Password"),
    (lambda server: server.bearer_token, "bearerToken", "BearerToken"),
    (lambda server: server.tls.certificate, "tls.certificate", "ClientKey"),
)
# Credentials, and headers that Alloy sets itself and refuses (prometheus/common, config/headers.go, read 2026-11-22).
_HEADERS_OF_OTHERS: Final = {
    "authorization": "`username` or `bearerToken`, with the credentials as a secret",
    "x-scope-orgid": "`tenant`",
    **dict.fromkeys(("host", "content-encoding", "content-length", "content-type", "user-agent", "connection"), ""),
}


def _credentials(stack: Stack, servers: Mapping[str, Server | None], name: str) -> Iterator[Problem]:
    """A user name and a password belong together, and both belong on an encrypted connection. `name`: of the section, with which
    its secrets begin."""
    given = {path: server for path, server in servers.items() if server}
    for value, key, kind in _NEEDS:
        secret, users = f"{name}{kind}", {path: found for path, server in given.items() if (found := value(server))}
        if users and secret not in stack.secrets_set:
            path, found = next(iter(users.items()))
            fix = f"`pulumi config set --secret {PROJECT}:{secret}`"
            yield problem(
                secret, f"is missing: {PROJECT}:{path}.{key} is {str(found).lower() if found is True else found}", fix=fix
            )
        if not users and secret in stack.secrets_set:
            what = "the user name" if key == "username" else key
            fix = f"add {what}, or `pulumi config rm {PROJECT}:{secret}`"
            yield problem(f"{next(iter(servers))}.{key}", f"is missing: {PROJECT}:{secret} is set", fix=fix)
    for path, server in given.items():
        yield from _server(stack, path, server)


def _server(stack: Stack, path: str, server: Server) -> Iterator[Problem]:
    is_plain, url = urlsplit(server.url).scheme == "http", server.url
    data = {"metrics": "metrics are", "logs": "log lines are"}.get(path)
    sent = "the password is" if server.username else "the bearer token is" if server.bearer_token else data
    if is_plain and sent and not _is_loopback(url):
        stack.listing.warnings.append(f"{PROJECT}:{path}.url: {sent} sent in clear text to {url}; use https")
    if server.username and server.bearer_token:
        yield problem(f"{path}.bearerToken", "`username` is set too", "one of them", "remove one of them")
    for name in server.headers:
        if name.lower() in _HEADERS_OF_OTHERS:
            instead = _HEADERS_OF_OTHERS[name.lower()]
            yield problem(f"{path}.headers", f"holds {name}", "other headers", f"write {instead}" if instead else "remove it")
    for key, file in {"ca": server.tls.ca, "certificate": server.tls.certificate}.items():
        if file is None or (stack.file.monitoring and file == stack.file.monitoring.ca_file):  # checked there
            continue
        expected = "a PEM file of certificates"
        if is_plain:
            yield problem(
                f"{path}.tls.{key}", f"has no effect: {path}.url starts with http://", fix="write https://, or remove it"
            )
        try:
            text = stack.listing.local_path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            what = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read"
            yield problem(f"{path}.tls.{key}", f"{file} {what}", expected, "correct the path, relative to Pulumi.yaml")
            continue
        if "PRIVATE KEY-----" in text:
            fix = f"remove the key from it, and `pulumi config set --secret {PROJECT}:{path.split('.')[0]}ClientKey <KEYFILE`"
            yield problem(f"{path}.tls.{key}", f"{file} holds a private key, and this file is copied in clear", expected, fix)
        elif "-----BEGIN CERTIFICATE-----" not in text:
            yield problem(f"{path}.tls.{key}", f"{file} holds no certificate", expected, "convert it with `openssl x509`")


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _grafana(stack: Stack) -> Iterator[Problem]:
    has_auth = "grafanaAuth" in stack.secrets_set
    if stack.file.grafana and not stack.file.backend and "backend" not in stack.broken and not has_auth:
        fix = f"`pulumi config set --secret {PROJECT}:grafanaAuth`: a service account token, or user:password"
        yield problem("grafanaAuth", f"is missing: {PROJECT}:grafana is set", fix=fix)
    if has_auth and stack.is_absent("grafana"):
        fix = f"add the section, or `pulumi config rm {PROJECT}:grafanaAuth`"
        yield problem("grafana", f"is missing: {PROJECT}:grafanaAuth is set", fix=fix)
    for index, entry in enumerate(stack.file.grafana.folder_permissions if stack.file.grafana else ()):
        if sum(subject is not None for subject in (entry.role, entry.team_id, entry.user_id)) != 1:
            path = f"grafana.folderPermissions[{index}]"
            yield problem(path, "must be about one subject", "role, teamId or userId", "write an entry for each")


def _artifacts(stack: Stack) -> Iterator[Problem]:
    artifacts = stack.file.artifacts
    if artifacts.source == "mirror" and not artifacts.url:
        yield problem(
            "artifacts.url", "is missing with `source: mirror`", "the URL of the mirror", "add `url: https://mirror.example.com`"
        )
    if artifacts.source == "controller" and not artifacts.directory:
        fix = "add `directory: build/artifacts`, which `make artifacts` fills"
        yield problem("artifacts.directory", "is missing with `source: controller`", "the directory of the programs", fix)
    for key, source in {"url": "mirror", "directory": "controller"}.items():
        if getattr(artifacts, key) and artifacts.source != source:
            what = f"has no effect with `source: {artifacts.source}`"
            yield problem(f"artifacts.{key}", what, f"only with `source: {source}`", f"write `source: {source}`, or remove {key}")


def _counters(stack: Stack) -> Iterator[Problem]:
    setting, expected = stack.file.dcgm.counters, "standard, profiling, or the path of a .csv file"
    if setting in PRESETS:
        return
    if not setting.endswith(".csv"):
        meant = nearest(setting, PRESETS)
        yield problem("dcgm.counters", f'found "{setting}"', expected, f"did you mean {meant}?" if meant else "write one of them")
        return
    try:
        counters = read_counters(setting, stack.listing.base)
    except OSError as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        yield problem("dcgm.counters", f"{setting} {what}", expected, "correct the path, relative to Pulumi.yaml")
    except UnicodeDecodeError:
        yield problem("dcgm.counters", f"{setting} is not a text file", expected, "save it as UTF-8")
    else:
        for found in counters.find_errors():
            yield Problem(f"{setting}, line {found.line}", found.what, found.expected, found.fix)
        stack.listing.warnings += [f"{PROJECT}:dcgm.counters: {setting}: {warning}" for warning in counters.find_warnings()]


def _of_the_image(stack: Stack) -> Iterator[Problem]:
    dcgm = stack.file.dcgm
    if dcgm.source == "packages":
        for key, default in {"image": None, "runtime": "auto", "toolkit_repository": None}.items():
            if getattr(dcgm, key) != default:
                name = Dcgm.model_fields[key].alias
                what = "has no effect with `source: packages`: no container is run"
                yield problem(f"dcgm.{name}", what, "only with `source: image`", f"write `source: image`, or remove {name}")
