"""The packages of this project: each is imported, each is locked."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.checkout import REPO

DEVELOPMENT = ("lab", "bench", "tests")  # the rooms that need requirements-dev.txt
# The names that a package is imported by, where that is not its own.
MODULES = {
    "pulumiverse-grafana": "pulumiverse_grafana",
    "pyyaml": "yaml",
    "grafana-foundation-sdk": "grafana_foundation_sdk",
    "promql-parser": "promql_parser",
}
# What is needed and imported nowhere.
RUN_AS_PROGRAMS = {
    "pytest-xdist": "pytest -n, in the Makefile",
    "ruff": "make lint",
    "mypy": "make lint",
    "supervisor": "Pulumi.dev.yaml",
    "mkdocs-material": "make site",
    "ansible-core": "tests/stackfile/ansible_oracle.py",
}


def locked(file: str = "requirements.txt") -> set[str]:
    """The packages of a lock file, as importlib.metadata spells them."""
    return {normal(name) for name in re.findall(r"(?m)^([\w.-]+)==", (REPO / file).read_text())}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(("requirements", "rooms"), [("requirements", "product"), ("requirements-dev", "all")])
def test_every_package_that_is_asked_for_is_imported_somewhere(requirements: str, rooms: str) -> None:
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    text = "\n".join((REPO / name).read_text() for name in files if rooms == "all" or name.partition("/")[0] not in DEVELOPMENT)
    for name in re.findall(r"(?m)^([\w.-]+)==", (REPO / f"{requirements}.in").read_text()):
        if name.startswith("types-") or name in RUN_AS_PROGRAMS:
            continue
        module = MODULES.get(name, name.replace("-", "_"))
        assert re.search(rf"(?m)^\s*(import|from) {module}\b", text), f"{requirements}.in: {name} is imported nowhere"


@pytest.mark.parametrize("requirements", ["requirements", "requirements-dev"])
def test_every_package_is_locked_with_its_hashes_and_no_registry_is_named(requirements: str) -> None:
    text = (REPO / f"{requirements}.txt").read_text()
    asked = {normal(name) for name in re.findall(r"(?m)^([\w.-]+)==", (REPO / f"{requirements}.in").read_text())}
    assert asked <= locked(f"{requirements}.txt")
    assert all("--hash=sha256:" in block for block in re.split(r"(?m)^(?=\S+==)", text)[1:])
    assert "://" not in text and "--index" not in text


def test_a_package_of_both_lock_files_has_one_version() -> None:
    pins = [
        dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", (REPO / f"{name}.txt").read_text()))
        for name in ("requirements", "requirements-dev")
    ]
    assert not [name for name in pins[0].keys() & pins[1].keys() if pins[0][name] != pins[1][name]]
