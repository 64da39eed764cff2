"""The programs of gpu_fleet/on_host/, which run on hosts as old as Debian 11 and Ubuntu 20.04."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from gpu_fleet.host.part import ON_HOST

MODULES = sorted(ON_HOST.rglob("*.py"))
OLDEST = (3, 8)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ON_HOST).as_posix())
def test_a_program_for_hosts_is_python_3_8_and_imports_the_standard_library_alone(module: Path) -> None:
    tree = ast.parse(module.read_text(), feature_version=OLDEST)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
