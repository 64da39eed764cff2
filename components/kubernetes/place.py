"""Where a stack's cluster is. Apart from wiring.py, which loads Pulumi's Kubernetes SDK: every stack comes by here."""

from __future__ import annotations

from gpu_fleet.stackfile.config import StackConfig


def kubernetes_place(config: StackConfig) -> dict[str, str] | None:
    """Kubeconfig file and context of the cluster, as far as the stack file names them; None without a cluster.

    The path is as the stack file writes it: both providers resolve `~` and start in the directory of Pulumi.yaml, and the state
    is the same from every checkout.
    """
    section = config.kubernetes
    if section is None:
        return None
    return {key: value for key, value in {"kubeconfig": section.kubeconfig, "context": section.context}.items() if value}
