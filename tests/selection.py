"""The lab's own tests run where something that they guard has changed since the main branch, and always by `make test ALL=1`.

They are a third of all tests, and guard what stands between the other tests and the world: stand-ins, simulators, hosts. What a
folder of them guards is what its tests import, directly or not: of lab/ and tests/ whole rooms, since nobody imports a program
that is started; of the product the files themselves, and all data of their rooms. A change of what nobody imports (Makefile,
requirements, toolchain/versions.yaml, what all tests share) runs them all, as does a checkout whose history does not say what
changed. On the main branch itself its last commit counts. Whoever names tests on the command line gets what was named.
"""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
LAB_S_OWN = (
    "tests/lab/gpu",
    "tests/lab/grafana",
    "tests/lab/kubernetes",
    "tests/lab/showcase",
    "tests/standins/kubernetes",
    "tests/standins/test_engine.py",
    "tests/standins/test_grafana_plugin.py",
    "tests/standins/test_grafana_server.py",
    "tests/standins/test_local_command.py",
    "tests/standins/test_remote_command.py",
    "tests/standins/test_schema.py",
    "tests/hosts/test_lab_hosts.py",
    "tests/hosts/test_empty_cache.py",
)
# Where the product meets its stand-ins. tests/standins/test_permission.py is about them and always runs.
BRIDGES = ("lab/standins/commands.py", "lab/standins/permission.py", "lab/standins/programs.py")
PEOPLE_S = (".github/", "docs/", "examples/", "LICENSE")  # for people to read, and pages in any room


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the lab's own tests too, whatever changed")


# --- what changed -----------------------------------------------------------------------------------------------------------


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def base() -> str | None:
    """The commit that changes are counted from; None where the history does not show it."""
    head = _git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        if (common := _git("merge-base", "HEAD", main)) is not None:
            return common if common != head else _git("rev-parse", "HEAD^")
    return None


def changed(since: str) -> list[str] | None:
    committed, new = _git("diff", "--name-only", since), _git("ls-files", "--others", "--exclude-standard")
    return None if committed is None or new is None else [*committed.splitlines(), *new.splitlines()]


# --- what a folder of tests guards ------------------------------------------------------------------------------------------


def room(path: str) -> str:
    """`lab/gpu` of lab/gpu/machine.py, `host` of host/parts/alloy.py, the file itself at the top."""
    parts = path.split("/")
    return "/".join(parts[:2] if parts[0] in ("lab", "tests") else parts[:1])


@cache
def _imports(file: Path) -> frozenset[Path]:
    """The files of the repository that a file imports, in functions too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    places = [REPO / name.replace(".", "/") for name in names]
    return frozenset(file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())


@cache
def guarded(tests: str) -> tuple[set[str], set[str]]:
    """Rooms that a folder or file of tests reaches, its own among them, and files."""
    found = REPO / tests
    todo = list(found.rglob("*.py")) if found.is_dir() else [found, found.parent / "conftest.py"]
    if tests.startswith("tests/standins"):  # they start the stand-ins and Grafana, which only some of them import
        todo = [file for file in (REPO / "tests/standins").rglob("*.py") if file.name != "test_permission.py"]
        todo.append(REPO / "lab/standins/__main__.py")
    rooms, files = {room(tests)}, set()
    while todo:
        file = todo.pop()
        name = file.relative_to(REPO).as_posix()
        if name in files:
            continue
        files.add(name)
        if room(name) not in rooms and name.startswith("lab/"):
            todo += (REPO / room(name)).rglob("*.py") if (REPO / room(name)).is_dir() else []
        rooms.add(room(name))
        todo += _imports(file) if name not in BRIDGES else []
    return rooms, files


def left_out(changes: list[str]) -> set[str]:
    """Of LAB_S_OWN those that guard nothing of what changed."""
    read = [path for path in changes if not path.startswith(PEOPLE_S) and not path.endswith(".md")]
    if any(not is_known(room(path)) for path in read):
        return set()

    def guards(tests: str, path: str) -> bool:
        rooms, files = guarded(tests)
        is_product_s = path.endswith(".py") and not path.startswith(("lab/", "tests/"))
        return path in files if is_product_s else room(path) in rooms

    return {tests for tests in LAB_S_OWN if not any(guards(tests, path) for path in read)}


def is_known(room: str) -> bool:
    """A folder of Python, or of tests; shared by all are the files beside the folders, and whatever is new."""
    return (REPO / room).is_dir() and any((REPO / room).rglob("*.py")) and room != "toolchain"


# --- the pytest plugin ------------------------------------------------------------------------------------------------------


class Selection:
    """In a worker of pytest-xdist it deselects what the controlling process says."""

    def __init__(self, config: pytest.Config) -> None:
        self.left_out: set[str] = set()
        self.count = 0
        self.since = None
        if hasattr(config, "workerinput"):
            self.left_out = set(config.workerinput["left_out"])
        elif config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("all"):
            self.since = base()
            changes = changed(self.since) if self.since else None
            self.left_out = set() if changes is None else left_out(changes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        node.workerinput["left_out"] = sorted(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.count = max(self.count, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        without = [item for item in items if self._is_left_out(item.nodeid.partition("::")[0])]
        self.count = len(without)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = self.count
        if without:
            config.hook.pytest_deselected(items=without)
            items[:] = [item for item in items if item not in set(without)]

    def _is_left_out(self, file: str) -> bool:
        return next((tests in self.left_out for tests in LAB_S_OWN if file == tests or file.startswith(f"{tests}/")), False)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out and self.since:
            terminalreporter.write_line(
                f"{self.count} of the lab's own tests were left out: nothing that they guard changed since {self.since[:9]} "
                f"({', '.join(sorted(self.left_out))}). `make test ALL=1` runs them too."
            )
