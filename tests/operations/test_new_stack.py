"""`make new-stack`: the file, the stack and its secrets, with the real pulumi."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpu_fleet import toolchain
from gpu_fleet.stackfile.new_stack import new_stack
from tests.checkout import copy_to

SECRETS = {"METRICS_PASSWORD": "planted-metrics", "LOGS_PASSWORD": "planted-logs", "RULERS_PASSWORD": "planted-rulers"}


class Project:
    """A checkout with a backend that has no stack."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        copy_to(directory)
        (directory / "state").mkdir()
        self.environment = {
            **os.environ,
            **toolchain.environment(),
            "PULUMI_BACKEND_URL": f"file://{directory}/state",
            "PULUMI_CONFIG_PASSPHRASE": "of the tests",
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpu_fleet.operations.new_stack", *arguments],
            cwd=self.directory,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def pulumi(self, *arguments: str) -> str:
        command = [str(toolchain.find("pulumi")), "--non-interactive", *arguments]
        done = subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


NAMES = ("--datacenter", "us-west", "--cluster", "training")
URL = "https://metrics.example.org/api/v1/push"


def test_file_stack_and_secrets_are_made_at_once_and_never_again(project: Project) -> None:
    done = project.run(*NAMES, "--metrics-url", URL, "--push-user", "writer", **SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    wrote, examples, created, following, *_ = done.stdout.splitlines()
    assert (wrote, created) == ("wrote Pulumi.us-west-training.yaml", "created the stack us-west-training")
    assert "URLs that were not given are those of example.com" in examples, "Loki's was not"
    assert following.startswith("Next: edit")
    assert "planted" not in done.stdout + done.stderr
    file = project.directory / "Pulumi.us-west-training.yaml"
    text = file.read_text()
    assert "planted" not in text and "# The hosts, by name or pattern" in text, "pulumi keeps the comments"
    config = yaml.safe_load(text)["config"]
    assert config["gpu-fleet:metrics"] == {"url": URL, "username": "writer"}
    assert config["gpu-fleet:rulers"] == {"mimir": {"url": "https://metrics.example.org", "username": "writer"}}
    for key, value in {"metricsPassword": "planted-metrics", "rulersPassword": "planted-rulers"}.items():
        assert project.pulumi("config", "get", f"gpu-fleet:{key}", "--stack", "us-west-training").strip() == value
    shown = re.sub(r"(?m)^( *)# (?=  |gpu-fleet:(?!.*`))", r"\1", text)  # as somebody takes the examples out of their comments
    sections = {"ssh", "hosts", "rollout", "dcgm", "kubernetes", "alerts", "grafana"}
    assert {f"gpu-fleet:{name}" for name in sections} <= yaml.safe_load(shown)["config"].keys(), (
        "pulumi, which writes the secrets, leaves the examples below `config:`"
    )
    again = project.run(*NAMES)
    assert again.returncode == 1
    assert again.stderr.startswith("Pulumi.us-west-training.yaml exists already and was not changed.")
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("url", "ruler"),
    [
        ("https://prometheus-prod-1.grafana.net/api/prom/push", "https://prometheus-prod-1.grafana.net"),
        ("https://prometheus.example.org/api/v1/write", None),
        ("https://thanos.example.org/api/v1/receive", None),
    ],
)
def test_a_store_that_is_no_mimir_gets_a_ruler_only_where_it_has_one(url: str, ruler: str | None) -> None:
    text = new_stack("us-west", "training", metrics_url=url, username="writer")
    config = yaml.safe_load(text)["config"]
    assert config["gpu-fleet:metrics"] == {"url": url, "username": "writer"}
    expected = {"mimir": {"url": ruler, "username": "writer"}} if ruler else None
    assert config.get("gpu-fleet:rulers") == expected
    assert ("make rules FOR=prometheus" in text) is (ruler is None), "the recording rules come by a file"


def test_grafana_cloud_has_a_user_for_metrics_and_rules_and_another_for_logs() -> None:
    text = new_stack("us-west", "training", metrics_url="https://p.grafana.net/api/prom/push", username="12", logs_username="34")
    config = yaml.safe_load(text)["config"]
    users = config["gpu-fleet:metrics"]["username"], config["gpu-fleet:logs"]["username"]
    assert (*users, config["gpu-fleet:rulers"]["mimir"]["username"]) == ("12", "34", "12")


def test_what_is_not_given_is_listed_with_its_command(project: Project) -> None:
    done = project.run("--datacenter", "a", "--cluster", "b", "--push-user", "writer", METRICS_PASSWORD="planted")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"pulumi config set --secret \S+", done.stdout) == [
        "pulumi config set --secret gpu-fleet:logsPassword",
        "pulumi config set --secret gpu-fleet:rulersPassword",
    ]


def test_without_a_backend_the_file_is_written_and_the_commands_for_the_rest_are_shown(project: Project, tmp_path: Path) -> None:
    environment = {"PULUMI_BACKEND_URL": "", "PULUMI_CREDENTIALS_PATH": str(tmp_path), "PULUMI_ACCESS_TOKEN": ""}
    done = project.run("--datacenter", "c", "--cluster", "d", **environment)
    assert done.returncode == 1
    assert "the stack c-d was not created: pulumi is not logged in to a backend" in done.stderr
    assert "    make shell STACK=c-d\n    pulumi login URL\n    pulumi stack init c-d\n" in done.stdout
    assert (project.directory / "Pulumi.c-d.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--datacenter", "US West", "--cluster", "a"), "gpu-fleet:datacenter"),
        (("--datacenter", "e", "--cluster", "f", "--metrics-url", "mimir"), "gpu-fleet:metrics.url"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_before_anything_is_written(
    project: Project, arguments: tuple[str, ...], key: str
) -> None:
    before = sorted(project.directory.glob("Pulumi.*"))
    done = project.run(*arguments)
    assert done.returncode == 1
    assert key in done.stderr and "Traceback" not in done.stderr
    assert sorted(project.directory.glob("Pulumi.*")) == before


def test_on_a_terminal_it_asks_and_echoes_no_password(project: Project) -> None:
    """As a person answers: URLs, a user name, a passphrase twice, three passwords."""
    answers = [URL, "", "writer", "a passphrase", "a passphrase", "planted-one", "planted-two", "planted-three"]
    questions = [
        b"Mimir",
        b"Loki",
        b"User name",
        b"Passphrase:",
        b"Again:",
        b"metricsPassword",
        b"logsPassword",
        b"rulersPassword",
    ]
    environment = {name: value for name, value in project.environment.items() if name != "PULUMI_CONFIG_PASSPHRASE"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project.directory)
        command = [sys.executable, "-m", "gpu_fleet.operations.new_stack", "--datacenter", "g", "--cluster", "h"]
        os.execve(sys.executable, command, environment)
    seen = b""
    for question, answer in zip(questions, answers, strict=True):
        seen += until(terminal, question)
        os.write(terminal, answer.encode() + b"\n")
    seen += until(terminal, b"make up")
    assert os.waitpid(pid, 0)[1] == 0, seen.decode()
    assert b"planted" not in seen and b"a passphrase" not in seen, seen.decode()
    environment["PULUMI_CONFIG_PASSPHRASE"] = "a passphrase"
    project.environment, usual = environment, project.environment
    try:
        assert project.pulumi("config", "get", "gpu-fleet:logsPassword", "--stack", "g-h").strip() == "planted-two"
    finally:
        project.environment = usual


def until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        try:
            read = os.read(terminal, 4096) if select.select([terminal], [], [], 60)[0] else b""
        except OSError:  # Linux says so where the other side has ended
            read = b""
        assert read, f"{text!r} was not asked: {seen.decode()}"
        seen += read
    return seen
