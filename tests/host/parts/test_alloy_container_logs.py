"""Names that users choose and what the kernel says, on one way to one Loki: a real Alloy, a real Loki with its limits."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from lab.dev import query
from lab.ports import free_ports
from lab.showcase.servers import Servers
from tests.host.parts.conftest import kernel_log_facts, running_alloy

MANY = 7000  # names; Loki takes 5,000 streams from all hosts together
XID = "[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus."


def push(url: str, streams: list[dict]) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps({"streams": streams}).encode(), headers)
    urllib.request.urlopen(request, timeout=60).close()


def streams_of(loki: str, job: str) -> list[dict]:
    ask = urllib.parse.urlencode({"match[]": f'{{job="{job}"}}', "start": f"{time.time() - 3600:.0f}"})
    with urllib.request.urlopen(f"{loki}/loki/api/v1/series?{ask}", timeout=30) as answer:
        return json.load(answer)["data"]


def test_names_beyond_number_make_one_stream_and_an_xid_still_arrives(tmp_path: Path) -> None:
    log, servers = tmp_path / "kern.log", Servers(tmp_path / "loki", ("loki",))
    log.touch()
    [port] = free_ports(1)
    # conmon's records, as loki.source.journal hands them over.
    config = f"""
        loki.source.api "of_the_test" {{
            http {{
                listen_address = "127.0.0.1"
                listen_port    = {port}
            }}
            forward_to = [loki.process.podman.receiver]
        }}
    """
    source = (Path(__file__).parents[3] / "gpu_fleet/host/rootfs/etc/gpu-fleet/alloy/collect_podman_logs.alloy").read_text()
    facts = {**kernel_log_facts(log), "GPU_FLEET_LOGS_URL": f"{servers.loki}/loki/api/v1/push"}
    try:
        servers.wait()
        with running_alloy(tmp_path / "host", facts, config=source + config, docker_logs=True) as alloy:
            alloy.wait_until_read(log)
            now = time.time_ns()
            names = [{"container": f"c{number}", "uid": "1000"} for number in range(MANY)]
            lines = [{"stream": labels, "values": [[str(now + at), f"line {at}"]]} for at, labels in enumerate(names)]
            push(f"http://127.0.0.1:{port}/loki/api/v1/push", lines)
            found = lambda: query.log_lines(servers.loki, '{job="podman"} | container="c6999" | uid="1000"')  # noqa: E731
            alloy.receiver.wait_for(found)
            with log.open("a") as kernel:
                kernel.write(f"{XID}\n")
            xids = lambda: query.log_lines(servers.loki, '{job="kernel", instance="gpu-node-001", xid="79"}')  # noqa: E731
            alloy.receiver.wait_for(xids)
            assert len(streams_of(servers.loki, "podman")) == 1
            with urllib.request.urlopen(f"{servers.loki}/metrics", timeout=30) as answer:
                assert "loki_discarded_samples_total{" not in answer.read().decode()
    finally:
        servers.stop()


def test_docker_s_names_make_sixteen_streams_at_most(tmp_path: Path) -> None:
    names = [f"{number}-of-a-tenant" for number in range(200)]
    with docker(tmp_path / "docker.sock", names):
        config = (Path(__file__).parents[3] / "gpu_fleet/host/rootfs/etc/gpu-fleet/alloy/collect_docker_logs.alloy").read_text()
        config = config.replace("/var/run/docker.sock", str(tmp_path / "docker.sock"))
        facts = {"GPU_FLEET_EXPORTER_MODE": "textfile"}
        with running_alloy(tmp_path / "host", facts, config=config) as alloy:
            lines = alloy.receiver.lines
            alloy.receiver.wait_for(lambda: {line.metadata.get("container") for line in lines} >= set(names))
    assert len({tuple(sorted(line.labels.items())) for line in lines}) == 16
    assert {line.line for line in lines if line.metadata["container"] == names[7]} == {f"said by {names[7]}"}
    assert not any("container" in line.labels for line in lines)
    # A container that has run for weeks when Alloy first sees it, or that is started again (grafana/alloy issue 7026): Loki
    # refuses lines that are a week old, or an hour older than the newest of their stream, and LogsLost would count them.
    assert not any("said long ago" in line.line for line in lines)


@contextmanager
def docker(socket: Path, names: list[str]) -> Iterator[None]:
    """As much of Docker's interface as Alloy asks of it: containers with a terminal, each of which printed one line, and one
    eight hours ago."""

    class Daemon(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, *rest = self.path.partition("?")[0].split("/")[2:] or ["_ping"]
            old, stamp = (time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(time.time() - ago)) for ago in (8 * 3600, 0))
            if kind == "networks":
                body: object = [{"Id": "n", "Name": "bridge"}]
            elif rest == ["json"]:
                networks = {"Networks": {"bridge": {"NetworkID": "n", "IPAddress": "192.0.2.1"}}}
                body = [{"Id": name, "Names": [f"/{name}"], "Labels": {}, "NetworkSettings": networks} for name in names]
            elif kind == "containers" and rest[1] == "json":
                body = {"Id": rest[0], "Config": {"Tty": True}, "State": {"Running": True}}
            elif kind == "containers":
                body = f"{old} said long ago\n{stamp} said by {rest[0]}\n"
            else:
                body = "OK"
            raw = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(200)
            self.send_header("Api-Version", "1.43")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_HEAD = do_GET

        def address_string(self) -> str:
            return "alloy"

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingMixIn, UnixStreamServer):
        daemon_threads = True
        request_queue_size = 500

    with Server(str(socket), Daemon) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()
