"""Queries to the stack's stores and their Alertmanager, with the stack's own logins."""

from __future__ import annotations

import base64
import email.utils
import json
import ssl
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_fleet.operations.engine import OperationError, secret
from gpu_fleet.stackfile import sections
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.naming import PROJECT

LATE_S = 300  # Prometheus's look-back: a series that is older is gone from every rule and panel
_SEEN_WITHIN = "1d"
_TIMEOUT_S = 20


@dataclass(frozen=True)
class Server:
    """`url`: base of every path. `name`: in messages."""

    url: str
    headers: dict[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None
    name: str = "the store"

    def get(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> Any:
        """The JSON of the response. Raises OperationError."""
        text = self.text(path, parameters)
        try:
            return json.loads(text)
        except ValueError:
            raise OperationError(f"{self.url}{path} is not JSON; is this the URL of {self.name}?") from None

    def text(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> str:
        """Raises OperationError."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        return self._send(urllib.request.Request(f"{self.url}{path}{query}", headers=self.headers))  # noqa: S310 - http(s)

    def post(self, path: str, body: Any) -> None:
        """Raises OperationError."""
        headers = {**self.headers, "Content-Type": "application/json"}
        self._send(urllib.request.Request(f"{self.url}{path}", data=json.dumps(body).encode(), headers=headers))  # noqa: S310

    def clock(self, path: str) -> int:
        """Its time, s since 1970, which it says with whatever it answers; ours may be another one. Raises OperationError."""
        request = urllib.request.Request(f"{self.url}{path}", headers=self.headers)  # noqa: S310 - http(s)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self.tls) as answer:  # noqa: S310
                date = answer.headers.get("Date")
        except urllib.error.HTTPError as error:
            date = error.headers.get("Date")
        except OSError as error:
            raise self._unreachable(error) from None
        try:
            return int(email.utils.parsedate_to_datetime(date).timestamp())
        except (TypeError, ValueError):
            return int(time.time())

    def _unreachable(self, error: OSError) -> OperationError:
        how = through_proxy(self.url)
        return OperationError(f"{self.name} cannot be reached at {self.url}{how}: {getattr(error, 'reason', error)}")

    def _send(self, request: urllib.request.Request) -> str:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self.tls) as answer:  # noqa: S310
                text: str = answer.read().decode(errors="replace")
                return text
        except urllib.error.HTTPError as error:
            raise OperationError(f"{self.name} refused the query: HTTP {error.code} from {self.url}") from None
        except OSError as error:
            raise self._unreachable(error) from None


def through_proxy(url: str) -> str:
    """For a message: whether the environment sends the request to a proxy. Its URL may have a password."""
    address = urllib.parse.urlsplit(url)
    has_proxy = address.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(address.hostname or "")
    return f" through the proxy of {address.scheme.upper()}_PROXY (NO_PROXY lists hosts without it)" if has_proxy else ""


def login_of(
    section: sections.Server, place: str, config: StackConfig, stack: str
) -> tuple[dict[str, str], ssl.SSLContext | None]:
    """Headers and TLS of a server. `place`: the section's key, with which the names of its secrets begin. Raises
    OperationError.
    """
    headers = {**section.headers, **({"X-Scope-OrgID": section.tenant} if section.tenant else {})}
    if section.username:
        login = f"{section.username}:{secret(stack, f'{place}Password').rstrip()}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    if section.bearer_token:
        headers["Authorization"] = f"Bearer {secret(stack, f'{place}BearerToken').strip()}"
    return headers, _tls(section, place, config, stack)


@dataclass(frozen=True)
class Mimir(Server):
    """Mimir, or another store with the query API of Prometheus. `url`: below which /api/v1/query is."""

    @classmethod
    def of(cls, config: StackConfig, stack: str) -> Mimir:
        """The store that the stack pushes to. Raises OperationError."""
        metrics = config.metrics
        if metrics is None:
            raise OperationError(f"the stack {stack} has no {PROJECT}:metrics, so there is no store to query")
        if metrics.queries is None:
            raise OperationError(
                f"{PROJECT}:metrics.queryUrl is missing: {metrics.url} only takes pushes. Add the URL of the server that answers "
                "queries, such as Thanos Query or vmselect"
            )
        ruler = config.rulers.mimir if config.rulers else None
        if ruler and config.monitoring_url and ruler.url == config.monitoring_url:
            return cls(metrics.queries, *login_of(ruler, "rulers", config, stack))  # the hosts' login there can only push
        return cls(metrics.queries, *login_of(metrics, "metrics", config, stack))

    def highest(self, promql: str) -> float | None:
        """The highest value of an instant query; None when it has none. Raises OperationError."""
        return max((value for _, value in self.vector(promql)), default=None)

    def by_label(self, promql: str, label: str) -> dict[str, float]:
        """An instant query's values by one of its labels. Raises OperationError."""
        return {labels.get(label, ""): value for labels, value in self.vector(promql)}

    def vector(self, promql: str, at: float | None = None) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each series of an instant query, now or `at` s since 1970. Raises OperationError."""
        when = [] if at is None else [("time", f"{at:.3f}")]
        try:
            result = self.get("/api/v1/query", [("query", promql), *when])["data"]["result"]
            return [(series["metric"], float(series["value"][1])) for series in result]
        except (KeyError, TypeError, ValueError):
            raise OperationError(f"the store at {self.url} gave a response that is not that of a query") from None


def last_samples(config: StackConfig, store: Mimir) -> dict[str, float]:
    """By host of the stack, the time of its newest sample within a day, s since 1970 by our clock. Raises OperationError."""
    # A subquery alone ends at a full minute, and so before the first data of a new host.
    now = f'timestamp(alloy_build_info{{datacenter="{config.datacenter}",cluster="{config.cluster}"}})'
    return times(store, f"max by (instance) ({now} or max_over_time({now}[{_SEEN_WITHIN}:1m]))")


def times(store: Mimir, promql: str) -> dict[str, float]:
    """By host, a time that the store has, by our clock: where that is hours off, ages would be too. Raises OperationError."""
    now = time.time()
    return {host: now - age_s for host, age_s in store.by_label(f"time() - {promql}", "instance").items()}


def when(at: float | None, now: float) -> str:
    """How long ago a sample was taken; `at` is None where last_samples has none."""
    if at is None:
        return f"not in {_SEEN_WITHIN}"
    age = max(now - at, 0)
    unit, size = ("s", 1) if age < 120 else ("min", 60) if age < 7200 else ("h", 3600)
    return f"{age / size:.0f} {unit} ago"


def _tls(section: sections.Server, place: str, config: StackConfig, stack: str) -> ssl.SSLContext | None:
    """None: as the system has it. Raises OperationError."""
    tls = section.tls
    if tls.ca is None and tls.certificate is None:
        return None
    context = ssl.create_default_context(cadata=config.pem(tls.ca) or None)
    if tls.certificate is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:  # 0600; OpenSSL reads keys from files only
            key.write(secret(stack, f"{place}ClientKey"))
            key.flush()
            try:
                context.load_cert_chain(config.local_path(tls.certificate), key.name)
            except ssl.SSLError:
                what = f"the secret {PROJECT}:{place}ClientKey is not the key of {PROJECT}:{place}.tls.certificate"
                raise OperationError(what) from None
    return context
