"""The documents as a site: every page is in it, its links work there, and the reference has what the code has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import alerts
import dashboards
from alerts.vocabulary import SERIES
from gpu_fleet.operations import site
from tests.checkout import REPO


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it; --strict fails for a link or an anchor that leads nowhere."""
    directory = tmp_path_factory.mktemp("site")
    site.write(directory / "pages")
    text = (REPO / "mkdocs.yml").read_text()
    config = text.replace("build/site-pages", str(directory / "pages")).replace("build/site", str(directory / "html"))
    (directory / "mkdocs.yml").write_text(config)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(directory / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "html"


def test_every_page_is_built_and_no_page_loads_anything_from_another_server(built: Path) -> None:
    assert {path.removesuffix(".md") + ".html" for path in site.pages()} <= {
        file.relative_to(built).as_posix() for file in built.rglob("*.html")
    }
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', (built / "index.html").read_text())
    assert loaded == []


def test_every_page_but_those_of_lists_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (REPO / "mkdocs.yml").read_text()))
    listed_elsewhere = ("runbooks/", "upgrading/")  # by reference/alerts.md and upgrading.md
    assert [path for path in site.pages() if path not in named and not path.startswith(listed_elsewhere)] == []


@pytest.mark.parametrize(
    ("file", "link", "expected"),
    [
        ("README.md", "[hosts](docs/hosts.md#in-a-separate-file)", "[hosts](hosts.md#in-a-separate-file)"),
        ("README.md", "[what `up` says](docs/when-up-fails.md)", "[what `up` says](when-up-fails.md)"),
        ("docs/hosts.md", "[runbooks](../alerts/runbooks/)", "[runbooks](reference/alerts.md)"),
        ("docs/hosts.md", "[test](../tests/test_docs.py)", "[test](https://example.com/r/blob/main/tests/test_docs.py)"),
        ("alerts/runbooks/GpuXid.md", "[table](../xid.csv)", "[table](https://example.com/r/blob/main/alerts/xid.csv)"),
        ("docs/pictures/README.md", "[empty](../dashboards-by-exporter.md)", "[empty](../dashboards-by-exporter.md)"),
        ("docs/hosts.md", "```sh\necho '[a](../b)'\n```", "```sh\necho '[a](../b)'\n```"),
    ],
)
def test_a_link_leads_to_the_page_in_the_site_or_to_the_source(file: str, link: str, expected: str) -> None:
    assert site.moved(link, file, "https://example.com/r") == expected + "\n"


def test_a_file_outside_the_site_is_named_where_no_repository_is_given() -> None:
    assert site.moved("[the test](../tests/test_docs.py)", "docs/hosts.md", "") == "the test (`tests/test_docs.py`)\n"


def test_the_reference_has_every_key_of_the_stack_file() -> None:
    schema = json.loads((REPO / "gpu_fleet/stackfile/stack.schema.json").read_text())
    page = site.stack_file()
    assert [key for key in schema["properties"]["config"]["properties"] if f"## `{key}`\n" not in page] == []
    assert "| `bastion.host` | an IP address or a host name |" in page
    assert "| `NAME.address` |" in page or "| `address` |" in page


def test_the_reference_has_every_alert_series_dashboard_panel_and_command() -> None:
    named = {
        rule["alert"]
        for backend in ("mimir", "loki", "grafana")
        for group in alerts.rule_groups(backend)
        for rule in group.rules
        if "alert" in rule
    }  # type: ignore[arg-type]
    page = site.alert_list()
    assert [name for name in named if name not in page] == []
    assert [name for name in SERIES if f"`{name}`" not in site.vocabulary()] == []
    assert [model["title"] for model in dashboards.models() if f"## {model['title']}" not in site.dashboard_list()] == []
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (REPO / "Makefile").read_text())
    assert [target for target in targets if f"| `make {target}` |" not in site.commands()] == []


def test_the_tutorials_stack_files_are_valid_yaml_with_known_keys() -> None:
    known = set(json.loads((REPO / "gpu_fleet/stackfile/stack.schema.json").read_text())["properties"]["config"]["properties"])
    for page in (REPO / "docs/tutorials").glob("*.md"):
        for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", page.read_text()):
            assert set(yaml.safe_load(block)["config"]) <= known, page.name
