"""What CI runs, as on a machine that never saw the project: a project whose `make test` reports what it finds there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_fleet.operations.gitlab import pipeline
from gpu_fleet.operations.pr_report.report import MARK
from gpu_fleet.toolchain import system
from lab import requirements

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
GITLAB = yaml.safe_load((REPOSITORY / ".gitlab-ci.yml").read_text())
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


@pytest.mark.parametrize("workflow", ["test.yml", "nightly.yml"])
def test_the_public_ci_installs_what_the_tests_need_of_the_machine(workflow: str) -> None:
    installed = (REPOSITORY / ".github/workflows" / workflow).read_text().split()
    wanted = [package for name in requirements.PROGRAMS for package in system.PACKAGES[name][0]]
    assert [package for package in wanted if package not in installed and package != "chromium"] == []


_CALL = r"""\bmake (?:--silent )?(?:-C "\$STACK_FILES" )?([^>;|\n]+)"""


def _calls() -> list[tuple[str, str]]:
    """Where, and the words after `make` of each call of the public CIs."""
    scripts = [(file.name, text) for file in WORKFLOWS for text in _texts(yaml.safe_load(file.read_text()), "run")]
    scripts += [(f".ci/{file.name}", file.read_text()) for file in (REPOSITORY / ".ci").iterdir()]
    scripts += [(".gitlab-ci.yml", line) for job in GITLAB.values() if isinstance(job, dict) for line in job.get("script", [])]
    scripts += [("the pipeline of deploy", line) for line in pipeline(["s"], "", {})["deploy s"]["script"]]
    found = [(where, words) for where, text in scripts for words in re.findall(_CALL, text)]
    return found


def _texts(node: object, key: str) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == key and isinstance(value, str))
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _texts(item, key)


@pytest.mark.parametrize(("where", "words"), _calls())
def test_a_job_calls_a_target_of_the_makefile_with_variables_that_it_reads(where: str, words: str) -> None:
    target, *given = shlex.split(words)
    names = [word.partition("=")[0] for word in given if "=" in word]
    dry = ["make", "--dry-run", "--no-print-directory", target, *(f"{name}=given-{name}" for name in names)]
    done = subprocess.run(dry, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: {done.stderr}"
    unread = [name for name in names if f"given-{name}" not in done.stdout and name not in ("YES", "PREVIEW")]
    assert not unread, f"{where}: make {target} does not read {', '.join(unread)}"


def test_the_jobs_of_gitlab_use_only_what_gitlab_knows_and_pin_their_image() -> None:
    """GitLab's own JSON schema accepted the file on 2026-11-22 (check-jsonschema 0.39.0 has a copy)."""
    known = {"stage", "needs", "tags", "rules", "script", "artifacts", "cache", "environment", "resource_group", "timeout"}
    known |= {"interruptible", "trigger"}
    jobs = {name: job for name, job in GITLAB.items() if name not in ("workflow", "stages", "default", "variables")}
    assert {"test", "report", "preview", "changed", "deploy", "drift", "official"} == set(jobs)
    for name, job in jobs.items():
        assert set(job) <= known and job["stage"] in GITLAB["stages"], name
        assert ("script" in job) != ("trigger" in job), name
        assert {one if isinstance(one, str) else one["job"] for one in job.get("needs", [])} <= set(jobs), name
        assert all(set(rule) <= {"if", "when", "allow_failure"} for rule in job["rules"]), name
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", GITLAB["default"]["image"])
    secret = [name for name, job in jobs.items() if "environment" in job]
    assert secret == ["preview", "drift"], "jobs of the code of a merge request have no environment but preview, after a click"
    assert jobs["preview"]["rules"][0]["when"] == "manual"
    assert "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID == $CI_PROJECT_ID" in jobs["preview"]["rules"][0]["if"], "not for forks"


def test_the_pipeline_of_a_merge_has_one_run_per_stack_the_canary_first_and_the_others_after_a_click() -> None:
    made = pipeline(["us-west", "eu-north"], "us-west", GITLAB["default"])
    assert made["stages"] == ["canary", "production"] and made["default"] == GITLAB["default"]
    jobs = {name: job for name, job in made.items() if name.startswith("deploy ")}
    assert [(job["stage"], job["resource_group"], job.get("when")) for job in jobs.values()] == [
        ("canary", "stack-us-west", None),
        ("production", "stack-eu-north", "manual"),
    ]
    assert [name for name in pipeline([], "us-west", {}) if name == "nothing to deploy"], (
        "GitLab refuses a pipeline without a job"
    )


FAKE_MAKE = """#!/bin/sh
echo "$*" >>"$CALLS"
mkdir -p build
case "$*" in
  *pr-report*) echo "the report"; echo '["s"]' >build/stacks.json; exit "$STATUS" ;;
  *drift-report*) echo "# Drift" >build/drift.md; exit "$STATUS" ;;
esac
"""


def _job(name: str, directory: Path, status: int, **variables: str) -> tuple[int, list[str]]:
    """Runs a job's script as GitLab's runner does, with a `make` that notes its calls."""
    program = directory / "bin/make"
    program.parent.mkdir()
    program.write_text(FAKE_MAKE)
    program.chmod(0o755)
    script = "set -eo pipefail\n" + "\n".join(GITLAB[name]["script"])
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "CALLS": str(directory / "calls"), "STATUS": str(status), **variables}
    done = subprocess.run(["bash", "-c", script], cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, [" ".join(call.split()[:3]) for call in (directory / "calls").read_text().splitlines()]


@pytest.mark.parametrize("status", [0, 1])
def test_gitlabs_report_is_noted_also_when_it_fails_and_the_job_fails_with_it(tmp_path: Path, status: int) -> None:
    code, calls = _job("report", tmp_path, status, GPU_FLEET_GITLAB_TOKEN="t")
    assert code == status and [call.split()[1] for call in calls] == ["pr-report", "gitlab-note"]


def test_gitlabs_report_of_a_fork_needs_no_token(tmp_path: Path) -> None:
    assert _job("report", tmp_path, 0) == (0, ["--silent pr-report BASE="])


@pytest.mark.parametrize(("status", "found"), [(0, "no"), (1, "yes")])
def test_gitlabs_nightly_job_hands_over_whether_there_is_drift(tmp_path: Path, status: int, found: str) -> None:
    code, _ = _job("drift", tmp_path, status)
    assert code == 0 and f"gitlab-issue FROM=build/drift.md FOUND={found}" in (tmp_path / "calls").read_text()


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


@pytest.mark.parametrize(
    ("found", "call"), [("41\n42\n", "api --silent --method PATCH repos/o/r/issues/comments/42 "), ("", "pr comment 7 ")]
)
def test_a_report_replaces_its_own_comment_and_no_other_workflow_s(tmp_path: Path, found: str, call: str) -> None:
    """`gh` is a stand-in: it answers the list as its filter would, and writes down what it is called with."""
    gh = tmp_path / "gh"
    gh.write_text(f"#!/bin/sh\ncase $* in *--paginate*) printf '%s' '{found}';; *) echo \"$*\" >>calls;; esac\n")
    gh.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_REPOSITORY": "o/r"}
    subprocess.run([REPOSITORY / ".github/comment.sh", "7", "build/comment.md"], cwd=tmp_path, env=environment, check=True)
    [line] = (tmp_path / "calls").read_text().splitlines()
    assert line.startswith(call) and MARK in (REPOSITORY / ".github/comment.sh").read_text(), line
