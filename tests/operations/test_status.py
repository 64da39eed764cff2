"""The table of `make status`, from facts, metrics and the stack file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import markdown
import pytest

from gpu_fleet.operations import drift_report
from gpu_fleet.operations.arrivals import Arrivals
from gpu_fleet.operations.pr_report.report import Change
from gpu_fleet.operations.pr_report.report import markdown as pr_report
from gpu_fleet.operations.status import Reported, of_nodes, rows, summary
from gpu_fleet.operations.table import table
from gpu_fleet.provider.resources.cluster import Node
from gpu_fleet.safetext.markdown import code, plain, strong
from gpu_fleet.stackfile.config import StackConfig
from tests.checkout import REPO

FACTS = {
    "GPU_MODELS": "8 x NVIDIA H100",
    "GPU_DRIVER_VERSION": "570.86.15",
    "GPU_FLEET_EXPORTER_MODE": "dcgm-exporter",
    "GPU_FLEET_EXPORTER_REASON": "bare metal with Docker",
    "GPU_FLEET_KERNEL_LOG_SOURCE": "journal",
}
HOSTS = {
    "gpu-1": {"address": "10.0.0.1"},
    "gpu-2": {"address": "10.0.0.2"},
    "gpu-3": {"address": "10.0.0.3", "lost": True},
    "gpu-4": {"connection": "pull"},
}
NOW = 1_000_000.0


@pytest.fixture
def config(tmp_path: Path) -> StackConfig:
    stack = {
        "datacenter": "a",
        "cluster": "b",
        "ssh": {"user": "ops", "hostKeyChecking": False},
        "hosts": HOSTS,
        "metrics": {"url": "https://mimir.example.com/api/v1/push"},
        "pull": {"url": "https://files.example.com"},
    }
    (tmp_path / "known_hosts").write_text("* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIQxFWwYJANiWHym8EMAPUqXubTvA7iWa23eYAyaC3/h\n")
    stack["ssh"] = {"user": "ops", "knownHostsFile": "known_hosts"}
    return StackConfig.load(stack, tmp_path)


def test_a_host_that_reports_and_one_that_stopped_and_one_that_was_never_deployed(config: StackConfig) -> None:
    reported = Reported(
        seen={"gpu-1": NOW - 12, "gpu-4": NOW - 3 * 3600}, drift={"gpu-1": 2}, firing={"gpu-1": ("GpuXid79 (critical)",)}
    )
    found = rows(config, {"gpu-1": FACTS}, reported, NOW)
    assert found == [
        (
            *("gpu-1", "deployed", "8 x NVIDIA H100", "570.86.15", "dcgm-exporter", "12 s ago", "2"),
            "GpuXid79 (critical)\nexporter: bare metal with Docker",
        ),
        ("gpu-2", "not yet", "-", "-", "-", "not in 1d", "-", ""),
        ("gpu-3", "lost", "-", "-", "-", "not in 1d", "-", ""),
        ("gpu-4", "pull", "-", "-", "-", "3 h ago (late)", "?", "?"),
    ]
    assert summary(config, found, reported) == (
        "4 hosts, 1 deployed, 3 without current data, 1 with firing alerts, 1 with drift."
    )


@pytest.mark.parametrize("source", [{}, {"GPU_FLEET_KERNEL_LOG_SOURCE": "none"}])
def test_a_container_without_a_kernel_log_is_noted_because_its_xids_are_not_seen(config: StackConfig, source: dict) -> None:
    facts = {**{key: value for key, value in FACTS.items() if key != "GPU_FLEET_KERNEL_LOG_SOURCE"}, **source}
    [row, *_] = rows(config, {"gpu-1": facts}, None, NOW)
    assert row[7].splitlines() == [
        "?",
        "exporter: bare metal with Docker",
        "no kernel log here: XIDs are not seen; kernelLog names a file",
    ]


def test_nodes_of_a_cluster_of_which_something_does_not_arrive_are_named(tmp_path: Path) -> None:
    stack = {"datacenter": "a", "cluster": "b", "kubernetes": {}, "metrics": {"url": "https://mimir.example.com/api/v1/push"}}
    config = StackConfig.load(stack, tmp_path)
    nodes = {f"gpu-{number:02}": Node(name=f"gpu-{number:02}", gpus=8, labels={}) for number in range(20)}
    well = Arrivals(newest=dict.fromkeys(nodes, NOW), readings=frozenset(nodes), system=frozenset(nodes))
    assert of_nodes(config, well, nodes, NOW) == "Kubernetes: samples of 20 of 20 nodes arrive in full."
    some = Arrivals(newest=well.newest, readings=frozenset(list(nodes)[12:]), system=well.system)
    lines = of_nodes(config, some, nodes, NOW).splitlines()
    assert lines[0] == "Kubernetes: samples of 8 of 20 nodes arrive in full:"
    assert lines[1] == "  gpu-00: no GPU readings: the exporter answers without them, or nothing scrapes it"
    assert lines[-1] == "  and 2 more"


def test_without_the_metrics_store_nothing_is_called_healthy(config: StackConfig) -> None:
    for row in rows(config, {"gpu-1": FACTS}, None, NOW):
        assert row[5:7] == ("?", "?")


def test_the_drift_report_names_each_stack_and_shows_the_tables_of_those_that_differ() -> None:
    results = {"a": (0, "fine", ""), "b": (1, "HOST  STATE\ngpu-1  drift 1", ""), "c": (1, "", "pulumi is not logged in")}
    text = drift_report.markdown(results)
    assert "| `a` | as deployed |" in text and "| `b` | **differs** |" in text and "| `c` | **could not be checked** |" in text
    assert "gpu-1  drift 1" in text and "pulumi is not logged in" in text and "fine" not in text


# --- text from outside ------------------------------------------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\u202e<{%x%}> ``` <img src=x> @all [x](y) ![x](y) | `a` ::error::x"


def test_what_the_metrics_store_says_is_text_in_a_table() -> None:
    lines = table(("HOST", "ALERTS"), [(f"{HOSTILE}\n{HOSTILE}", f"{HOSTILE}\n{'x' * (1 << 20)}")]).splitlines()
    assert len(lines) == 3, "a cell adds no line, and the last one its own"
    assert all(line.isprintable() and len(line) < 5000 for line in lines)


def test_whatever_a_command_prints_is_text_on_the_terminal_and_in_the_log_of_a_job() -> None:
    program = """
import sys
from gpu_fleet.operations.output import run
def main(arguments):
    print(arguments[0], "\\ud800")
    print("::set-output name=a::b\\n##vso[task.x]y", file=sys.stderr)
    raise ValueError(arguments[0])
run(main)
"""
    done = subprocess.run([sys.executable, "-c", program, HOSTILE], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for shown in (done.stdout, done.stderr):
        assert r"\x1b]0;owned\x07\u202e<\{%x%}>" in shown
        assert all(line.isprintable() for line in shown.splitlines())
    assert r"\ud800" in done.stdout
    assert done.stderr.startswith("\\::set-output name=a::b\n#\\#vso[task.x]y")


def test_nothing_in_a_report_is_a_link_an_element_or_a_quick_action() -> None:
    text = f"{HOSTILE}\n```\n/close\n~~~\n# {HOSTILE}\n````\n/assign @all\n    ```\n{HOSTILE}"
    names = f"- {code(HOSTILE)}, {plain(HOSTILE)} and {strong(HOSTILE)}"
    change = Change(stack=HOSTILE, said={"Hosts": (names,)})
    for report in (
        drift_report.markdown({HOSTILE: (1, text, text)}),
        pr_report([change], base=HOSTILE, compared=1, previews={"a": text}),
    ):
        between, inside, after = re.split(r"^```$", report, flags=re.MULTILINE)
        assert "\n/close\n" in inside
        assert not re.search(r"^ *(/|```|~~~)", between + after, re.MULTILINE), "GitLab takes quick actions from there"
        assert all(line.isprintable() for line in report.splitlines())
        page = markdown.markdown(report, extensions=["fenced_code", "tables"])
        outside = re.sub(r"<code>.*?</code>", "", page, flags=re.DOTALL)
        assert not re.search(r"<img|<a |@all", outside), outside
