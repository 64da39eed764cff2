"""What happens on GPU nodes: kubelet, device plugin and container runtime, as far as monitoring sees them.

    with GpuNodes(cluster) as nodes:      # every node of the cluster that has GPUs
        ...                               # pods get GPUs, dcgm-exporter pods answer at their addresses

A Running pod holds the GPUs that it asked for. A pod of an image named dcgm-exporter is the simulated exporter, started with the
pod's arguments, environment and mounted counters, on port 9400 of the pod's address. GPUs are idle, but while their pod runs
`dcgmproftester… -t TEST` or is annotated `lab.gpu-fleet.invalid/test: "1004"`. Other containers do not run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.gpu import setup, work
from lab.gpu.dcgm.cli import GENERATION_VARIABLE, GENERATIONS
from lab.gpu.dcgm.pods import FILE_VARIABLE
from lab.gpu.machine import STATE_VARIABLE
from lab.kubernetes.api import ApiError
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.servers import end_with_parent, stop

EXPORTER = Path(setup.PROGRAMS) / "dcgm-exporter"
SCENARIO = {"vendor": "nvidia", "driver": "590.48.01", "cuda": "13.1", "hostname": "replaced"}
TEST_ANNOTATION = "lab.gpu-fleet.invalid/test"
LOOK_S = 0.2
FOR_EVER_S = 1e12
PORT = 9400

Pod = dict[str, Any]


@dataclass
class _Held:
    """The GPUs of one pod. `test`: the load test that it runs, 0 for none."""

    pod: Pod
    gpus: list[int]
    test: int
    from_s: float


@dataclass
class _Node:
    name: str
    directory: Path
    gpus: int
    held: dict[str, _Held] = field(default_factory=dict)  # by the pod's uid
    ended: list[work.Work] = field(default_factory=list)
    exporters: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def pods_file(self) -> Path:
        return self.directory / "pods.json"


class GpuNodes:
    """`interval_s`: how often the exporters read the GPUs; the real one does every 30 s."""

    def __init__(self, cluster: Cluster, *, interval_s: float = 1.0) -> None:
        self._cluster = cluster
        self._interval_ms = int(interval_s * 1000)
        self._directory = Path(tempfile.mkdtemp(prefix="gpu-fleet-gpu-nodes-"))
        self._nodes: dict[str, _Node] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GpuNodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        shutil.rmtree(self._directory, ignore_errors=True)

    def state(self, node: str) -> Path:
        """The simulated machine of a node, e.g. to inject an XID there (lab.gpu.inject)."""
        return self._nodes[node].directory

    def _run(self) -> None:
        # The exporters are children of this thread and end with it, whatever happens to the rest.
        try:
            while not self._stopping.wait(LOOK_S):
                try:
                    self._look()
                except ApiError:
                    continue  # the cluster is going away, or a test breaks it
        finally:
            for node in self._nodes.values():
                for process in node.exporters.values():
                    stop(process)

    def _look(self) -> None:
        for node in self._cluster.api.list("v1", "Node"):
            gpus = int(node["status"].get("capacity", {}).get("nvidia.com/gpu", 0))
            name = node["metadata"]["name"]
            if gpus and name not in self._nodes:
                self._nodes[name] = self._make(name, gpus)
        running: dict[str, dict[str, Pod]] = {name: {} for name in self._nodes}
        for pod in self._cluster.api.list("v1", "Pod"):
            node_name = pod["spec"].get("nodeName")
            if node_name in running and pod["status"].get("phase") == "Running":
                running[node_name][pod["metadata"]["uid"]] = pod
        for name, node in self._nodes.items():
            self._assign(node, running[name])
            self._serve(node, running[name])

    def _make(self, name: str, gpus: int) -> _Node:
        directory = self._directory / name
        directory.mkdir()
        scenario = directory / "scenario.yaml"
        slots = [f"{0x18 + index:02X}:00" for index in range(gpus)]
        machine = {**SCENARIO, "gpus": [{"product": "h100-sxm", "count": gpus, "load": "idle"}], "pci": slots}
        scenario.write_text(yaml.safe_dump(machine))
        setup.init(state=directory, scenario=str(scenario), hostname=name)
        return _Node(name, directory, gpus)

    def _assign(self, node: _Node, running: dict[str, Pod]) -> None:
        now_s = time.time()
        gone = node.held.keys() - running.keys()
        come = {uid: pod for uid, pod in running.items() if uid not in node.held and _gpus_of(pod)}
        if not gone and not come:
            return
        for uid in gone:
            node.ended += _as_work(node.held.pop(uid), now_s)
        free = [gpu for gpu in range(node.gpus) if not any(gpu in held.gpus for held in node.held.values())]
        for uid, pod in come.items():
            taken, free = free[: _gpus_of(pod)], free[_gpus_of(pod) :]
            node.held[uid] = _Held(pod, taken, _test_of(pod), now_s)
        _replace(node.pods_file, json.dumps([entry for held in node.held.values() for entry in _entries(held)]))
        going_on = [each for held in node.held.values() for each in _as_work(held, FOR_EVER_S)]
        work.write(str(node.directory), [*node.ended, *going_on])

    def _serve(self, node: _Node, running: dict[str, Pod]) -> None:
        for uid in node.exporters.keys() - running.keys():
            stop(node.exporters.pop(uid))
        for uid, pod in running.items():
            container = pod["spec"]["containers"][0]
            if uid not in node.exporters and "dcgm-exporter" in container["image"]:
                node.exporters[uid] = self._start(node, pod, container)

    def _start(self, node: _Node, pod: Pod, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        files = self._mounted(node, pod, container)
        variables = {each["name"]: _value(each, pod) for each in container.get("env", [])}
        environment = {
            "DCGM_EXPORTER_INTERVAL": str(self._interval_ms),
            **{name: files.get(value, value) for name, value in variables.items()},
            "DCGM_EXPORTER_LISTEN": f"{pod['status']['podIP']}:{PORT}",
            STATE_VARIABLE: str(node.directory),
            FILE_VARIABLE: str(node.pods_file),
            GENERATION_VARIABLE: _generation(container["image"]),
        }
        arguments = [files.get(argument, argument) for argument in container.get("args", [])]
        with (node.directory / f"{pod['metadata']['name']}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", EXPORTER, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )

    def _mounted(self, node: _Node, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        """Files of ConfigMaps: their path in the container, and where they lie here."""
        found = {}
        volumes = {volume["name"]: volume["configMap"] for volume in pod["spec"].get("volumes", []) if "configMap" in volume}
        for mount in container.get("volumeMounts", []):
            if not (source := volumes.get(mount["name"])):
                continue
            namespace = pod["metadata"]["namespace"]
            config_map = self._cluster.api.read("v1", "ConfigMap", source["name"], namespace) or {}
            data = config_map.get("data", {})
            for item in source.get("items") or [{"key": key, "path": key} for key in data]:
                inside = mount["mountPath"] if mount.get("subPath") == item["path"] else f"{mount['mountPath']}/{item['path']}"
                file = node.directory / f"{pod['metadata']['name']}-{item['path']}"
                file.write_text(data.get(item["key"], ""))
                found[inside] = str(file)
        return found


def _gpus_of(pod: Pod) -> int:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(each.get("nvidia.com/gpu", 0)) for each in limits)


def _test_of(pod: Pod) -> int:
    container = pod["spec"]["containers"][0]
    command = " ".join([*container.get("command", []), *container.get("args", [])])
    found = re.search(r"dcgmproftester\S* .*?-t (\d+)", command)
    return int(found[1] if found else pod["metadata"].get("annotations", {}).get(TEST_ANNOTATION, 0))


def _entries(held: _Held) -> list[dict[str, Any]]:
    """As dcgm-exporter's stand-in reads them."""
    metadata = held.pod["metadata"]
    about = {
        "namespace": metadata["namespace"],
        "pod": metadata["name"],
        "container": held.pod["spec"]["containers"][0]["name"],
        "uid": metadata["uid"],
        "labels": metadata.get("labels", {}),
    }
    return [{"gpu": gpu, **about} for gpu in held.gpus]


def _as_work(held: _Held, until_s: float) -> list[work.Work]:
    if held.test not in work.TESTS:
        return []
    return [{"gpu": gpu, "test": held.test, "from_s": held.from_s, "until_s": until_s} for gpu in held.gpus]


def _value(variable: dict[str, Any], pod: Pod) -> str:
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    fields = {
        "spec.nodeName": pod["spec"]["nodeName"],
        "metadata.name": pod["metadata"]["name"],
        "status.podIP": pod["status"]["podIP"],
    }
    return fields.get(path, variable.get("value", ""))


def _generation(image: str) -> str:
    """The release of the exporter that an image's tag names, else the oldest that is known."""
    found = re.search(r":\d+\.\d+\.\d+-(\d+\.\d+\.\d+)", image)
    return found[1] if found and found[1] in GENERATIONS else next(iter(GENERATIONS))


def _replace(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}")
    partial.write_text(text)
    partial.replace(file)
