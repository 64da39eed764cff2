"""`make pr-report` on a branch that touches a host, a threshold, a panel, a chart value and a part at once, and on one that
touches nothing. The program of each commit is run as it is; git is real."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_fleet.operations import own_directory
from gpu_fleet.operations.pr_report import rules, sections
from gpu_fleet.operations.pr_report.pictures import Picture, Resource
from gpu_fleet.operations.pr_report.report import changed, markdown
from tests import checkout
from tests.signals.custom import examples

SECRET = "{secure: 'v1:c2VjcmV0:bm9ib2R5IGNhbiBkZWNyeXB0IHRoaXM='}"
OVERRIDES = """\
    labels: {team: gpu}
    rules:
      HostMemoryLow: {threshold: 0.1, for: 20m}
      GpuRowRemapPending: {severity: info, labels: {rota: day}}
      GpuMissing: {enabled: false}
"""
TARGET = """\
  gpu-fleet:scrapeTargets:
    vllm: {url: "http://127.0.0.1:8000", hosts: ["gpu-node-[001:008]"], keep: ["vllm:*"]}
"""
STACKS = {"us-west-training": "examples", "observability": "examples", "eu-west-serving": "examples/kubernetes"}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {file}"
    file.write_text(text.replace(old, new, 1))


def git(directory: Path, *arguments: str) -> None:
    command = ["git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fork with three stacks, all committed on main."""
    directory = tmp_path_factory.mktemp("fork")
    checkout.copy_to(directory)
    for stack, place in STACKS.items():
        (directory / f"Pulumi.{stack}.yaml").write_text((directory / place / f"Pulumi.{stack}.yaml").read_text())
    with (directory / "Pulumi.observability.yaml").open("a") as file:
        file.write(f"  gpu-fleet:grafanaAuth: {SECRET}\n")
    edit(directory / "Pulumi.us-west-training.yaml", "  gpu-fleet:cluster: training\n", "")
    with (directory / "Pulumi.yaml").open("a") as file:
        file.write("config:\n  gpu-fleet:cluster: {value: training}\n")
    git(directory, "init", "--quiet", "--initial-branch=main")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message=base")
    return directory


def report(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_fleet.operations.pr_report", "--base", "main", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def of_branch(project: Path) -> str:
    edits: list[tuple[str, str, str]] = [
        ("Pulumi.us-west-training.yaml", "nested-gpu-node: {address: 192.168.1.10", "nested-gpu-007: {address: 192.168.1.10"),
        ("Pulumi.us-west-training.yaml", "[gpu-node-001, nested-gpu-node]", "[gpu-node-001, nested-gpu-007]"),
        ("Pulumi.us-west-training.yaml", 'gpu-node-[001:016]: {address: "10.0.1.[1:16]", gpus: 8}', ""),
        ("Pulumi.observability.yaml", "matchers: [severity=critical]", 'matchers: [severity=~"critical|warning"]'),
        ("Pulumi.observability.yaml", "loki: {url: https:", "loki: {url: http:"),
        ("Pulumi.observability.yaml", "config:\n", "environment: [gpu-fleet/prod]\nconfig:\n  gpu-fleet:custom: custom\n"),
        ("Pulumi.observability.yaml", "    targets: [ruler]\n", f"    targets: [ruler]\n{OVERRIDES}"),
        ("Pulumi.us-west-training.yaml", "  gpu-fleet:rollout:", f"{TARGET}  gpu-fleet:rollout:"),
        ("Pulumi.eu-west-serving.yaml", "podLogs: [inference, training]", "podLogs: [inference]"),
        (
            "alerts/rules/gpu.yaml",
            "gpu:temperature_limit:celsius\n          ) >= 85",
            "gpu:temperature_limit:celsius\n          ) >= 88",
        ),
        ("dashboards/gpu.py", '"GPU temperature"', '"GPU core temperature"'),
        ("gpu_fleet/host/rootfs/opt/gpu-fleet/libexec/find-python", "#!/bin/sh\n", "#!/bin/sh\n# a comment of this branch\n"),
    ]
    wider = '    gpu-node-[001:017]: {address: "10.0.1.[1:17]", gpus: 8}\n    old-amd-node'
    try:
        for name, old, new in edits:
            edit(project / name, old, new)
        edit(project / "Pulumi.us-west-training.yaml", "    old-amd-node", wider)
        examples(project)
        known_hosts = project / "examples/inventory/known_hosts"
        key = known_hosts.read_text().splitlines()[-1].partition(" ")[2]
        with known_hosts.open("a") as file:
            file.write(f"10.0.1.17 {key}\n")
        done = report(project, "--to", "build/pr-report.md")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (project / "build/pr-report.md").read_text() == done.stdout
        return done.stdout
    finally:
        git(project, "checkout", "--quiet", "--", ".")
        shutil.rmtree(project / "custom", ignore_errors=True)


@pytest.mark.parametrize(
    "line",
    [
        "- **HostMemoryLow**: 0.05 → 0.1; for 10 min → 20 min",
        "- **GpuRowRemapPending**: rota unset → day; severity warning → info",
        "- **GpuMissing** removed (warning alert for 10m)",
        "- **ModelServerDown** added (critical alert for 3m): `min by",
        "- **Models** (`our-models`) added, 1 panels and rows",
        "- `vllm` at http://127.0.0.1:8000 is scraped every 30s on `gpu-node-[001:008]`, only `vllm:*`",
        "- `nested-gpu-node` is renamed to `nested-gpu-007` (192.168.1.10): an update, nothing is reinstalled",
        "- `gpu-node-017` added (10.0.1.17, 8 GPUs)",
        "- **GpuTemperatureHigh**: 85 → 88 °C for 10 min",
        '- `alerts.routes.0.matchers.0`: `severity=critical` → `severity=~"critical|warning"`',
        "  +# a comment of this branch",
        "GPU core temperature",
        "### Checks that fail: `observability`",
        "  - expected: an https:// URL",
        'so values that come from them were not compared: `["gpu-fleet/prod"]`',
        "### Charts: `eu-west-serving`",
        "### Files on hosts: `us-west-training`",
        "### Dashboards: `observability`",
    ],
)
def test_a_branch_is_reported_in_words_at_the_stacks_that_it_changes(of_branch: str, line: str) -> None:
    assert line in of_branch


def test_what_follows_from_something_else_is_not_said_again(of_branch: str) -> None:
    assert of_branch.count("GpuTemperatureHigh") == 1, "the rulers and Grafana get the same rule"
    assert of_branch.count("team unset → gpu") == 1 and "other rules: team unset → gpu" in of_branch
    assert "scrape_targets" not in of_branch, "keys have their names of the stack file"
    assert of_branch.count("# a comment of this branch") == 1, "every host of a stack gets the same bundle"
    assert "inventory:" not in of_branch and not re.search("[0-9a-f]{64}", of_branch), (
        "sums and the inventory change with what is said"
    )


def test_series_are_compared(of_branch: str) -> None:
    [row] = [line for line in of_branch.splitlines() if line.startswith("| `us-west-training`")]
    before, after = (int(text.replace(",", "")) for text in row.rpartition("| ")[2].split(" (")[0].split("|")[0].split(" → "))
    assert after > before, row


def test_stack_files_in_a_directory_of_their_own_are_compared_by_its_commits(tmp_path: Path) -> None:
    list(own_directory.prepare(tmp_path / "stacks"))
    file = tmp_path / "stacks/Pulumi.eu-west-serving.yaml"
    file.write_text((checkout.REPO / "examples/kubernetes/Pulumi.eu-west-serving.yaml").read_text())
    git(file.parent, "init", "--quiet", "--initial-branch=main")
    git(file.parent, "add", "--all")
    git(file.parent, "commit", "--quiet", "--message=base")
    edit(file, "[inference, training]", "[inference]")
    command = [sys.executable, "-m", "gpu_fleet.operations.pr_report", "--base", "main"]
    variables = {**os.environ, "GPU_FLEET_STACKS": str(file.parent)}
    done = subprocess.run(command, cwd=checkout.REPO, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 stack would change" in done.stdout and "`inference,training` → `inference`" in done.stdout


def test_a_stack_that_cannot_be_deployed_fails_the_report_and_those_to_deploy_are_named_but_none_that_stays_the_same(
    project: Path,
) -> None:
    with (project / "README.md").open("a") as readme:
        readme.write("\nA word.\n")
    edit(project / "Pulumi.us-west-training.yaml", "exporter: textfile", "exporterr: textfile")
    edit(project / "Pulumi.eu-west-serving.yaml", "[inference, training]", "[inference]")
    done = report(project, "--stacks", "build/stacks.json")
    git(project, "checkout", "--quiet", "--", ".")
    assert done.returncode == 1, done.stderr
    assert "**The stack cannot be deployed**" in done.stdout and "did you mean 'exporter'?" in done.stdout
    assert "removed" not in done.stdout, "what was not reached is not removed"
    assert json.loads((project / "build/stacks.json").read_text()) == ["eu-west-serving", "us-west-training"]
    assert "2 of 3 stacks would change" in done.stdout and "`observability`" not in done.stdout


def test_a_rotated_secret_and_a_key_that_no_section_describes_make_a_stack_one_to_deploy(project: Path) -> None:
    edit(project / "Pulumi.observability.yaml", "v1:c2VjcmV0:", "v1:cm90YXRl:")
    edit(project / "Pulumi.us-west-training.yaml", "batch: 25%", "batch: 35%")
    done = report(project, "--stacks", "build/stacks.json")
    git(project, "checkout", "--quiet", "--", ".")
    assert json.loads((project / "build/stacks.json").read_text()) == ["observability", "us-west-training"]
    assert "- `grafanaAuth` set to a new value" in done.stdout and "v1:" not in done.stdout
    assert "- `rollout.batch`: `25%` → `35%`" in done.stdout


def test_what_a_later_commit_changed_and_this_one_takes_back_is_to_be_deployed(project: Path) -> None:
    edit(project / "Pulumi.eu-west-serving.yaml", "[inference, training]", "[inference]")
    git(project, "commit", "--quiet", "--all", "--message=partly deployed")
    git(project, "reset", "--quiet", "--hard", "HEAD^")
    done = report(project, "--stacks", "build/stacks.json", "--also", "HEAD@{1}")
    assert "Nothing, in any of 3 stacks" in done.stdout
    assert json.loads((project / "build/stacks.json").read_text()) == ["eu-west-serving"]


def test_after_many_runs_that_failed_every_stack_is_one_to_deploy(project: Path) -> None:
    for number in range(6):
        git(project, "commit", "--quiet", "--allow-empty", f"--message=not deployed as a whole {number}")
    report(project, "--stacks", "build/stacks.json", "--also", *(f"HEAD~{number}" for number in range(6)))
    assert json.loads((project / "build/stacks.json").read_text()) == sorted(STACKS)


def test_compared_with_the_empty_tree_every_stack_is_one_to_deploy(project: Path) -> None:
    empty = subprocess.run(["git", "hash-object", "-t", "tree", os.devnull], capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "gpu_fleet.operations.pr_report", "--base", empty.strip(), "--stacks", "build/stacks.json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((project / "build/stacks.json").read_text()) == sorted(STACKS)
    assert len(done.stdout.partition("### Files of the checkout")[0].splitlines()) < 60, (
        "what is new is named, not printed: a stack had 1,208 lines"
    )
    named = (
        "- 16 hosts (`gpu-node-001`, ",
        "- Dashboards (13): `GPU fleet / ",
        "- Groups of rules (",
        "- Files for hosts (",
        "- Secrets (1): `grafanaAuth`",
    )
    assert not [what for what in named if what not in done.stdout], done.stdout
    assert "```" not in done.stdout


def test_a_stack_whose_file_is_gone_is_named_with_what_it_leaves_behind() -> None:
    [change] = changed({"s": picture(host("gpu-1", "10.0.0.1"))}, {})
    text = markdown([change], base="main", compared=1)
    assert "| `s` | stack file removed, " in text and "`make destroy STACK=s`" in text
    assert "- `gpu-1` removed" in text and "- Resources (1): 1 `gpu-fleet:host:Host`" in text


def test_a_base_that_the_clone_does_not_have_is_one_sentence(project: Path) -> None:
    command = [sys.executable, "-m", "gpu_fleet.operations.pr_report", "--base", "nowhere"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("the base commit cannot be read: "), done.stderr
    assert "BASE=origin/main" in done.stderr and "Traceback" not in done.stderr


def rule(name: str = "Hot", expr: str = "gpu:temperature:celsius > 85", **others: object) -> dict[str, object]:
    return {"alert": name, "expr": expr, "for": "10m", "labels": {"severity": "warning"}, "annotations": {}, **others}


def said(old: list[dict[str, object]], new: list[dict[str, object]]) -> list[str]:
    return list(rules.changes(map(rules.rule_of_file, old), map(rules.rule_of_file, new)))


def test_rules_in_words() -> None:
    cases: list[tuple[list[dict[str, object]], list[dict[str, object]], list[str]]] = [
        ([rule()], [rule(expr="gpu:temperature:celsius > 88")], ["- **Hot**: 85 → 88 °C for 10 min"]),
        ([rule()], [rule(**{"for": "1h"})], ["- **Hot**: for 10 min → 1 h"]),
        ([rule()], [rule(labels={"severity": "critical"})], ["- **Hot**: severity warning → critical"]),
        ([rule(expr="rate(a[5m]) > 1")], [rule(expr="rate(a[15m]) > 1")], ["- **Hot**: over 5m → 15m for 10 min"]),
        ([rule(expr="a > 1")], [rule(expr="b > 1")], ["- **Hot**: expression `a > 1` → `b > 1`"]),
        ([], [rule(expr="a > 1")], ["- **Hot** added (warning alert for 10m): `a > 1`"]),
        ([rule()], [], ["- **Hot** removed (warning alert for 10m)"]),
        ([rule("A"), rule("B")], [rule("B"), rule("A")], []),
        (
            [rule(expr="a > 1", labels={"severity": "info"}), rule(expr="a > 2")],
            [rule(expr="a > 1", labels={"severity": "info"}), rule(expr="a > 3")],
            ["- **Hot** (severity=warning): 2 → 3 for 10 min"],
        ),
    ]
    for old, new, lines in cases:
        assert said(old, new) == lines


def host(name: str, address: str, **settings: str) -> Resource:
    connection = {"kind": "ssh", "address": address}
    return Resource(type="gpu-fleet:host:Host", name=name, inputs={"host": name, "connection": connection, "settings": settings})


def picture(*resources: Resource) -> Picture:
    return Picture(resources=resources, outputs={}, config={})


def test_a_branch_that_deploys_the_same_lists_no_stack() -> None:
    same = changed({"s": picture(host("gpu-1", "10.0.0.1"))}, {"s": picture(host("gpu-1", "10.0.0.1"))})
    assert same == [] and "Nothing, in any of 3 stacks" in markdown(same, base="main", compared=3)


def test_hosts_that_change_alike_are_one_line() -> None:
    old = picture(*(host(f"gpu-{number}", f"10.0.0.{number}") for number in range(1, 31)))
    new = picture(*(host(f"gpu-{number}", f"10.0.0.{number}", GPU_FLEET_EXPORTER="textfile") for number in range(1, 31)))
    [change] = changed({"s": old}, {"s": new})
    [line] = change.said["Hosts"]
    assert line.startswith("- 30 hosts (`gpu-1`, ") and line.endswith("and 18 more): `exporter` unset → `textfile`")


def test_a_violation_that_the_branch_adds_is_shown_once_and_fails_the_report_and_one_of_the_base_does_not() -> None:
    simulated = [host(f"gpu-{number}", f"10.0.0.{number}", GPU_FLEET_TOOL_PATH="/srv/.dev/gpus/bin") for number in (1, 2)]
    known = Resource(type="pulumi:providers:gpu-fleet", name="p", inputs={"ssh": '{"knownHostsFile": "known_hosts"}'})
    [change] = changed({"s": picture(known)}, {"s": picture(known, *simulated)})
    [line] = change.said["Checks that fail"]
    assert line.startswith("- **no-stand-ins**: `gpu-fleet:host:Host gpu-1` and 1 more: ") and change.breaks_policy
    assert "| `s` | **violates a policy**, " in markdown([change], base="main", compared=1)
    [change] = changed({"s": picture(known, *simulated)}, {"s": picture(known, simulated[0])})
    assert "Checks that fail" not in change.said and not change.breaks_policy


def test_a_stack_whose_values_come_from_an_environment_of_pulumi_esc_does_not_fail_the_report() -> None:
    without = Picture(outputs={}, config={}, error="gpu-fleet:cluster: is missing", environments='["gpu-fleet/prod"]')
    [change] = changed({"s": picture()}, {"s": without})
    [sentence, error] = change.said["Errors and warnings"]
    assert "so the stack was not compared" in sentence and "gpu-fleet:cluster: is missing" in error and not change.fails


def test_a_comment_stays_below_the_limit_and_says_what_is_left_out() -> None:
    many = picture(*(host(f"gpu-{number}", "", **{"GPU_FLEET_N": str(number)}) for number in range(2000)))
    changes = changed({"s": picture()}, {"s": many})
    whole, cut = (markdown(changes, base="main", compared=1, limit=limit) for limit in (None, 3000))
    assert len(cut) <= 3000 < len(whole) + 3000
    files = picture(Resource(type="gpu-fleet:host:Bundle", name="b", inputs={"files": {"a": "1\n" * 9000}}))
    other = picture(Resource(type="gpu-fleet:host:Bundle", name="b", inputs={"files": {"a": "2\n" * 9000}}))
    cut = markdown(changed({"s": files}, {"s": other}), base="main", compared=1, limit=3000)
    assert len(cut) <= 3000 and "do not fit into a comment" in cut and cut.count("```") % 2 == 0


def test_a_dashboard_that_a_cluster_holds_for_grafana_s_sidecar_is_reported_like_one_that_grafana_stores() -> None:
    def stored(title: str) -> Picture:
        model = {"uid": "ours", "title": "Ours", "panels": [{"id": 1, "title": title, "type": "stat"}]}
        metadata = {"name": "ours-dashboard", "labels": {"grafana_dashboard": "1"}}
        inputs = {"metadata": metadata, "data": {"ours.json": json.dumps(model)}}
        resource = Resource(type="kubernetes:core/v1:ConfigMap", name="ours-dashboard", inputs=inputs)
        return Picture(resources=(resource,), outputs={}, config={})

    assert list(sections.dashboards(stored("Heat"), stored("Temperature"))) == [
        '- **Ours** (`ours`)\n  - panel "Heat": renamed to "Temperature"'
    ]
    [change] = changed({"s": stored("Heat")}, {"s": stored("Temperature")})
    assert list(change.said) == ["Dashboards"], "said once"
