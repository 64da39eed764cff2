"""The configuration that the commands of gpu_fleet/operations/ read is the one that `pulumi up` sees."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from gpu_fleet.operations import stack as operations_stack
from gpu_fleet.operations.engine import OperationError, pulumi
from gpu_fleet.operations.stack import configuration, deployed_configuration, stack_file

STACK = """
config:
  gpu-fleet:datacenter: us-west
  gpu-fleet:hosts:
    gpu-[1:2]: {address: "10.0.0.[1:2]", gpus: 8, lost: true}
  gpu-fleet:metricsPassword: {secure: v1:abc}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a project of one stack, `s`, with more in its two files."""
    monkeypatch.setattr(operations_stack, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    for name, value in {
        **toolchain.environment(),
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
        "PULUMI_CONFIG_PASSPHRASE": "p",
    }.items():
        monkeypatch.setenv(name, value)

    def write(in_project: str = "", in_stack: str = "") -> None:
        (tmp_path / "Pulumi.yaml").write_text(f"name: gpu-fleet\nruntime: python\n{in_project}")
        (tmp_path / "Pulumi.s.yaml").write_text(STACK + in_stack)

    write()
    return write


def test_keys_beside_config_are_refused_because_nothing_reads_them(project: Callable[..., None]) -> None:
    project(in_stack="gpu-fleet:grafana: {url: https://grafana.example.com}\ngpu-fleet:ssh:\n  user: ops\n")
    with pytest.raises(OperationError, match=r"Pulumi\.s\.yaml: gpu-fleet:grafana, gpu-fleet:ssh: found beside `config:`"):
        configuration("s")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  cluster: training", "cluster: found below `config:` without `gpu-fleet:`"),
        ("  gpu_fleet:cluster: training", "gpu_fleet:cluster: found below `config:` without `gpu-fleet:`"),
        ("\tgpu-fleet:cluster: training", "a tab; indent with spaces"),
        ("  gpu-fleet:ssh: {user: {{ user }}}", "text with {{ needs quotes"),
        ("<<<<<<< HEAD", "a conflict of git's is left here"),
        ("   gpu-fleet:cluster: training", "compare indentation"),
    ],
)
def test_a_line_that_pulumi_would_not_read_is_named_with_its_fix(project: Callable[..., None], line: str, says: str) -> None:
    project(in_stack=f"{line}\n")
    with pytest.raises(OperationError, match=re.escape(says)):
        configuration("s")


def test_a_tab_after_a_colon_is_read_and_a_file_that_is_a_list_is_refused(project: Callable[..., None], tmp_path: Path) -> None:
    project(in_stack="  gpu-fleet:cluster:\ttraining\n  pulumi:tags: {a: b}\n")
    assert configuration("s").values["cluster"] == "training"
    (tmp_path / "Pulumi.s.yaml").write_text("- gpu-fleet:cluster: training\n")
    with pytest.raises(OperationError, match="expected `config:`"):
        configuration("s")


def create() -> None:
    done = pulumi("stack", "init", "s")
    assert done.returncode == 0, done.stderr


def test_the_engine_and_the_file_give_the_same_of_an_ordinary_stack(project: Callable[..., None], tmp_path: Path) -> None:
    without = configuration("s")
    create()
    deployed = deployed_configuration("s")
    assert without == deployed
    assert deployed.secrets == {"metricsPassword"} and "v1:abc" not in str(deployed), "secrets are names"
    hosts = deployed.hosts().hosts
    assert [(name, host.address, host.gpus, host.lost) for name, host in hosts.items()] == [
        ("gpu-1", "10.0.0.1", 8, True),
        ("gpu-2", "10.0.0.2", 8, True),
    ]


IN_PROJECT = """config:
  gpu-fleet:cluster: training
  datacenter: {type: string, default: us-east}
  gpu-fleet:rulers: {value: {mimir: {url: http://m}}}
  gpu-fleet:logs: {type: object}
"""


def test_config_of_the_project_is_read_as_pulumi_up_reads_it_with_and_without_a_login(
    project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    project(in_project=IN_PROJECT.replace("  gpu-fleet:logs: {type: object}\n", ""))
    create()
    found = configuration("s")
    assert found.values["cluster"] == "training"
    assert found.values["datacenter"] == "us-west", "the stack's own value"
    assert found.values["rulers"] == {"mimir": {"url": "http://m"}}
    assert found.keys == {"datacenter", "cluster", "hosts", "rulers", "metricsPassword"}
    assert deployed_configuration("s") == found
    monkeypatch.setenv("PATH", "/nowhere")
    project(in_project=IN_PROJECT)
    assert configuration("s") == found, "a key that is only declared has no value"


@pytest.mark.parametrize(
    "text",
    [
        "environment: [gpu-fleet/prod]\n",
        "environment: gpu-fleet/prod\n",
        "environment: [{gpu-fleet/prod: {merge: false}}]\n",
        "environment: {imports: [gpu-fleet/prod], values: {}}\n",
    ],
)
def test_a_stack_with_an_environment_of_pulumi_esc_is_never_read_without_it(project: Callable[..., None], text: str) -> None:
    """A file backend has no environments: the engine's own words reach the user too."""
    create()
    project(in_stack=text)
    with pytest.raises(OperationError) as error:
        configuration("s")
    first, *rest = str(error.value).splitlines()
    assert first.startswith(
        "Pulumi.s.yaml imports Pulumi ESC environments (gpu-fleet/prod), whose values only Pulumi Cloud can open"
    )
    assert rest and "environment" in rest[0]


def test_values_of_environments_are_opened_where_there_is_a_login(
    project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulumi Cloud's part is played here: without --open, pulumi shows a value from a cloud's login as the text [unknown]."""
    project(in_stack="environment: [gpu-fleet/prod]\n")

    def pulumi_of_cloud(*arguments: str) -> subprocess.CompletedProcess[str]:
        tenant = "us-west" if "--open" in arguments and "--show-secrets" not in arguments else "[unknown]"
        found = {
            "gpu-fleet:metrics": {"objectValue": {"tenant": tenant}, "secret": False},
            "gpu-fleet:logsPassword": {"secret": True},
        }
        return subprocess.CompletedProcess(arguments, 0, json.dumps(found), "")

    monkeypatch.setattr(operations_stack, "pulumi", pulumi_of_cloud)
    found = configuration("s")
    assert found.values == {"metrics": {"tenant": "us-west"}} and found.secrets == {"logsPassword"}


def test_reading_a_stack_needs_neither_a_backend_nor_a_passphrase_where_the_file_has_everything(
    project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    assert configuration("s").values["datacenter"] == "us-west"


def test_where_nobody_is_logged_in_the_error_says_how(project: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULUMI_BACKEND_URL")
    monkeypatch.setenv("PULUMI_CREDENTIALS_PATH", str(Path.cwd()))
    with pytest.raises(OperationError, match=r"not logged in to a backend.*\n.*make shell\n.*pulumi login"):
        deployed_configuration("s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config:\n  a: [b\n", r"Pulumi\.s\.yaml, line 3, column 1: not valid YAML: "),
        ("config: {gpu-fleet:grafanaAuth: 'hunter2\n", r"Pulumi\.s\.yaml, line \d+, column \d+: not valid YAML: "),
    ],
)
def test_a_stack_file_that_is_not_yaml_is_named_with_the_line_and_without_its_text(
    project: Callable[..., None], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "Pulumi.s.yaml").write_text(text)
    with pytest.raises(OperationError, match=message) as error:
        configuration("s")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("name", ["", "nowhere", "../s", "a/b/c/s", "s/"])
def test_only_names_of_stack_files_are_accepted(project: Callable[..., None], name: str) -> None:
    with pytest.raises(OperationError, match=r"no stack given|there is no stack file"):
        stack_file(name)
    assert stack_file("organization/gpu-fleet/s") == stack_file("s")


def test_a_backend_that_a_killed_run_left_unreadable_is_repaired(
    project: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pulumi("stack", "init", "s").returncode == 0
    files = [*(tmp_path / "state").rglob("*.attrs")]
    assert {file.name for file in files} >= {"s.json.attrs", "meta.yaml.attrs"}
    for file, content in zip(files, (b"", b'{"user.cache', b""), strict=False):
        file.write_bytes(content)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state?no_tmp_dir=true")
    assert deployed_configuration("s").values["datacenter"] == "us-west"
    assert "s.json.attrs" in capsys.readouterr().err
    assert pulumi("stack", "ls").returncode == 0


def test_a_state_that_a_power_failure_emptied_is_named_with_the_command_that_restores_it(
    project: Callable[..., None], tmp_path: Path
) -> None:
    assert pulumi("stack", "init", "s").returncode == 0
    assert pulumi("stack", "import", "--stack", "s", stdin=pulumi("stack", "export", "--stack", "s").stdout).returncode == 0
    [state] = (tmp_path / "state").rglob("s.json")
    state.write_bytes(b"")
    with pytest.raises(OperationError) as raised:
        deployed_configuration("s")
    command = str(raised.value).rpartition(": ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert pulumi("stack", "export", "--stack", "s").returncode == 0
    assert deployed_configuration("s").values["datacenter"] == "us-west"
