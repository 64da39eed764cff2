"""GitLab CI: the note of a merge request, the issue about drift, and the pipeline that deploys stacks.

    python -m gpu_fleet.operations.gitlab note --file comment.md
    python -m gpu_fleet.operations.gitlab issue --file build/drift.md --found yes
    python -m gpu_fleet.operations.gitlab pipeline --file build/stacks.json --canary us-west-training --to build/deploy.yml
    python -m gpu_fleet.operations.gitlab deployed

`note`, `issue` and `deployed` use the project access token in GPU_FLEET_GITLAB_TOKEN (role Reporter, scope api): a job's token
may neither write notes and issues nor list pipelines (docs.gitlab.com, "GitLab CI/CD job token", read 2026-11-22).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.pr_report.report import MARK
from gpu_fleet.operations.stack import enter_project
from gpu_fleet.operations.stack import project as stacks_directory
from gpu_fleet.stackfile.config import ROOT

TOKEN: Final = "GPU_FLEET_GITLAB_TOKEN"  # noqa: S105 - its name
_LABEL: Final = "drift"
_TIMEOUT_S: Final = 30


class Project:
    """The GitLab project of this job."""

    def __init__(self) -> None:
        self._api = _variable("CI_API_V4_URL")
        self.path = f"/projects/{_variable('CI_PROJECT_ID')}"
        self._token = _variable(TOKEN)

    def call(self, method: str, path: str, **fields: str) -> Any:
        """Raises OperationError."""
        data = urllib.parse.urlencode(fields).encode() if fields else None
        request = urllib.request.Request(f"{self._api}{path}", data, {"PRIVATE-TOKEN": self._token}, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            hint = f": {TOKEN} needs the role Reporter and the scope api" if error.code in (401, 403, 404) else ""
            raise OperationError(f"GitLab answered {error.code} to {method} {path}{hint}") from None
        except OSError as error:
            raise OperationError(f"GitLab cannot be reached at {self._api}: {error}") from None


def _variable(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise OperationError(f"{name} is not set: this command runs in a job of GitLab CI (docs/pull-requests.md)")


def note(project: Project, text: str) -> None:
    """One note of ours with the report's mark per merge request; other notes are left alone. Raises OperationError."""
    ours = project.call("GET", "/user")["id"]
    path = f"{project.path}/merge_requests/{_variable('CI_MERGE_REQUEST_IID')}/notes"
    for page in range(1, 100):
        notes = project.call("GET", f"{path}?per_page=100&page={page}")
        if found := next((one["id"] for one in notes if MARK in one["body"] and one["author"]["id"] == ours), None):
            project.call("PUT", f"{path}/{found}", body=text)
            return
        if not notes:
            break
    project.call("POST", path, body=text)


def issue(project: Project, text: str, *, has_drift: bool) -> None:
    """One open issue with the label `drift` while there is drift. Raises OperationError."""
    title, _, body = text.removeprefix("# ").partition("\n")
    opened = project.call("GET", f"{project.path}/issues?labels={_LABEL}&state=opened&per_page=1")
    path = f"{project.path}/issues/{opened[0]['iid']}" if opened else ""
    if has_drift:
        project.call(
            "PUT" if path else "POST", path or f"{project.path}/issues", title=title, description=body.strip(), labels=_LABEL
        )
    elif path:
        project.call("POST", f"{path}/notes", body="Every stack is as it was deployed.")
        project.call("PUT", path, state_event="close")


def deployed() -> list[str]:
    """The newest commit whose pipeline deployed all that it had to, or the empty tree, from which every stack differs: what a
    cancelled or failed pipeline left out is deployed by the next. Then the commits of later pipelines, which may have deployed
    some stacks: a merge may have taken that back since. Raises OperationError."""
    every_stack = _git("hash-object", "-t", "tree", os.devnull).stdout.strip()
    if not os.environ.get(TOKEN):
        print(f"{TOKEN} is not set, so what was deployed last is unknown: every stack is deployed", file=sys.stderr)
        return [every_stack]
    project = Project()
    branch = urllib.parse.quote(_variable("CI_DEFAULT_BRANCH"), safe="")
    partly: dict[str, None] = {}
    for one in project.call("GET", f"{project.path}/pipelines?ref={branch}&order_by=id&sort=desc&per_page=100"):
        bridges = project.call("GET", f"{project.path}/pipelines/{one['id']}/bridges")
        ended = next((bridge["status"] for bridge in bridges if bridge["name"] == "deploy"), None)
        if ended is None:  # a schedule
            continue
        if not _has(one["sha"]):  # the branch was rewritten
            break
        if ended == "success":
            return [one["sha"], *partly]
        if one["sha"] != os.environ.get("CI_COMMIT_SHA"):
            partly[one["sha"]] = None
    return [every_stack]


def _has(commit: str) -> bool:
    return _git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=stacks_directory(), capture_output=True, text=True, check=False)


def pipeline(stacks: Sequence[str], canary: str, default: Any) -> dict[str, Any]:
    """A child pipeline: one job per stack. `default`: that of .gitlab-ci.yml. The others wait for the canary, and for a click."""
    made: dict[str, Any] = {
        "default": default,
        "variables": {"XDG_CACHE_HOME": "$CI_PROJECT_DIR/.cache"},
        "stages": ["canary", "production"],
    }
    for stack in sorted(stacks, key=lambda name: (name != canary, name)):
        is_canary = stack == canary
        made[f"deploy {stack}"] = {
            "stage": "canary" if is_canary else "production",
            "environment": {"name": "canary" if is_canary else "production"},
            "resource_group": f"stack-{stack}",
            "timeout": "2h",
            "variables": {"STACK": stack},
            "script": ['make up STACK="$STACK" YES=1'],
            **({} if is_canary else {"when": "manual", "allow_failure": False}),
        }
    if not stacks:  # GitLab refuses a pipeline without jobs
        made["nothing to deploy"] = {"stage": "production", "script": ["echo no stack changes"]}
    return made


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_fleet.operations.gitlab", description="What jobs of GitLab CI write.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("deployed")
    for verb in ("note", "issue", "pipeline"):
        made = verbs.add_parser(verb)
        made.add_argument("--file", type=Path, required=True)
        if verb == "issue":
            made.add_argument("--found", choices=("yes", "no"), required=True)
        if verb == "pipeline":
            made.add_argument("--canary", default="")
            made.add_argument("--to", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        enter_project()
        if given.verb == "deployed":
            print(" ".join(deployed()))
            return 0
        text = given.file.read_text()
        if given.verb == "note":
            note(Project(), text)
        elif given.verb == "issue":
            issue(Project(), text, has_drift=given.found == "yes")
        else:
            default = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text())["default"]
            given.to.write_text(yaml.safe_dump(pipeline(json.loads(text), given.canary, default), sort_keys=False))
    except OSError as error:
        print(f"{given.file} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run(main)
