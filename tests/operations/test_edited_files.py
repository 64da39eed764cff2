"""Files of the checkout that users edit, with an error in them: a command says where it is, and none ends with a traceback."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout

# File: what is replaced, by what, and what is said.
_ERRORS = {
    "a sum that is no sum": (
        "gpu_fleet/toolchain/versions.yaml",
        r"amd64: [0-9a-f]{64}",
        "amd64: 12",
        "it must be 64 hexadecimal",
    ),
    "a program without a key": (
        "gpu_fleet/toolchain/versions.yaml",
        r"(?m)^    checksums: .*\n",
        "",
        "programs.pulumi has no checksums",
    ),
    "versions that are no YAML": (
        "gpu_fleet/toolchain/versions.yaml",
        r"(?m)^programs:",
        "programs: [",
        "line 11: not valid YAML",
    ),
    "a severity of an XID": ("alerts/xid.csv", r"(?m)^(48,.*)critical", r"\1grave", "code 48: severity is 'grave'"),
    "a comma in a text": ("alerts/xid.csv", r"(?m)^(48,[^,]*,)", r"\1a,", "code 48: expected 8 fields"),
    "a row that ends early": ("alerts/sxid.csv", r"(?m)^(20034),.*", r"\1", "code 20034: expected 6 fields"),
    "an event's severity": ("alerts/amd_events.csv", r"(?m)^lost,critical", "lost,grave", "event lost: 'grave' is not"),
    "links in words": ("alerts/nvlink.csv", r"(?m)^NVIDIA H200,18", "NVIDIA H200,many", "model NVIDIA H200: invalid literal"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("edited")
    checkout.copy_to(directory)
    shutil.copy(directory / "examples/Pulumi.us-west-training.yaml", directory)
    shutil.copy(directory / "examples/Pulumi.observability.yaml", directory)
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"], ["commit", "--quiet", "--message=base"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", "-C", directory, *who, *command], check=True, capture_output=True)
    return directory


def ran(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=project, capture_output=True, text=True, check=False)


_REPORT = ("gpu_fleet.operations.pr_report", "--base", "main")
_COMMANDS = [(what, _REPORT) for what in _ERRORS] + [
    (what, ("alerts.generate",)) for what, of in _ERRORS.items() if "alerts" in of[0]
]


@pytest.mark.parametrize(("what", "command"), _COMMANDS)
def test_an_error_is_named_and_is_no_traceback(project: Path, what: str, command: tuple[str, ...]) -> None:
    name, old, new, said = _ERRORS[what]
    file = project / name
    text = file.read_text()
    changed = re.sub(old, new, text, count=1)
    assert changed != text
    try:
        file.write_text(changed)
        done = ran(project, *command)
    finally:
        file.write_text(text)
    shown = done.stdout + done.stderr
    assert done.returncode == 1 and name in shown and said in shown and "Traceback" not in shown, shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config:\n  a: [b\n", "Pulumi.us-west-training.yaml, line 3, column 1: not valid YAML"),
        ("- a\n", "Pulumi.us-west-training.yaml: expected a mapping"),
    ],
    ids=["no YAML", "a list"],
)
def test_a_stack_file_that_cannot_be_read_fails_its_stack_and_the_others_are_compared(
    project: Path, text: str, said: str
) -> None:
    stack, rule = project / "Pulumi.us-west-training.yaml", project / "alerts/runbooks/GpuMissing.md"
    kept = stack.read_text(), rule.read_text()
    try:
        stack.write_text(text)
        rule.write_text(f"{kept[1]}\nA sentence of this branch.\n")
        done = ran(project, *_REPORT)
    finally:
        stack.write_text(kept[0])
        rule.write_text(kept[1])
    assert done.returncode == 1 and said in done.stdout and "Traceback" not in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )
    assert "| `us-west-training` | **cannot be deployed**" in done.stdout and "| `observability` |" in done.stdout, done.stdout


_CONFLICT = "<<<<<<< HEAD\nours\n=======\ntheirs\n>>>>>>> branch\n"


def with_edits(project: Path, edits: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The report with these files changed; they are as before then."""
    kept = {name: (project / name).read_text() for name in edits}
    try:
        for name, text in edits.items():
            (project / name).write_text(text)
        return ran(project, *_REPORT)
    finally:
        for name, text in kept.items():
            (project / name).write_text(text)


def test_a_runbook_in_conflict_and_a_key_written_twice_are_errors_of_their_stacks(project: Path) -> None:
    runbook, stack = "alerts/runbooks/GpuMissing.md", "Pulumi.us-west-training.yaml"
    before, keys = (project / runbook).read_text(), (project / stack).read_text()
    done = with_edits(project, {runbook: before + _CONFLICT, stack: f"{keys}  gpu-fleet:cluster: twice\n"})
    shown = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in shown, shown
    assert f"{runbook}, line {len(before.splitlines()) + 1}: is a conflict of a merge; resolve it" in shown
    assert (
        f"{stack}, line {len(keys.splitlines()) + 1}, column 3: not valid YAML: the key gpu-fleet:cluster occurs twice" in shown
    )
    assert shown.count("**cannot be deployed**") == 2 and "ours" not in shown, "no change like any other"


def test_a_number_as_a_key_is_what_pulumi_refuses(project: Path) -> None:
    stack = "Pulumi.us-west-training.yaml"
    keys = (project / stack).read_text()
    done = with_edits(project, {stack: keys.replace("    old-amd-node:", "    17:")})
    shown = done.stdout + done.stderr
    assert done.returncode == 1 and 'not valid YAML: a key is a number; write "17"' in shown and "Traceback" not in shown, shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("print('a word of the program')", ""),
        ("import sys; sys.exit(3)", "the program ended itself, by exit(3)"),
        ("import os; os._exit(4)", "the program's process ended early, with status 4"),
        ("raise KeyError('k')", "KeyError: 'k'"),
    ],
)
def test_a_program_that_prints_or_ends_itself_does_not_break_the_report(project: Path, line: str, said: str) -> None:
    program, runbook = (project / name for name in ("__main__.py", "alerts/runbooks/GpuMissing.md"))
    edits = {"__main__.py": f"{program.read_text()}\n{line}\n"}
    edits["alerts/runbooks/GpuMissing.md"] = runbook.read_text() + "\nA sentence of this branch.\n"
    done = with_edits(project, edits)
    assert "Traceback" not in done.stderr and done.stdout.startswith("<!-- gpu-fleet pr-report -->"), done.stdout + done.stderr
    assert "a word of the program" not in done.stdout and said in done.stdout
    assert done.returncode == (1 if said else 0)
