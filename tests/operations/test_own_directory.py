"""A directory of the user's own for stack files: what is written into it, and which directories are refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_fleet.operations import stack
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.own_directory import prepare
from gpu_fleet.operations.stack import STACKS, enter_project, stack_file, stack_files
from tests.checkout import REPO


def test_it_is_a_project_that_uses_the_checkout_and_what_is_there_stays(tmp_path: Path) -> None:
    directory = tmp_path / "ours"
    # The workflow depends on where the checkout comes from: test_own_directory_workflow.py.
    wrote = [line.rpartition("/")[2] for line in prepare(directory) if ".github/" not in line]
    assert wrote == ["Pulumi.yaml", "__main__.py", "Makefile", ".gitignore"]
    project = yaml.safe_load((directory / "Pulumi.yaml").read_text())
    checkout = yaml.safe_load((REPO / "Pulumi.yaml").read_text())
    assert project["name"] == checkout["name"], "the name is part of every URN of a state"
    assert (directory / project["runtime"]["options"]["virtualenv"]).resolve() == (REPO / ".venv").resolve()
    assert (directory / project["plugins"]["providers"][0]["path"] / "pulumi-resource-gpu-fleet").is_file()
    (directory / "__main__.py").write_text("# ours, with resources of our own\n")
    (directory / "Makefile").unlink()
    assert list(prepare(directory)) == [f"wrote {directory}/Makefile"]
    assert (directory / "__main__.py").read_text() == "# ours, with resources of our own\n"


def test_every_target_is_passed_on_also_one_that_is_a_directory(tmp_path: Path) -> None:
    list(prepare(tmp_path))
    (tmp_path / "rules").mkdir()
    command = ["make", "--dry-run", "rules", "FOR=mimir", "STACK=us-west", "-o", ".venv/installed"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f'STACKS="{tmp_path}"' in printed and '-m gpu_fleet.operations.rules "mimir" build/rules --stack "us-west"' in printed


@pytest.mark.parametrize(
    "text", ["name: another\nruntime: go\n", "- not a project\n", "plugins: {providers: [{name: another}]}\n"]
)
def test_another_pulumi_program_is_never_touched(tmp_path: Path, text: str) -> None:
    (tmp_path / "Pulumi.yaml").write_text(text)
    with pytest.raises(OperationError, match=rf"STACKS: {tmp_path}/Pulumi.yaml belongs to another Pulumi program"):
        list(prepare(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["Pulumi.yaml"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperationError, match=r"STACKS: cannot write to .*/file/ours: Not a directory"):
        list(prepare(tmp_path / "file/ours"))


def test_commands_work_in_it_and_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "ours"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STACKS, "ours")
    with pytest.raises(OperationError, match=rf"STACKS: {directory} has no Pulumi.yaml.*\n.*make new-stack STACKS={directory} "):
        enter_project()
    list(prepare(directory))
    (directory / "Pulumi.us-west.yaml").write_text("config: {}\n")
    enter_project()
    assert Path.cwd() == directory and enter_project() == directory, "a second time too"
    assert stack_files() == {"us-west": directory / "Pulumi.us-west.yaml"}
    assert stack_file("us-west").parent == stack.project()
    with pytest.raises(OperationError, match="did you mean STACK=us-west"):
        stack_file("us-wets")
    project = (directory / "Pulumi.yaml").read_text()
    (directory / "Pulumi.yaml").write_text(project.replace("/gpu_fleet/provider", "/provider"))
    with pytest.raises(OperationError, match=r"has moved within its checkout. Set\n    path: \S+/gpu_fleet/provider$") as refused:
        enter_project()
    given = str(refused.value).rpartition(" ")[2]
    (directory / "Pulumi.yaml").write_text(project.replace(yaml.safe_load(project)["plugins"]["providers"][0]["path"], given))
    assert enter_project() == directory


def test_every_command_about_a_stack_works_in_it() -> None:
    makefile = (REPO / "Makefile").read_text()
    [listed] = re.findall(r"(?m)^ON_STACKS := (.*)$", makefile)
    recipes = re.findall(r"(?m)^([a-z-]+):.*\n((?:\t.*\n)+)", makefile)
    about_stacks = [
        target
        for target, recipe in recipes
        if re.search(r"-m gpu_fleet\.operations\.(?!site|release)", recipe)
        or "$(DEPLOY)" in recipe
        or "gpu_fleet.operations.artifacts" in recipe
    ]
    assert [target for target in about_stacks if target not in listed.split()] == [], "add it to ON_STACKS in the Makefile"
    modules = [file for file in (REPO / "gpu_fleet/operations").glob("*.py") if 'add_argument("--stack"' in file.read_text()]
    assert [file.name for file in modules if "enter_project()" not in file.read_text()] == [], (
        "its main() calls enter_project() first"
    )
