"""What recorded exporters gave is in the catalogue: a rule on any of it gets through a preview."""

from __future__ import annotations

import pytest

from tests.samples.conftest import SAMPLES
from tests.signals.test_catalogue import given, unknown

BODIES = sorted(
    file
    for exporter in ("dcgm-exporter/metrics", "nvidia_gpu_exporter/metrics", "node_exporter")
    for file in (SAMPLES / exporter).glob("*.prom")
)


@pytest.mark.parametrize("file", BODIES, ids=lambda file: file.stem)
def test_a_recorded_body_is_in_the_catalogue(file):
    assert unknown(given(file.read_text())) == {}
