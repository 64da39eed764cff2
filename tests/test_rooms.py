"""Which room may import which: the way of the data, and no way back. A room that is not named here is a new one: add it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import REPO

# Each room and what it may import. Everything but tests/ and bench/ may be imported by the lab, which may be deleted.
MAY_IMPORT = {
    "alerts": {"stackfile"},  # receivers and routes, which are described there
    "safetext": set(),
    "provider": {"safetext"},
    "toolchain": set(),
    "policy": set(),
    "on_host": set(),
    "on_cluster": {"on_host"},
    "host": {"toolchain"},
    "stackfile": {"host", "safetext", "toolchain"},
    "dashboards": {"alerts", "safetext"},
    "signals": {"alerts", "dashboards", "host", "stackfile"},
    "components": {"alerts", "dashboards", "host", "on_cluster", "safetext", "signals", "stackfile", "toolchain"},
    "__main__": {"components"},
    # The plugin of the package: it serves the components and, from the same process, the resources that they consist of.
    "components/__main__": {"components", "provider"},
    "operations": {"alerts", "components", "dashboards", "host", "policy", "provider", "safetext", "stackfile", "toolchain"},
}
ROOMS = {*MAY_IMPORT, "bench", "lab", "tests"}
# Pulumi's own parts: a component makes resources, the provider and the policy pack speak its protocol.
PULUMI = {
    "components": ("pulumi",),
    "__main__": ("pulumi",),
    "provider": ("pulumi.runtime.proto",),
    "policy": ("pulumi.runtime.proto",),
}


def _imports(file: Path) -> Iterator[str]:
    """Every module that a file names in an import, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:  # in on_host/, which has another place on hosts
            package = [*file.relative_to(REPO).parts[: -node.level], *([node.module] if node.module else [])]
            yield from (".".join([*package, alias.name]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _room(name: str) -> str:
    """Of a module: its first name, the second in gpu_fleet/."""
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "gpu_fleet" else first


def _module(file: Path) -> str:
    return ".".join(file.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")


def _files(room: str) -> list[Path]:
    """Of a room, or the program that is one by itself."""
    if (program := REPO / f"{room}.py").is_file():
        return [program]
    within = REPO / "gpu_fleet" if (REPO / "gpu_fleet" / room).is_dir() else REPO
    return sorted(file for file in (within / room).rglob("*.py") if file != REPO / "components/__main__.py")


MODULES = {_module(file): file for room in MAY_IMPORT for file in _files(room)}


def _known(name: str) -> str | None:
    """The module of this project that an imported name is, or is in."""
    return name if name in MODULES else name.rpartition(".")[0] if name.rpartition(".")[0] in MODULES else None


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_is_below_it(room: str) -> None:
    wrong = [
        f"{file.relative_to(REPO)} imports {name}"
        for file in _files(room)
        for name in _imports(file)
        if _room(name) in ROOMS - {room} - MAY_IMPORT[room]
    ]
    assert not wrong, f"{room}/ may import {', '.join(sorted(MAY_IMPORT[room])) or 'no other room'}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_pulumi_is_imported_where_resources_are_made_and_its_protocol_by_the_provider(room: str) -> None:
    allowed = PULUMI.get(room, ())
    wrong = [
        f"{file.relative_to(REPO)} imports {name}"
        for file in _files(room)
        for name in _imports(file)
        if name.partition(".")[0] == "pulumi" and not name.startswith(allowed or "-")
    ]
    assert not wrong, f"{room}/ may import {', '.join(allowed) or 'nothing of pulumi'}:\n" + "\n".join(wrong)


def test_no_two_modules_import_each_other_even_indirectly() -> None:
    needs = {
        module: {found for name in _imports(file) if (found := _known(name)) and found != module}
        for module, file in MODULES.items()
    }

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [*needs[start]]
        while todo:
            if (module := todo.pop()) not in seen:
                seen.add(module)
                todo += needs[module]
        return seen

    circles = sorted(module for module in MODULES if module in reached(module))
    assert not circles, f"modules in a circle: {', '.join(circles)}"


def test_every_room_with_python_in_it_has_its_rule() -> None:
    found = {path.parent.name for path in REPO.glob("*/*.py")} | {path.parents[1].name for path in REPO.glob("*/*/*.py")}
    found |= {path.parent.name for path in REPO.glob("gpu_fleet/*/*.py")}
    assert found - {"gpu_fleet"} - {path.parent.name for path in REPO.glob("gpu_fleet/*/*/*.py")} <= ROOMS | {
        "examples",
        ".venv",
    }, "name the new room in MAY_IMPORT"
