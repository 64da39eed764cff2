"""How each program is recognized and built, and what it is needed for. Versions are not here: see
gpu_fleet/toolchain/versions.yaml.

The modules of go/ pin what is built: a go.mod with a `tool` line and the main module's own `replace` lines, because Go
refuses `go install pkg@version` for modules that have them. An upgrade changes versions.yaml and go.mod together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_fleet.toolchain.versions import Release, release

REPO = Path(__file__).resolve().parents[2]
GO_MODULES = Path(__file__).parent / "go"
# stacks: working on a stack. clusters: on one with a Kubernetes cluster. hosts: what `make artifacts` collects. backend: the
# embedded backend's servers. tests: only tests.
Purpose = Literal["stacks", "clusters", "hosts", "backend", "tests"]
OF_STACKS: tuple[Purpose, ...] = ("stacks", "clusters")


@dataclass(frozen=True, kw_only=True)
class GoBuild:
    """One program built from the Go module proxy, in the module `module` (a directory with a go.mod).

    `seconds` is what a first build took on 2 cores, shown to whoever waits. `needs`: names of system.PACKAGES. `differs` says in
    what the result is not the upstream release; empty means it is built from the same source. `version`: what the module builds
    where that is another version than the release: no real stack gets such a program for its hosts
    (gpu_fleet/operations/artifacts.py) or as a plugin (install.py). `embeds`: files that the main package embeds, each by the
    import path of the package that has it.
    """

    module: Path
    package: str
    seconds: int
    tags: str = ""
    ldflags: str = ""
    needs: tuple[str, ...] = ()
    differs: str = ""
    version: str = ""
    embeds: tuple[str, ...] = ()

    @property
    def needs_c(self) -> bool:
        return "gcc" in self.needs


@dataclass(frozen=True, kw_only=True)
class Program:
    """`version_args` make the program print its version; empty: it cannot, so a copy on the PATH is never trusted.

    `beside`: the program that must lie in the same directory and answer for the version, e.g. pulumi for its language host.
    `purpose`: `install` without names gets what is needed to work on stacks, with and without a cluster.
    """

    release: Release
    version_args: tuple[str, ...] = ("--version",)
    beside: str = ""
    go: GoBuild | None = None
    purpose: Purpose = "stacks"

    @property
    def name(self) -> str:
        return self.release.name

    @property
    def title(self) -> str:
        return f"{self.name} {self.release.version}"

    @property
    def plugin(self) -> str:
        """Its directory among Pulumi's plugins; empty when it is no plugin."""
        kind = re.fullmatch(r"pulumi-(resource|language)-(\w+)", self.name)
        return f"{kind[1]}-{kind[2]}-v{self.release.version}" if kind else ""

    def by_hand(self, url: str) -> str:
        """How to install it from a copy of the release file `url`, where upstream cannot be reached."""
        kind = re.fullmatch(r"pulumi-resource-(\w+)", self.name)
        if kind:
            return f"download {url} and run `pulumi plugin install resource {kind[1]} v{self.release.version} --file FILE`"
        beside = f", beside {self.beside} {self.release.version}," if self.beside else ""
        return f"unpack {self.name} from {url}{beside} into a directory on the PATH"


def _required(module: str, path: str) -> str:
    """The version of the Go module `path` that go/`module` builds."""
    found = re.search(rf"^require {re.escape(path)} v(\S+)$", (GO_MODULES / module / "go.mod").read_text(), re.M)
    if found is None:
        raise ValueError(f"{GO_MODULES / module / 'go.mod'} requires no {path}")
    return found[1]


def _plugin(name: str, purpose: Purpose = "stacks", go: GoBuild | None = None) -> Program:
    return Program(release=release(f"pulumi-resource-{name}"), version_args=(), purpose=purpose, go=go)


def _kubernetes_plugin() -> GoBuild:
    # The only version whose module carries the schema and that the module proxy serves (tried November 2026): this prerelease, of
    # the day before 4.25.0.
    version, provider = "4.25.0-alpha.1768448096", "github.com/pulumi/pulumi-kubernetes/provider/v4"
    package = f"{provider}/cmd/pulumi-resource-kubernetes"
    return GoBuild(
        module=GO_MODULES / "pulumi-kubernetes",
        package=".",
        seconds=340,
        ldflags=f"-X {provider}/pkg/version.Version={version}",
        differs=f"{version}: the module proxy has no later version that builds",
        version=version,
        embeds=(f"{package}/schema.json", f"{package}/terraform-mapping.json"),
    )


def _cluster() -> tuple[Program, ...]:
    """The servers of a test cluster (lab/kubernetes), and helm, which reads charts before they reach a cluster.

    The four programs of the module kubernetes share most packages: the first build takes most of the time.
    """
    helm = release("helm")
    # As helm's Makefile does it, with the minor version of its k8s.io/client-go; without it every chart sees Kubernetes 1.20.
    helm_flags = f"-X helm.sh/helm/v3/internal/version.version=v{helm.version}"
    for package in ("chartutil", "lint/rules"):
        helm_flags += f" -X helm.sh/helm/v3/pkg/{package}.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/{package}.k8sVersionMinor=37"
    kwok = release("kwok")
    version = release("kube-apiserver").version
    major, minor, _ = version.split(".")
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    kubernetes = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())

    def of_kubernetes(name: str, seconds: int) -> Program:
        build = GoBuild(
            module=GO_MODULES / "kubernetes", package=f"k8s.io/kubernetes/cmd/{name}", seconds=seconds, ldflags=kubernetes
        )
        return Program(release=release(name), purpose="tests", go=build)

    return (
        of_kubernetes("kube-apiserver", 200),
        of_kubernetes("kube-controller-manager", 50),
        of_kubernetes("kube-scheduler", 5),
        Program(
            release=release("etcd"),
            purpose="tests",
            go=GoBuild(module=GO_MODULES / "kubernetes", package="go.etcd.io/etcd/server/v3", seconds=8),
        ),
        Program(
            release=kwok,
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "kwok",
                package="sigs.k8s.io/kwok/cmd/kwok",
                seconds=75,
                ldflags=f"-X sigs.k8s.io/kwok/pkg/consts.Version=v{kwok.version}",
            ),
        ),
        Program(
            release=helm,
            version_args=("version", "--short"),
            purpose="clusters",
            go=GoBuild(
                module=GO_MODULES / "helm",
                package="helm.sh/helm/v3/cmd/helm",
                seconds=65,
                ldflags=helm_flags,
            ),
        ),
    )


def _victoria_metrics() -> tuple[Program, ...]:
    def of_it(name: str, seconds: int) -> Program:
        of = release(name)
        return Program(
            release=of,
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "victoriametrics",
                package=f"github.com/VictoriaMetrics/VictoriaMetrics/app/{name}",
                seconds=seconds,
                ldflags=f"-X github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo.Version={name}-v{of.version}",
            ),
        )

    return of_it("victoria-metrics", 30), of_it("vmalert", 5)  # 50 s of CPU together, on 2 busy cores


def _programs() -> tuple[Program, ...]:
    pulumi = release("pulumi")
    alloy = release("alloy")
    loki = release("loki")
    promtool, prometheus = release("promtool"), release("prometheus")
    node_exporter = release("node_exporter")
    caddy, versitygw = release("caddy"), release("versitygw")
    # The module proxy carries no release of Mimir 3, only this commit of its main branch (go/mimir/go.mod).
    mimir = "aced80d74930"
    mimir_version = f"-X github.com/grafana/mimir/pkg/util/version.Version=main-{mimir}"
    mimir_differs = f"commit {mimir} of Mimir's main branch between 3.0 and 3.1: the proxy has no release of it"
    # Later versions of Alloy require modules that the module proxy does not carry (tried November 2026).
    alloy_version = _required("alloy", "github.com/grafana/alloy")
    prometheus_version = "-X github.com/prometheus/common/version.Version="
    return (
        Program(
            release=pulumi,
            version_args=("version",),
            go=GoBuild(
                module=GO_MODULES / "pulumi",
                package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
                seconds=205,
                ldflags=f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={pulumi.version}",
            ),
        ),
        Program(
            release=release("pulumi-language-python"),
            version_args=(),
            beside="pulumi",
        ),
        _plugin("command"),
        _plugin("kubernetes", "clusters", _kubernetes_plugin()),
        _plugin("grafana"),
        Program(
            release=node_exporter,
            purpose="hosts",
            go=GoBuild(
                module=GO_MODULES / "node_exporter",
                package="github.com/prometheus/node_exporter",
                seconds=15,
                ldflags=prometheus_version + node_exporter.version,
            ),
        ),
        Program(release=release("nvidia_gpu_exporter"), purpose="hosts"),
        Program(release=release("grafana"), purpose="backend"),
        Program(
            release=caddy,
            version_args=("version",),
            purpose="hosts",
            go=GoBuild(
                module=GO_MODULES / "caddy",
                package="github.com/caddyserver/caddy/v2/cmd/caddy",
                seconds=200,
                ldflags=f"-X github.com/caddyserver/caddy/v2.CustomVersion=v{caddy.version}",
            ),
        ),
        Program(
            release=loki,
            purpose="backend",
            go=GoBuild(
                module=GO_MODULES / "loki",
                package="github.com/grafana/loki/v3/cmd/loki",
                seconds=230,
                tags="netgo",
                ldflags=f"-X github.com/grafana/loki/v3/pkg/util/build.Version={loki.version}",
            ),
        ),
        Program(
            release=release("mimir"),
            purpose="backend",
            go=GoBuild(
                module=GO_MODULES / "mimir",
                package="github.com/grafana/mimir/cmd/mimir",
                seconds=160,
                tags="netgo stringlabels",
                ldflags=mimir_version,
                differs=mimir_differs,
            ),
        ),
        Program(
            release=versitygw,
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "versitygw",
                package="github.com/versity/versitygw/cmd/versitygw",
                seconds=90,
                ldflags=f"-X main.Version={versitygw.version}",
            ),
        ),
        Program(
            release=release("mimirtool"),
            version_args=("version",),
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "mimir",
                package="github.com/grafana/mimir/cmd/mimirtool",
                seconds=140,
                tags="netgo stringlabels",
                ldflags=mimir_version,
                differs=mimir_differs,
            ),
        ),
        Program(
            release=promtool,
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "prometheus",
                package="github.com/prometheus/prometheus/cmd/promtool",
                seconds=150,
                # The clouds' SDKs would be a large part of what is compiled, and no rule needs them.
                tags="netgo remove_all_sd",
                ldflags=prometheus_version + promtool.version,
                differs="one without service discovery (only file and HTTP), which no test of rules uses",
            ),
        ),
        Program(
            release=prometheus,
            purpose="tests",
            go=GoBuild(
                module=GO_MODULES / "prometheus",
                package="github.com/prometheus/prometheus/cmd/prometheus",
                seconds=75,  # after promtool
                tags="netgo remove_all_sd",
                ldflags=prometheus_version + prometheus.version,
                differs="one without service discovery (only file and HTTP) and without the assets of its web pages",
            ),
        ),
        *_victoria_metrics(),
        *_cluster(),
        # Last: it takes as long as all the others together, which can be used meanwhile.
        Program(
            release=alloy,
            purpose="hosts",
            go=GoBuild(
                module=GO_MODULES / "alloy",
                package="github.com/grafana/alloy",
                seconds=710,
                # Without promtail_journal_enabled it builds and then reads no journal, which is where the XIDs are.
                tags="netgo promtail_journal_enabled",
                ldflags=f"-X github.com/grafana/alloy/internal/build.Version=v{alloy_version}",
                needs=("gcc", "systemd/sd-journal.h"),
                differs=f"Alloy {alloy_version}: the module proxy has no later version that builds",
                version=alloy_version,
            ),
        ),
    )


PROGRAMS: dict[str, Program] = {program.name: program for program in _programs()}
