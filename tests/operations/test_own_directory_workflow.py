"""The workflow that `make new-stack STACKS=…` writes: its steps are run as GitHub runs them, with a `gh` that notes its calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet.operations import own_directory
from gpu_fleet.operations.pr_report.report import MARK
from tests.checkout import REPO
from tests.places import Place, two_hosts

FILE = ".github/workflows/gpu-fleet.yml"
IDENTITY = (
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@example.com",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "protocol.file.allow=always",
)
# Lists no comment of ours; writes down what becomes one.
GH = '#!/bin/sh\ncase $* in *--paginate*) ;; *) echo "$*" >>"$NOTED"; cat "$5" >>"$NOTED" ;; esac\n'


def git(directory: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.strip()


def commit(directory: Path) -> str:
    git(directory, "-c", f"core.excludesFile={directory}/.git/info/packages", "add", "--all")
    git(directory, "commit", "--quiet", "--message", "of the test")
    return git(directory, "rev-parse", "HEAD")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The project is pushed, and its checkout knows where to."""
    with two_hosts(tmp_path) as place:
        git(place.checkout, "init", "--quiet", "--initial-branch=main")
        (place.checkout / ".gitignore").write_text((REPO / ".gitignore").read_text() + ".venv\n")
        commit(place.checkout)
        git(tmp_path, "clone", "--quiet", "--bare", str(place.checkout), "gpu-fleet.git")
        os.utime(place.checkout / "requirements.txt", (0, 0))  # they are installed
        yield place


class Runner:
    """One job at a time: the values of its `env`, and the outputs of the steps before."""

    def __init__(self, place: Place, workspace: Path, base: str, directory: Path) -> None:
        self.workflow: dict[str, Any] = yaml.safe_load((workspace / FILE).read_text())
        self.place, self.workspace, self.noted = place, workspace, directory / "noted"
        (directory / "bin").mkdir()
        (directory / "bin/gh").write_text(GH)
        (directory / "bin/gh").chmod(0o755)
        self.values = {
            "github.event.pull_request.base.sha": base,
            "github.event.pull_request.number": "7",
            "github.token": "t",
            "vars.PULUMI_BACKEND_URL": place.environment["PULUMI_BACKEND_URL"],
            "vars.PULUMI_DEFAULT_ORGANIZATION": "",
            "secrets.PULUMI_ACCESS_TOKEN": "",
            "secrets.PULUMI_CONFIG_PASSPHRASE": place.environment["PULUMI_CONFIG_PASSPHRASE"],
        }
        # STAND_INS: the stack is of the lab.
        runners = {
            "STAND_INS": "1",
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_OUTPUT": directory / "out",
            "GITHUB_STEP_SUMMARY": directory / "summary",
        }
        path = f"{directory}/bin:{os.environ['PATH']}"
        inherited = {name: value for name, value in place.environment.items() if not name.startswith("PULUMI_")}
        self.environment = {**inherited, **{k: str(v) for k, v in runners.items()}, "PATH": path, "NOTED": str(self.noted)}

    def run(self, job: str) -> None:
        """The report has nothing of whoever deploys; the preview has their keys."""
        home = self.noted.parent / "runner"
        (home / ".cache").mkdir(parents=True, exist_ok=True)
        if not (home / ".cache/gpu-fleet").exists():
            (home / ".cache/gpu-fleet").symlink_to(self.place.home / ".cache/gpu-fleet")
        of_job = {"HOME": str(home)} if job == "report" else {}
        for step in self.workflow["jobs"][job]["steps"]:
            if "run" in step and self._applies(step.get("if", "")):
                given = {**self.workflow["env"], **self._filled(step.get("env", {}))}
                done = subprocess.run(
                    ["bash", "-eo", "pipefail", "-c", step["run"]],
                    cwd=self.workspace,
                    env={**self.environment, **of_job, **given},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{step['name']}: {done.stdout}{done.stderr}"
                self._has_packages((self.workspace / self.workflow["env"]["CHECKOUT"]).resolve())

    def _applies(self, condition: str) -> bool:
        return not condition.startswith("env.CHECKOUT_URL") or bool(self.workflow["env"]["CHECKOUT_URL"])

    def _filled(self, given: Mapping[str, str]) -> dict[str, str]:
        return {name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self.values[found[1]], text) for name, text in given.items()}

    @staticmethod
    def _has_packages(checkout: Path) -> None:
        """As `make` would install them, from a registry."""
        if not (checkout / ".venv").exists():
            (checkout / ".venv").symlink_to(REPO / ".venv")
            os.utime(checkout / "requirements.txt", (0, 0))


def with_another_url(workspace: Path, stacks: str) -> None:
    file = workspace / stacks / "Pulumi.training.yaml"
    file.write_text(file.read_text().replace("http://127.0.0.1:1/", "http://127.0.0.1:2/"))


def test_a_pull_request_gets_one_marked_comment_with_the_report_and_then_the_preview(place: Place, tmp_path: Path) -> None:
    """A directory beside the checkout, which the runner clones from where it was cloned, at the same commit."""
    git(place.checkout, "remote", "add", "origin", str(tmp_path / "gpu-fleet.git"))
    stacks = tmp_path / "first/our-stacks"
    said = place.run("make", "STAND_INS=1", "new-stack", f"STACKS={stacks}", "DATACENTER=us", "CLUSTER=west")
    assert f"wrote {stacks}/{FILE}" in said
    place.project = stacks
    place.write_stack()
    place.pulumi("stack", "init", "training")
    git(stacks, "init", "--quiet", "--initial-branch=main")
    workspace = tmp_path / "work/our-stacks"
    base = commit(stacks)
    git(tmp_path, "clone", "--quiet", str(stacks), str(workspace))
    with_another_url(workspace, ".")
    runner = Runner(place, workspace, base, tmp_path)
    assert runner.workflow["env"]["CHECKOUT"] == "../checkout"
    runner.run("report")
    assert git(tmp_path / "work/checkout", "rev-parse", "HEAD") == git(place.checkout, "rev-parse", "HEAD"), "the same version"
    call, report = runner.noted.read_text().split("\n", 1)
    assert call == "pr comment 7 --body-file ./build/comment.md" and report.startswith(MARK)
    assert "1 of 2 stacks would change" in report and "http://127.0.0.1:2/" in report
    assert (tmp_path / "out").read_text() == 'stacks=["training"]\n', "what the job with secrets waits for"
    runner.noted.unlink()
    shutil.rmtree(tmp_path / "work/checkout")  # the next job has a machine of its own
    (workspace / "keys/gpu-2").chmod(0o600)
    runner.run("preview")
    assert "### Preview of `training`" in runner.noted.read_text() and "+ 6 to create" in runner.noted.read_text()


def test_a_submodule_is_the_version_and_the_first_pull_request_is_reported_too(place: Place, tmp_path: Path) -> None:
    """A directory within a repository that has the checkout as a submodule; the base has neither."""
    top = tmp_path / "ours"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch=main")
    (top / "README.md").write_text("Ours.\n")
    base = commit(top)
    git(top, "submodule", "--quiet", "add", str(tmp_path / "gpu-fleet.git"), "gpu-fleet")
    place.checkout = top / "gpu-fleet"
    Runner._has_packages(place.checkout)
    place.project = place.checkout
    said = place.run("make", "STAND_INS=1", "new-stack", f"STACKS={top}/stacks", "DATACENTER=us", "CLUSTER=west")
    assert f"wrote {top}/{FILE}" in said
    commit(top)
    runner = Runner(place, top, base, tmp_path)
    assert {**runner.workflow["env"]} == {
        "STACK_FILES": "stacks",
        "CHECKOUT": "gpu-fleet",
        "CHECKOUT_URL": "",
        "CHECKOUT_COMMIT": "",
    }
    runner.run("report")
    assert "1 of 1 stack would change" in runner.noted.read_text()
    assert json.loads((top / "stacks/build/stacks.json").read_text()) == ["us-west"]


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        ("git@github.com:acme/gpu-fleet.git", "https://github.com/acme/gpu-fleet.git"),
        ("ssh://git@github.com/acme/gpu-fleet", "https://github.com/acme/gpu-fleet"),
        ("https://ops:planted@github.com/acme/gpu-fleet", "https://github.com/acme/gpu-fleet"),
    ],
)
def test_no_login_of_a_remote_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str, url: str) -> None:
    checkout = tmp_path / "checkout"
    for name in ("Pulumi.yaml", ".github/workflows/report.yml"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, checkout / name)
    git(checkout, "init", "--quiet", "--initial-branch=main")
    commit(checkout)
    git(checkout, "remote", "add", "origin", origin)
    monkeypatch.setattr(own_directory, "ROOT", checkout)
    stacks = tmp_path / "stacks"
    list(own_directory.prepare(stacks))
    text = (stacks / FILE).read_text()
    assert yaml.safe_load(text)["env"]["CHECKOUT_URL"] == url and "planted" not in text
    (stacks / FILE).write_text("name: ours\n")
    assert list(own_directory.prepare(stacks)) == [] and (stacks / FILE).read_text() == "name: ours\n", "it is theirs"
    assert not any("workflows" in line for line in own_directory.prepare(checkout)), "a fork has its own"
