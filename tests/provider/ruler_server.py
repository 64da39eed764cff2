"""The HTTP APIs of a ruler and of Mimir's Alertmanager, as far as the provider uses them, kept in memory."""

from __future__ import annotations

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import yaml

PREFIXES = {"/prometheus/config/v1/rules/": "mimir", "/loki/api/v1/rules/": "loki"}


class RulerServer:
    """`groups`: (backend, tenant, namespace, name) to YAML. `refusals`: the next answers. `requests`: what came.
    `answers`: answers to what changes something wait until it is set."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str, str, str], dict] = {}
        self.alertmanagers: dict[str, str] = {}
        self.refusals: list[tuple[int, str]] = []
        self.requests: list[str] = []
        self.password = ""
        self.answers = threading.Event()
        self.answers.set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"ruler": self}))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    ruler: RulerServer

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.ruler.requests.append(f"{self.command} {self.path}")
        status, text = self._answer(body)
        if self.command != "GET":
            self.ruler.answers.wait(300)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = handle_one

    def _answer(self, body: str) -> tuple[int, str]:
        if self.ruler.refusals:
            return self.ruler.refusals.pop(0)
        expected = f"Basic {base64.b64encode(f'writer:{self.ruler.password}'.encode()).decode()}"
        if self.ruler.password and self.headers.get("Authorization") != expected:
            return 401, "invalid credentials"
        tenant = self.headers.get("X-Scope-OrgID", "")
        if self.path == "/api/v1/alerts":
            return self._alertmanager(tenant, body)
        for prefix, backend in PREFIXES.items():
            if self.path == prefix.rstrip("/"):
                return self._list(backend, tenant)
            if self.path.startswith(prefix):
                return self._rules(backend, tenant, [unquote(part) for part in self.path.removeprefix(prefix).split("/")], body)
        return 404, "page not found"

    def _list(self, backend: str, tenant: str) -> tuple[int, str]:
        found: dict[str, list[dict]] = {}
        for (kept, owner, namespace, _), group in self.ruler.groups.items():
            if (kept, owner) == (backend, tenant):
                found.setdefault(namespace, []).append(group)
        return (200, yaml.safe_dump(found)) if found else (404, "no rule groups found\n")

    def _rules(self, backend: str, tenant: str, path: list[str], body: str) -> tuple[int, str]:
        if self.command == "POST":
            group = yaml.safe_load(body)
            if any(rule["expr"] == "sum(" for rule in group["rules"]):
                return (
                    400,
                    'group "fleet", rule 0, "GpuLost": could not parse expression:\n1:5: parse error: unclosed left parenthesis',
                )
            self.ruler.groups[backend, tenant, path[0], group["name"]] = group
            return 202, '{"status":"success"}'
        key = (backend, tenant, *path)
        if key not in self.ruler.groups:
            return 404, "group does not exist\n"
        if self.command == "DELETE":
            del self.ruler.groups[key]
            return 202, '{"status":"success"}'
        return 200, yaml.safe_dump(self.ruler.groups[key])  # in another order and style than it came, as the real ones

    def _alertmanager(self, tenant: str, body: str) -> tuple[int, str]:
        if self.command == "POST":
            if "receiver: nobody" in body:
                return 400, "error validating Alertmanager config: cannot unmarshal !!str `hunter2...` into bool"
            self.ruler.alertmanagers[tenant] = body
            return 201, ""
        if tenant not in self.ruler.alertmanagers:
            return 404, "the Alertmanager storage object does not exist"
        if self.command == "DELETE":
            del self.ruler.alertmanagers[tenant]
            return 200, ""
        return 200, self.ruler.alertmanagers[tenant]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read `requests`."""
