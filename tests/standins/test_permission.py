"""For which stacks stand-ins work: those of the lab, and in a trial what is simulated altogether."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet.host.artifacts import INDEX, SIMULATED
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.stackfile.artifacts import permit_artifacts
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.stand_ins import LAB_STACKS, StandInsRefused
from gpu_fleet.toolchain.versions import release
from lab.kubernetes.certificates import Authority
from lab.standins import permission
from tests.stackfile.stacks import HOST_KEY
from tests.standins.project import REPO, Project

SIMULATED_HOST = {"connection": "local", "prefix": "host"}
REAL_HOST = {"address": "10.0.0.1", "hostKey": HOST_KEY}
PROGRAM = "from pulumi_command import local\nlocal.Command('one', create='echo 1')\n"


def write_stack(file: Path, **config: Any) -> Path:
    file.write_text(yaml.safe_dump({"config": {f"gpu-fleet:{key}": value for key, value in config.items()}}))
    return file


def test_a_stack_that_is_not_of_the_lab_is_refused_with_what_to_install(project: Project) -> None:
    project.environment[LAB_STACKS] = "dev"
    project.program("open('ran', 'w')\n")
    output = project.run("preview", fails=True)
    assert "The stack test cannot use the lab's stand-in of pulumi-language-python" in output
    assert "python -m gpu_fleet.toolchain install --retry-upstream pulumi-language-python" in output
    assert "unpack pulumi-language-python from https://" in output, "for a machine that reaches no upstream"
    assert "STAND_INS=1" in output and "Traceback" not in output
    assert not (project.directory / "ran").exists()


def test_a_plugin_refuses_by_itself_where_the_language_host_has_no_say(project: Project) -> None:
    project.program(PROGRAM)
    project.up()
    project.environment[LAB_STACKS] = "dev"
    output = project.run("destroy", "--yes", "--skip-preview", fails=True)
    assert "The stack test cannot use the lab's stand-in of pulumi-resource-command" in output
    assert "pulumi plugin install resource command v" in output
    assert any(resource["type"] == "command:local:Command" for resource in project.state())


def test_a_trial_works_where_everything_is_simulated_and_every_run_says_so(project: Project) -> None:
    project.environment |= {LAB_STACKS: "", "STAND_INS": "1"}
    write_stack(project.directory / "Pulumi.test.yaml", hosts={"this": SIMULATED_HOST})
    project.program(PROGRAM)
    for command in (["preview"], ["up", "--yes", "--skip-preview"]):
        output = project.run(*command)
        assert "STAND_INS=1: the stack test uses the lab's stand-in of pulumi-language-python" in output
        assert "STAND_INS=1: the stack test uses the lab's stand-in of pulumi-resource-command" in output


def test_a_trial_never_works_with_a_host_over_ssh(project: Project) -> None:
    project.environment |= {LAB_STACKS: "", "STAND_INS": "1"}
    write_stack(project.directory / "Pulumi.test.yaml", hosts={"gpu-1": REAL_HOST, "this": SIMULATED_HOST})
    project.program(PROGRAM)
    output = project.run("preview", fails=True)
    assert "not even with STAND_INS=1: it has hosts that are not simulated (gpu-1)" in output


def kubeconfig(directory: Path, authority: Path, **cluster: object) -> Path:
    file = directory / "kubeconfig"
    config = {
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": str(authority), **cluster}}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    file.write_text(yaml.safe_dump(config))
    return file


def test_a_trial_works_with_a_cluster_of_the_lab_and_with_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_INS", "1")
    lab = Authority(tmp_path).certificate_file
    monkeypatch.setattr("lab.kubernetes.certificates.AUTHORITY", "kubernetes")
    for name in ("real", "blind"):
        (tmp_path / name).mkdir()
    real = Authority(tmp_path / "real").certificate_file

    def permit(kubeconfig: Path) -> str:
        file = write_stack(tmp_path / "Pulumi.trial.yaml", kubernetes={"kubeconfig": str(kubeconfig)})
        return permission.permit_all(["pulumi-language-python"], "trial", file)

    assert permit(kubeconfig(tmp_path, lab)).startswith("STAND_INS=1: the stack trial uses the lab's stand-in")
    blind = kubeconfig(tmp_path / "blind", lab, **{"insecure-skip-tls-verify": True})
    for other in (kubeconfig(tmp_path / "real", real), blind, tmp_path / "none"):
        with pytest.raises(StandInsRefused, match=r"gpu-fleet:kubernetes names a cluster that is not the lab's"):
            permit(other)


@pytest.mark.parametrize("host", [REAL_HOST, {"connection": "pull"}], ids=["SSH", "pull"])
def test_simulated_artifacts_are_refused_for_real_hosts_and_used_by_those_of_the_lab(
    host: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{'0' * 64}  {name}-{release(name).version}{SIMULATED}.linux-amd64\n" for name in PROGRAMS]
    (tmp_path / INDEX).write_text("".join(lines))
    config = StackConfig.load(
        {
            "datacenter": "us-west",
            "cluster": "training",
            "ssh": {"user": "ops"},
            "hosts": {"gpu-1": host},
            "metrics": {"url": "https://mimir.example.com/api/v1/push"},
            "artifacts": {"source": "controller", "directory": str(tmp_path)},
        },
        tmp_path,
    )
    with pytest.raises(StandInsRefused, match=rf"(?s)alloy-{release('alloy').version}.*make artifacts.*STAND_INS=1"):
        permit_artifacts(config, "train")
    monkeypatch.setenv("STAND_INS", "1")
    with pytest.raises(StandInsRefused, match=r"not even with STAND_INS=1: it has hosts that are not simulated \(gpu-1\)"):
        permit_artifacts(config, "train")
    monkeypatch.setenv(LAB_STACKS, "other,train")
    assert permit_artifacts(config, "train") == ""


def test_make_preview_names_the_program_that_is_missing_for_the_stack_and_how_to_install_it(tmp_path: Path) -> None:
    """As after `make dev`: the lab's stand-ins are there, and no real stack finds them."""
    stack = write_stack(tmp_path / "Pulumi.train.yaml", hosts={"gpu-1": REAL_HOST})
    cache = tmp_path / "cache/gpu-fleet/tools"
    cache.mkdir(parents=True)
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-fleet/tools/pulumi"
    (cache / "pulumi").symlink_to(usual.resolve())
    path = [part for part in os.environ["PATH"].split(os.pathsep) if not Path(part, "pulumi-language-python").exists()]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PULUMI_HOME", "STAND_INS")},
        "PATH": os.pathsep.join(path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "https_proxy": "http://127.0.0.1:1",
        "PULUMI_OPTION_CONFIG_FILE": str(stack),
    }

    def install(module: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments, "--stack", "train"]
        done = subprocess.run(command, cwd=REPO, env={**environment, **more}, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done

    refused = install("gpu_fleet.operations.programs").stderr
    assert "The stack train needs programs that could not be installed:\n\npulumi-language-python" in refused
    assert "cannot be reached" in refused and "by hand: unpack pulumi-language-python from https://" in refused
    assert "set STAND_INS=1" in refused
    assert "pulumi-resource" not in refused, "a stack of hosts alone needs no plugin but ours"
    right = stack.read_text()
    stack.write_text(right.replace("config:\n", "config:\n  gpu-fleet:rollot: {batch: 10%}\n", 1))
    both = install("gpu_fleet.operations.programs").stderr
    assert both.index("did you mean 'rollout'?") < both.index("needs programs"), "the file can be corrected meanwhile"
    stack.write_text(right)
    trial = install("lab.standins", "install", STAND_INS="1").stderr
    assert "not even with STAND_INS=1: it has hosts that are not simulated (gpu-1)" in trial
