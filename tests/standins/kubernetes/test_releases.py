"""helm.sh/v3:Release with the real helm: installed, upgraded, rolled back, drifted, uninstalled; charts from everywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lab.kubernetes import Cluster
from tests.standins.running import UNKNOWN, Refused, Resource, RunningPlugin, is_secret, revealed, secret
from toolchain import find

CHART = str(Path(__file__).with_name("chart"))
MISSING = {"image": {"tag": "missing"}}


@pytest.fixture
def release(kubernetes: RunningPlugin) -> Resource:
    return kubernetes.resource("kubernetes:helm.sh/v3:Release", "greeter")


@pytest.fixture
def inputs(namespace: str) -> dict[str, Any]:
    """Not waited for: helm looks only every 2 s whether a release is there."""
    return {"chart": CHART, "name": "greeter", "namespace": namespace, "values": {"greeting": "hi"}, "skipAwait": True}


@pytest.fixture
def helm(cluster: Cluster, namespace: str) -> Callable[..., Any]:
    """The output of the helm program for the namespace."""

    def ask(*arguments: str) -> Any:
        command = [find("helm"), *arguments, "--namespace", namespace, "--output", "json"]
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    return ask


@pytest.fixture
def greeting(cluster: Cluster, namespace: str) -> Callable[[], str]:
    return lambda: cluster.api.read("v1", "ConfigMap", "greeter", namespace)["data"]["greeting"]


def test_a_release_is_installed_and_its_contents_are_outputs(
    release: Resource, inputs: dict[str, Any], namespace: str, helm: Callable[..., Any]
) -> None:
    assert release.preview(**inputs)["status"] == UNKNOWN and helm("list") == []
    outputs = release.create(**inputs)
    assert release.id == f"{namespace}/greeter"
    assert outputs["status"] == {
        "status": "deployed",
        "name": "greeter",
        "namespace": namespace,
        "chart": "greeter",
        "version": "1.2.0",
        "appVersion": "7",
        "revision": 1,
    }
    assert outputs["resourceNames"] == {
        "ConfigMap/v1": ["greeter"],
        "Deployment.apps/apps/v1": ["greeter"],
        "Secret/v1": ["greeter"],
    }
    assert [each["status"] for each in helm("list")] == ["deployed"]


def test_a_changed_value_is_one_change_and_an_upgrade(
    release: Resource, inputs: dict[str, Any], greeting: Callable[[], str]
) -> None:
    release.create(**inputs)
    assert release.diff(**inputs) == ({}, set())
    inputs["values"] = {"greeting": "good evening"}
    assert release.diff(**inputs) == ({"values.greeting": "UPDATE"}, set())
    assert release.update(**inputs)["status"]["revision"] == 2
    assert greeting() == "good evening"


def test_another_name_is_another_release(release: Resource, inputs: dict[str, Any]) -> None:
    release.create(**inputs)
    assert release.diff(**{**inputs, "name": "other"})[1] == {"name"}


def test_a_release_without_a_name_gets_one_and_keeps_it(release: Resource, inputs: dict[str, Any]) -> None:
    del inputs["name"]
    assert release.create(**inputs)["name"].startswith("greeter-")
    assert release.diff(**inputs) == ({}, set())


def test_a_chart_that_is_not_there_is_refused_by_the_check(release: Resource, inputs: dict[str, Any]) -> None:
    assert 'path "./not-there" not found' in release.failures({**inputs, "chart": "./not-there"})["chart"]


def test_values_that_the_charts_schema_refuses_are_refused_by_the_installation_and_not_before(
    release: Resource, inputs: dict[str, Any], helm: Callable[..., Any]
) -> None:
    wrong = {**inputs, "values": {"replicas": "many"}}
    assert release.failures(wrong) == {} and release.preview(**wrong)["values"] == {"replicas": "many"}
    with pytest.raises(Refused, match="replicas"):
        release.create(**wrong)
    assert helm("list", "--all") == []


def test_an_input_that_does_not_exist_is_dropped_without_a_word(release: Resource, inputs: dict[str, Any]) -> None:
    outputs = release.create(**{**inputs, "vaules": {"greeting": "lost"}})
    assert "vaules" not in outputs and "vaules" not in release.inputs
    assert release.diff(**inputs) == ({}, set())


def test_an_input_of_another_type_fails_the_check_itself(release: Resource, inputs: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="decoding failure"):
        release.failures({**inputs, "timeout": "long"})


def test_inputs_that_are_not_given_are_the_empty_ones(release: Resource, inputs: dict[str, Any]) -> None:
    checked = release.checked(inputs)
    assert (checked["atomic"], checked["description"], checked["version"]) == (False, "", "1.2.0")
    assert "checksum" not in checked and "resourceNames" not in checked, "the chart is loaded, and nothing of it rendered"


def test_a_null_removes_a_default_of_the_chart(
    release: Resource, inputs: dict[str, Any], cluster: Cluster, namespace: str
) -> None:
    inputs["values"] = {"greeting": None}
    assert release.checked(inputs)["values"] == {"greeting": None}
    release.create(**inputs)
    assert cluster.api.read("v1", "ConfigMap", "greeter", namespace)["data"]["greeting"] == ""
    assert release.diff(**inputs) == ({}, set())


def test_a_chart_that_changed_under_its_version_is_only_a_change_with_another_description(
    release: Resource, inputs: dict[str, Any], tmp_path: Path, greeting: Callable[[], str], helm: Callable[..., Any]
) -> None:
    chart = tmp_path / "greeter"
    shutil.copytree(CHART, chart)
    inputs |= {"chart": str(chart), "values": {}, "description": "sha256:old"}
    release.create(**inputs)
    values = chart / "values.yaml"
    values.write_text(values.read_text().replace("greeting: hello", "greeting: changed"))
    assert release.diff(**inputs) == ({}, set()), "neither the files nor what they render are compared"
    assert release.refresh() and release.diff(**inputs) == ({}, set())

    inputs["description"] = "sha256:new"
    assert release.diff(**inputs) == ({"description": "UPDATE"}, set())
    release.update(**inputs)
    assert greeting() == "changed" and helm("history", "greeter")[-1]["description"] == "sha256:new"
    assert release.refresh() and release.diff(**inputs) == ({}, set())


def test_a_failed_upgrade_that_is_atomic_is_rolled_back_and_the_next_one_succeeds(
    release: Resource, inputs: dict[str, Any], helm: Callable[..., Any], greeting: Callable[[], str]
) -> None:
    release.create(**inputs)
    inputs |= {"atomic": True, "skipAwait": False, "timeout": 10}  # the way back has as long
    with pytest.raises(Refused, match="failed to initialize completely") as refused:
        release.update(**{**inputs, "values": {"greeting": "broken", **MISSING}})
    assert refused.value.kept_id == release.id
    assert greeting() == "hi"
    assert [each["status"] for each in helm("history", "greeter")] == ["superseded", "failed", "deployed"]
    release.update(**{**inputs, "timeout": 300, "values": {"greeting": "repaired"}})
    assert greeting() == "repaired"


def test_a_failed_installation_that_is_atomic_leaves_nothing(
    release: Resource, inputs: dict[str, Any], helm: Callable[..., Any], cluster: Cluster, namespace: str
) -> None:
    with pytest.raises(Refused, match="atomic") as refused:
        release.create(**{**inputs, "atomic": True, "skipAwait": False, "timeout": 1, "values": MISSING})
    assert not refused.value.kept_id and helm("list", "--all") == []
    assert cluster.api.read("apps/v1", "Deployment", "greeter", namespace) is None


def test_a_failed_installation_is_kept_so_that_it_can_be_repaired(release: Resource, inputs: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="was created, but failed to initialize completely") as refused:
        release.create(**{**inputs, "skipAwait": False, "timeout": 1, "values": MISSING})
    assert refused.value.kept_id == f"{inputs['namespace']}/greeter"


def test_what_somebody_changed_with_helm_is_drift_of_the_outputs_and_not_of_the_inputs(
    release: Resource, inputs: dict[str, Any], cluster: Cluster, namespace: str, greeting: Callable[[], str]
) -> None:
    release.create(**inputs)
    command = [find("helm"), "upgrade", "greeter", CHART, "--namespace", namespace, "--set", "greeting=by hand"]
    subprocess.run(command, env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}, capture_output=True, check=True)
    assert release.refresh() and release.inputs["values"] == {"greeting": "hi"}
    assert release.outputs["values"] == {"greeting": "by hand"}
    assert release.outputs["status"]["revision"] == 2
    assert "values.greeting" in release.diff(**inputs)[0]
    release.update(**inputs)
    assert greeting() == "hi"


def test_a_release_that_somebody_uninstalled_is_gone_after_a_refresh(
    release: Resource, inputs: dict[str, Any], cluster: Cluster, namespace: str
) -> None:
    release.create(**inputs)
    release.delete()
    assert cluster.api.read("v1", "ConfigMap", "greeter", namespace) is None
    with pytest.raises(Refused, match="not found"):
        release.delete()
    assert not release.refresh()


def test_a_secret_value_stays_secret(release: Resource, inputs: dict[str, Any], cluster: Cluster, namespace: str) -> None:
    outputs = release.create(**{**inputs, "values": {"password": secret("hunter2")}})
    assert is_secret(outputs["values"]["password"]) and is_secret(release.inputs["values"]["password"])
    in_clear = {name: value for name, value in outputs.items() if not is_secret(value)}
    assert "hunter2" not in json.dumps({**in_clear, "values": None})
    stored = cluster.api.read("v1", "Secret", "greeter", namespace)["data"]["password"]
    assert base64.b64decode(stored) == b"hunter2"
    release.refresh()
    assert is_secret(release.inputs["values"]["password"]) and revealed(release.inputs["values"]) == {"password": "hunter2"}


def test_values_that_are_not_known_yet_are_neither_rendered_nor_refused(release: Resource, inputs: dict[str, Any]) -> None:
    assert release.preview(**{**inputs, "values": {"replicas": UNKNOWN}})["values"] == {"replicas": UNKNOWN}


class Repository:
    """A chart repository with a login. `asked`: the paths that were requested with it."""

    def __init__(self, chart: Path) -> None:
        self.asked: list[str] = []
        content = chart.read_bytes()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = base64.b64encode(b"reader:hunter2").decode()
                if self.headers["Authorization"] != f"Basic {login}":
                    self.send_error(401)
                    return
                repository.asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(content if self.path.endswith(".tgz") else json.dumps(repository.index(chart.name)).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._digest = hashlib.sha256(content).hexdigest()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def index(self, file: str) -> dict[str, Any]:
        entry = {"apiVersion": "v2", "name": "greeter", "version": "1.2.0", "urls": [file], "digest": self._digest}
        return {"apiVersion": "v1", "entries": {"greeter": [entry]}}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    subprocess.run([find("helm"), "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    repository = Repository(tmp_path / "greeter-1.2.0.tgz")
    yield repository
    repository.stop()


def test_a_chart_comes_from_a_repository_with_a_login(
    release: Resource, inputs: dict[str, Any], repository: Repository, greeting: Callable[[], str]
) -> None:
    login = {"repo": repository.url, "username": "reader", "password": secret("hunter2")}
    outputs = release.create(**{**inputs, "chart": "greeter", "version": "1.2.0", "repositoryOpts": login})
    assert greeting() == "hi" and "/greeter-1.2.0.tgz" in repository.asked
    assert is_secret(outputs["repositoryOpts"]["password"])


def test_a_version_that_the_repository_does_not_have_is_refused_by_the_check(
    release: Resource, inputs: dict[str, Any], repository: Repository
) -> None:
    login = {"repo": repository.url, "username": "reader", "password": secret("hunter2")}
    failures = release.failures({**inputs, "chart": "greeter", "version": "9.9.9", "repositoryOpts": login})
    assert "9.9.9" in failures["chart"] and "hunter2" not in failures["chart"]


def test_a_packaged_chart_on_disk_is_installed(
    release: Resource, inputs: dict[str, Any], tmp_path: Path, greeting: Callable[[], str]
) -> None:
    subprocess.run([find("helm"), "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    release.create(**{**inputs, "chart": str(tmp_path / "greeter-1.2.0.tgz")})
    assert greeting() == "hi"
