"""The screenshots of docs/pictures: every dashboard in an incident, two of them for every exporter mode, a silent host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dashboards import all_dashboards
from lab.grafana.browser import Browser
from lab.grafana.pictures import TROUBLES, photograph
from lab.showcase.board import PASSWORD, USER, Board
from lab.showcase.fleet import HOSTS, MODES, MODES_DATACENTER
from lab.showcase.showcase import Showcase

_WIDTHS: Final = (1280, 1920)
_REAL: Final = {"datacenter": ["eu-north", "us-west"]}  # without the lab's faulty hosts


@dataclass(frozen=True)
class Scene:
    """`name`: of the file, without its width. `is_well`: before the incidents."""

    name: str
    dashboard: str
    variables: Mapping[str, Sequence[str]]
    widths: Sequence[int] = _WIDTHS
    is_well: bool = False


def _host(name: str) -> dict[str, list[str]]:
    [host] = [host for host in HOSTS if host.name == name]
    return {"datacenter": [host.datacenter], "cluster": [host.cluster], "instance": [host.name]}


SCENES: Final = (
    Scene("overview", "overview", _REAL),
    Scene("overview-all-well", "overview", _REAL, widths=(1280,), is_well=True),
    Scene("cluster", "cluster", {"datacenter": ["us-west"], "cluster": ["training"]}),
    Scene("host", "host", _host("gpu-node-003")),
    Scene("host-gpus-unreadable", "host", _host("infer-02"), widths=(1280,)),
    Scene("host-silent", "host", _host("train-02"), widths=(1280,)),
    Scene("gpu", "gpu", {**_host("gpu-node-003"), "gpu": ["4", "5"]}),
    Scene("xid", "xid", _REAL),
    Scene("incident", "incident", _host("gpu-node-002")),
    Scene("workloads", "workloads", {"datacenter": [MODES_DATACENTER], "cluster": ["kubernetes"]}),
    Scene("jobs", "jobs", {"datacenter": ["us-west"], "cluster": ["training"]}),
    Scene("slurm", "slurm", _REAL),
    Scene("inference", "inference", _host("infer-01")),
    Scene("capacity", "capacity", {}),
    Scene("pipeline", "pipeline", _REAL),
    *(
        Scene(f"{dashboard}-{host.mode}", dashboard, _host(host.name), widths=(1280,))
        for host in HOSTS
        if host.datacenter == MODES_DATACENTER
        for dashboard in ("host", "gpu")
    ),
)


def take(showcase: Showcase, board: Board, directory: Path) -> Iterator[str]:
    """Writes every scene; a line of text for each."""
    directory.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        browser.log_in(USER, PASSWORD)
        for scene in SCENES:
            end_s = showcase.well_s if scene.is_well else showcase.end_s
            url = board.address(_uid(scene), start_s=showcase.start_s, end_s=end_s, variables=scene.variables)
            for width in scene.widths:
                file = directory / f"{scene.name}-{width}.png"
                file.write_bytes(photograph(browser, url, width))
                empty = ", ".join(browser.run(TROUBLES))
                yield f"{file}  {file.stat().st_size // 1000} kB" + (f"  without data: {empty}" if empty else "")


def _uid(scene: Scene) -> str:
    uid = f"gpu-fleet-{scene.dashboard}"
    assert uid in all_dashboards(), f"{scene.name} is about no dashboard"
    return uid


def index(directory: Path) -> str:
    """The page that lists the screenshots."""
    return (
        Path(__file__)
        .with_name("pictures.md")
        .read_text()
        .format(
            modes="\n".join(
                f"| {mode.words} | [host](host-{key}-1280.png) | [GPU detail](gpu-{key}-1280.png) |"
                for key, mode in MODES.items()
            ),
            size=round(sum(file.stat().st_size for file in directory.glob("*.png")) / 1e6, 1),
        )
    )
