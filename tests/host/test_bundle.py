"""The bundle: the same bytes everywhere, readable, and refused when its parts contradict each other."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpu_fleet.host.bundle import Bundle, BundleError
from gpu_fleet.host.part import Directory, Download, File, FileCheck, HttpCheck, Part, Source, Unit, User

REPOSITORY = Path(__file__).parents[2]
SUM = "0" * 64


def _part(**kwargs: object) -> Part:
    return Part(**{"name": "one", **kwargs})  # type: ignore[arg-type]


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _errors(*parts: Part) -> tuple[str, ...]:
    with pytest.raises(BundleError) as caught:
        Bundle.of(parts)
    return caught.value.errors


DIGEST = """
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import *
print(Bundle.of([Part(
    name="one",
    when={"B": ("x",), "A": ("y",)},
    settings={"B": "x", "A": "y"},
    files=(File(path="/etc/one/b", content="b→".encode()), File(path="/etc/one/a", content=b"a")),
    downloads=(Download(path="/opt/gpu-fleet/bin/one", sources={a: Source(sha256="0" * 64) for a in ("arm64", "amd64")}),),
    packages={"rhel": ("x",), "debian": ("y",)},
)]).digest)
"""


def test_the_same_parts_yield_the_same_bytes_on_any_machine(tmp_path: Path) -> None:
    surroundings = [
        ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "USER": "root"}, 0o022, REPOSITORY),
        ({"PYTHONHASHSEED": "2", "TZ": "America/Lima", "LC_ALL": "C.UTF-8", "USER": "ops"}, 0o077, tmp_path),
    ]
    digests = set()
    for environment, umask, directory in surroundings:
        run = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**environment, "PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
            umask=umask,
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(run.stdout)
    assert len(digests) == 1, "a digest that differs between machines makes every host look changed"


def test_the_digest_is_that_of_the_archive_and_changes_with_any_content() -> None:
    def bundle(text: bytes, mode: int = 0o644) -> Bundle:
        return Bundle.of([_part(files=(File(path="/etc/one/a", content=text, mode=mode),))])

    first = bundle(b"a")
    assert first.digest == hashlib.sha256(first.tar).hexdigest()
    assert len({first.digest, bundle(b"b").digest, bundle(b"a", 0o600).digest}) == 3


def test_the_archive_holds_the_program_the_manifest_and_the_files() -> None:
    bundle = Bundle.of([_part(files=(File(path="/etc/one/a b", content=b"text\n"),), settings={"A": "1 2"})])
    with tarfile.open(fileobj=io.BytesIO(bundle.tar)) as tar:
        names = tar.getnames()
        assert names == sorted(names)
        assert {"converge", "lib/converge.pyz", "manifest", "settings", "files/etc/one/a b"} <= set(names)
        assert not any(name.endswith(".md") for name in names), "hosts need no documentation"
        assert tar.extractfile("settings").read() == b"A=1 2\n"
        lines = tar.extractfile("manifest").read().decode().splitlines()
    assert lines[:2] == ["format\t1", "part\thost"]
    assert "file\tany\t/etc/one/a b\t644\troot\troot\t" + _sum(b"text\n") in lines


def test_the_texts_for_the_preview_are_readable_and_by_their_path_on_the_host() -> None:
    bundle = Bundle.of(
        [_part(files=(File(path="/etc/one/text", content=b"a\n"), File(path="/etc/one/bytes", content=b"\0\xff")))]
    )
    assert bundle.texts["/etc/one/text"] == "a\n"
    assert bundle.texts["/etc/one/bytes"] == "sha256:" + _sum(b"\0\xff")
    assert bundle.texts["converge"].startswith("#!/bin/sh")


def test_what_the_controller_has_to_bring_is_listed() -> None:
    sources = {"amd64": Source(sha256="a" * 64), "arm64": Source(sha256="b" * 64, url="https://example.com/one")}
    bundle = Bundle.of([_part(downloads=(Download(path="/opt/gpu-fleet/bin/one", sources=sources),))])
    assert {sha256: (artifact.path, artifact.arch) for sha256, artifact in bundle.artifacts.items()} == {
        "a" * 64: ("/opt/gpu-fleet/bin/one", "amd64")
    }


def test_directories_of_files_belong_to_the_host_part_unless_a_part_names_them() -> None:
    manifest = Bundle.of(
        [
            _part(files=(File(path="/etc/one/deep/a", content=b""), File(path="/etc/two/a", content=b""))),
            _part(name="two", directories=(Directory(path="/etc/two", contents="placed"),)),
        ]
    ).texts["manifest"]
    host, *_ = manifest.split("part\tone\n")
    assert "dir\tany\t/etc/one/deep\t755\troot\troot\tshared\n" in host
    assert "/etc/two" not in host
    assert "dir\tany\t/etc/two\t755\troot\troot\tplaced\n" in manifest


ERRORS = {
    "two parts of one name": ([_part(), _part()], "one: two parts have this name"),
    "a part named host": ([_part(name="host")], "host: two parts have this name (every bundle already has a part of this name)"),
    "a part name with capitals": ([_part(name="One")], "One: name 'One': use lower-case letters, digits and '-'"),
    "one path twice": (
        [_part(files=(File(path="/etc/one/a", content=b""),)), _part(name="two", files=(File(path="/etc/one/a", content=b""),))],
        "two: places /etc/one/a, and so does one",
    ),
    "the environment file": (
        [_part(files=(File(path="/etc/gpu-fleet/gpu-fleet.env", content=b""),))],
        "one: places /etc/gpu-fleet/gpu-fleet.env, and so does host",
    ),
    "a path outside the roots": (
        [_part(files=(File(path="/usr/bin/one", content=b""),))],
        "one: /usr/bin/one is outside /etc/, /opt/gpu-fleet/, /var/lib/, /var/log/gpu-fleet/, /run/gpu-fleet/",
    ),
    "a path that climbs": (
        [_part(files=(File(path="/etc/../usr/x", content=b""),))],
        "/etc/../usr/x is not a normalized absolute path",
    ),
    "a path in the secrets": (
        [_part(files=(File(path="/etc/gpu-fleet/secrets/a", content=b""),))],
        "one: /etc/gpu-fleet/secrets/a is where converge places secrets and units; name them in `secrets` or `units`",
    ),
    "a program that cannot run": (
        [_part(files=(File(path="/opt/gpu-fleet/libexec/a", content=b"#!/bin/sh\n"),))],
        "one: /opt/gpu-fleet/libexec/a starts with #! but its mode 644 is not executable",
    ),
    "a file all may write": (
        [_part(files=(File(path="/etc/one/a", content=b"", mode=0o666),))],
        "one: /etc/one/a: mode 666 is writable by others than the owner, or has a set-id bit",
    ),
    "a directory wanted in two ways": (
        [
            _part(directories=(Directory(path="/etc/one"),)),
            _part(name="two", directories=(Directory(path="/etc/one", mode=0o700),)),
        ],
        "two: declares directory /etc/one with another mode, owner, group or contents than one",
    ),
    "a user wanted in two ways": (
        [_part(users=(User(name="u"),)), _part(name="two", users=(User(name="u", groups=("video",)),))],
        "two: declares user u with another home or other groups than one",
    ),
    "two defaults of one setting": (
        [_part(settings={"A": "1"}), _part(name="two", settings={"A": "2"})],
        "two: gives A the default '2', but one gives '1'",
    ),
    "a setting with a line break": (
        [_part(settings={"A": "1\n2"})],
        "one: setting A: '1\\n2' has characters that an environment file cannot represent",
    ),
    "a setting with a bad name": ([_part(settings={"a-b": "1"})], "one: 'a-b' is not a valid name for an environment file"),
    "a condition nobody can meet": (
        [_part(when={"NOBODY": ("x",)})],
        "one: when NOBODY: no setting has this name and no probe runs before this part that could print it",
    ),
    "a condition with a comma": (
        [_part(when={"A": ("x,y",)}, settings={"A": "x"})],
        "one: when A: value 'x,y' must not be empty or contain a comma",
    ),
    "a probe that is not shipped": (
        [_part(probe="look_around")],
        "one: probe look_around is not a module of gpu_fleet/on_host/probe",
    ),
    "a unit without files": (
        [_part(units=(Unit(name="gpu-fleet-one"),))],
        "one: unit gpu-fleet-one has no file rootfs/etc/systemd/system/gpu-fleet-one.service",
    ),
    "a restart on something unknown": (
        [_part(units=(Unit(name="gpu-fleet-one", restart_on=("/etc/one/a",)),))],
        "one: unit gpu-fleet-one: restart_on '/etc/one/a' is placed by neither this part nor one before it",
    ),
    "an unknown architecture": (
        [_part(downloads=(Download(path="/opt/gpu-fleet/bin/a", sources={"x86_64": Source(sha256=SUM)}),))],
        "one: /opt/gpu-fleet/bin/a (x86_64): architectures are amd64 and arm64",
    ),
    "a sum that is none": (
        [_part(downloads=(Download(path="/opt/gpu-fleet/bin/a", sources={"amd64": Source(sha256="abc")}),))],
        "one: /opt/gpu-fleet/bin/a (amd64): sha256 'abc' is not 64 lower-case hex digits",
    ),
    "an archive of an unknown kind": (
        [
            _part(
                downloads=(
                    Download(
                        path="/opt/gpu-fleet/bin/a",
                        sources={"amd64": Source(sha256=SUM, url="https://example.com/a.rar", member="a")},
                    ),
                )
            )
        ],
        "one: /opt/gpu-fleet/bin/a (amd64): member 'a' needs a url that ends in .tar.gz, .tgz or .zip",
    ),
    "a field with a tab": (
        [_part(checks=(FileCheck(path="/var/lib/gpu-fleet/a", contains="a\tb"),))],
        "one: check: 'a\\tb' must be printable text without leading or trailing spaces",
    ),
    "a check of no setting": (
        [_part(checks=(HttpCheck(url="http://127.0.0.1:${A-B}/"),))],
        "one: check http://127.0.0.1:${A-B}/: ${A-B} is not a valid name for an environment file",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_parts_that_make_no_sense_are_refused(kind: str) -> None:
    parts, expected = ERRORS[kind]
    assert any(expected in error for error in _errors(*parts)), _errors(*parts)


def test_all_errors_are_reported_at_once() -> None:
    parts = _part(name="One", secrets=("A b",), files=(File(path="/usr/a", content=b""),))
    assert len(_errors(parts)) == 3


def test_a_unit_whose_supervisor_file_names_another_program_is_refused(tmp_path: Path) -> None:
    for path, text in {
        "etc/systemd/system/gpu-fleet-one.service": "",
        "etc/gpu-fleet/supervisor.d/gpu-fleet-one.conf": "[program:one]\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(BundleError, match=r"must contain \[program:gpu-fleet-one\]"):
        Bundle.of([_part(units=(Unit(name="gpu-fleet-one"),))], rootfs=tmp_path)
