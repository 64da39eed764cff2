"""What `make preview` and `make up` run: pulumi's options for many hosts, and for some of them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_fleet.operations import deploy, first_preview
from gpu_fleet.operations.arrivals import Arrivals
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.stackfile.config import HostSpec, hosts_of
from tests.checkout import REPO
from tests.hosts.stack import Stack
from tests.operations.test_new_stack import until
from tests.stackfile.stacks import write_known_hosts

HOSTS = {
    "gpu-[001:012]": {"address": "10.0.1.[1:12]"},
    "storage": {"address": "10.0.2.1"},
    "spare-1": {"address": "10.0.3.1", "lost": True},
    "scaled-1": {"connection": "pull"},
}


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, HostSpec]:
    return dict(hosts_of({"datacenter": "d", "cluster": "c", "hosts": HOSTS}, tmp_path).hosts)


@pytest.mark.parametrize(
    ("sections", "is_saved_once"),
    [
        ({"hosts"}, True),
        ({"hosts", "rulers", "metricsPassword"}, True),
        ({"hosts", "grafana"}, False),
        ({"hosts", "kubernetes"}, False),
        ({"hosts", "backend"}, False),
    ],
)
def test_a_state_whose_objects_cannot_be_created_twice_is_saved_at_every_step(sections: set[str], is_saved_once: bool) -> None:
    expected = deploy.SAVED_ONCE if is_saved_once else {}
    assert deploy.environment(sections, {"PATH": "/bin"}, is_new=False) == {"PATH": "/bin", **expected}
    assert deploy.environment(sections, {"PATH": "/bin"}, is_new=True) == {"PATH": "/bin"}
    given = {"PULUMI_SKIP_CHECKPOINTS": "false"}
    assert deploy.environment(sections, given, is_new=False) == given, "the user's own setting takes precedence"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("gpu-003", ["gpu-003"]),
        ("gpu-01*", ["gpu-010", "gpu-011", "gpu-012"]),
        ("gpu-00?", [f"gpu-00{number}" for number in range(1, 10)]),
        ("gpu-[002:003]", ["gpu-002", "gpu-003"]),
        ("s*", ["storage"]),
    ],
)
def test_hosts_are_chosen_by_name_shell_pattern_or_range(hosts: dict[str, HostSpec], pattern: str, expected: list[str]) -> None:
    assert deploy.matching(pattern, hosts) == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gpu-01", "HOST=gpu-01 matches no host of the stack: did you mean gpu-010, gpu-011 or gpu-012?"),
        ("stroage", "HOST=stroage matches no host of the stack: did you mean storage?"),
        ("zzz", "HOST=zzz matches no host of the stack. Its hosts: gpu-001, gpu-002, gpu-003,"),
        ("gpu-[9", "HOST=gpu-[9 has a [ or ] without its partner: expected a name, gpu-* or gpu-[001:016]"),
        ("spare-1", "HOST=spare-1: spare-1 is marked as lost; `make up` without HOST removes it from the stack"),
        (
            "scaled-*",
            "HOST=scaled-*: scaled-1 provisions itself (`connection: pull`): `make pull-bundle` publishes what it fetches",
        ),
    ],
)
def test_a_pattern_without_a_host_is_refused_with_the_nearest_name(
    hosts: dict[str, HostSpec], pattern: str, message: str
) -> None:
    with pytest.raises(OperationError) as error:
        deploy.matching(pattern, hosts)
    assert str(error.value).startswith(message)


def test_the_host_that_a_shell_exports_limits_no_run() -> None:
    """tcsh exports the name of the machine as HOST."""
    for arguments, hosts in (((), '--host ""'), (("HOST=box",), '--host "box"')):
        command = ["make", "--dry-run", "up", "STACK=us-west", *arguments]
        done = subprocess.run(
            command, cwd=REPO, env={**os.environ, "HOST": "controller"}, capture_output=True, text=True, check=True
        )
        assert hosts in done.stdout


def test_what_a_run_for_some_hosts_leaves_out_is_printed(hosts: dict[str, HostSpec]) -> None:
    text = deploy.left_out(["gpu-001"], hosts, {"hosts", "rulers", "metrics"}, "s")
    assert text == "Only gpu-001. Not included: 12 other hosts, rulers. `make up STACK=s` deploys everything."
    one = {"gpu-001": hosts["gpu-001"]}
    assert deploy.left_out(["gpu-001"], one, {"hosts"}, "s") == "Only gpu-001, which is every host of the stack."


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Of two hosts that nobody reaches, and rules; in a checkout of its own."""
    directory = tmp_path_factory.mktemp("deploy")
    config = {
        "datacenter": "us-west",
        "cluster": "training",
        "ssh": {"user": "ops", "knownHostsFile": "known_hosts"},
        "hosts": {"gpu-node-[001:002]": {"address": "10.0.1.[1:2]", "gpus": 8}},
        "metrics": {"url": "http://127.0.0.1:9009/api/v1/push"},
        "rulers": {"mimir": {"url": "http://127.0.0.1:9009"}},
        "alerts": {"targets": ["ruler"]},
    }
    stack = Stack(directory, "us-west-training", config).create()
    write_known_hosts(directory)
    return stack


def make(stack: Stack, target: str, *variables: str, pulumi: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A make target in the stack's checkout, without set-up. `pulumi`: a directory with one, first on the PATH."""
    dry = ["make", "--dry-run", "--no-print-directory", target, "STAND_INS=1", *variables]
    printed = subprocess.run(dry, cwd=stack.directory, capture_output=True, text=True, check=True).stdout
    *_, command = printed.replace("\\\n", "").splitlines()
    environment = {**os.environ, **stack._environment()}
    if pulumi:  # the toolchain puts its own first
        command = command.replace(".venv/bin/python -m lab.standins run -- ", "")
        environment["PATH"] = f"{pulumi}:{environment['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=stack.directory, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def previewed(stack: Stack, *variables: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """What the preview printed, and the resources that it would create."""
    done = make(stack, "preview", *variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, set(re.findall(r"^ *\+ (\S+): \(create\)", done.stdout, re.MULTILINE))


def test_one_host_is_deployed_with_what_it_needs_and_nothing_else(stack: Stack) -> None:
    done, created = previewed(stack, "STACK=us-west-training", "HOST=*002")
    assert created == {
        "pulumi:pulumi:Stack",
        "pulumi:providers:gpu-fleet",
        "gpu-fleet:host:Fleet",
        "gpu-fleet:host:Bundle",
        "gpu-fleet:host:Host",
    }, done.stdout
    assert done.stdout.count("gpu-fleet:host:Host: (create)") == 1 and "(create) gpu-node-002\n" in done.stdout, done.stdout
    assert "Only gpu-node-002. Not included: 1 other host, rulers." in done.stderr
    assert "gpu-fleet:ruler:RuleGroup" in previewed(stack, "STACK=us-west-training")[1], "without HOST the rules are included"


def test_the_first_preview_names_what_is_new_on_at_most_300_lines(stack: Stack) -> None:
    done, _ = previewed(stack, "STACK=us-west-training")
    lines = done.stdout.splitlines()
    assert len(lines) <= 300, f"{len(lines)} lines, which nobody reads"
    assert "(create) rulers-mimir-gpu-fleet-inventory-us-west-training-0\n" in done.stdout and "expr:" not in done.stdout
    assert lines[-1].strip().endswith(" to create") and "    hosts    : 2\n" in done.stdout, "the outputs and the count stay"


def test_a_preview_shows_all_of_what_changes_and_the_names_of_what_is_new() -> None:
    changed = [
        "~ gpu-fleet:host:Bundle: (update)",
        "    [urn=urn:pulumi:s::gpu-fleet::gpu-fleet:host:Fleet$gpu-fleet:host:Bundle::fleet-bundle]",
        '      ~ converge: "a" => "b"',
    ]
    removed = [
        "- gpu-fleet:host:Host: (delete)",
        "    [urn=urn:pulumi:s::gpu-fleet::gpu-fleet:host:Host::old]",
        '    host: "old"',
    ]
    new = [
        line
        for number in range(400)
        for line in (
            "\x1b[32m+ gpu-fleet:host:Host: (create)\x1b[0m",
            f"    \x1b[0m[urn=urn:pulumi:s::gpu-fleet::gpu-fleet:host:Fleet$gpu-fleet:host:Host::gpu-{number}]",
            '    host: "gpu"',
            "    + b:c:D: no opening of a resource",
        )
    ]
    end = ["Resources:", "    + 400 to create"]
    shown = [line.rstrip("\n") for line in first_preview.named(f"{line}\n" for line in [*changed, *removed, *new, *end])]
    assert shown[:6] == [*changed, *removed]
    assert shown[6] == "\x1b[32m+ gpu-fleet:host:Host: (create)\x1b[0m gpu-0"
    assert shown[-3:] == ["    and 300 more that are new", *end] and len(shown) == 6 + 100 + 3


@pytest.mark.parametrize(("salt", "given"), [(True, False), (True, True), (False, False)])
def test_a_preview_on_a_terminal_asks_for_the_passphrase_that_pulumi_needs(tmp_path: Path, *, salt: bool, given: bool) -> None:
    """pulumi prints into a pipe, where it does not ask itself."""
    stack_file = tmp_path / "Pulumi.s.yaml"
    stack_file.write_text("encryptionsalt: v1:abc\n" if salt else "config: {}\n")
    pulumi = "import os; print('pulumi has', os.environ.get('PULUMI_CONFIG_PASSPHRASE'), 'there')"
    variables = {"PULUMI_CONFIG_PASSPHRASE": "of CI"} if given else {}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPO)
        call = f"first_preview.run([sys.executable, '-c', {pulumi!r}], {variables!r}, Path({str(stack_file)!r}))"
        program = f"import sys; from pathlib import Path; from gpu_fleet.operations import first_preview; sys.exit({call})"
        os.execv(sys.executable, [sys.executable, "-c", program])
    seen = b""
    if asks := salt and not given:
        seen = until(terminal, b"Passphrase of the stack: ")
        os.write(terminal, b"planted-passphrase\n")
    printed, _, has = (seen + until(terminal, b"there")).decode().partition("pulumi has ")
    assert os.waitpid(pid, 0)[1] == 0
    assert has.strip() == f"{'planted-passphrase' if asks else variables.get('PULUMI_CONFIG_PASSPHRASE')} there"
    assert ("Passphrase" in printed) == asks and "planted" not in printed, "asked only where it is needed, and never echoed"


def test_a_stack_that_does_not_exist_is_refused_with_the_two_commands_that_create_it(stack: Stack) -> None:
    done = make(stack, "preview", "STACK=us-east-training")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "there is no stack file Pulumi.us-east-training.yaml: did you mean STACK=us-west-training?",
        "These two commands create the stack and show what it would deploy:",
        "    make new-stack DATACENTER=us-east CLUSTER=training",
        "    make preview STACK=us-east-training",
    ]
    (stack.directory / "Pulumi.us-east-training.yaml").write_text("config: {}\n")
    try:
        done = make(stack, "preview", "STACK=us-east-training")
    finally:
        (stack.directory / "Pulumi.us-east-training.yaml").unlink()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "    make shell STACK=us-east-training",
        "    pulumi stack init us-east-training",
    ], done.stderr


NEED_NO_STACK = ("shell", "dashboards", "dashboards-pull", "rules", "artifacts", "offline-kit", "policies")
STACK_TARGETS = re.findall(r"^([a-z-]+):[^\n]*(?:\n\t[^\n]*)*\$\(STACK\)", (REPO / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", [target for target in STACK_TARGETS if target not in NEED_NO_STACK])
def test_a_target_without_a_stack_says_so(stack: Stack, target: str) -> None:
    """An empty, unquoted value once made `--stack` swallow the next option."""
    done = make(stack, target)
    assert done.returncode == 1
    assert done.stderr.startswith("no stack given: add STACK=NAME. Stack files in this directory: dev, us-west-training\n")


def test_a_run_ends_with_the_result_of_each_host_that_it_should_reach(stack: Stack) -> None:
    """Nobody answers at the address of the host."""
    done = make(stack, "up", "STACK=us-west-training", "HOST=*002", "YES=1")
    assert done.returncode != 0
    table = done.stdout[done.stdout.index("\nHOST ") :].strip().splitlines()
    assert table[0].split() == ["HOST", "RESULT", "GPUS", "EXPORTER", "SECONDS", "CAUSE", "OR", "REASON"]
    assert re.match(r"gpu-node-002 +failed +- +- +\d+ +unreachable: 10\.0\.1\.2 ", table[1]), done.stdout
    assert table[2:] == ["", "1 host: 1 failed."], "gpu-node-001 is not part of this run"


def test_pulumi_gets_unknown_options_and_its_status_is_that_of_make(stack: Stack, tmp_path: Path) -> None:
    config = json.dumps({"gpu-fleet:hosts": {"value": "{}", "objectValue": {}, "secret": False}})
    pulumi = tmp_path / "pulumi"
    pulumi.write_text(
        f"#!/bin/sh\ncase $2 in config) echo '{config}'; exit;; stack) echo '{{}}'; exit;; esac\n"
        'echo "$@; $PULUMI_SKIP_CHECKPOINTS"\nexit 7\n'
    )
    pulumi.chmod(0o755)
    done = make(stack, "up", "STACK=us-west-training", pulumi=tmp_path)
    printed = re.sub(r" --event-log=\S+/events;", ";", done.stdout)
    assert (done.returncode, printed) == (7, "up --stack us-west-training --parallel 200 --continue-on-error; true\n"), done


def test_ctrl_c_lets_pulumi_finish_and_prints_no_traceback(stack: Stack, tmp_path: Path) -> None:
    config = json.dumps({"gpu-fleet:hosts": {"value": "{}", "objectValue": {}, "secret": False}})
    pulumi = tmp_path / "pulumi"
    pulumi.write_text(
        f"#!/bin/sh\ncase $2 in config) echo '{config}'; exit;; stack) echo '{{}}'; exit;; esac\n"
        "trap 'sleep 1; echo stopped in order; exit 3' INT\necho started\nwhile :; do sleep 0.1; done\n"
    )
    pulumi.chmod(0o755)
    command = [sys.executable, "-m", "gpu_fleet.operations.deploy", "up", "--stack", "us-west-training"]
    environment = {**os.environ, **stack._environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        command, cwd=stack.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout and process.stdout.readline() == b"started\n"
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, output) == (3, b"stopped in order\n")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{}, {"a": 9_990.0}, {"a": 9_990.0, "b": 9_991.0}], "Samples of all 2 hosts have arrived.\n"),
        (
            [{"a": 9_990.0, "b": 9_900.0}],
            "Of 1 host not everything arrived within 0 s; docs/when-up-fails.md lists causes:\n  b: the last sample in the",
        ),
        ([OperationError("the store refused the query: HTTP 401")], "Whether the hosts' samples arrive is not known: the store "),
    ],
)
def test_a_run_says_whether_samples_of_the_hosts_arrive(
    answers: list, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old sample, as that of `b`, says nothing about this run."""
    values = {"datacenter": "d", "cluster": "c", "metrics": {"url": "http://127.0.0.1:9009/api/v1/push"}}
    values |= {"hosts": {"a": {"connection": "pull"}, "b": {"connection": "pull"}}, "pull": {"url": "https://x"}}
    configuration = Configuration(file=tmp_path / "Pulumi.s.yaml", values=values, secrets=frozenset())

    def arrivals(*_: object) -> Arrivals:
        answer = answers.pop(0)
        if isinstance(answer, OperationError):
            raise answer
        return Arrivals(newest=answer, readings=frozenset("ab"), system=frozenset("ab"))

    monkeypatch.setattr(deploy, "arrivals", arrivals)
    monkeypatch.setattr(deploy, "_DATA_PAUSE_S", 0)
    monkeypatch.setattr(deploy, "_DATA_WITHIN_S", 60 if len(answers) > 1 else -15)
    monkeypatch.setattr(deploy.time, "time", lambda: 10_000.0)
    deploy._await_data(configuration, "s", ["a", "b"], 9_950)
    assert capsys.readouterr().out.startswith(said)
