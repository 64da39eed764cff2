"""The commands of the runbooks run as typed: programs, options, fields and units exist on the machine where they are typed."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import alerts
from lab.gpu.nvidia.field_list import known, own_name
from tests.checkout import REPO
from tests.documents import SHELL, blocks

RUNBOOKS = sorted((Path(alerts.__file__).parent / "runbooks").glob("*.md"))
ROOTFS = REPO / "gpu_fleet/host/rootfs"
OWN = {file.name for file in (ROOTFS / "opt/gpu-fleet/bin").iterdir()}
UNITS = {file.name for file in (ROOTFS / "etc/systemd/system").iterdir()}
# Programs and options: `elsewhere` on a workstation or a node of Slurm, `host` in the root shell of a host.
PROGRAMS = yaml.safe_load((Path(__file__).parent / "runbook_programs.yaml").read_text())
ROOT_SHELL = re.compile(r"ssh -t \w+ sudo -i$")
WRAPPERS = re.compile(r"^(?:time |timeout \d+ |ssh [A-Z]+ |sudo |pdsh -w HOSTS |kubectl debug .* -- chroot /host (?=\S))+")

each_runbook = pytest.mark.parametrize("file", RUNBOOKS, ids=lambda file: file.stem)


def shell_lines(file: Path) -> Iterator[tuple[str, str]]:
    """The lines of the blocks of shell without comments, each with the section of PROGRAMS that has what can be typed there."""
    where, mitigation = "elsewhere", file.read_text().splitlines().index("## Mitigation")
    for block in blocks(file):
        for line in block.text.splitlines() if block.language in SHELL else ():
            text = re.sub(r"(^|\s+)#\s.*$", "", line)
            if text:
                yield text, "anywhere" if block.line > mitigation else where
            if ROOT_SHELL.match(text):
                where = "host"


def programs(line: str) -> Iterator[tuple[str, list[str], bool]]:
    """Of each command of the line: the program, its options, and whether it runs on a host although it is typed elsewhere."""
    lexer = shlex.shlex(re.sub(r'"?\$\((.*?)\)"?', r"; \1 ;", line), posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if re.fullmatch(r"[;|&<>]+", word):
            text = " ".join(command)
            program, *arguments = WRAPPERS.sub("", text).split(" ")
            if program:
                options = [each for each in arguments if re.match(r"-+[A-Za-z]", each)]
                yield program, options, text.startswith(("ssh ", "kubectl debug"))
            command = ["cat"] if word in ("<", ">", ">>") else []
        else:
            command.append(word)


@each_runbook
def test_the_shell_reads_every_block(file: Path) -> None:
    for block in blocks(file):
        if block.language in SHELL:
            read = subprocess.run(["sh", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert read.returncode == 0, f"{block.place}: {read.stderr}"


@each_runbook
def test_programs_and_options_exist_where_they_are_typed(file: Path) -> None:
    for line, where in shell_lines(file):
        for program, options, on_host in programs(line):
            if program == "ssh" or program.startswith("/opt/gpu-fleet/bin/"):
                continue
            there = ("elsewhere", "host") if where == "anywhere" else ("host",) if on_host else (where,)
            known = {program: options for place in ("both", *there) for program, options in PROGRAMS[place].items()}
            assert program in known, f"{line}\n{program} cannot be typed there; see tests/alerts/runbook_programs.yaml"
            unknown = [each for each in options if each.partition("=")[0] not in known[program].split()]
            assert not unknown, f"{line}\n{program} has no {unknown}; see tests/alerts/runbook_programs.yaml"


@each_runbook
def test_programs_and_units_of_ours_exist_and_are_named_by_their_path(file: Path) -> None:
    text = file.read_text()
    for path, name in re.findall(r"(/opt/gpu-fleet/bin/)?(?<![\w.~-])(gpu-fleet-[a-z*-]*[a-z*])(?![\w:/*])", text):
        units = [unit for unit in UNITS if fnmatch(unit.rpartition(".")[0], name)]
        assert name in OWN if path else units or name in OWN or name == "gpu-fleet-signing", f"there is no {path}{name}"
    acts = text.partition("## Diagnosis")[2]
    typed = re.findall(rf"(?m)(?:^|`|sudo )((?:{'|'.join(OWN)})(?: [a-z-]+| *#|`|$))", acts)
    assert not [each for each in typed if not each.endswith("`") or " " in each], "no PATH has /opt/gpu-fleet/bin"


@each_runbook
def test_nvidia_smi_of_every_driver_has_the_fields(file: Path) -> None:
    """One unknown field, and it prints none: drivers before R565 have no `gpu_recovery_action`."""
    asked = {field for fields in re.findall(r"--query-gpu=([\w.,]+)", file.read_text()) for field in fields.split(",")}
    oldest = 560 if file.stem == "GpuFabricDomainDiffers" else 450  # what it compares is in no older driver
    assert {field for field in asked if own_name(field, oldest) not in known(oldest)} == set()


@each_runbook
def test_what_resets_or_reboots_drains_first_and_pages_nobody(file: Path) -> None:
    text = file.read_text().partition("## Mitigation")[2]
    if re.search(r"gpu-?reset|nvidia-smi -r|reset_gpu|reset the GPU|reboot (it|the|once)", text):
        for command in ("scontrol update", "kubectl (drain|cordon)", "gpu-fleet-maintenance start"):
            assert re.search(command, text), command


def test_the_action_of_an_alert_names_programs_by_their_path_and_reboots_no_host_with_jobs() -> None:
    rules = (rule for backend in ("mimir", "loki", "grafana") for group in alerts.rule_groups(backend) for rule in group.rules)
    actions = {rule["annotations"]["action"]: rule["alert"] for rule in rules if "alert" in rule}
    bare = re.compile(rf"(?<!/opt/gpu-fleet/bin/)\b({'|'.join(OWN)})\b(?= (start|stop|on the host)\b)")
    assert [alert for action, alert in actions.items() if bare.search(action)] == []
    safe = re.compile(r"(?i)drain|jobs")
    assert [alert for action, alert in actions.items() if re.search("(?i)reboot", action) and not safe.search(action)] == []


def test_the_runbook_of_scrape_limits_names_every_scrape() -> None:
    files = [*(ROOTFS / "etc/gpu-fleet/alloy").glob("*.alloy"), *(REPO / "components/kubernetes/alloy").glob("*.alloy")]
    scrapes = {name for file in files for name in re.findall(r'(?m)^prometheus\.scrape "(\w+)"', file.read_text())}
    meaning = next(file for file in RUNBOOKS if file.stem == "ScrapeLimitExceeded").read_text().partition("## Impact")[0]
    assert set(re.findall(r"`(?:prometheus\.scrape)?\.(\w+)`", meaning)) == scrapes
