"""How programs are started: from the environment file to their command line, by either service manager."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.scrape import Scrape
from gpu_fleet.on_host.dcgm_container import NO_IMAGE
from tests.host.parts.places import defaults, parts_of, place

ENVIRONMENT = """\
GPU_FLEET_ALLOY_LISTEN='127.0.0.1:12345'
GPU_FLEET_DCGM_ARCHIVE=''
GPU_FLEET_DCGM_IMAGE='registry.example.com/dcgm-exporter:1@sha256:0123456789abcdef'
GPU_FLEET_DCGM_RUN=''
GPU_FLEET_GPU_EXPORTER_LISTEN='127.0.0.1:9835'
GPU_FLEET_INSTANCE='gpu node 1'
GPU_FLEET_NODE_EXPORTER_LISTEN='127.0.0.1:9100'
"""
FACTS = (
    *({"GPU_FLEET_EXPORTER_MODE": "dcgm-exporter", "GPU_FLEET_DCGM_RUN": run} for run in ("docker", "podman", "packages")),
    {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter"},
    {"GPU_FLEET_PREPARE_CONTAINERS": "yes"},
)
SYSTEMD_FLAGS = [
    "--collector.systemd",
    r"--collector.systemd.unit-include=(gpu-fleet-.*|nvidia-.*|docker|containerd|slurmd)\.(service|timer)",
]
SCRAPE = Scrape(node_exporter_listen="0.0.0.0:9110", gpu_exporter_listen="0.0.0.0:9111")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A host below a path with a space, whose programs print how they were called."""
    prefix = tmp_path / "a host"
    for facts in FACTS:
        place(parts_of({**facts, "GPU_FLEET_MODE": "push"}, scrape=SCRAPE), prefix)
    (prefix / "etc/gpu-fleet/gpu-fleet.env").write_text(ENVIRONMENT)
    for program in ("bin/node_exporter", "bin/nvidia_gpu_exporter", "bin/alloy", "tools/nvidia-smi", "tools/dcgm-exporter"):
        _program(prefix / "opt/gpu-fleet" / program, "")
    # All commands but `run` are logged to a file. It has the images that GPU_FLEET_HAS_IMAGES matches, and can pull no others.
    engine = """case " $* " in
  *" run "*) ;;
  *" container inspect "*) exit 1 ;;
  *" image inspect "*) echo "$*" | grep -qE "${GPU_FLEET_HAS_IMAGES:-.}"; exit ;;
  *) echo "$*" >>"$GPU_FLEET_PREFIX/engine.log"; case " $* " in *" pull "*) echo refused >&2; exit 1 ;; esac; exit ;;
esac"""
    for name in ("docker", "podman"):
        _program(prefix / "opt/gpu-fleet/tools" / name, engine)
    return prefix


def _program(path: Path, first: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n{first}\necho "INSTANCE=$GPU_FLEET_INSTANCE"\nprintf "%s\\n" "$0" "$@"\n')
    path.chmod(0o755)


def started(prefix: Path, program: str, **values: str) -> list[str]:
    """What the program was called with, the prefix written as P. `values`: of the environment file."""
    done = run(prefix, program, **values)
    assert done.returncode == 0, done.stderr
    first, *command = done.stdout.replace(str(prefix), "P").splitlines()
    assert first == "INSTANCE=gpu node 1", "programs must see the values of the environment file"
    return command


def run(prefix: Path, program: str, **values: str) -> subprocess.CompletedProcess[str]:
    with (prefix / "etc/gpu-fleet/gpu-fleet.env").open("a") as file:
        file.writelines(f"{name}='{value}'\n" for name, value in values.items())
    tools = prefix / "opt/gpu-fleet/tools"
    return subprocess.run(
        [prefix / "opt/gpu-fleet/libexec/run", program],
        env={"PATH": f"{tools}:{os.environ['PATH']}", "GPU_FLEET_PREFIX": str(prefix), "GPU_FLEET_TOOL_PATH": str(tools)},
        capture_output=True,
        text=True,
    )


def test_node_exporter_listens_where_the_settings_say_and_reads_the_textfiles(prefix: Path) -> None:
    assert [flag for flag in started(prefix, "node-exporter") if flag not in SYSTEMD_FLAGS][:4] == [
        "P/opt/gpu-fleet/bin/node_exporter",
        "--web.listen-address=127.0.0.1:9100",
        "--web.disable-exporter-metrics",
        "--collector.textfile.directory=P/var/lib/gpu-fleet/textfile",
    ]


def test_node_exporter_has_no_series_per_container_and_few_per_cpu(prefix: Path) -> None:
    flags = started(prefix, "node-exporter")
    left_out = re.compile(next(flag for flag in flags if flag.startswith("--collector.netdev.device-exclude=")).partition("=")[2])
    assert all(left_out.search(device) for device in ("lo", "veth12ab", "cali9", "docker0", "br-1f"))
    assert not any(left_out.search(device) for device in ("eth0", "ens1f0np0", "bond0", "ib0", "enp3s0"))
    assert "--no-collector.softnet" in flags, "seven series per CPU thread that nothing uses"
    assert "--no-collector.xfs" in flags, "37 series per file system that nothing uses"


def test_node_exporter_asks_no_file_system_of_the_network_or_of_a_user(prefix: Path) -> None:
    """Public reports: systemd 18445 and netdata 2173 (automounts that never expire), node_exporter 3058 (a dead server)."""
    name = "--collector.filesystem.fs-types-exclude="
    left_out = re.compile(next(flag for flag in started(prefix, "node-exporter") if flag.startswith(name))[len(name) :])
    of_network = ["nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "beegfs_nodev", "gpfs", "autofs"]
    of_users = ["fuse", "fuse.sshfs", "fuse.x", "fuseblk", "overlay"]
    assert [kind for kind in (*of_network, *of_users) if not left_out.search(kind)] == []
    assert [kind for kind in ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "vfat", "f2fs"] if left_out.search(kind)] == []


LISTEN = {"GPU_FLEET_SCRAPE_NODE_LISTEN": "0.0.0.0:9110", "GPU_FLEET_SCRAPE_GPU_LISTEN": "0.0.0.0:9110"}


@pytest.mark.parametrize("program", ["scrape-node", "scrape-gpu", "scrape-dcgm"])
def test_without_a_login_nothing_listens_to_the_outside(prefix: Path, program: str) -> None:
    web_config = prefix / "etc/gpu-fleet/secrets/scrape-web-config"
    web_config.parent.mkdir()
    for content in (None, ""):
        if content is not None:
            web_config.write_text(content)
        with pytest.raises(AssertionError, match=r"not listening on 0[.]0[.]0[.]0:9110"):
            started(prefix, program, **LISTEN)


@pytest.mark.parametrize(("program", "binary"), [("scrape-node", "node_exporter"), ("scrape-gpu", "nvidia_gpu_exporter")])
def test_from_outside_an_exporter_demands_the_login(prefix: Path, program: str, binary: str) -> None:
    web_config = prefix / "etc/gpu-fleet/secrets/scrape-web-config"
    web_config.parent.mkdir()
    web_config.write_text("tls_server_config: {}\n")
    command = started(prefix, program, **LISTEN)
    assert command[0] == f"P/opt/gpu-fleet/bin/{binary}"
    assert "--web.config.file=P/etc/gpu-fleet/secrets/scrape-web-config" in command
    assert "--web.listen-address=0.0.0.0:9110" in command


def test_alloy_reads_the_whole_directory_and_reports_nothing_home(prefix: Path) -> None:
    assert started(prefix, "alloy") == [
        "P/opt/gpu-fleet/bin/alloy",
        "run",
        "--disable-reporting",
        "--server.http.listen-addr=127.0.0.1:12345",
        "--server.http.enable-pprof=false",
        "--server.http.disable-support-bundle",
        "--storage.path=P/var/lib/gpu-fleet/alloy",
        "P/etc/gpu-fleet/alloy",
    ]


@pytest.mark.parametrize(
    ("content", "is_kept"),
    [
        (b'positions:\n  ? path: /var/log/k\xc3\xa4\n    labels: "{}"\n  : "12"\n', True),
        (b"positions: {}\n", True),
        (b"", False),
        (b"\0" * 4096, False),
        (b"positions:\n  ? path: /a\0\0\0", False),
        (b'positions:\n  ? path: /var/log/k\n    labels: "{}"\n  : "1', False),
        (b"\x01\x02garbage", False),
        (b"lost+found\n", False),
    ],
)
def test_positions_that_a_power_cut_left_damaged_do_not_keep_alloy_from_starting(
    prefix: Path, content: bytes, is_kept: bool
) -> None:
    positions = prefix / "var/lib/gpu-fleet/alloy/loki.source.journal.kernel/positions.yml"
    positions.parent.mkdir(parents=True)
    positions.write_bytes(content)
    done = run(prefix, "alloy")
    assert done.returncode == 0, done.stderr
    assert positions.exists() == is_kept
    assert is_kept or positions.with_name("positions.yml.damaged").read_bytes() == content
    assert ("is damaged" in done.stdout) != is_kept


def test_what_one_reader_of_the_kernel_sent_is_not_sent_again_by_the_second(prefix: Path) -> None:
    state = prefix / "var/lib/gpu-fleet/alloy"
    (state / "loki.source.journal.kernel").mkdir(parents=True)
    entry = "positions:\n  ? path: cursor-{}\n    labels: '{{}}'\n  : s=7f;i=1\n"
    (state / "loki.source.journal.kernel/positions.yml").write_text(entry.format("loki.source.journal.kernel"))
    assert run(prefix, "alloy").returncode == 0
    second = state / "loki.source.journal.kernel_sent/positions.yml"
    assert second.read_text() == entry.format("loki.source.journal.kernel_sent")
    second.write_text("positions: {}\n")  # it has read on
    assert run(prefix, "alloy").returncode == 0
    assert second.read_text() == "positions: {}\n"


@pytest.mark.parametrize(
    ("names", "is_kept"),
    [
        (["00000000"], True),
        (["00000007", "00000008", "00000009", "00000010", "checkpoint.00000006"], True),
        (["checkpoint.00000006", "checkpoint.00000009.tmp", "lost+found"], True),
        ([], True),
        (["00000001", "00000003"], False),  # grafana/alloy issue 6165
        (["00000000.repair", "00000001"], False),  # prometheus issue 6080: it died while it repaired
    ],
)
def test_a_write_ahead_log_with_a_gap_does_not_keep_alloy_from_starting(prefix: Path, names: list[str], is_kept: bool) -> None:
    """Alloy 1.11.0 ends at each start: "segments are not sequential", "open WAL segment 0: no such file or directory"."""
    log = prefix / "var/lib/gpu-fleet/alloy/prometheus.remote_write.mimir/wal"
    for directory in (log, log.with_name("wal.damaged")):  # of an earlier time
        directory.mkdir(parents=True)
    for name in names:
        (log / name).touch()
    done = run(prefix, "alloy")
    assert done.returncode == 0, done.stderr
    assert log.exists() == is_kept
    assert is_kept or sorted(path.name for path in log.with_name("wal.damaged").iterdir()) == sorted(names)
    assert ("is damaged" in done.stdout) != is_kept


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (400, 1)])
def test_a_reload_that_alloy_refuses_fails_with_alloy_s_words(prefix: Path, status: int, exit_code: int) -> None:
    asked = []

    class Alloy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"error during the initial load: unrecognized attribute")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Alloy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [prefix / "opt/gpu-fleet/libexec/start-reload-alloy"],
            env={"PATH": os.environ["PATH"], "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{server.server_address[1]}"},
            capture_output=True,
            text=True,
        )
        server.shutdown()
    assert (done.returncode, asked) == (exit_code, ["/-/reload"])
    assert ("unrecognized attribute" in done.stderr) == (status != 200)


SENT = """\
prometheus_remote_storage_highest_timestamp_in_seconds{{component_id="a"}} {scraped}
prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{url="b"}} {sent}
prometheus_remote_storage_samples_pending{{url="b"}} {waiting}
prometheus_remote_storage_samples_failed_total{{url="b"}} {failed}
prometheus_remote_storage_samples_retried_total{{url="b"}} {retried}
"""
FINE = {"scraped": 1, "sent": 1, "waiting": 0, "failed": 0, "retried": 0}


@pytest.mark.parametrize(
    ("grow", "fixed", "said"),
    [
        (("scraped", "sent"), {}, ""),
        (("scraped", "retried"), {"waiting": 900}, ""),  # the store is down
        (("scraped", "failed"), {}, ""),  # the store refuses the login
        (("scraped",), {"waiting": 900}, ""),  # the store accepts the connection and answers nothing
        (("scraped",), {}, "samples were stored and none was sent for 5 minutes: restarting Alloy"),
        (("sent",), {}, "no sample was stored for 5 minutes: restarting Alloy"),
        ((), None, "its metrics cannot be read for 5 minutes: restarting Alloy"),
    ],
    ids=["healthy", "store down", "login refused", "store silent", "damaged log", "nothing stored", "hangs"],
)
def test_an_alloy_that_runs_and_delivers_nothing_is_restarted(
    prefix: Path, tmp_path: Path, grow: tuple[str, ...], fixed: dict[str, int] | None, said: str
) -> None:
    """A minute is a call of `timeout`, which counts what Alloy counts in a minute; after ten this test has seen enough."""
    page = {**FINE, **(fixed or {})}
    (tmp_path / "page").write_text(json.dumps(page))
    alloy = subprocess.Popen(["sleep", "600"])
    tools = prefix / "opt/gpu-fleet/tools"
    program = f"""import json, os, pathlib, sys
minute = pathlib.Path({str(tmp_path / "minute")!r})
now = int(minute.read_text()) + 1 if minute.exists() else 1
minute.write_text(str(now))
page = json.loads(pathlib.Path({str(tmp_path / "page")!r}).read_text())
page.update({{name: 1000 + now for name in {grow!r}}})
pathlib.Path({str(tmp_path / "metrics")!r}).write_text({SENT!r}.format(**page))
sys.exit(0 if now > 10 else 124)
"""
    (tmp_path / "timeout.py").write_text(program)
    (tools / "timeout").write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/timeout.py\n")
    (tools / "timeout").chmod(0o755)
    fetched = f"cat {shlex.quote(str(tmp_path / 'metrics'))}" if fixed is not None else "exit 1"
    (prefix / "opt/gpu-fleet/libexec/fetch-metrics").write_text(f"#!/bin/sh\n{fetched}\n")
    try:
        done = subprocess.run(
            [prefix / "opt/gpu-fleet/libexec/watch-alloy", str(alloy.pid)],
            env={"PATH": f"{tools}:{os.environ['PATH']}", "GPU_FLEET_ALLOY_LISTEN": "127.0.0.1:12345"},
            capture_output=True,
            text=True,
        )
        assert (done.stdout.strip(), done.stderr) == (said, "")
        assert (alloy.poll() is not None or _ends(alloy)) == bool(said)
    finally:
        alloy.kill()
        alloy.wait()


def _ends(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        return False
    return True


IMAGE = "gpu-fleet/dcgm-exporter:0123456789ab"


def test_dcgm_exporter_runs_without_any_capability(prefix: Path) -> None:
    command = started(prefix, "dcgm-exporter", GPU_FLEET_DCGM_RUN="docker")
    assert command[0] == "P/opt/gpu-fleet/tools/docker" and "--privileged" not in command
    assert "--log-driver local --log-opt max-size=5m" in " ".join(command), "a chatty exporter must not fill the host's disk"
    assert "SYS_ADMIN" not in command
    assert command[command.index("--cap-drop") + 1] == "ALL"
    assert command[command.index("--gpus") + 1] == "all"
    assert "label=disable" in command, "where SELinux confines containers, it would see no GPU and no list of counters"
    assert command[command.index("--pull") + 1] == "never", "what runs is what was fetched and verified before"
    assert command[command.index(IMAGE) :] == [
        IMAGE,
        "--collectors",
        "/etc/dcgm-exporter/counters.csv",
        "--address",
        "127.0.0.1:9835",
        "--collect-interval",
        "15000",
    ]


def test_dcgm_exporter_gets_sys_admin_for_profiling_alone(prefix: Path) -> None:
    counters = prefix / "etc/dcgm-exporter/counters.csv"
    counters.write_text(counters.read_text() + "DCGM_FI_PROF_SM_ACTIVE, gauge, help\n")
    command = started(prefix, "dcgm-exporter", GPU_FLEET_DCGM_RUN="docker")
    assert command[command.index("--cap-add") + 1] == "SYS_ADMIN"


def test_podman_is_a_client_of_its_service_and_is_given_the_gpus_by_cdi(prefix: Path) -> None:
    command = started(prefix, "dcgm-exporter", GPU_FLEET_DCGM_RUN="podman")
    assert "--log-driver k8s-file --log-opt max-size=5m" in " ".join(command)
    assert command[:5] == ["P/opt/gpu-fleet/tools/podman", "--remote", "--url", "unix:///run/podman/podman.sock", "run"]
    assert command[command.index("--device") + 1] == "nvidia.com/gpu=all" and "--gpus" not in command


def test_an_image_that_cannot_be_pulled_stops_the_unit_for_good_with_the_reason(prefix: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"the image registry.example.com/.*@sha256:0123456789abcdef is not available: refused"
    ):
        started(prefix, "dcgm-exporter", GPU_FLEET_DCGM_RUN="docker", GPU_FLEET_HAS_IMAGES="none")
    unit = (ROOTFS / "etc/systemd/system/gpu-fleet-dcgm-exporter.service").read_text()
    assert f"RestartPreventExitStatus={NO_IMAGE}\n" in unit


def test_an_existing_image_is_used_and_not_taken_over(prefix: Path) -> None:
    command = started(prefix, "dcgm-exporter", GPU_FLEET_DCGM_RUN="docker", GPU_FLEET_HAS_IMAGES="registry.example.com")
    assert "registry.example.com/dcgm-exporter:1@sha256:0123456789abcdef" in command
    assert (prefix / "engine.log").read_text() == "rm --force gpu-fleet-dcgm-exporter\n"


def test_the_exporter_from_packages_connects_to_the_host_engine(prefix: Path) -> None:
    assert started(prefix, "dcgm-exporter-host") == [
        "P/opt/gpu-fleet/tools/dcgm-exporter",
        "--remote-hostengine-info",
        "127.0.0.1:5555",
        "--collectors",
        "P/etc/dcgm-exporter/counters.csv",
        "--address",
        "127.0.0.1:9835",
        "--collect-interval",
        "15000",
    ]


@pytest.mark.parametrize(("program", "engine"), [("dcgm-exporter", "docker"), ("dcgm-exporter-host", "packages")])
def test_dcgm_exporter_ends_when_a_driver_is_loaded_after_its_start(prefix: Path, program: str, engine: str) -> None:
    """And the service manager starts it again: gpu-operator's issue 2854."""
    tools = prefix / "opt/gpu-fleet/tools"
    _program(tools / "docker", 'case " $* " in *" run "*) exec sleep 300 ;; *" container inspect "*) exit 1 ;; esac')
    _program(tools / "dcgm-exporter", "exec sleep 300")
    with (prefix / "etc/gpu-fleet/gpu-fleet.env").open("a") as file:
        file.write(f"GPU_FLEET_DCGM_RUN={engine}\n")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "GPU_FLEET_PREFIX": str(prefix), "GPU_FLEET_ROOT": str(prefix)}
    module = prefix / "sys/module/nvidia"
    for version in ("590.48.01", "595.80"):
        process = subprocess.Popen([prefix / "opt/gpu-fleet/libexec/run", program], env=environment)
        time.sleep(5)
        assert process.poll() is None
        module.mkdir(parents=True, exist_ok=True)
        (module / "version").write_text(f"{version}\n")
        assert process.wait(timeout=60) == -15


def test_the_variables_of_the_start_scripts_have_defaults_or_are_given() -> None:
    """An unset name stops a start script, because it runs with `set -u`."""
    known = {"GPU_FLEET_PREFIX", "GPU_FLEET_ROOT", "GPU_FLEET_TOOL_PATH", "GPU_FLEET_DCGM_RUN", "GPU_FLEET_PYTHON"}
    # Of a stack with a monitoring server, whose hosts alone get these scripts (gpu_fleet/stackfile/settings.py).
    known |= {f"GPU_FLEET_MONITORING_{name}" for name in ("LOGS_RETENTION", "METRICS_LATE", "METRICS_RETENTION", "PORT", "URL")}
    known |= {name for facts in FACTS for name in defaults(parts_of({**facts, "GPU_FLEET_MODE": "push"}, scrape=SCRAPE))}
    for script in (ROOTFS / "opt/gpu-fleet/libexec").glob("start-*"):
        assert set(re.findall(r"\$\{?(GPU_[A-Z_]+)", script.read_text())) <= known, script.name


def test_supervisor_starts_every_program_below_a_prefix_with_a_space(prefix: Path) -> None:
    """The real supervisord, with the files that hosts get."""
    parts = parts_of({"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", "GPU_VENDOR": "nvidia"})
    units = {unit.name for part in parts for unit in part.units}
    place(parts, prefix)
    for name in units:
        own = prefix / "etc/gpu-fleet/supervisor.d" / f"{name}.conf"
        own.parent.mkdir(exist_ok=True)
        own.write_text((ROOTFS / "etc/gpu-fleet/supervisor.d" / own.name).read_text())
    for program in ("node_exporter", "nvidia_gpu_exporter", "alloy"):
        called = prefix / f"{program}.called"
        (prefix / "opt/gpu-fleet/bin" / program).write_text(f"#!/bin/sh\necho up >'{called}'\nexec sleep 300\n")
    config = prefix / "supervisord.conf"
    config.write_text("[supervisord]\nnodaemon=true\n[include]\nfiles = etc/gpu-fleet/supervisor.d/*.conf\n")
    environment = {
        "PATH": os.environ["PATH"],
        "GPU_FLEET_PREFIX": str(prefix),
        "GPU_FLEET_TOOL_PATH": f"{prefix}/opt/gpu-fleet/tools",
        "GPU_FLEET_PYTHON": sys.executable,
    }
    supervisord = Path(sys.executable).with_name("supervisord")
    process = subprocess.Popen([supervisord, "-c", config], cwd=prefix, env=environment, stdout=subprocess.DEVNULL)
    try:
        wanted = [prefix / f"{program}.called" for program in ("node_exporter", "nvidia_gpu_exporter", "alloy")]
        wanted.append(prefix / "var/lib/gpu-fleet/textfile/gpu_links.prom")
        deadline = time.monotonic() + 120
        while not all(file.exists() for file in wanted):
            assert time.monotonic() < deadline, [file.name for file in wanted if not file.exists()]
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(timeout=120)


@pytest.mark.parametrize(
    ("code", "found", "said", "exit_code"),
    [
        (0, '{"event":"result","ok":true}', "", 0),
        (4, '{"part":"a","status":"unchanged"}\n{"part":"b","status":"drift"}', '{"part":"b","status":"drift"}', 0),
        (1, '{"part":"host","error":{"code":"locked","message":"..."}}', "not checked: another run is in progress", 0),
        (1, '{"part":"host","error":{"code":"internal"}}', '{"part":"host","error":{"code":"internal"}}', 1),
        (0, "", "not checked: the converge program is damaged and printed no result; the next apply restores it", 1),
        (11, "", "not checked: the converge program is damaged and printed no result; the next apply restores it", 1),
    ],
    ids=["as it should be", "drift", "a run is at work", "no check possible", "an emptied program", "a damaged program"],
)
def test_a_check_says_what_differs_and_fails_only_when_it_could_not_look(
    prefix: Path, code: int, found: str, said: str, exit_code: int
) -> None:
    converge = prefix / "var/lib/gpu-fleet/current/converge"
    converge.parent.mkdir(parents=True)
    converge.write_text(f"echo \"$@\" >'{prefix}/called'\ncat <<'END'\n{found}\nEND\nexit {code}\n")
    done = subprocess.run(
        [prefix / "opt/gpu-fleet/libexec/run", "check"],
        env={"PATH": os.environ["PATH"], "GPU_FLEET_PREFIX": str(prefix)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (exit_code, said, "")
    metrics = "/var/lib/gpu-fleet/textfile/fleet_check.prom"
    assert (prefix / "called").read_text() == f"check --prefix {prefix} --metrics {metrics}\n"
