"""What jobs of GitLab CI write, with a server that keeps notes and issues as GitLab's API does."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.operations import gitlab
from gpu_fleet.operations.pr_report.report import MARK

TOKEN = "glpat-of-the-tests"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git hash-object -t tree /dev/null


class GitLab(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.notes: list[dict[str, Any]] = [{"id": 1, "body": f"quoted: {MARK}", "author": {"id": 5}}]
        self.issues: list[dict[str, Any]] = []
        self.pipelines: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: GitLab

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, found: Any, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        fields = dict(urllib.parse.parse_qsl(body))
        path, _, query = self.path.partition("?")
        if self.headers["PRIVATE-TOKEN"] != TOKEN:
            return self._answer({"message": "401 Unauthorized"}, 401)
        match self.command, re.sub(r"\d+", "N", path.removeprefix("/api/v4")):
            case "GET", "/user":
                self._answer({"id": 7})
            case "GET", "/projects/N/merge_requests/N/notes":
                self._answer(self.server.notes if "page=1" in query.split("&") else [])
            case "POST", "/projects/N/merge_requests/N/notes":
                self.server.notes.append({"id": 2, "body": fields["body"], "author": {"id": 7}})
                self._answer({})
            case "PUT", "/projects/N/merge_requests/N/notes/N":
                [one] = [note for note in self.server.notes if note["id"] == int(path.rpartition("/")[2])]
                one["body"] = fields["body"]
                self._answer({})
            case "GET", "/projects/N/pipelines":
                assert {"ref=main", "order_by=id", "sort=desc"} <= set(query.split("&"))
                self._answer(self.server.pipelines)
            case "GET", "/projects/N/pipelines/N/bridges":
                [one] = [one for one in self.server.pipelines if one["id"] == int(path.split("/")[-2])]
                self._answer(one["bridges"])
            case "GET", "/projects/N/issues":
                assert "labels=drift" in query and "state=opened" in query
                self._answer([one for one in self.server.issues if one["state"] == "opened"])
            case "POST", "/projects/N/issues":
                self.server.issues.append({"iid": 3, "state": "opened", "notes": [], **fields})
                self._answer({})
            case "PUT", "/projects/N/issues/N":
                self.server.issues[-1].update(fields, state="closed" if fields.get("state_event") == "close" else "opened")
                self._answer({})
            case "POST", "/projects/N/issues/N/notes":
                self.server.issues[-1]["notes"].append(fields["body"])
                self._answer({})
            case _:
                self._answer({}, 404)

    do_GET = do_POST = do_PUT = _do


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitLab]:
    made = GitLab()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    for name, value in {
        "CI_API_V4_URL": f"http://127.0.0.1:{made.server_port}/api/v4",
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "9",
        gitlab.TOKEN: TOKEN,
    }.items():
        monkeypatch.setenv(name, value)
    yield made
    made.shutdown()


def test_one_note_of_ours_is_written_and_then_updated_and_one_that_quotes_it_is_left_alone(
    server: GitLab, tmp_path: Path
) -> None:
    for text in ("first", "second"):
        (tmp_path / "comment.md").write_text(f"{MARK}\n{text}")
        assert gitlab.main(["note", "--file", str(tmp_path / "comment.md")]) == 0
    assert [note["body"] for note in server.notes] == [f"quoted: {MARK}", f"{MARK}\nsecond"]


def test_one_issue_is_opened_updated_and_closed(server: GitLab, tmp_path: Path) -> None:
    report = tmp_path / "drift.md"
    report.write_text("# Drift: 1 stack\n\n| stack |\n")

    def run(found: str) -> None:
        assert gitlab.main(["issue", "--file", str(report), "--found", found]) == 0

    run("no")
    assert not server.issues
    run("yes")
    report.write_text("# Drift: 2 stacks\n\n| stack |\n")
    run("yes")
    [issue] = server.issues
    assert (issue["title"], issue["labels"], issue["description"], issue["state"]) == (
        "Drift: 2 stacks",
        "drift",
        "| stack |",
        "opened",
    )
    run("no")
    assert issue["state"] == "closed" and issue["notes"] == ["Every stack is as it was deployed."]


def test_what_is_deployed_is_the_newest_commit_whose_whole_pipeline_succeeded(
    server: GitLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI_DEFAULT_BRANCH", "main")
    listed = subprocess.run(["git", "rev-list", "--max-count=3", "HEAD"], capture_output=True, text=True, check=True).stdout
    new, middle, old = listed.split()
    monkeypatch.setenv("CI_COMMIT_SHA", new)

    def pipeline(number: int, commit: str, *deployments: str) -> dict[str, Any]:
        return {"id": number, "sha": commit, "bridges": [{"name": "deploy", "status": status} for status in deployments]}

    def printed() -> list[str]:
        assert gitlab.main(["deployed"]) == 0
        return capsys.readouterr().out.split()

    assert printed() == [EMPTY_TREE], "nothing was deployed yet: every stack is"
    server.pipelines = [pipeline(4, new, "created"), pipeline(3, middle), pipeline(1, old, "success")]
    assert printed() == [old], "a schedule deploys nothing"
    server.pipelines[1] = pipeline(3, middle, "manual")
    assert printed() == [old, middle], "it may have deployed the canary, and this merge may take that back"
    server.pipelines[1] = pipeline(2, "f" * 40, "success")
    assert printed() == [EMPTY_TREE], "a commit that main no longer has: what is deployed cannot be read"
    monkeypatch.delenv(gitlab.TOKEN)
    assert printed() == [EMPTY_TREE], "without a token every stack is deployed, which changes nothing where nothing differs"


def test_a_token_without_permission_and_a_missing_one_are_one_sentence(
    server: GitLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comment.md").write_text("text")
    monkeypatch.setenv(gitlab.TOKEN, "another")
    assert gitlab.main(["note", "--file", str(tmp_path / "comment.md")]) == 1
    assert "GitLab answered 401 to GET /user: GPU_FLEET_GITLAB_TOKEN needs the role Reporter" in capsys.readouterr().err
    monkeypatch.delenv(gitlab.TOKEN)
    assert gitlab.main(["note", "--file", str(tmp_path / "comment.md")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("GPU_FLEET_GITLAB_TOKEN is not set") and "another" not in printed
