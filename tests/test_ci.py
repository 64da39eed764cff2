"""What CI runs, as on a machine that never saw the project: a project whose `make test` reports what it finds there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from lab import requirements
from toolchain import system

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
MAKEFILE = """
test:
	@echo "home: $$(cd "$$HOME" && find . -type f | sort | tr '\\n' ' ')"
	@echo "cache: $$(cd "$$XDG_CACHE_HOME" && find . -mindepth 2 | sort | tr '\\n' ' ')"
	@echo "tools: $$(ls "$$XDG_CACHE_HOME/gpu-fleet/tools" | tr '\\n' ' ')"
	@mkdir -p "$$XDG_CACHE_HOME/gpu-fleet/partial/built" "$$HOME/go/mod"
	@mv "$$XDG_CACHE_HOME/gpu-fleet/partial/built" "$$XDG_CACHE_HOME/gpu-fleet/tools/built"
	@touch "$$HOME/go/mod/module" && chmod -R a-w "$$HOME/go/mod"
	@echo "CI=$$CI"
	@echo "1 passed in 0.1s"
	@exit $(CODE)
"""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_an_action_is_named_by_its_commit(workflow: Path) -> None:
    steps = [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]
    uses = [step["uses"] for step in steps if "uses" in step]
    assert uses and not [name for name in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", name)]


def test_the_public_ci_installs_what_the_tests_need_of_the_machine() -> None:
    installed = (REPOSITORY / ".github/workflows/test.yml").read_text().split()
    wanted = [package for name in requirements.PROGRAMS for package in system.PACKAGES[name][0]]
    assert [package for package in wanted if package not in installed and package != "chromium"] == []


def run(tmp_path: Path, code: int = 0, **environment: str) -> tuple[int, list[str]]:
    project = tmp_path / "project"
    shutil.copytree(REPOSITORY / ".ci", project / ".ci", dirs_exist_ok=True)
    (project / "Makefile").write_text(MAKEFILE)
    (tmp_path / "home").mkdir(exist_ok=True)
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("CI", "XDG_CACHE_HOME", "MAKEFLAGS", "MAKELEVEL")
    }
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=project,
        env={**inherited, "HOME": str(tmp_path / "home"), "CODE": str(code), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_home_and_cache_are_empty_but_for_registries_and_tools_and_gone_afterwards(tmp_path: Path) -> None:
    usual = tmp_path / "home/.cache/gpu-fleet"
    for file in (".npmrc", ".config/pip/pip.conf", ".config/other/file", ".ssh/id", ".cache/gpu-fleet/hosts/lock-sites"):
        (tmp_path / "home" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / file).touch()
    (usual / "tools/loki").mkdir(parents=True)
    code, lines = run(tmp_path)
    assert code == 0
    assert lines[0].split() == ["home:", "./.config/pip/pip.conf", "./.npmrc"]
    assert lines[1].split() == ["cache:", "./gpu-fleet/tools"]
    assert lines[2].split() == ["tools:", "loki"]
    assert "CI=true" in lines
    assert lines[-1] == "1 passed in 0.1s", "the summary of the tests is how a CI knows that they ran"
    assert sorted(path.name for path in usual.iterdir()) == ["hosts", "tools"]
    assert sorted(path.name for path in (usual / "tools").iterdir()) == ["built", "loki"], "the next run need not build it"


@pytest.mark.parametrize("place", ["home/.cache", "elsewhere"])
def test_without_any_tools_what_is_built_lands_in_the_usual_cache_and_a_failure_is_one(tmp_path: Path, place: str) -> None:
    code, lines = run(tmp_path, code=3, **({} if "home" in place else {"XDG_CACHE_HOME": str(tmp_path / place)}))
    assert code == 2, "make's own"
    assert lines[2].split() == ["tools:"]
    assert [str(path.relative_to(tmp_path / place)) for path in (tmp_path / place).glob("*/*/*")] == ["gpu-fleet/tools/built"]
