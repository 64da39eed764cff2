"""`make pull-bundle`: from a stack file to a directory, without Pulumi and without a secret."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from components.fleet.bundle import bundle
from components.fleet.wiring import pull_output
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.operations import pull_bundle as command
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.toolchain.versions import release
from tests.checkout import REPO
from tests.documents import blocks, commands
from tests.host.pull.pulled import make_key

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
    monkeypatch.setattr("gpu_fleet.operations.stack.ROOT", tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: gpu-fleet\n")
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


def _index(repository: Path) -> str:
    return (repository / "out/latest").read_text()


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
    assert "\nfrom=https://files.example.com/fleet\n" in (repository / "out" / "install-gpu-fleet").read_text()
    assert _publish(repository, "--url", "file:///srv/fleet") == 0, "a copy for another place"
    assert "\nfrom=file:///srv/fleet\n" in (repository / "out" / "install-gpu-fleet").read_text()


def test_the_installer_is_one_script_that_shellcheck_accepts(repository: Path) -> None:
    _publish(repository, "--url", "https://files.example.com/gpu-fleet/")
    installer = repository / "out/install-gpu-fleet"
    assert "\nfrom=https://files.example.com/gpu-fleet\n" in installer.read_text()
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


def test_what_a_publication_costs_and_how_long_it_takes_is_printed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """10,000 hosts that fetch 400 MB each need nine hours of a 1 Gbit/s line."""
    for program in (repository / "artifacts").iterdir():
        if program.name == hashlib.sha256(b"alloy").hexdigest():
            os.truncate(program, 400_000_000)
    section = "{url: https://files, waves: [1%, 100%], pause: 2h, hosts: 10000, bandwidth: 1Gbit/s, validFor: 48h}"
    (repository / "Pulumi.autoscaled.yaml").write_text(f"{STACK}  gpu-fleet:pull: {section}\n")
    assert _publish(repository) == 0
    text = capsys.readouterr().out
    assert re.search(r"400\.\d MB for each host, 4,00\d\.\d GB for 10,000 hosts; the last host's turn is on 20", text), text
    [version, expires] = [int(word) for word in re.findall(r"^(?:version|expires) (\d+)$", _index(repository), re.MULTILINE)]
    assert expires - version == 48 * 3600
    waves = [tuple(map(int, line.split()[1:])) for line in _index(repository).splitlines() if line.startswith("wave ")]
    whole_s = sum(spread for *_, spread in waves)
    assert 32_000 < whole_s < 32_400, "400 MB x 10,000 x 8 bit / 1 Gbit/s"
    assert [share for share, *_ in waves] == [100, 10_000]
    assert waves[1][1] == waves[0][1] + waves[0][2] + 2 * 3600, "a wave begins two hours after the end of the previous one"

    assert _publish(repository, "--stop") == 0
    assert "The rollout is stopped" in capsys.readouterr().out
    assert "\nstop\n" in _index(repository)
    assert _publish(repository) == 0
    again = [tuple(map(int, line.split()[1:])) for line in _index(repository).splitlines() if line.startswith("wave ")]
    assert again == waves, "what is signed again keeps its times"
    assert "stop" not in _index(repository)
    assert _publish(repository, "--now") == 0
    [wave] = [line.split() for line in _index(repository).splitlines() if line.startswith("wave ")]
    assert (wave[1], wave[3]) == ("10000", "0") and int(wave[2]) >= waves[0][1], "a way back does not wait"


def test_with_a_clock_that_is_behind_waves_do_not_begin_in_the_past(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All turns would have come: the whole fleet at once, without a canary."""
    section = "{url: https://files, waves: [1%, 100%], pause: 1h, hosts: 100}"
    (repository / "Pulumi.autoscaled.yaml").write_text(f"{STACK}  gpu-fleet:pull: {section}\n")
    assert _publish(repository) == 0
    assert "clock" not in capsys.readouterr().err
    [version] = [int(word) for word in re.findall(r"^version (\d+)$", _index(repository), re.MULTILINE)]
    monkeypatch.setattr(time, "time", lambda: version - 7200.0)
    (repository / "Pulumi.autoscaled.yaml").write_text(
        f"{STACK.replace('loki.example', 'logs.example')}  gpu-fleet:pull: {section}\n"
    )
    assert _publish(repository) == 0
    assert "is 120 min ahead of this machine's clock" in capsys.readouterr().err
    waves = [line.split() for line in _index(repository).splitlines() if line.startswith("wave ")]
    assert int(waves[0][2]) > version
    assert _publish(repository, "--now") == 0
    [wave] = [line.split() for line in _index(repository).splitlines() if line.startswith("wave ")]
    assert int(wave[2]) == version - 7200, "a way back does not wait"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack": "nowhere"}, ": autoscaled.\nThese two commands create the stack"),
        ({"stack": "../autoscaled"}, "there is no stack file"),
        ({"key": "nokey"}, "ssh-keygen -t ed25519 -C gpu-fleet -f"),
        ({"arguments": ("--url", "https://user:hunter2@files")}, "without a login"),
        ({"arguments": ("--url", "http://files")}, "http:// lets anyone on the path replace what hosts run as root"),
    ],
)
def test_what_is_missing_is_reported_in_words(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: dict, message: str
) -> None:
    assert _publish(repository, *arguments.pop("arguments", ()), **arguments) == 1
    assert message in capsys.readouterr().err
    assert not (repository / "out/latest").exists()


def test_a_stack_without_metrics_cannot_be_published(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "Pulumi.bare.yaml").write_text("config:\n  gpu-fleet:datacenter: us-west\n  gpu-fleet:cluster: training\n")
    assert _publish(repository, stack="bare") == 1
    assert "pull mode needs gpu-fleet:datacenter, gpu-fleet:cluster and gpu-fleet:metrics" in capsys.readouterr().err


def test_a_program_that_is_listed_but_not_there_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "artifacts" / hashlib.sha256(b"alloy").hexdigest()).unlink()
    assert _publish(repository) == 1
    assert "/opt/gpu-fleet/bin/alloy (amd64) is missing: " in capsys.readouterr().err


def test_a_publication_is_verified_by_hand_as_the_page_says(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/pull.md, with a key made as it says there."""
    typed = [command.text for block in blocks(REPO / "docs/pull.md") if block.language == "sh" for command in commands(block)]
    [generate] = [text for text in typed if "-t ed25519" in text]
    [split, signers, verify] = [text for text in typed if re.match(r"sed |echo |ssh-keygen -Y", text)]
    (repository / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(repository))
    subprocess.run(["sh", "-c", f"{generate} -q -N ''"], check=True)  # no passphrase, since nobody is asked for one
    assert _publish(repository, key=".ssh/gpu-fleet-signing") == 0
    for text in (split, signers, verify):
        done = subprocess.run(["sh", "-c", text], cwd=repository / "out", capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
    assert 'Good "gpu-fleet" signature' in done.stdout
