"""The lab's Grafana as its users meet it: its login, its pages, what it keeps, what it refuses."""

from __future__ import annotations

import http.server
import json
import re
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.grafana_server import PROGRAM, GrafanaServer

DASHBOARD = {
    "uid": "overview",
    "title": "Overview <all>",
    "description": "Every GPU of every datacenter.",
    "templating": {"list": [{"name": "datacenter"}]},
    "panels": [
        {"type": "row", "title": "Load"},
        {
            "type": "timeseries",
            "title": "Utilization",
            "fieldConfig": {"defaults": {"unit": "percentunit"}},
            "targets": [{"refId": "A", "expr": "gpu:utilization:ratio > 0", "legendFormat": "{{gpu}}"}],
        },
        {"type": "row", "title": "Folded", "panels": [{"type": "stat", "title": "Inside", "targets": []}]},
    ],
}


@pytest.fixture
def grafana(server: GrafanaServer) -> GrafanaServer:
    server.empty()
    return server


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A data source: its address, and the requests it got."""
    requests: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
            answer = b'{"status": "success"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}/prometheus", requests
    served.shutdown()
    served.server_close()


def test_health_is_public_and_all_else_needs_a_login(grafana: GrafanaServer) -> None:
    assert grafana.ask("GET", "/api/health", auth="nobody:x")[0] == 200
    for path in ("/", "/api/folders", "/d/overview", "/api/datasources/proxy/uid/mimir/api/v1/query"):
        assert grafana.ask("GET", path, auth="admin:wrong")[0] == 401, path


def test_a_token_of_the_auth_file_logs_in(tmp_path: Path) -> None:
    from lab.grafana.access import Access

    (tmp_path / "auth").write_text("admin:correct-horse\nglsa_token\n")
    access = Access.from_file(tmp_path / "auth")
    assert access.allows("Bearer glsa_token")
    assert access.allows("Basic YWRtaW46Y29ycmVjdC1ob3JzZQ==")
    refused = ("", "Bearer other", "Bearer admin:correct-horse", "Basic Z2xzYV90b2tlbg", "Basic !!", "Digest x")
    assert not any(access.allows(header) for header in refused)


def test_what_is_stored_outlives_the_process_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = GrafanaServer(tmp_path)
    first.ask("POST", "/api/folders", {"title": "Kept", "uid": "kept"})
    first.stop()
    again = GrafanaServer(tmp_path)
    assert again.get("/api/folders/kept")["title"] == "Kept"
    again.stop()
    file = tmp_path / "grafana-stand-in.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it holds the secrets of data sources and contact points"


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([PROGRAM, "--listen", listen, "--data", tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.strip() == f"grafana (stand-in): cannot listen on {listen}: Address already in use"


def test_a_damaged_store_is_reported_and_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "grafana-stand-in.json"
    file.write_text('{"folders": ')
    done = subprocess.run([PROGRAM, "--listen", "127.0.0.1:0", "--data", tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert str(file) in done.stderr and "Traceback" not in done.stderr
    assert file.read_text() == '{"folders": '


def test_the_overview_lists_folders_and_dashboards_and_says_that_it_is_a_stand_in(grafana: GrafanaServer) -> None:
    grafana.ask("POST", "/api/folders", {"title": "GPU fleet", "uid": "gpu"})
    grafana.ask("POST", "/api/dashboards/db", {"dashboard": DASHBOARD, "folderUid": "gpu"})
    page = grafana.get("/")
    assert "not Grafana" in page
    assert "GPU fleet" in page and 'href="/d/overview/overview-all"' in page and "Overview &lt;all&gt;" in page


def test_a_dashboards_page_has_its_script_which_may_contact_no_other_server(grafana: GrafanaServer) -> None:
    grafana.ask("POST", "/api/dashboards/db", {"dashboard": DASHBOARD})
    for path in ("/d/overview", "/d/overview/overview-all"):
        page = grafana.get(path)
        assert "not Grafana" in page and "Overview &lt;all&gt;" in page and 'data-uid="overview"' in page
    for file in re.findall(r'(?:src|href)="(/preview/[^"]+)"', page):
        assert grafana.ask("GET", file)[0] == 200, file
        assert grafana.ask("GET", file, auth="admin:wrong")[0] == 401, file
    assert grafana.ask("GET", "/d/other")[0] == 404


def test_the_proxy_queries_the_data_source_with_its_own_login(
    grafana: GrafanaServer, upstream: tuple[str, list[dict[str, Any]]]
) -> None:
    url, requests = upstream
    source = {
        "name": "Mimir",
        "type": "prometheus",
        "uid": "mimir",
        "url": url,
        "basicAuth": True,
        "basicAuthUser": "reader",
        "jsonData": {"httpHeaderName1": "X-Scope-OrgID"},
        "secureJsonData": {"basicAuthPassword": "hush", "httpHeaderValue1": "us-west"},
    }
    assert grafana.ask("POST", "/api/datasources", source)[0] == 200
    status, answer = grafana.ask("GET", "/api/datasources/proxy/uid/mimir/api/v1/query?query=up")
    assert (status, answer) == (200, {"status": "success"})
    assert requests[0]["path"] == "/prometheus/api/v1/query?query=up"
    assert requests[0]["headers"]["X-Scope-OrgID"] == "us-west"
    assert requests[0]["headers"]["Authorization"] == "Basic cmVhZGVyOmh1c2g=", "the person's login to Grafana stays here"


def test_a_data_source_that_does_not_answer_is_reported(grafana: GrafanaServer) -> None:
    grafana.ask("POST", "/api/datasources", {"name": "Gone", "type": "loki", "uid": "gone", "url": "http://127.0.0.1:9"})
    status, answer = grafana.ask("GET", "/api/datasources/proxy/uid/gone/ready")
    assert status == 502 and "Gone does not answer" in answer["message"]


def test_what_only_grafana_has_is_distinguished_from_what_does_not_exist(grafana: GrafanaServer) -> None:
    status, answer = grafana.ask("GET", "/api/org/users")
    assert status == 404 and "stand-in" in answer["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/folders", {"title": ""}, 400, "folder title cannot be empty"),
        ("/api/folders", {"title": "t", "uid": "a/b"}, 400, "uid contains illegal characters"),
        ("/api/folders", {"title": "t", "uid": "a" * 41}, 400, "uid too long, max 40 characters"),
        ("/api/folders", {"title": "t", "parentUid": "none"}, 404, "folder not found"),
        ("/api/dashboards/db", {"dashboard": {"uid": "d"}}, 400, "Dashboard title cannot be empty"),
        ("/api/dashboards/db", {"dashboard": {"title": "t"}, "folderUid": "none"}, 400, "Folder not found"),
        ("/api/dashboards/db", {"dashboard": {"title": "t", "id": 99}}, 404, "Dashboard not found"),
        ("/api/dashboards/db", {}, 400, "bad request data"),
        ("/api/datasources", {"name": "n"}, 400, "bad request data"),
        ("/api/v1/provisioning/contact-points", {"name": "n", "type": "email", "settings": {}}, 400, "addresses"),
        ("/api/v1/provisioning/contact-points", {"name": "n", "type": "pigeon", "settings": {}}, 400, "unknown type 'pigeon'"),
        ("/api/v1/provisioning/mute-timings", {"time_intervals": []}, 400, "Time interval is in invalid format"),
    ],
)
def test_invalid_requests_are_answered_as_by_grafana(
    grafana: GrafanaServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answered, answer = grafana.ask("POST", path, body)
    assert answered == status and message in answer["message"], answer


def test_a_contact_point_in_use_cannot_be_deleted(grafana: GrafanaServer) -> None:
    point = {"name": "ops", "type": "webhook", "settings": {"url": "http://127.0.0.1/"}}
    _, made = grafana.ask("POST", "/api/v1/provisioning/contact-points", point)
    grafana.ask("PUT", "/api/v1/provisioning/policies", {"receiver": "ops"})
    status, answer = grafana.ask("DELETE", f"/api/v1/provisioning/contact-points/{made['uid']}")
    assert status == 409 and "referenced by a notification policy" in answer["message"]


def test_a_body_that_is_no_json_is_refused(grafana: GrafanaServer) -> None:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(
        grafana.url + "/api/folders", data=b"{", method="POST", headers={"Authorization": "Basic YWRtaW46Y29ycmVjdC1ob3JzZQ=="}
    )
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=60)


def test_secrets_are_never_given_back(grafana: GrafanaServer) -> None:
    point = {"name": "ops", "type": "pagerduty", "settings": {"integrationKey": "hush", "severity": "critical"}}
    grafana.ask("POST", "/api/v1/provisioning/contact-points", point)
    assert "hush" not in json.dumps(grafana.get("/api/v1/provisioning/contact-points"))


def test_an_update_with_a_redacted_secret_keeps_it(grafana: GrafanaServer) -> None:
    point = {"name": "ops", "type": "webhook", "settings": {"url": "http://127.0.0.1/", "password": "hush"}}
    _, made = grafana.ask("POST", "/api/v1/provisioning/contact-points", point)
    made["settings"]["url"] = "http://127.0.0.1/other"
    assert grafana.ask("PUT", f"/api/v1/provisioning/contact-points/{made['uid']}", made)[0] == 202
    kept = grafana.directory / "grafana-stand-in.json"  # written a moment later, with other changes
    deadline = time.monotonic() + 60
    while "/other" not in (text := kept.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    assert "hush" in text
