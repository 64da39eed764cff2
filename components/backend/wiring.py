"""From the stack file's `backend` section to the arguments of Backend."""

from __future__ import annotations

from components.backend.backend import BackendArgs
from components.stack import LoadedConfig


def backend_args(loaded: LoadedConfig) -> BackendArgs:
    """The embedded backend; Grafana's admin password is that of the secret `grafanaAuth` (user:password)."""
    section = loaded.config.backend
    assert section is not None
    auth = loaded.secrets.get("grafanaAuth")
    return BackendArgs(
        directory=section.directory,
        mimir_port=section.mimir.port,
        mimir_grpc_port=section.mimir.grpc_port,
        loki_port=section.loki.port,
        loki_grpc_port=section.loki.grpc_port,
        receiver_port=section.receiver.port,
        grafana_port=section.grafana.port,
        grafana_password=auth.apply(lambda text: text.partition(":")[2]) if auth else None,
    )
