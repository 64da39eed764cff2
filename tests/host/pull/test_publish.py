"""`make pull-bundle`: from a stack file to a directory, without Pulumi and without a secret."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from components.fleet.bundle import bundle
from components.fleet.wiring import pull_output
from host.parts import PROGRAMS
from operations import pull_bundle as command
from stackfile.config import StackConfig
from tests.host.pull.pulled import make_key
from toolchain.versions import release

STACK = """
config:
  gpu-fleet:datacenter: us-west
  gpu-fleet:cluster: training
  gpu-fleet:metrics: {url: "https://mimir.example.com/api/v1/push", tenant: us-west, username: writer}
  gpu-fleet:metricsPassword: {secure: "v1:encrypted"}
  gpu-fleet:logs: {url: "https://loki.example.com/loki/api/v1/push"}
  gpu-fleet:artifacts: {source: controller, directory: artifacts}
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one stack file and the programs it names."""
    monkeypatch.setattr(command, "_ROOT", tmp_path)
    (tmp_path / "Pulumi.autoscaled.yaml").write_text(STACK)
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    lines = []
    for name in PROGRAMS:
        digest = hashlib.sha256(name.encode()).hexdigest()
        (artifacts / digest).write_bytes(name.encode())
        lines.append(f"{digest}  {name}-{release(name).version}.linux-amd64\n")
    (artifacts / "SHA256SUMS").write_text("".join(lines))
    make_key(tmp_path / "key")
    return tmp_path


def _publish(repository: Path, *arguments: str, stack: str = "autoscaled", key: str = "key") -> int:
    given = ["--stack", stack, "--key", str(repository / key), "--to", str(repository / "out"), *arguments]
    return command.main(given)


def test_a_publication_holds_the_bundle_of_push_the_programs_and_the_installer(repository: Path) -> None:
    assert _publish(repository) == 0
    pushed = bundle(StackConfig.from_file(repository / "Pulumi.autoscaled.yaml", repository))
    out = repository / "out"
    assert (out / f"bundle-{pushed.digest}.tar").read_bytes() == pushed.tar
    assert {file.name for file in (out / "artifacts").iterdir()} == set(pushed.artifacts)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert len(checked.stdout.splitlines()) == len(PROGRAMS) + 2


def test_the_index_names_the_stacks_settings_and_no_secret(repository: Path) -> None:
    _publish(repository)
    index = (repository / "out/latest").read_text()
    assert "setting GPU_FLEET_METRICS_URL=https://mimir.example.com/api/v1/push\n" in index
    assert "setting GPU_FLEET_METRICS_TENANT=us-west\n" in index
    assert "setting GPU_FLEET_INSTANCE" not in index
    assert "encrypted" not in index and "PRIVATE" not in "".join(
        file.read_text() for file in (repository / "out").iterdir() if file.is_file() and file.suffix != ".tar"
    )


def test_the_stack_s_output_names_the_bundle_and_the_command_of_the_place_that_the_stack_file_gives(repository: Path) -> None:
    with (repository / "Pulumi.autoscaled.yaml").open("a") as file:
        file.write("  gpu-fleet:pull: {url: https://files.example.com/fleet/}\n")
    assert _publish(repository) == 0
    output = pull_output(StackConfig.from_file(repository / "Pulumi.autoscaled.yaml", repository))
    assert f"\nbundle {output['bundle']} " in (repository / "out" / "latest").read_text()
    assert output["url"] == "https://files.example.com/fleet"
    assert output["install"] == (
        "curl -fsSLO https://files.example.com/fleet/install-gpu-fleet && "
        "sudo sh install-gpu-fleet --password-file /root/metrics-password"
    )
    assert "PUBLISHED_FROM=https://files.example.com/fleet\n" in (repository / "out" / "install-gpu-fleet").read_text()
    assert _publish(repository, "--url", "file:///srv/fleet") == 0, "a copy for another place"
    assert "PUBLISHED_FROM=file:///srv/fleet\n" in (repository / "out" / "install-gpu-fleet").read_text()


def test_the_installer_is_one_script_that_shellcheck_accepts(repository: Path) -> None:
    _publish(repository, "--url", "https://files.example.com/gpu-fleet/")
    installer = repository / "out/install-gpu-fleet"
    assert "PUBLISHED_FROM=https://files.example.com/gpu-fleet\n" in installer.read_text()
    done = subprocess.run(["shellcheck", str(installer)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    help_ = subprocess.run(["sh", str(installer), "--help"], capture_output=True, text=True)
    assert help_.returncode == 0 and "--password-file FILE" in help_.stderr


def test_publishing_again_replaces_the_index_and_keeps_the_bundle(repository: Path) -> None:
    _publish(repository)
    before = {file.name: file.read_bytes() for file in (repository / "out").iterdir() if file.is_file()}
    _publish(repository)
    after = {file.name: file.read_bytes() for file in (repository / "out").iterdir() if file.is_file()}
    assert before.keys() == after.keys()
    assert {name for name in after if after[name] != before[name]} == {"latest", "install-gpu-fleet", "SHA256SUMS"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack": "nowhere"}, "there is no stack file Pulumi.nowhere.yaml; there are: autoscaled"),
        ({"stack": "../autoscaled"}, "there is no stack file"),
        ({"key": "nokey"}, "ssh-keygen -t ed25519 -C gpu-fleet -f"),
        ({"arguments": ("--url", "https://user:hunter2@files")}, "without a login"),
    ],
)
def test_what_is_missing_is_told_in_words(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: dict, message: str
) -> None:
    assert _publish(repository, *arguments.pop("arguments", ()), **arguments) == 1
    assert message in capsys.readouterr().err
    assert not (repository / "out/latest").exists()


def test_a_stack_that_says_nothing_about_metrics_cannot_be_published(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "Pulumi.bare.yaml").write_text("config:\n  gpu-fleet:datacenter: us-west\n  gpu-fleet:cluster: training\n")
    assert _publish(repository, stack="bare") == 1
    assert "hosts that pull need gpu-fleet:datacenter, gpu-fleet:cluster and gpu-fleet:metrics" in capsys.readouterr().err


def test_a_program_that_is_listed_but_not_there_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "artifacts" / hashlib.sha256(b"alloy").hexdigest()).unlink()
    assert _publish(repository) == 1
    assert "/opt/gpu-fleet/bin/alloy (amd64) is not in" in capsys.readouterr().err
