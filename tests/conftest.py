"""What all tests share."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator

import pytest

from lab.kubernetes import Cluster
from lab.standins import programs
from tests.early_end import EarlyEnd
from tests.samples.conftest import SAMPLES

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}

# The tests of one file stay in one process of pytest-xdist; those of these places do all together: they share hosts, a cluster
# or a datacenter that each leaves as it was. Groups begin in this order, the longest first, so that no process is left with one
# alone at the end.
TOGETHER = {
    "tests/hosts/test_slurm.py": "hosts of Slurm",
    "tests/hosts/test_sacct.py": "hosts of Slurm with sacct",
    "tests/hosts/test_distributions.py": "hosts of other distributions",
    "tests/hosts/test_ssh_faults.py": "hosts of all kinds",
    "tests/hosts/test_rename.py": "hosts of all kinds",
    "tests/hosts/test_scrape.py": "hosts of all kinds",
    "tests/hosts/test_logins.py": "hosts of all kinds",
    "tests/hosts/test_sudo.py": "hosts of all kinds",
    "tests/kubernetes/": "cluster",
    "tests/hosts/test_ssh_fleet.py": "hosts of a fleet",
    "tests/hosts/test_pull.py": "hosts of a fleet",
    "tests/hosts/test_package.py": "hosts of a fleet",
    "tests/hosts/test_without_lab.py": "hosts of a fleet",
    "tests/hosts/test_monitoring_server.py": "hosts with Docker",
    "tests/hosts/test_both.py": "hosts with Docker",
    "tests/hosts/test_dcgm.py": "hosts with Docker",
    "tests/hosts/test_dcgm_registry.py": "hosts with Docker",
    "tests/e2e/test_dev_datacenter.py": "datacenter",
    "tests/e2e/test_operations.py": "datacenter",
    "tests/e2e/test_signals.py": "datacenter",
    "tests/e2e/test_xids.py": "datacenter",
    "tests/hosts/test_adoption.py": "one host",
    "tests/hosts/test_dcgm_install.py": "one host",
    "tests/hosts/test_dcgm_packages.py": "one host",
    "tests/hosts/test_drift.py": "one host",
    "tests/hosts/test_lifecycle.py": "one host",
    "tests/hosts/test_ready.py": "one host",
    "tests/hosts/test_upstream.py": "hosts of both families",
    "tests/hosts/test_packages.py": "hosts of both families",
    "tests/dashboards/": "showcase",
}
ORDER = [*dict.fromkeys(TOGETHER.values()), "tests/e2e/", "tests/hosts/", "tests/host/", "tests/provider/", "tests/operations/"]

# What make, a hook of git, a terminal and some shells hand to every program, and what would change those that tests start: a
# `make` below `make test` prints more, `git` in a test's own repository works on another, and HOST is a host of `make up`.
OF_THE_CALLER = (
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "STACK", "STACKS", "HOST", "PLAN"),
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PYTHON_COLORS"),
)

# What is about stand-ins themselves, and the page that one of them draws: with `make test OFFICIAL=1` there is none.
collect_ignore = ["standins", "dashboards/test_in_browser.py"] if os.environ.get(programs.REFUSED) == "1" else []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="rewrite the golden files; review their diff")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(EarlyEnd(group_of), "early_end")
    # The tests start Python a thousand times. Without bytecode each start compiles all that it imports, half of its time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in OF_THE_CALLER:
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"  # tests compare what programs print
    # A shell that starts the tests in the background has SIGINT ignored, and so has every program below it: Ctrl-C would be
    # tested on programs that cannot see it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_of(group_of(item)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SAMPLES.is_dir():
        terminalreporter.write_line(f"tests/samples was left out: there are no recordings of other projects in {SAMPLES}.")


def group_of(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)


def place_of(group: str) -> int:
    return next((place for place, start in enumerate(ORDER) if group.startswith(start)), len(ORDER))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all: a test works in a namespace of its own, and takes away what belongs to none."""
    with Cluster.up() as cluster:
        cluster.add_node("cpu-node-1")
        for name in ("gpu-node-1", "gpu-node-2"):
            cluster.add_node(name, gpus=8, taints=[GPU_TAINT])
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own. The GPUs of its pods are released afterwards."""
    name = cluster.namespace(f"test-{secrets.token_hex(4)}")
    yield name
    cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
