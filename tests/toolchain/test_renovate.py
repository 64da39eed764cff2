"""Renovate's configuration sees every version of gpu_fleet/toolchain/versions.yaml, each once, and the checksums follow."""

from __future__ import annotations

import json
import re

from gpu_fleet.toolchain.versions import FILE, read_charts, read_images, read_releases
from tests.checkout import REPO

CONFIG = json.loads((REPO / ".github/renovate.json").read_text())


def found() -> list[tuple[str, str, str]]:
    """Data source, package and version of every match; what Renovate writes as (?<name>) is (?P<name>) in Python."""
    text, matches = FILE.read_text(), []
    for manager in CONFIG["customManagers"]:
        assert re.search(manager["managerFilePatterns"][0].strip("/"), "gpu_fleet/toolchain/versions.yaml")
        for pattern in manager["matchStrings"]:
            for match in re.finditer(pattern.replace("(?<", "(?P<"), text):
                package = match.groupdict().get("depName") or manager["depNameTemplate"]
                matches.append((manager["datasourceTemplate"], package, match["currentValue"]))
    return matches


def test_every_version_is_seen_once() -> None:
    expected = [
        *(("github-releases", release.version) for release in read_releases(FILE).values()),
        *(("docker", image.tag) for image in read_images(FILE).values()),
        *(("helm", chart.version) for chart in read_charts(FILE).values()),
    ]
    assert sorted((source, version) for source, _, version in found()) == sorted(expected)


def test_every_rule_is_about_a_package_that_is_seen() -> None:
    packages = {package for _, package, _ in found()}
    for rule in CONFIG["packageRules"]:
        for name in rule.get("matchPackageNames", []):
            assert any(re.fullmatch(name.replace("*", ".*"), package) for package in packages), name


def test_versions_of_images_are_compared_by_their_parts() -> None:
    tags = {package: version for source, package, version in found() if source == "docker"}
    for rule in CONFIG["packageRules"]:
        if "versioning" in rule:
            pattern = rule["versioning"].removeprefix("regex:").replace("(?<", "(?P<")
            assert all(re.fullmatch(pattern, tags[name]) for name in rule["matchPackageNames"])
