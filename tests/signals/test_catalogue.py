"""The catalogue of metrics, labels and logs against what the exporters' simulators give and the agent's configuration sends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_fleet import signals
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.signals import catalogue

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
ALLOY = ROOTFS / "etc/gpu-fleet/alloy"
IN_KUBERNETES = Path(signals.__file__).parents[2] / "components/kubernetes/alloy"
KNOWN = catalogue.read()
# What the textfile collectors write into files comes through node_exporter, whatever made it.
LABELS = re.compile(r'([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"')


def given(body: str) -> dict[str, set[str]]:
    """Metrics of a /metrics body with their labels."""
    metrics: dict[str, set[str]] = {}
    for line in body.splitlines():
        if found := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S", line):
            metrics.setdefault(found[1], set()).update(LABELS.findall(found[2] or ""))
    return metrics


def unknown(metrics: dict[str, set[str]]) -> dict[str, set[str]]:
    """What of these the catalogue does not have."""
    missing = {}
    for name, labels in metrics.items():
        if name not in KNOWN.metrics:
            missing[name] = {"the metric"}
        elif left := labels - (KNOWN.metrics[name] or labels):
            missing[name] = left
    return missing


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*.prom")), ids=lambda file: file.stem)
def test_what_a_simulated_exporter_gives_is_in_the_catalogue(file):
    assert unknown(given(file.read_text())) == {}


def test_every_metric_of_alloy_in_the_catalogue_is_one_that_a_host_sends():
    kept = re.search(r"string\.join\(\[(.*?)\]", (ALLOY / "collect_agent.alloy").read_text(), re.DOTALL)
    pattern = re.compile("|".join(re.findall(r'"([^"]+)"', kept[1])))
    names = re.findall(r"^([a-z]\w*)", (catalogue.DIRECTORY / "alloy.txt").read_text(), re.MULTILINE)
    assert len(names) > 30
    assert [name for name in names if not pattern.fullmatch(name)] == [], "a rule on it would wait for ever"


@pytest.mark.parametrize(
    ("job", "file"),
    [
        ("kernel", ALLOY / "process_kernel.alloy"),
        ("docker", ALLOY / "collect_docker_logs.alloy"),
        ("pods", IN_KUBERNETES / "collect_pod_logs.alloy"),
    ],
)
def test_the_labels_of_logs_are_those_that_the_agent_gives_them(job, file):
    text = re.sub(r"//.*", "", file.read_text())
    blocks = re.findall(r"stage\.(?:static_labels|structured_metadata|labels) \{\s*values\s*=\s*\{(.*?)\}", text, re.DOTALL)
    made = {name for block in blocks for name in re.findall(r"(\w+)\s*=", block)}
    made |= set(re.findall(r'target_label\s*=\s*"([a-z]\w*)"', text))
    passing = {"driver"} if job == "kernel" else set()  # chooses what happens to a line, and is dropped
    assert KNOWN.logs[job] == frozenset(made) - passing
    assert all(re.search(rf'label_drop \{{\s*values\s*=\s*\["{name}"\]', text) for name in passing)


def test_what_a_cluster_s_agent_keeps_of_kubernetes_is_in_the_catalogue():
    """A keep rule lists names and families of names; each has to have something in the catalogue that it keeps."""
    for file in ("collect_kubelet.alloy", "collect_state.alloy"):
        for listed in re.findall(r"string\.join\(\[(.*?)\]", (IN_KUBERNETES / file).read_text(), re.DOTALL):
            for pattern in re.findall(r'"([^"]+)"', listed):
                assert any(re.fullmatch(pattern, name) for name in KNOWN.metrics), pattern
