"""Which pod uses which GPU, as the kubelet reports it to dcgm-exporter: here from a file instead of the kubelet's socket.

    [{"gpu": 0, "namespace": "ml", "pod": "train-0", "container": "main", "uid": "...", "labels": {"team": "vision"}}]

Source: NVIDIA/dcgm-exporter, README and its chart's values.yaml 4.8.2 (read November 2026); order of labels from a recorded body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_VARIABLE = "DCGM_LAB_PODS"
Labels = list[tuple[str, str]]


@dataclass(frozen=True)
class Pods:
    """`file`: of the assignment; without it no GPU has a pod. `allowed`: patterns of pod labels, none means all."""

    file: Path | None
    with_labels: bool = False
    with_uid: bool = False
    allowed: Sequence[str] = ()

    def labels(self) -> dict[int, tuple[Labels, Labels]]:
        """By GPU: the pod's own labels, which are among the metric's labels, and its identity, which comes last."""
        return {each["gpu"]: (self._own(each), self._identity(each)) for each in self._assigned()}

    def _assigned(self) -> list[dict]:
        try:
            return json.loads(self.file.read_text()) if self.file else []
        except FileNotFoundError:
            return []  # the kubelet has not reported anything yet

    def _own(self, pod: dict) -> Labels:
        if not self.with_labels:
            return []
        return [
            (re.sub(r"[^a-zA-Z0-9_]", "_", name), value)
            for name, value in pod.get("labels", {}).items()
            if not self.allowed or any(re.search(pattern, name) for pattern in self.allowed)
        ]

    def _identity(self, pod: dict) -> Labels:
        identity = [(name, pod[name]) for name in ("container", "namespace", "pod")]
        return [*identity, ("pod_uid", pod["uid"])] if self.with_uid else identity
