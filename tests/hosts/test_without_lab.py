"""The product in a copy without lab/, bench/ and tests/, with the packages of requirements.txt alone, as its user types it: from
`make setup` to a real host that is up and checked."""

from __future__ import annotations

import email.parser
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import yaml

from gpu_fleet import toolchain
from gpu_fleet.stackfile.stand_ins import LAB_STACKS
from gpu_fleet.toolchain.programs import PROGRAMS
from lab.hosts import Site
from lab.standins import programs
from tests.checkout import REPO, copy_file
from tests.test_requirements import locked, normal

LEFT_OUT = ("lab", "bench", "tests")
STACK = "us-west-training"


def make_environment(directory: Path) -> None:
    """A virtual environment that has the packages of requirements.txt alone: links to those of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    ours = Path(sysconfig.get_path("purelib"))
    theirs = directory / ours.relative_to(sys.prefix)
    wanted, files = locked(), {}
    for about in ours.glob("*.dist-info"):
        name = email.parser.Parser().parsestr((about / "METADATA").read_text())["Name"]
        if normal(name) in wanted:
            files[name] = [line.split(",")[0] for line in (about / "RECORD").read_text().splitlines()]
    owners = Counter(top for name in files for top in {file.partition("/")[0] for file in files[name]})
    for name in files:
        for file in files[name]:
            if file.startswith(("..", "/")):
                continue
            top = file.partition("/")[0]
            # A package of several distributions, such as `google`, is linked file by file: one of them may not be for run time.
            link = theirs / (top if owners[top] == 1 else file)
            if not link.exists() and (ours / file).exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(ours / link.relative_to(theirs))
    (directory / "installed").touch()


def give_programs(home: Path, path: Path) -> None:
    """What this machine cannot download, where a person puts programs of his own: the PATH, and Pulumi's directory of plugins."""
    for name in ("pulumi", "pulumi-language-python"):
        write_program(path / name, programs.find(name))
    for name in ("pulumi-resource-command", "pulumi-resource-kubernetes", "pulumi-resource-grafana"):
        write_program(home / ".pulumi/plugins" / PROGRAMS[name].plugin / name, programs.find(name))
    write_program(path / "helm", toolchain.find("helm"))


def write_program(path: Path, becomes: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{becomes}" "$@"\n')
    path.chmod(0o755)


class User:
    """Somebody with the copy, and make."""

    def __init__(self, directory: Path) -> None:
        self.copy, home = directory / "checkout", directory / "home"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True).stdout
        for name in listed.rstrip("\0").split("\0"):
            if not name.startswith(tuple(f"{room}/" for room in LEFT_OUT)) and (REPO / name).is_file():
                copy_file(name, self.copy)
        make_environment(self.copy / ".venv")
        give_programs(home, directory / "bin")
        (directory / "state").mkdir()
        self.environment: Mapping[str, str] = {
            "PATH": f"{directory / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(directory / "cache"),
            "https_proxy": "http://127.0.0.1:1",  # nothing may be needed from anywhere
            "no_proxy": "127.0.0.1,localhost",
            "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
            LAB_STACKS: STACK,  # the language host and the artifacts may be stand-ins: this stack is one of the tests
        }

    def types(self, *command: str, status: int = 0, **more: str) -> str:
        done = subprocess.run(
            command, cwd=self.copy, env={**self.environment, **more}, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == status, f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def test_every_command_for_real_stacks_works_without_lab_bench_and_tests(
    site: Site, whole_artifacts: Path, tmp_path: Path
) -> None:
    user, host = User(tmp_path), site.hosts["metal"]
    assert not any((user.copy / room).exists() for room in LEFT_OUT)
    python = str(user.copy / ".venv/bin/python")
    import_each = "import sys, importlib.util as u; print([name for name in sys.argv[1:] if u.find_spec(name)])"
    assert user.types(python, "-c", import_each, "pytest", "supervisor", "yaml") == "['yaml']\n"

    user.types("make", "setup")
    user.types("make", "new-stack", "DATACENTER=us-west", "CLUSTER=training")
    file = user.copy / f"Pulumi.{STACK}.yaml"
    content = yaml.safe_load(file.read_text())
    config = content["config"] | {
        "gpu-fleet:ssh": {"user": "ops", "privateKeyFile": str(site.key_file), "knownHostsFile": "inventory/known_hosts"},
        "gpu-fleet:hosts": {"metal": site.stack_hosts()["metal"]},
        "gpu-fleet:artifacts": {"source": "controller", "directory": str(whole_artifacts)},
        "gpu-fleet:metrics": {"url": "http://127.0.0.1:1/api/v1/push"},
    }
    wanted = ("datacenter", "cluster", "ssh", "hosts", "artifacts", "metrics")
    content["config"] = {f"gpu-fleet:{key}": config[f"gpu-fleet:{key}"] for key in wanted}
    file.write_text(yaml.safe_dump(content))

    assert "1 new" in user.types("make", "known-hosts", f"STACK={STACK}")
    shutil.move(user.copy / "inventory/known_hosts.new", user.copy / "inventory/known_hosts")
    assert "gpu-fleet:host:Host: (create)" in user.types("make", "preview", f"STACK={STACK}")
    try:
        assert "5 created" in user.types("make", "up", f"STACK={STACK}", PULUMI_OPTION_YES="true")
        checked = user.types("make", "check", f"STACK={STACK}", status=2)
        assert "1 host: 1 ok." in checked
        assert "Whether samples of the hosts arrive is not known: the store cannot be reached at http://127.0.0.1:1" in checked
        assert host.ssh("systemctl is-active gpu-fleet-alloy").stdout == "active\n"
    finally:
        user.types(
            python, "-m", "gpu_fleet.toolchain", "run", "--", "pulumi", "destroy", "--yes", "--skip-preview", "--stack", STACK
        )
    user.types("make", "pull-bundle", f"STACK={STACK}", f"KEY={site.key_file}", "URL=https://files.example.com/fleet")
    assert (user.copy / "build/pull/latest").exists()
    user.types("make", "dashboards")
    assert len(list((user.copy / "build/dashboards").glob("*.json"))) > 5
