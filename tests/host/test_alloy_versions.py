"""What our .alloy files use exists in every Alloy that reads them: in the one that hosts and clusters get, and in the older one
that is built where releases cannot be downloaded, which runs the other tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from components.kubernetes.alloy_config import OURS
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.toolchain.programs import PROGRAMS
from gpu_fleet.toolchain.versions import image, release
from tests.host.alloy_syntax import declared, functions, used

TABLE = Path(__file__).with_name("alloy_versions.yaml")
FILES = sorted([*(ROOTFS / "etc/gpu-fleet/alloy").glob("*.alloy"), *OURS.glob("*.alloy")])
OWN = {name for file in FILES for name in declared(file)}


def table() -> dict:
    return yaml.safe_load(TABLE.read_text())


def test_the_table_was_made_for_the_versions_in_use() -> None:
    built = PROGRAMS["alloy"].go
    assert built and set(table()["versions"]) == {
        release("alloy").version,
        image("alloy").tag.removeprefix("v"),
        built.version,
    }, f"compare what {TABLE.name} lists with the documentation of the new version, then change `versions` and the date"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_uses_what_every_version_in_use_has(file: Path) -> None:
    known = table()
    how = f"find it in the sources of every version of {TABLE.name}, then add it there"
    for component, names in used(file, OWN).items():
        assert component in known["components"], f"{file.name}: component {component}; {how}"
        assert sorted(names - set(known["components"][component])) == [], f"{file.name}: {component}; {how}"
    assert sorted(functions(file) - set(known["functions"])) == [], f"{file.name}: functions; {how}"


def test_nested_blocks_lists_and_modules_of_our_own_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.alloy"
    file.write_text(
        'declare "mine" {\n\targument "x" { }\n\n\tloki.process "p" {\n\t\tforward_to = [\n\t\t\ta.b.receiver, // {\n\t\t]\n\n'
        '\t\tstage.match {\n\t\t\tselector = `{a="}"}`\n\n\t\t\tstage.limit {\n\t\t\t\trate = 10\n\t\t\t}\n\t\t}\n\t}\n}\n\n'
        'mine "one" {\n\tx = string.join(["y("], sys.env("Z"))\n}\n'
    )
    assert used(file, declared(file)) == {
        "loki.process": {"forward_to", "stage.match", "stage.match.selector", "stage.limit", "stage.limit.rate"}
    }
    assert functions(file) == {"string.join", "sys.env"}
