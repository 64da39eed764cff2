"""gpu-fleet:scrapeInterval on hosts: which files of a bundle it changes, and that Alloy takes them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from gpu_fleet.host.part import ROOTFS, Part
from gpu_fleet.host.parts import PROGRAMS, HostOptions, standard_parts
from gpu_fleet.host.parts.scrape import Scrape
from gpu_fleet.host.scrape_interval import ALLOWED_S, DEFAULT_S

INTERVAL = re.compile(r'scrape_interval\s*=\s*"(\d+)s"')
TIMEOUT = re.compile(r'scrape_timeout\s*=\s*"(\d+)s"')


def parts(interval_s: int | None = None) -> list[Part]:
    """With everything that a stack can ask for and that Alloy scrapes."""
    given = {} if interval_s is None else {"scrape_interval_s": interval_s}
    outside = Scrape(node_exporter_listen="0.0.0.0:1", gpu_exporter_listen="0.0.0.0:2")
    programs = {name: {} for name in PROGRAMS}
    return standard_parts(HostOptions(programs=programs, scrape=outside, scrape_targets=True, docker_logs=True, **given))  # type: ignore[arg-type]


def files(interval_s: int | None = None) -> dict[str, bytes]:
    return {file.path: file.content for part in parts(interval_s) for file in part.files}


def alloy_files(interval_s: int | None = None) -> dict[str, str]:
    return {path: content.decode() for path, content in files(interval_s).items() if path.endswith(".alloy")}


def test_a_stack_that_keeps_the_default_places_the_files_as_they_are():
    placed = alloy_files()
    assert placed == {path: (ROOTFS / path.lstrip("/")).read_text() for path in placed}
    scraped = {seconds for path, text in placed.items() if "targets" not in path for seconds in INTERVAL.findall(text)}
    assert scraped == {str(DEFAULT_S)}, "the default of the stack file is what the files have"
    assert files() == files(DEFAULT_S)


@pytest.mark.parametrize("interval_s", [one for one in ALLOWED_S if one != DEFAULT_S])
def test_another_interval_changes_files_that_alloy_reloads_and_nothing_else(interval_s: int):
    usual, changed = files(), files(interval_s)
    differing = {path for path in usual if usual[path] != changed[path]}
    assert {Path(path).suffix for path in differing} == {".alloy", ".prom"}, "others restart something; .prom: the bundle's name"
    scraping = [text for text in alloy_files(interval_s).values() if "prometheus.scrape" in text]
    assert {int(seconds) for text in scraping for seconds in INTERVAL.findall(text)} == {interval_s}
    assert all(int(seconds) < interval_s for text in scraping for seconds in TIMEOUT.findall(text))


def test_no_setting_depends_on_it():
    """Alloy reads its settings once, so that a changed one restarts it."""
    usual, changed = ({name: value for part in parts(one) for name, value in part.settings.items()} for one in (DEFAULT_S, 60))
    assert usual == changed


def test_alloy_accepts_the_changed_files(tmp_path: Path):
    for path, text in alloy_files(60).items():
        (tmp_path / Path(path).name).write_text(text)
    for file in sorted(tmp_path.iterdir()):
        formatted = subprocess.run([toolchain.find("alloy"), "fmt", file], capture_output=True, text=True, check=False)
        assert (formatted.returncode, formatted.stdout) == (0, file.read_text()), formatted.stderr
