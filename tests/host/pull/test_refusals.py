"""What is not taken: nothing that was changed on its way, is not ours, or is older than what was seen, and never silently."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.hosts import page, scripted, snapshot
from tests.host.pull.pulled import PulledHost, Site, make_key


def _edit_bundle(site: Site) -> None:
    [bundle] = site.directory.glob("bundle-*.tar")
    bundle.write_bytes(bundle.read_bytes().replace(b"hello", b"hullo"))


def _edit_index(site: Site) -> None:
    index = site.directory / "latest"
    index.write_text(index.read_text().replace("mimir.example.com", "mimir.example.org"))


def _drop_signature(site: Site) -> None:
    index = site.directory / "latest"
    index.write_text(index.read_text().partition("-----BEGIN")[0])


def _add_after_signature(site: Site) -> None:
    """What follows the signature is not signed, so it must not count either."""
    index = site.directory / "latest"
    index.write_text(index.read_text().replace("mimir", "mimic") + index.read_text())


def _sign_with_another_key(site: Site) -> None:
    site.publish([page("evil\n")], key=make_key(site.directory.parent / "other-key"))


def _sign_for_something_else(site: Site) -> None:
    index = site.directory / "latest"
    text = index.read_text().partition("-----BEGIN")[0]
    command = ["ssh-keygen", "-Y", "sign", "-n", "git", "-f", str(site.key.path)]
    index.write_text(text + subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)


def _publish_another_stack(site: Site) -> None:
    site.publish([page("evil\n")], stack="eu-north-inference")


def _replace_by_something_huge(site: Site) -> None:
    (site.directory / "latest").write_bytes(b"x" * 1_000_000)


DAY_S = 86400

REFUSALS: dict[str, tuple[Callable[[Site], None], str]] = {
    "bundle edited": (_edit_bundle, "is not what was published: its sha256 is "),
    "index edited": (_edit_index, "does not have a valid signature by this fleet's key"),
    "no signature": (_drop_signature, "does not have a valid signature by this fleet's key"),
    "index put before a signed one": (_add_after_signature, "does not have a valid signature by this fleet's key"),
    "another key": (_sign_with_another_key, "does not have a valid signature by this fleet's key"),
    "a signature for another purpose": (_sign_for_something_else, "does not have a valid signature by this fleet's key"),
    "another stack": (_publish_another_stack, "belongs to stack eu-north-inference, but this host belongs to us-west-training"),
    "endless": (_replace_by_something_huge, "is larger than the limit of 65536 bytes"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_installation_refuses(pulled: PulledHost, tmp_path: Path, kind: str) -> None:
    tamper, message = REFUSALS[kind]
    pulled.site.publish([_marking(tmp_path)])
    installer = (pulled.site.directory / "install-gpu-fleet").read_text()
    tamper(pulled.site)
    (pulled.site.directory / "install-gpu-fleet").write_text(installer)  # the one that was handed out
    run = pulled.install()
    assert run.code == 1
    assert message in run.said
    assert len(run.said.splitlines()) <= 2 and run.said.splitlines()[-1].startswith("install-gpu-fleet: ")
    assert snapshot(pulled.prefix) == {}
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_pull_refuses_and_keeps_what_runs(pulled: PulledHost, tmp_path: Path, kind: str) -> None:
    tamper, message = REFUSALS[kind]
    digest = pulled.site.publish([page()])
    pulled.install()
    pulled.site.publish([_marking(tmp_path)])
    for bundle in pulled.site.directory.glob("bundle-*.tar"):
        if digest in bundle.name:
            bundle.unlink()
    tamper(pulled.site)
    run = pulled.pull()
    assert run.code == 1
    assert message in run.said and f"bundle {digest[:12]} is running" in run.said
    assert pulled.digest() == digest
    assert not (tmp_path / "was-run").exists()
    assert message in pulled.pull("--status").said


def test_an_old_publication_is_refused(pulled: PulledHost, tmp_path: Path) -> None:
    pulled.site.publish([page("old\n")])
    shutil.copytree(pulled.site.directory, tmp_path / "old")
    digest = pulled.site.publish([page()])
    pulled.install()
    shutil.copyfile(tmp_path / "old/latest", pulled.site.directory / "latest")
    run = pulled.pull()
    assert run.code == 1 and "older" in run.said and "a replay attack" in run.said, run.said
    assert pulled.digest() == digest
    again = pulled.install()
    assert again.code == 1 and "a replay attack" in again.said, "the installer is newer than the replayed publication"
    shutil.copyfile(tmp_path / "old/install-gpu-fleet", pulled.site.directory / "install-gpu-fleet")
    assert "a replay attack" in pulled.install().said, "and an old installer knows what this host has seen"


def test_an_old_publication_is_refused_also_by_a_host_whose_clock_went_back(pulled: PulledHost, tmp_path: Path) -> None:
    pulled.site.time_s -= 10 * DAY_S
    pulled.site.publish([page("old\n")])
    shutil.copytree(pulled.site.directory, tmp_path / "old")
    pulled.site.time_s += 10 * DAY_S
    digest = pulled.site.publish([page()])
    pulled.install()
    shutil.copytree(tmp_path / "old", pulled.site.directory, dirs_exist_ok=True)
    pulled.first = f"import time; time.time = lambda: {time.time() - 9 * DAY_S}\n"
    run = pulled.pull()
    assert run.code == 1 and "a replay attack" in run.said, run.said
    assert pulled.digest() == digest


def test_a_publication_is_newer_than_the_last_even_when_the_clock_went_back(site: Site) -> None:
    site.publish([page()])
    first = (site.directory / "latest").read_text()
    site.time_s -= 86400
    site.publish([page()])
    second = (site.directory / "latest").read_text()
    versions = [int(text.partition("version ")[2].split()[0]) for text in (first, second)]
    assert versions[1] == versions[0] + 1


def test_an_origin_that_cannot_be_reached_is_named(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    for origin in ("http://127.0.0.1:9", f"file://{pulled.prefix}"):
        run = pulled.install("--from", origin)
        assert run.code == 1
        assert run.said.startswith(f"install-gpu-fleet: cannot get {origin}/latest: ")
        assert len(run.said.splitlines()) == 1


WRONG_USE = {
    ("--datacentre", "x"): "unknown option --datacentre",
    ("--cluster",): "--cluster needs a value",
    ("--cluster", "a b"): '--cluster "a b": use letters, digits',
    ("--metrics-url", "mimir:9009"): '--metrics-url "mimir:9009": give a URL that begins with https://',
    ("--password", "hunter2"): "visible in the process list; use --password-file FILE",
    ("--password=hunter2",): "use --password-file FILE",
    ("--from", "https://user:hunter2@files/x"): "--from: a login in the URL",
    ("--from", "/nonexistent"): '--from "/nonexistent" is neither a URL nor a directory on this host',
    ("--setting", "PATH=/tmp"): '--setting "PATH": give GPU_FLEET_NAME=VALUE',
    ("--instance", "a\nb"): "the value of GPU_FLEET_INSTANCE has a line break",
    ("--metrics-url", "https://a\nb"): "has a line break",
    ("--prefix", "relative"): '--prefix "relative": give an absolute path',
}


@pytest.mark.parametrize("arguments", WRONG_USE, ids=lambda arguments: repr(arguments[-1])[:40])
def test_wrong_arguments_are_reported_with_the_right_ones(pulled: PulledHost, arguments: tuple[str, ...]) -> None:
    pulled.site.publish([page()])
    run = pulled.run([*pulled.installer(), *arguments])
    assert run.code == 2
    assert WRONG_USE[arguments] in run.said.splitlines()[0]
    assert "usage: sh install-gpu-fleet" in run.said
    assert "hunter2" not in run.said
    assert snapshot(pulled.prefix) == {}


def test_an_unknown_setting_is_reported_with_those_that_exist(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    run = pulled.install("--setting", "GPU_FLEET_GPU=8")
    assert run.code == 1
    assert "unknown setting GPU_FLEET_GPU; expected one of: " in run.said and "GPU_FLEET_GPUS" in run.said
    assert snapshot(pulled.prefix) == {}


def test_the_command_on_the_host_prints_its_usage_for_wrong_arguments(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    run = pulled.pull("--stauts")
    assert run.code == 2 and "usage: gpu-fleet-pull" in run.said


def _marking(directory: Path) -> object:
    """A part whose probe leaves a mark: the first program of a bundle that would run."""
    return page(probe=scripted("mark", f"touch '{directory}/was-run'\n"))
