"""The HTTP APIs of rulers (Mimir, Loki) and of Mimir's Alertmanager. Knows no Pulumi.

Source: Mimir's "HTTP API" reference (config API of ruler and Alertmanager) and Loki's (ruler), both read November 2026.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import yaml

from gpu_fleet.safetext.terminal import printable

if TYPE_CHECKING:  # imported on the first request: a run that changes no rule needs no HTTP
    import aiohttp

_RULES_PATH: Final = {"mimir": "/prometheus/config/v1/rules", "loki": "/loki/api/v1/rules"}
_ALERTS_PATH: Final = "/api/v1/alerts"
# Marks an Alertmanager configuration as written by a stack: Mimir stores it with the templates, also when somebody edits the
# configuration in Grafana, which would drop a comment in its YAML. It defines no template.
_OWNER_FILE: Final = "gpu-fleet-owner.tmpl"
_PAUSES_S: Final = (1, 2, 4)  # a server that has just started answers 5xx until its ring is ready
_TIMEOUT_S: Final = 30
_CONNECT_TIMEOUT_S: Final = 10
_LONGEST_BODY: Final = 16 << 20  # bytes
_GROUP_KEYS: Final = (
    "name",
    "interval",
    "query_offset",
    "limit",
    "source_tenants",
    "align_evaluation_time_on_interval",
    "labels",
    "rules",
)
_RULE_KEYS: Final = ("alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations")
_DURATION_KEYS: Final = {"interval", "query_offset", "for", "keep_firing_for"}
# milliseconds, and whether Prometheus uses the unit only without a remainder. Source: prometheus/common model.Duration.
_UNITS: Final = (
    ("y", 31_536_000_000, True),
    ("w", 604_800_000, True),
    ("d", 86_400_000, False),
    ("h", 3_600_000, False),
    ("m", 60_000, False),
    ("s", 1000, False),
    ("ms", 1, False),
)


@dataclass
class RulerError(Exception):
    """The server refused a request or could not be reached. `message` is shown to the user."""

    message: str

    def __str__(self) -> str:
        return self.message


class InvalidRules(ValueError):
    """The YAML is not a rule group."""


@dataclass(frozen=True)
class StoredAlertmanager:
    """`owner`: the stack that wrote it, from its mark; empty: it has no mark, so a person or another tool did."""

    config: str
    templates: Mapping[str, str]
    owner: str


Stored = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Mimir or Loki server. `url`: base URL. `tenant`, `username`: empty when unused. `bearer_token`: send the token of
    `Logins`. `ca`: PEM of the authorities of its certificate; `certificate`: PEM of our own, with its key in `Logins`.
    """

    url: str
    tenant: str = ""
    username: str = ""
    bearer_token: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    ca: str = ""
    certificate: str = ""


@dataclass(frozen=True, kw_only=True)
class Logins:
    """The secrets of all ruler servers of a run."""

    password: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)  # PEM


class Rulers:
    """All ruler servers of a run, with one HTTP session."""

    def __init__(self, logins: Logins | None = None, *, takes_over: bool = False):
        self.takes_over = takes_over  # replace what exists and this stack did not create
        self._logins = logins or Logins()
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None
        self._stored: dict[tuple[Server, str], asyncio.Future[Stored]] = {}
        self._failed: set[Server] = set()

    async def stored(self, server: Server, backend: str) -> Stored:
        """What the server has for the tenant, asked once per run: groups by namespace and name as `comparable` returns them.
        Nobody waits for a server that does not answer: there are no retries. Raises RulerError, every time."""
        if (known := self._stored.get((server, backend))) is None:
            known = self._stored[server, backend] = asyncio.ensure_future(self._list(server, backend))
        return await asyncio.shield(known)

    def is_first_failure(self, server: Server) -> bool:
        """Whether this run did not report yet that the server cannot be asked."""
        is_first = server not in self._failed
        self._failed.add(server)
        return is_first

    async def _list(self, server: Server, backend: str) -> Stored:
        body = await self._request("GET", server, _RULES_PATH[backend], missing_is_none=True, retries=False)
        try:
            namespaces = yaml.load(body or "{}", yaml.CSafeLoader) or {}
            return {(name, str(one["name"])): comparable(one) for name, groups in namespaces.items() for one in groups}
        except (yaml.YAMLError, AttributeError, TypeError, KeyError):
            raise RulerError(f"{server.url} answered with what is not a list of rule groups; is this the base URL?") from None

    async def get_group(self, server: Server, backend: str, namespace: str, name: str) -> str | None:
        """The group as `normalised` writes it; None when it does not exist."""
        body = await self._request("GET", server, group_path(backend, namespace, name), missing_is_none=True)
        try:
            return None if body is None else normalised(body)
        except InvalidRules as error:
            raise RulerError(f"{server.url} answered with what is not a rule group: it {error}; is this the base URL?") from None

    async def put_group(self, server: Server, backend: str, namespace: str, rules: str) -> None:
        await self._request("POST", server, _rules_url(backend, namespace), body=rules)

    async def delete_group(self, server: Server, backend: str, namespace: str, name: str, *, retries: bool = True) -> None:
        await self._request("DELETE", server, group_path(backend, namespace, name), missing_is_none=True, retries=retries)

    async def get_alertmanager(self, server: Server, *, retries: bool = True) -> StoredAlertmanager | None:
        """A tenant's configuration; None when it has none."""
        body = await self._request("GET", server, _ALERTS_PATH, missing_is_none=True, retries=retries)
        if body is None:
            return None
        try:
            stored = yaml.safe_load(body) or {}
        except yaml.YAMLError:
            stored = None
        if not isinstance(stored, dict):
            raise RulerError(f"{server.url} answered with what is not an Alertmanager configuration; is this the base URL?")
        templates = dict(stored.get("template_files") or {})
        owner = re.fullmatch(r"\{\{/\* (.+) \*/\}\}\s*", templates.pop(_OWNER_FILE, ""))
        return StoredAlertmanager(stored.get("alertmanager_config") or "", templates, owner[1] if owner else "")

    async def put_alertmanager(self, server: Server, config: str, templates: Mapping[str, str], owner: str) -> None:
        files = {**templates, _OWNER_FILE: f"{{{{/* {owner} */}}}}"}
        body = yaml.safe_dump({"template_files": files, "alertmanager_config": config}, sort_keys=False)
        await self._request("POST", server, _ALERTS_PATH, body=body)

    async def delete_alertmanager(self, server: Server, *, retries: bool = True) -> None:
        await self._request("DELETE", server, _ALERTS_PATH, missing_is_none=True, retries=retries)

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def _request(
        self,
        method: str,
        server: Server,
        path: str,
        *,
        body: str | None = None,
        missing_is_none: bool = False,
        retries: bool = True,
    ) -> str | None:
        url = server.url.rstrip("/") + path
        for pause_s in (*_PAUSES_S, None) if retries else (None,):
            status, text = await self._send(method, server, url, body)
            if status == 404 and missing_is_none:
                return None
            if 200 <= status < 300:
                return text
            if pause_s is None or (0 < status < 500 and status != 429):
                break
            await asyncio.sleep(pause_s)
        raise RulerError(_explain(server, status, text))

    async def _send(self, method: str, server: Server, url: str, body: str | None) -> tuple[int, str]:
        """The response's status and text; status 0 and the reason when there was no response."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S))
        headers = dict(server.headers)
        if server.tenant:
            headers["X-Scope-OrgID"] = server.tenant
        if server.bearer_token:
            headers["Authorization"] = f"Bearer {(self._logins.bearer_token or '').strip()}"
        if body is not None:
            headers["Content-Type"] = "application/yaml"
        auth = aiohttp.BasicAuth(server.username, self._logins.password or "") if server.username else None
        try:
            tls = self._context(server)
            async with self._session.request(
                method, url, data=body and body.encode(), headers=headers, auth=auth, ssl=True if tls is None else tls
            ) as response:
                return response.status, await _bounded(response)
        except TimeoutError:
            return 0, f"no answer within {_TIMEOUT_S} s"
        except (aiohttp.ClientError, OSError) as error:
            return 0, str(error) or type(error).__name__

    def _context(self, server: Server) -> ssl.SSLContext | None:
        """None: the system's authorities, no certificate of our own. Raises OSError for a key that is not the certificate's."""
        if not server.ca and not server.certificate:
            return None
        made = self._contexts.get((server.ca, server.certificate))
        if made is None:
            made = ssl.create_default_context(cadata=server.ca or None)
            if server.certificate:
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as chain:  # 0600; OpenSSL reads keys from files only
                    chain.write(f"{server.certificate.strip()}\n{self._logins.client_key or ''}")
                    chain.flush()
                    try:
                        made.load_cert_chain(chain.name)
                    except ssl.SSLError:
                        raise OSError("gpu-fleet:rulersClientKey is not the key of the certificate in tls.certificate") from None
            self._contexts[server.ca, server.certificate] = made
        return made


async def _bounded(response: aiohttp.ClientResponse) -> str:
    """The body; of one that is longer than any group of rules, the beginning."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 << 10):
        body += chunk[: _LONGEST_BODY - len(body)]
        if len(body) >= _LONGEST_BODY:
            break
    return body.decode(errors="replace")


def normalised(rules: str) -> str:
    """A rule group in one canonical form: fixed key order, durations as Prometheus writes them, no empty values.

    The server returns what it parsed, so only canonical texts can be compared. Raises InvalidRules.
    """
    try:
        group = _loaded(rules)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise InvalidRules(f"is not YAML{where}: {getattr(error, 'problem', error)}") from None
    if not isinstance(group, dict) or not group.get("name") or not isinstance(group.get("rules"), list):
        raise InvalidRules("must be one group: a mapping with `name` and `rules`")
    if not all(isinstance(rule, dict) for rule in group["rules"]):
        raise InvalidRules("has a rule that is not a mapping")
    ordered = comparable(group)
    text: str = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    if printable(text) == text:
        return text
    # Previews show it as a diff: characters that a terminal would hide or reorder are written as escapes.
    escaped: str = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=1000)
    return escaped


def comparable(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group without what the server adds or spells differently."""
    return _ordered({**group, "rules": [_ordered(rule, _RULE_KEYS) for rule in group["rules"]]}, _GROUP_KEYS)


def _loaded(rules: str) -> Any:
    try:
        return yaml.load(rules, yaml.CSafeLoader)  # all of a stack's: 0.02 s, and 0.3 s with the pure Python loader
    except yaml.YAMLError:
        return yaml.safe_load(rules)  # its error names the right line


def duration(text: str) -> str:
    """A duration as Prometheus writes it: 60s is 1m, 90m is 1h30m."""
    parts = re.findall(r"(\d+)(ms|[ywdhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return text  # invalid; the server reports it
    rest = sum(int(number) * next(size for name, size, _ in _UNITS if name == unit) for number, unit in parts)
    if rest == 0:
        return "0s"
    written = ""
    for unit, size, only_exact in _UNITS:
        if rest >= size and not (only_exact and rest % size):
            written += f"{rest // size}{unit}"
            rest %= size
    return written


def _ordered(values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    known = [key for key in keys if key in values]
    result = {}
    for key in (*known, *sorted(values.keys() - set(known), key=str)):
        value = values[key]
        if key in _DURATION_KEYS and value is not None:
            value = duration(str(value))
            if value == "0s":
                continue
        if isinstance(value, Mapping):
            value = {name: value[name] for name in sorted(value, key=str)}
        elif isinstance(value, str):
            value = value.strip()
        if value not in (None, "", {}, []) and not (value == 0 and key == "limit"):
            result[key] = value
    return result


class _Dumper(yaml.SafeDumper):
    """Multi-line texts as blocks, so that a preview shows their diff by line; lists indented under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _rules_url(backend: str, namespace: str) -> str:
    return f"{_RULES_PATH[backend]}/{_quoted(namespace)}"


def group_path(backend: str, namespace: str, name: str) -> str:
    return f"{_rules_url(backend, namespace)}/{_quoted(name)}"


def alertmanager_path() -> str:
    return _ALERTS_PATH


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _explain(server: Server, status: int, text: str) -> str:
    reason = " ".join(text.split())[:500] or "no reason given"
    if status == 0:
        return f"{server.url} cannot be reached: {reason}"
    if status in (401, 403):
        who = "a request without a user"
        if server.username:
            who = f'the user "{server.username}" with the password gpu-fleet:rulersPassword'
        elif server.bearer_token:
            who = "the bearer token gpu-fleet:rulersBearerToken"
        return f"{server.url}, tenant {server.tenant or 'none'}, refused {who} ({status}): {reason}"
    if status == 404:
        return f"{server.url} has no such API (404): {reason}; is the ruler enabled, and is this the base URL?"
    return f"{server.url} answered {status}: {reason}"
