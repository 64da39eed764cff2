"""The Helm releases of a cluster, with their charts checked and rendered: every error in them is reported here.

Reads charts (components.kubernetes.charts), contacts no cluster and creates no resource.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.model import to_yaml
from components.kubernetes import values
from components.kubernetes.charts import MONITORS, Chart, ChartError, ChartNotFetched, ChartSource, Loader, chart_source, fetched
from components.kubernetes.values import ClusterPlan, Values
from gpu_fleet.stackfile.kubernetes import Charts, Kubernetes
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.validation.subject import COMPARED_ONLY

_OPERATOR: Final = "kube-prometheus-stack"
_HIDDEN: Final = "(not shown)"


class ReleaseErrors(Exception):
    """Every chart that cannot be fetched and every value that a chart refuses; str() is the whole text for the user."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(problems, 1))
        super().__init__(f"{count} in the Helm charts of this stack; nothing was changed.\n\n{numbered}")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One Helm release. `objects`: what it creates, as YAML by kind and name. `crds`: names of those removed with it.

    `description`: of its revisions, as `helm history` shows it, after the mark of the stack; None: the mark alone.
    """

    name: str
    source: ChartSource
    values: Values
    description: str | None
    objects: Mapping[str, str]
    crds: tuple[str, ...]
    after: tuple[str, ...]  # releases whose objects it needs
    unread: tuple[str, ...] = ()  # values of the stack file that change nothing of what the chart renders


_VALUES: Final[Mapping[str, Callable[[ClusterPlan], Values]]] = {
    "kube-prometheus-stack": values.kube_prometheus_stack,
    "gpu-operator": values.gpu_operator,
    "dcgm-exporter": values.dcgm_exporter,
    "alloy": values.alloy,
    "node-exporter": values.node_exporter,
    "kube-state-metrics": values.kube_state_metrics,
    "prometheus-adapter": values.prometheus_adapter,
}


def release_names(section: Kubernetes) -> list[str]:
    """The releases of the section, in the order in which they need each other."""
    wanted = {
        "kube-prometheus-stack": section.prometheus_operator == "install",
        "gpu-operator": section.gpu_operator,
        "dcgm-exporter": not section.gpu_operator and section.exporter == "install",
        "alloy": True,
        "node-exporter": section.node_exporter == "install",
        "kube-state-metrics": section.kube_state_metrics == "install",
        "prometheus-adapter": section.custom_metrics == "install",
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def releases(plan: ClusterPlan, base: Path) -> list[Release]:
    """All releases, checked. `base`: the directory of Pulumi.yaml. Raises ReleaseErrors with all errors."""
    made: dict[str, Release] = {}
    found: list[str] = []
    names = release_names(plan.section)
    for name in sorted(names, key=lambda name: name == "alloy"):  # which scrapes what the others install
        if name == "alloy":
            plan = replace(plan, workloads=_workloads(made))
        section = getattr(plan.section.charts, name.replace("-", "_"))
        given = values.merged(_VALUES[name](plan), section.values)
        try:
            chart = fetched(chart_source(name, section, base))
            errors = [_placed(name, error, chart, section.values) for error in chart.errors(given)]
            found += errors
            if not errors:
                ignored = [".".join(path) for path, _ in chart.unread(given) if _is_set(section.values, path)]
                made[name] = replace(_release(plan, name, chart, given), unread=tuple(ignored))
        except ChartNotFetched as error:
            if not os.environ.get(COMPARED_ONLY):
                found.append(f"{_key(name)}: {error}")
                continue
            made[name] = _not_rendered(plan, name, base, given, str(error))
        except ChartError as error:
            found.append(f"{_key(name)}: {error}")
    if found:
        raise ReleaseErrors(found)
    return [made[name] for name in names]


def warning_of_unverified(made: Iterable[Release]) -> str:
    """Empty when each chart is a file of the user's, or has a checksum."""
    found = [release.source.described for release in made if not release.source.is_verified]
    if not found:
        return ""
    return (
        f"Helm charts that are not verified: {'; '.join(found)}. gpu_fleet/toolchain/versions.yaml has no SHA-256 of them, so "
        "whoever controls their repository decides what runs in the cluster. Add the checksums there, or name reviewed chart "
        f"files in {PROJECT}:kubernetes.charts (`chart: FILE.tgz`)"
    )


def warning_of_unread(made: Iterable[Release]) -> str:
    """Empty when the charts read every value."""
    found = [f"{_key(release.name)}.values.{path}" for release in made for path in release.unread]
    return f"Values that change nothing of what the chart renders: {', '.join(found)}" if found else ""


def _workloads(made: Mapping[str, Release]) -> dict[str, list[tuple[str, str]]]:
    titles = {name: [title.split() for title in release.objects] for name, release in made.items()}
    return {
        name: [(kind, path.rpartition("/")[2]) for kind, path in of if kind in ("DaemonSet", "Deployment", "StatefulSet")]
        for name, of in titles.items()
    }


def _not_rendered(plan: ClusterPlan, name: str, base: Path, given: Values, reason: str) -> Release:
    section = getattr(plan.section.charts, name.replace("-", "_"))
    return Release(
        name=name,
        source=chart_source(name, section, base),
        values=given,
        description=None,
        objects={"not rendered": reason},
        crds=(),
        after=_after(plan, name),
    )


def _after(plan: ClusterPlan, name: str) -> tuple[str, ...]:
    return (_OPERATOR,) if plan.section.prometheus_operator == "install" and name != _OPERATOR else ()


def _key(name: str) -> str:
    return f"{PROJECT}:kubernetes.charts.{Charts.model_fields[name.replace('-', '_')].alias}"


def _placed(name: str, error: str, chart: Chart, theirs: Mapping[str, Any]) -> str:
    """An error at the key of the stack file that causes it."""
    if _is_set(theirs, error.partition(":")[0].split(".")):
        return f"{_key(name)}.values.{error}"
    version = chart.metadata.get("version", "?")
    return f"{_key(name)}: version {version} refuses a value of gpu-fleet ({error}); use the pinned version"


def _is_set(values: Any, path: Sequence[str]) -> bool:
    for step in path:
        if not isinstance(values, Mapping) or step not in values:
            return False
        values = values[step]
    return True


def _release(plan: ClusterPlan, name: str, chart: Chart, given: Values) -> Release:
    operator = plan.section.prometheus_operator
    manifest = chart.render(name, plan.section.namespace, given, MONITORS if operator != "none" else ())
    return Release(
        name=name,
        source=chart.source,
        values=given,
        description=_description(chart),
        objects=dict(_objects(manifest)),
        crds=() if plan.section.keep_crds else chart.crds(given),
        after=_after(plan, name),
    )


def _description(chart: Chart) -> str | None:
    """The checksum of a chart that is a file: its version may stay the same when the file changes.

    Pulumi's provider compares the inputs of a release, and never what the chart holds (pulumi-kubernetes 4.32.0,
    helm_release.go Diff): without this an update would report success and leave the old objects. With it every changed file is an
    upgrade, which loads the chart again.
    """
    return f"chart file sha256:{chart.sha256}" if chart.source.is_file else None


def _objects(manifest: str) -> Iterator[tuple[str, str]]:
    """Title and YAML of each object of a manifest."""
    for document in yaml.load_all(manifest, Loader=Loader):
        if not document:
            continue
        metadata = document["metadata"]
        where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        if document["kind"] == "Secret":
            for part in ("data", "stringData"):
                document[part] = dict.fromkeys(document.get(part) or {}, _HIDDEN)
        _hide_sums_of_secrets(document)
        yield f"{document['kind']} {where}{metadata['name']}", to_yaml(document)


def _hide_sums_of_secrets(document: Mapping[str, Any]) -> None:
    """A chart that generates a password in each rendering puts the sum of its Secret on its pods: a change in every run."""
    template = (document.get("spec") or {}).get("template") or {}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    if "checksum/secret" in annotations:
        annotations["checksum/secret"] = _HIDDEN
