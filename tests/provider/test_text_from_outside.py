"""What hosts, servers and files say, before the real engine on a real terminal: it is shown, and nothing in it is a command."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet import toolchain
from lab.standins import programs
from tests.provider.plugin import PLUGIN, bundle_tar
from tests.provider.ruler_server import RulerServer

REPO = PLUGIN.parents[2]
UP = ("up", "--yes", "--skip-preview", "--continue-on-error")
# What interpreters like, and what becomes that once it was decoded or cut.
ATOMS = (
    *("<{%x%}>", "<{%fg 1%}>", "<{%", "%}>", "<{", "{%x%}>", "<", "\\", '"', "'", "`", "```", "~~~", "\n", "\r", "\t", "\0", " "),
    *("\x1b]0;owned\x07", "\x1b[31;7m", "\x1b[?1049h", "\x9b31m", "\x08\x08", "\u202e", "\u200b", "\u2066", "\ufeff", "\u2028"),
    *(r"\u003c{%x%}>", r"\u003c\u007b\u0025x%}>", r"\x3c{%x%}>", r"\u001b[31;7m", r"\x1b]0;owned\x07", r"\e[31;7m", "\\\n"),
    *(
        "{{ . }}",
        "{{ $value }}",
        "{% raw %}",
        "${HOME}",
        "$(id)",
        "%s",
        "%!d(",
        "%n",
        "<b>",
        "<!--",
        "-->",
        "@all",
        "|",
        "![x](y)",
    ),
    *("::error::x", "::set-output name=a::b", "##[error]x", "##vso[task.setvariable]x", "[", "]", "{", "}", ":", ": ", "- ", "#"),
    *("!!binary PHsleCV9Pg==", "&a", "*a", "80 °C", "温度", "gpu-002: fine"),
)
WHOLE = (
    "<{%x%}>",
    "::error::owned",
    r'{"a": "\u003c{%x%}>"}',
    r'["\u003c\u007b%x%}>", "\u001b]0;owned\u0007"]',
    r'{"\u001b]0;owned\u0007": 1}] ',
    '{"\x1b]0;owned\x07": 1}',
    'a: 1\n"\\x3c{%x%}>": "\\x3c{%x%}>"\n',
    'a: 1\n"\\e]0;owned\\a": 1\n',
    "a: 1\nb: !!binary PHsleCV9Pg==\n",
    '- "<\\\n  {%x%}>"\n- 1\n',
    "\x1b]0;owned\x07" * 3,
)
# On a terminal the engine itself writes colours and moves the cursor: these it never does.
RAW = re.compile(
    r"\x1b\]0|\x1b\[31;7m|\x1b\[\?1049h|[\x9b\u202e\u200b\u2066\ufeff\u2028\0\x07]|^\s*::(error|set-output).*::|##(vso)?\[",
    re.M,
)
CONVERGE = """#!/bin/sh
verb=$1
while [ $# -gt 1 ]; do
  [ "$1" != --prefix ] || prefix=$2
  shift
done
cat "$prefix/$verb.err" >&2
cat "$prefix/$verb.out"
[ ! -f "$prefix/fails" ] || exit 1
"""
PROGRAM = """
import json, os, signal, sys
from pathlib import Path

signal.signal(signal.SIGINT, lambda *_: os._exit(130))
sys.path.insert(0, {repo!r})
import pulumi
from components.fleet.resources import Bundle, Host
from components.messages import make_messages_safe
from components.provider import Provider, ProviderArgs
from components.rulers.resources import AlertmanagerConfig, RuleGroup, RulerServer

make_messages_safe()
desired = json.loads(Path("desired.json").read_text())
for text in desired.get("warnings", ()):
    pulumi.log.warn(text)
cluster = {{"kubeconfig": "kubeconfig"}} if "cluster" in desired else None
ours = pulumi.ResourceOptions(provider=Provider("fleet", ProviderArgs(kubernetes=cluster)))
bundle = Bundle("bundle", files={{"converge": desired.get("file", "")}}, tar=Path("bundle.tar").read_bytes(), opts=ours)
for name, connection in desired.get("hosts", {{}}).items():
    settings = desired.get("settings", {{}})
    pulumi.export(name, Host(name, host=name, connection=connection, bundle=bundle.digest, settings=settings, opts=ours).facts)
if url := desired.get("ruler"):
    server = RulerServer(url=url)
    RuleGroup("rules", backend="mimir", server=server, namespace="fleet", group="xid", rules=desired["rules"], opts=ours)
    AlertmanagerConfig("alertmanager", server=server, config="route: {{}}", opts=ours)
if cluster:
    inputs = {{"namespace": "gpu", "exporter": "install", "prometheusOperator": "install"}}
    pulumi.CustomResource("gpu-fleet:kubernetes:Cluster", "cluster", inputs, ours)
if text := desired.get("raises"):
    raise pulumi.RunError(text)
if text := desired.get("bug"):
    raise ValueError(text)
"""


def payloads(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [*WHOLE, *("".join(rng.choices(ATOMS, k=rng.randint(1, 12))) for _ in range(count - len(WHOLE)))]


class Terminal:
    """A project with one stack, and pulumi on a terminal of its own."""

    def __init__(self, directory: Path):
        self.directory = directory
        project = {
            "name": "gpu-fleet",
            "runtime": {"name": "python", "options": {"toolchain": "pip", "virtualenv": str(REPO / ".venv")}},
            "plugins": {"providers": [{"name": "gpu-fleet", "path": str(PLUGIN.parent)}]},
        }
        (directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        (directory / "__main__.py").write_text(PROGRAM.format(repo=str(REPO)))
        (directory / "bundle.tar").write_bytes(bundle_tar(CONVERGE))
        (directory / "state").mkdir()
        self.desired: dict[str, Any] = {}
        self.run("stack", "init", "test")

    def run(self, *arguments: str, code: int = 0) -> str:
        """What the terminal got, without what the engine itself has to say to it."""
        (self.directory / "desired.json").write_text(json.dumps(self.desired))
        environment = {**os.environ, **programs.environment("test"), "PULUMI_CONFIG_PASSPHRASE": "a passphrase"}
        environment |= {"PULUMI_BACKEND_URL": f"file://{self.directory}/state", "PULUMI_STACK": "test", "TERM": "xterm-256color"}
        ours, its = pty.openpty()
        termios.tcsetwinsize(its, (60, 200))
        process = subprocess.Popen(
            [toolchain.find("pulumi"), *arguments],
            cwd=self.directory,
            env=environment,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        output = b""
        with suppress(OSError):  # how a terminal ends on Linux
            while data := os.read(ours, 1 << 16):
                output += data
        os.close(ours)
        ended = process.wait(600)
        text = output.decode(errors="surrogateescape")
        assert "panic:" not in text and "goroutine " not in text, text[-6000:]
        assert ended == code, text[-6000:]
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\[(0|1|4|[34]8;5;\d+)?m|\r", "", text)
        assert not (found := RAW.search(shown)), repr(shown[max(0, found.start() - 200) : found.end() + 100])
        return shown

    def host(self, name: str) -> Host:
        host = Host(self.directory / "hosts" / name)
        self.desired.setdefault("hosts", {})[name] = {"kind": "local", "prefix": str(host.prefix)}
        return host


class Host:
    """A host whose converge program prints what the test says."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        record = prefix / "var/lib/gpu-fleet/current"
        record.mkdir(parents=True)
        (record / "converge").write_text(CONVERGE)
        for verb in ("plan", "apply", "check", "remove"):
            self.says(verb)

    def says(self, verb: str, *events: dict[str, Any], errors: list[str] = [], fails: bool = False) -> None:  # noqa: B006
        result = {"event": "result", "verb": verb, "ok": not fails, "changed": 1, "failed": int(fails), "drift": 0}
        lines = [json.dumps(event) for event in (*events, result)]
        (self.prefix / f"{verb}.out").write_text("\n".join(lines) + "\n")
        (self.prefix / f"{verb}.err").write_bytes("\n".join(errors).encode(errors="surrogateescape"))
        (self.prefix / "fails").unlink(missing_ok=True)
        if fails:
            (self.prefix / "fails").touch()


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    yield ruler
    ruler.close()


def part(name: str, status: str, **values: Any) -> dict[str, Any]:
    return {"event": "part", "part": name, "status": status, **values}


def test_what_a_host_reports_is_shown_and_is_no_command(terminal: Terminal) -> None:
    texts = payloads(1, 150)
    host = terminal.host("node-1")
    facts = {f"FACT_{number}": text for number, text in enumerate(texts)} | {text: "x" for text in texts}
    notices = {f"A{number}_NOTICE": text for number, text in enumerate(texts[:20])}
    host.says(
        "apply",
        {"event": "facts", "facts": facts | notices},
        part("<{%x%}>", "<{%x%}>", drift=texts, changes=texts),
        errors=texts,
    )
    assert r"<\{%x%}>" in terminal.run(*UP), "shown, with an escape"
    terminal.run("stack", "output")
    terminal.run("stack", "output", "--json")

    host.says(
        "check", {"event": "facts", "facts": facts | {f"FACT_{number}": text for number, text in enumerate(reversed(texts))}}
    )
    terminal.run("refresh", "--yes", "--diff")
    host.says("check", part("alloy", "drift", drift=texts), {"event": "facts", "facts": {"F" * (1 << 20): "x" * (1 << 20)}})
    terminal.run("refresh", "--yes", "--diff")
    terminal.run("preview", "--diff")

    error = {"code": "port-taken<{%x%}>", "message": f"9100 is used by {texts[0]}", "log": texts}
    host.says("apply", part("alloy", "failed", error=error), part("exporter", "failed", error=error), errors=texts, fails=True)
    assert r"9100 is used by <\{%x%}>" in terminal.run(*UP, code=1)
    (host.prefix / "apply.out").write_text("\n".join(texts))  # it ends without a result, and the last lines explain why
    terminal.run(*UP, code=1)
    host.says("remove", part("alloy", "failed", error=error), errors=texts, fails=True)
    terminal.run("destroy", "--yes", code=1)


def disconnect(text: bytes) -> bytes:
    """SSH_MSG_DISCONNECT in a packet without encryption, as RFC 4253 has it: anybody on the way can send it."""
    payload = b"\x01" + struct.pack(">II", 2, len(text)) + text + bytes(4)
    padding = 12 - (len(payload) + 5) % 8
    return struct.pack(">IB", 1 + len(payload) + padding, padding) + payload + bytes(padding)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"SSH-2.0-x\r\n" + disconnect(b"<{%x%}>\x1b]0;owned\x07\n::error::x::y"), id="a reason"),
        pytest.param(b"SSH-2.0-<{%x%}>\x1b]0;owned\x07\r\n", id="a version"),
        pytest.param(b"<{%x%}>\x1b]0;owned\x07\r\n" * 20 + b"SSH-2.0-x\r\n", id="lines before it"),
    ],
)
def test_what_an_ssh_server_says_before_any_key_is_shown(terminal: Terminal, said: bytes, request: pytest.FixtureRequest) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for _ in range(4):
            with listener.accept()[0] as connection:
                connection.sendall(said)
                connection.recv(1000)

    threading.Thread(target=answer, daemon=True).start()
    terminal.desired["hosts"] = {"node-1": {"kind": "ssh", "address": "127.0.0.1", "port": listener.getsockname()[1]}}
    shown = terminal.run(*UP, code=1)
    assert "node-1: unreachable: " in shown
    assert (r"ended the connection: <\{%x%}>\x1b]0;owned" in shown) == (request.node.callspec.id == "a reason")
    listener.close()


def test_what_a_ruler_answers_or_stores_is_shown_and_is_no_command(terminal: Terminal, ruler: RulerServer) -> None:
    texts = payloads(2, 60)
    terminal.desired |= {"ruler": ruler.url, "rules": "name: xid\nrules: [{record: a, expr: b}]"}
    ruler.refusals += [(400, text) for text in (texts[0], "\n".join(texts))]
    terminal.run(*UP, code=1)
    terminal.run(*UP)
    same = {text: text for text in texts}
    (key,) = ruler.groups
    ruler.groups[key] = {"name": "xid", "rules": [{"alert": "A", "expr": "b", "labels": same, "annotations": same, **same}]}
    stored = yaml.safe_load(ruler.alertmanagers[""])
    stored |= {"template_files": stored["template_files"] | same, "alertmanager_config": "\n".join(texts)}
    ruler.alertmanagers[""] = yaml.safe_dump(stored)
    terminal.run("refresh", "--yes", "--diff")
    terminal.run("preview", "--diff", "--show-secrets")
    terminal.run(*UP)
    assert ruler.groups[key] == {"name": "xid", "rules": [{"record": "a", "expr": "b"}]}


class _ApiServer(BaseHTTPRequestHandler):
    message = ""

    def do_GET(self) -> None:
        text = json.dumps({"kind": "Status", "reason": self.message, "message": self.message}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def test_what_an_api_server_answers_is_shown_as_one_line(terminal: Terminal) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_ApiServer,), {"message": "\n".join(payloads(3, 60))}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    at = {"server": f"http://127.0.0.1:{server.server_port}"}
    names = {"cluster": "x", "user": "x"}
    kubeconfig = {"clusters": [{"name": "x", "cluster": at}], "users": [{"name": "x", "user": {}}]}
    kubeconfig |= {"contexts": [{"name": "x", "context": names}], "current-context": "x"}
    (terminal.directory / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    terminal.desired["cluster"] = True
    assert "the API server refuses this login: " in terminal.run(*UP, code=1)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("how", ["raises", "bug"])
def test_what_stands_in_the_users_files_is_shown_when_the_program_quotes_it(terminal: Terminal, how: str) -> None:
    texts = payloads(4, 60)
    terminal.desired |= {"warnings": texts, "file": "\n".join(texts), how: "\n".join(texts)}
    assert r"<\{%x%}>" in terminal.run(*UP, code=1)


def test_a_value_that_would_end_the_engine_is_refused_before_it_is_shown(terminal: Terminal) -> None:
    terminal.host("node-1")
    for value in ("<{%x%}>", r'["\u003c{%x%}>"]'):
        terminal.desired["settings"] = {"GPU_FLEET_LABELS": value}
        assert "settings.GPU_FLEET_LABELS: contains `<{`" in terminal.run(*UP, code=1)
