"""The table of programs agrees with the versions file, the Go modules and the Python packages."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from gpu_fleet.toolchain.programs import PROGRAMS, REPO
from gpu_fleet.toolchain.versions import release

MAIN_MODULES = {
    "pulumi": ("github.com/pulumi/pulumi/pkg/v3", "v{}"),
    "loki": ("github.com/grafana/loki/v3", "v{}"),
    "node_exporter": ("github.com/prometheus/node_exporter", "v{}"),
    "kube-apiserver": ("k8s.io/kubernetes", "v{}"),
    "kwok": ("sigs.k8s.io/kwok", "v{}"),
    "versitygw": ("github.com/versity/versitygw", "v{}"),
    "helm": ("helm.sh/helm/v3", "v{}"),
    "victoria-metrics": ("github.com/VictoriaMetrics/VictoriaMetrics", "v{}"),
    "etcd": ("go.etcd.io/etcd/server/v3", "v{}"),
}


@pytest.mark.parametrize("name", sorted(MAIN_MODULES))
def test_a_go_module_builds_the_version_of_the_versions_file(name: str) -> None:
    go = PROGRAMS[name].go
    module, form = MAIN_MODULES[name]
    wanted = f"{module} {form.format(release(name).version)}"
    assert go and re.search(rf"{re.escape(wanted)}(\n| //)", (go.module / "go.mod").read_text())


def test_alloy_says_which_version_is_built_where_its_release_cannot_be_downloaded() -> None:
    go = PROGRAMS["alloy"].go
    assert go and f"github.com/grafana/alloy v{go.version}\n" in (go.module / "go.mod").read_text()
    assert go.version != release("alloy").version and go.version in go.differs and go.ldflags.endswith(f"=v{go.version}")


def test_the_kubernetes_plugin_says_which_version_is_built_where_its_release_cannot_be_downloaded() -> None:
    go = PROGRAMS["pulumi-resource-kubernetes"].go
    assert go and go.version != release("pulumi-resource-kubernetes").version
    assert go.version in go.differs and go.ldflags.endswith(f"={go.version}")
    # The prerelease is numbered by the second of its commit, as the pseudo-version of the module is.
    commit = re.search(r"pulumi-kubernetes/provider/v4 v4\.0\.0-(\d{14})-", (go.module / "go.mod").read_text())
    at = datetime.fromtimestamp(int(go.version.rpartition(".")[2]), UTC)
    assert commit and at.strftime("%Y%m%d%H%M%S") == commit[1]


def test_helm_takes_charts_for_the_kubernetes_of_its_modules() -> None:
    go = PROGRAMS["helm"].go
    minor = re.search(r"k8s\.io/client-go v0\.(\d+)\.", (go.module / "go.mod").read_text())[1]
    assert f"chartutil.k8sVersionMinor={minor} " in go.ldflags and go.ldflags.endswith(f"rules.k8sVersionMinor={minor}")


def test_promtool_is_built_from_the_module_version_of_its_release() -> None:
    # Prometheus 3.15.0 is v0.315.0 as a Go module.
    major, minor, patch = release("promtool").version.split(".")
    assert f"prometheus/prometheus v0.{major}{minor}.{patch} " in (REPO / "gpu_fleet/toolchain/go/prometheus/go.mod").read_text()


def test_mimir_says_which_commit_it_is_built_from() -> None:
    go = PROGRAMS["mimir"].go
    assert go
    commit = re.search(r"grafana/mimir v\S+-([0-9a-f]{12})\n", (go.module / "go.mod").read_text())
    assert commit and commit[1] in go.differs and commit[1] in go.ldflags


@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("pulumi", "pulumi"),
        ("pulumi", "pulumi-language-python"),
        ("pulumi-command", "pulumi-resource-command"),
        ("pulumi-kubernetes", "pulumi-resource-kubernetes"),
        ("pulumiverse-grafana", "pulumi-resource-grafana"),
    ],
)
def test_the_python_package_and_the_program_are_of_one_version(package: str, program: str) -> None:
    assert f"{package}=={release(program).version}\n" in (REPO / "requirements.in").read_text()
