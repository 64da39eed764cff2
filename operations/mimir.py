"""Queries to the store that the stack pushes metrics to, with the stack's own login."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from operations.engine import OperationError, secret
from stackfile.config import StackConfig
from stackfile.naming import PROJECT

_TIMEOUT_S = 20


@dataclass(frozen=True)
class Mimir:
    """Mimir, or another store with the query API of Prometheus. `url`: below which /api/v1/query is."""

    url: str
    headers: dict[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None

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
        headers = {**metrics.headers, **({"X-Scope-OrgID": metrics.tenant} if metrics.tenant else {})}
        if metrics.username:
            login = f"{metrics.username}:{secret(stack, 'metricsPassword').rstrip()}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        if metrics.bearer_token:
            headers["Authorization"] = f"Bearer {secret(stack, 'metricsBearerToken').strip()}"
        return cls(metrics.queries, headers, _tls(config, stack))

    def highest(self, promql: str) -> float | None:
        """The highest value of an instant query; None when it has none. Raises OperationError."""
        return max((value for _, value in self.vector(promql)), default=None)

    def by_label(self, promql: str, label: str) -> dict[str, float]:
        """An instant query's values by one of its labels. Raises OperationError."""
        return {labels.get(label, ""): value for labels, value in self.vector(promql)}

    def vector(self, promql: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each series of an instant query. Raises OperationError."""
        request = urllib.request.Request(  # noqa: S310 - http or https: the stack file is checked
            f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}", headers=self.headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self.tls) as answer:  # noqa: S310
                return [(series["metric"], float(series["value"][1])) for series in json.load(answer)["data"]["result"]]
        except urllib.error.HTTPError as error:
            raise OperationError(f"the store refused the query: HTTP {error.code} from {self.url}") from None
        except (OSError, ValueError, KeyError) as error:
            raise OperationError(f"the store cannot be reached at {self.url}: {getattr(error, 'reason', error)}") from None


def _tls(config: StackConfig, stack: str) -> ssl.SSLContext | None:
    """None: as the system has it. Raises OperationError."""
    assert config.metrics is not None
    tls = config.metrics.tls
    if tls.ca is None and tls.certificate is None:
        return None
    context = ssl.create_default_context(cadata=config.pem(tls.ca) or None)
    if tls.certificate is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:  # 0600; OpenSSL reads keys from files only
            key.write(secret(stack, "metricsClientKey"))
            key.flush()
            try:
                context.load_cert_chain(config.local_path(tls.certificate), key.name)
            except ssl.SSLError:
                what = f"the secret {PROJECT}:metricsClientKey is not the key of {PROJECT}:metrics.tls.certificate"
                raise OperationError(what) from None
    return context
