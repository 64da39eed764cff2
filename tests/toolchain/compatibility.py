"""docs/compatibility.md: what this version was tested with. Versions come from gpu_fleet/toolchain/versions.yaml and the lock
file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_fleet.toolchain.programs import PROGRAMS
from gpu_fleet.toolchain.versions import chart, image, release
from lab.hosts.variants import VARIANTS
from tests.checkout import REPO

HEADER = """# Compatibility

What this version of GPU Fleet pins, what its tests run, and what else is known to work or not. Generated from
`gpu_fleet/toolchain/versions.yaml` by `pytest tests/toolchain/test_compatibility.py --regen`; do not edit. *Tested* is what `make
test` runs; what is in parentheses replaces a program that cannot be downloaded ([toolchain](../gpu_fleet/toolchain/README.md)).
How to change a version: [upgrading](upgrading.md).

| program | pinned | tested with | also supported | not supported |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    name: str
    pinned: str
    tested: str
    also: str
    refused: str


def _tested(program: str) -> str:
    """The release, and what is built instead of it."""
    built = PROGRAMS[program].go
    version = release(program).version
    return f"{version} ({built.differs})" if built and built.differs else version


def _locked(package: str) -> str:
    found = re.search(rf"(?m)^{re.escape(package)}==([^\s;\\]+)", (REPO / "requirements.txt").read_text())
    assert found
    return found[1].partition("!")[2] or found[1]


_CHART = "newer ones, [checked by a preview](kubernetes.md#charts)"
_STAND_IN = "the lab's stand-in of it, where it cannot be downloaded"


def rows() -> list[Row]:
    distributions = "; ".join(
        dict.fromkeys(re.split(r" on bare metal|:", variant.text)[0] for variant in VARIANTS.values() if variant.has_systemd)
    )
    return [
        Row(
            "Pulumi",
            release("pulumi").version,
            _tested("pulumi"),
            "newer 3.x, as plain `pulumi`: untested",
            "another version on the PATH: make targets ignore it and install the pinned one",
        ),
        Row(
            "pulumi (Python SDK)",
            _locked("pulumi"),
            _locked("pulumi"),
            "-",
            "other versions: `requirements.txt` is installed with hashes",
        ),
        Row(
            "pulumi-command",
            release("pulumi-resource-command").version,
            f"{release('pulumi-resource-command').version} ({_STAND_IN})",
            "-",
            "-",
        ),
        Row(
            "pulumi-kubernetes",
            release("pulumi-resource-kubernetes").version,
            _tested("pulumi-resource-kubernetes"),
            "-",
            "-",
        ),
        Row(
            "pulumiverse-grafana",
            release("pulumi-resource-grafana").version,
            f"{release('pulumi-resource-grafana').version} ({_STAND_IN})",
            "-",
            "-",
        ),
        Row("Python", "3.11 or newer", "3.11, 3.12, 3.13", "-", "3.10 and older: `make` stops"),
        Row("Helm", release("helm").version, _tested("helm"), "3.x", "Helm 4: a run that would use it stops and says so"),
        Row(
            "Alloy",
            release("alloy").version,
            _tested("alloy"),
            "1.11.2 and newer (arguments compared: `tests/host/alloy_versions.yaml`)",
            "1.11.0 and 1.11.1 on hosts: journal and file sources can deadlock on a reload",
        ),
        Row(
            "Mimir",
            release("mimir").version,
            _tested("mimir"),
            "-",
            "without the ruler API (`rulers.mimir`)",
        ),
        Row(
            "Loki",
            release("loki").version,
            _tested("loki"),
            "3.0 and newer",
            "2.x: structured metadata is off by default there, and pushes are refused",
        ),
        Row(
            "Prometheus, as store",
            "-",
            _tested("prometheus"),
            "with `--web.enable-remote-write-receiver`",
            "-",
        ),
        Row(
            "VictoriaMetrics, as store",
            "-",
            f"{_tested('victoria-metrics')}, single node, with vmalert",
            "cluster, by its documentation",
            "-",
        ),
        Row(
            "Thanos, Grafana Cloud, as stores",
            "-",
            "Thanos 0.42.4, by hand on 2026-11-22",
            "Grafana Cloud by its documentation",
            "-",
        ),
        Row(
            "Grafana",
            release("grafana").version,
            f"{release('grafana').version} ({_STAND_IN})",
            "11.6 and newer, untested: the dashboards' schema is that of 11.6",
            "13 is untested: see [upgrading](upgrading.md#known-changes-ahead)",
        ),
        Row(
            "Caddy",
            release("caddy").version,
            _tested("caddy"),
            "-",
            "another proxy on a [monitoring server](monitoring-server.md)",
        ),
        Row(
            "node_exporter",
            release("node_exporter").version,
            _tested("node_exporter"),
            "an existing one is adopted (`adopt`)",
            "-",
        ),
        Row(
            "nvidia_gpu_exporter",
            release("nvidia_gpu_exporter").version,
            f"{release('nvidia_gpu_exporter').version}, simulated",
            "its backends exec and nvml; 2.0 with the backend exec, which the start script names",
            "-",
        ),
        Row(
            "dcgm-exporter",
            image("dcgm-exporter").tag,
            f"{image('dcgm-exporter').tag}, simulated; /metrics of 4.8 and 4.9",
            "4.x, metric names of both generations",
            "DCGM 3 packages on a host with `dcgm.source: packages`: that host gets nvidia_gpu_exporter",
        ),
        Row(
            "NVIDIA driver",
            "-",
            "simulated: 450, 525, 590 and 595; nvidia-smi of 535, 550 and 555 itself, over a simulated driver library",
            "-",
            "-",
        ),
        Row(
            "Slurm",
            "-",
            "22.05, 24.11 and 26.05 of Debian, for `gpu-fleet:jobs` and `gpu-fleet:readiness`",
            "-",
            "-",
        ),
        Row(
            "hosts",
            "-",
            distributions,
            "other distributions with apt or dnf and systemd 239 or newer (RHEL 8, Debian 10), untested",
            "older systemd: refused before anything is placed; hosts without `sh`, or without Python 3.8 or newer where none may "
            "be installed",
        ),
        Row("Kubernetes", release("kube-apiserver").version, _tested("kube-apiserver"), "-", "-"),
        Row(
            "image python, for `gpu-fleet:readiness`",
            image("python").tag,
            "its program with Python 3.11, outside of a container",
            "3.9 and newer",
            "-",
        ),
        *(
            Row(f"chart {name}", chart(name).version, "with Helm, on charts made for the tests", _CHART, "-")
            for name in (
                "dcgm-exporter",
                "gpu-operator",
                "alloy",
                "node-exporter",
                "kube-state-metrics",
                "kube-prometheus-stack",
                "prometheus-adapter",
            )
        ),
    ]


def page() -> str:
    return HEADER + "".join(f"| {row.name} | {row.pinned} | {row.tested} | {row.also} | {row.refused} |\n" for row in rows())
