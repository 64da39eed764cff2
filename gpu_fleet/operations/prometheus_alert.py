"""`make test-alert` where a Prometheus of the user's own evaluates the rules of `make rules FOR=prometheus`.

Prometheus says which Alertmanagers it sends alerts to; they are asked without its login, which is in its own configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir, Server
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.naming import PROJECT


@dataclass(frozen=True)
class PrometheusServer(Server):
    """Prometheus and its Alertmanagers (at least one), with the paths that Mimir has for both."""

    alertmanagers: tuple[Server, ...] = field(kw_only=True)

    def text(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> str:
        place, _, rest = path.removeprefix("/").partition("/")
        if place == "prometheus":
            return super().text(f"/{rest}", parameters)
        if place == "alertmanager":
            return self.alertmanagers[0].text(f"/{rest}", parameters)
        return "".join(one.text(path, parameters) for one in self.alertmanagers)  # of a cluster, any of them may notify


def found_by(config: StackConfig, stack: str) -> PrometheusServer:
    """The stack's Prometheus. Raises OperationError where there is none, or nobody is notified by it."""
    store, path = Mimir.of(config, stack), "/api/v1/alertmanagers"
    try:
        urls = [one["url"] for one in store.get(path)["data"]["activeAlertmanagers"]]
    except (OperationError, KeyError, TypeError) as error:
        raise OperationError(
            f"the stack {stack} has no {PROJECT}:rulers.mimir, and {store.url}{path} does not say which Alertmanagers get its "
            f"alerts, as a Prometheus does ({error}). With Mimir, add to the stack file:\n"
            f"  {PROJECT}:rulers: {{mimir: {{url: https://mimir.example.com}}}}"
        ) from None
    if not urls:
        raise OperationError(
            f"the Prometheus at {store.url} has no Alertmanager, so nobody is notified of any alert. Add it to "
            "`alerting.alertmanagers` of prometheus.yml"
        )
    alertmanagers = tuple(Server(url.partition("/api/v2/")[0], {}, name="Alertmanager") for url in urls)
    return PrometheusServer(store.url, store.headers, store.tls, "Prometheus", alertmanagers=alertmanagers)
