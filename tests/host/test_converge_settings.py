"""The environment file, facts, conditions and secrets of a host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_fleet.host.part import Directory, File, Part
from tests.host.hosts import SimulatedHost, page, path_without, scripted, snapshot


def _probe(script: str, **kwargs: object) -> Part:
    files = (File(path="/opt/gpu-fleet/libexec/look", content=b"#!/bin/sh\n", mode=0o755),)
    return Part(**{"name": "look", "probe": scripted("look", script), "files": files, **kwargs})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "",
        "with spaces",
        " spaces at the ends ",
        'it\'s "quoted"',
        "$HOME and `id` and $(id)",
        "back\\slash at the end\\",
        "100% = half #1; & | > <",
        "München → 日本",
        "!history",
    ],
)
def test_sh_reads_a_setting_as_it_was_given(host: SimulatedHost, value: str) -> None:
    host.settings["TRICKY"] = value
    host.apply([page()])
    script = '. "$1" && printf %s "$TRICKY"'
    read = subprocess.run(
        ["sh", "-c", script, "sh", str(host.at("/etc/gpu-fleet/gpu-fleet.env"))], capture_output=True, text=True, check=True
    )
    assert read.stdout == value


def test_the_environment_file_is_sorted_and_quotes_what_systemd_unquotes(host: SimulatedHost) -> None:
    host.settings = {"B": 'a"b\\c$d`e', "A": "x y"}
    host.apply([page()])
    comment, *lines = host.at("/etc/gpu-fleet/gpu-fleet.env").read_text().splitlines()
    assert comment.startswith("#")
    assert lines == ['A="x y"', 'B="a\\"b\\\\c\\$d\\`e"', f'GPU_FLEET_PREFIX="{host.prefix}"', 'PAGE_COLOUR="green"']


@pytest.mark.parametrize("line", ["A=tab\there", "A=bell\x07", "1A=x", "A B=x", "no equals sign"])
def test_a_setting_that_sh_and_systemd_would_read_differently_is_refused(host: SimulatedHost, line: str) -> None:
    name, _, value = line.partition("=")
    host.settings[name] = value
    apply = host.run("apply", [page()])
    assert apply.code == 1
    assert name in apply.error("host")["message"]
    assert not host.at("/etc").exists()


def test_settings_of_the_stack_win_over_defaults_and_facts_over_both(host: SimulatedHost) -> None:
    host.settings |= {"PAGE_COLOUR": "blue", "FOUND": "said by the stack"}
    host.apply([_probe("echo FOUND=seen\n"), page()])
    text = host.at("/etc/gpu-fleet/gpu-fleet.env").read_text()
    assert 'PAGE_COLOUR="blue"' in text
    assert 'FOUND="seen"' in text


def test_facts_are_reported_kept_and_decide_which_parts_are_installed(host: SimulatedHost) -> None:
    probe = _probe('echo "GPU_MODEL=NVIDIA H100 80GB HBM3"; echo MODE=small\n')
    apply = host.apply([probe, page(when={"MODE": ("small", "tiny")}), page(name="large", when={"MODE": ("large",)}, files=())])
    assert apply.facts == {"GPU_MODEL": "NVIDIA H100 80GB HBM3", "MODE": "small"}
    assert apply.statuses == {"host": "changed", "look": "changed", "page": "changed", "large": "not-wanted"}
    assert host.check().facts == apply.facts


def test_a_part_whose_condition_no_longer_holds_leaves_the_host(host: SimulatedHost) -> None:
    parts = [page(when={"PAGE_WANTED": ("yes",)}, settings={"PAGE_WANTED": "yes"})]
    host.apply(parts)
    host.settings["PAGE_WANTED"] = "no"
    assert host.run("plan", parts).statuses == {"page": "would-change", "host": "would-change"}
    assert host.apply(parts).statuses == {"host": "changed", "page": "removed"}
    assert not host.at("/etc/page").exists()
    assert host.apply(parts).statuses == {"host": "unchanged", "page": "not-wanted"}
    assert host.check().code == 0


def test_a_probe_sees_settings_and_earlier_facts(host: SimulatedHost) -> None:
    host.settings["GPU_FLEET_TOOL_PATH"] = "/a:/b"
    first = _probe("echo FIRST=1\n")
    second = Part(name="second", probe=scripted("look_again", "echo SECOND=$FIRST$GPU_FLEET_TOOL_PATH\n"))
    assert host.run("plan", [first, second]).facts == {"FIRST": "1", "SECOND": "1/a:/b"}


def test_programs_of_the_system_are_found_where_the_login_does_not_look(host: SimulatedHost, tmp_path: Path) -> None:
    """As with sudo's `secure_path` on some hosts, and with the PATH of /etc/environment on others."""
    host.path = path_without(tmp_path / "bin", "useradd")
    assert host.apply([_probe('echo "USERADD=$(command -v useradd)"\n')]).facts["USERADD"].endswith("/sbin/useradd")


@pytest.mark.parametrize(
    ("code", "cause"), [(10, "no-driver"), (11, "gpu-count"), (12, "unsupported"), (14, "old-driver"), (1, "internal")]
)
def test_a_fatal_probe_stops_the_run_with_its_cause_before_anything_is_touched(
    host: SimulatedHost, code: int, cause: str
) -> None:
    probe = _probe(f'echo "nvidia-smi: not found; install the driver" >&2\nexit {code}\n', fatal=True)
    apply = host.run("apply", [probe, page()])
    assert apply.code == 5
    assert apply.error("look") == {"code": cause, "message": "nvidia-smi: not found; install the driver"}
    assert "page" not in apply.statuses
    assert snapshot(host.prefix).keys() <= {"var", "var/lib"}


def test_a_probe_that_is_not_fatal_fails_its_own_part_alone(host: SimulatedHost) -> None:
    apply = host.run("apply", [_probe("exit 12\n"), page()])
    assert apply.code == 1
    assert apply.statuses == {"host": "changed", "look": "failed", "page": "changed"}
    assert apply.error("look")["message"] == "the probe look says no reason"


def test_a_probe_that_fails_is_an_error_of_its_part_with_what_went_wrong(host: SimulatedHost) -> None:
    apply = host.run("apply", [_probe("echo looking around\n", fatal=True)])
    assert (apply.code, apply.stderr.count("Traceback")) == (5, 0)
    assert apply.error("look")["message"].startswith("the probe look failed: ValueError: ")


def test_a_site_that_keeps_etc_in_git_commits_no_secret(host: SimulatedHost) -> None:
    """etckeeper does so every night, and pushes where that is set up (hashbang/hashbang issue 10)."""
    host.secrets = {"page-password": "planted-secret"}
    host.apply([page(secrets=("page-password",))])
    for command in (("init", "--quiet"), ("add", "--all")):
        subprocess.run(["git", *command], cwd=host.at("/etc"), check=True)
    tracked = subprocess.run(["git", "ls-files"], cwd=host.at("/etc"), capture_output=True, text=True, check=True).stdout
    assert "gpu-fleet/gpu-fleet.env\n" in tracked and "secrets" not in tracked


def test_secrets_are_placed_for_their_owner_alone_and_appear_nowhere_else(host: SimulatedHost, tmp_path: Path) -> None:
    host.secrets = {"page-password": "planted-secret"}
    parts = [page(secrets=("page-password",))]
    said = [host.run("plan", parts), host.apply(parts), host.check()]
    secret = host.at("/etc/gpu-fleet/secrets/page-password")
    assert secret.read_text() == "planted-secret"
    assert oct(secret.stat().st_mode)[-3:] == "600"
    assert oct(host.at("/etc/gpu-fleet/gpu-fleet.env").stat().st_mode)[-3:] == "600"
    assert not any("planted-secret" in run.stdout + run.stderr for run in said)
    holders = [path for path in host.prefix.rglob("*") if path.is_file() and b"planted-secret" in path.read_bytes()]
    assert holders == [secret]
    assert oct(host.at("/var/lib/gpu-fleet/placed").stat().st_mode)[-3:] == "600", "it holds a sum of the secret"


def test_a_rotated_secret_is_replaced_and_reported_by_name(host: SimulatedHost) -> None:
    host.secrets = {"page-password": "old"}
    host.apply([page(secrets=("page-password",))])
    host.secrets = {"page-password": "new"}
    apply = host.apply([page(secrets=("page-password",))])
    assert apply.changes("host") == ["file /etc/gpu-fleet/secrets/page-password: content differs"]
    assert host.at("/etc/gpu-fleet/secrets/page-password").read_text() == "new"


def test_a_secret_that_is_not_set_is_an_empty_file(host: SimulatedHost) -> None:
    host.apply([page(secrets=("page-password",))])
    assert host.at("/etc/gpu-fleet/secrets/page-password").read_text() == ""


def test_an_apply_without_an_envelope_repairs_with_the_last_settings_and_secrets(host: SimulatedHost) -> None:
    host.settings["PAGE_COLOUR"] = "blue"
    host.secrets = {"page-password": "kept"}
    host.apply([page(secrets=("page-password",))])
    clean = host.snapshot()
    host.at("/etc/page/index.html").unlink()
    host.at("/etc/gpu-fleet/gpu-fleet.env").unlink()
    assert host.run("apply").code == 0
    assert host.snapshot() == clean
    assert host.check().code == 0


def test_directories_a_part_names_keep_their_mode(host: SimulatedHost) -> None:
    host.apply([page(directories=(Directory(path="/etc/page", mode=0o750, contents="placed"),))])
    assert oct(host.at("/etc/page").stat().st_mode)[-3:] == "750"
