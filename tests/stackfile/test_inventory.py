"""Host patterns, host files and known_hosts."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.patterns import KnownHosts, PatternError, expand
from tests.stackfile.stacks import HOST_KEY, REMOVED, problems, stack


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu-[1:3]", ["gpu-1", "gpu-2", "gpu-3"]),
        ("gpu-[08:11]", ["gpu-08", "gpu-09", "gpu-10", "gpu-11"]),
        ("gpu-[008:010].example.com", ["gpu-008.example.com", "gpu-009.example.com", "gpu-010.example.com"]),
        ("gpu-[9:10]", ["gpu-9", "gpu-10"]),
        ("gpu-[0:9:3]", ["gpu-0", "gpu-3", "gpu-6", "gpu-9"]),
        ("rack[a:c]", ["racka", "rackb", "rackc"]),
        ("rack[A:B]", ["rackA", "rackB"]),
        ("r[1:2]n[a:b]", ["r1na", "r1nb", "r2na", "r2nb"]),
        ("[1:2]", ["1", "2"]),
        ("10.0.[1:2].[254:255]", ["10.0.1.254", "10.0.1.255", "10.0.2.254", "10.0.2.255"]),
    ],
)
def test_a_pattern_expands_as_in_ansible(pattern: str, names: list[str]) -> None:
    assert list(expand(pattern)) == names


@pytest.mark.parametrize(
    "pattern", ["a[", "a]", "a[1]", "a[1-3]", "a[]", "a[3:1]", "a[c:a]", "a[01:1]", "a[1:b]", "a[1:9:0]", "a[a:B]", "a[[1:2]]"]
)
def test_a_broken_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        expand(pattern)


def test_many_ranges_cannot_fill_the_memory() -> None:
    with pytest.raises(PatternError, match="more than 100,000 hosts"):
        expand("[1:9999]-[1:9999]")


# --- known_hosts


def hashed(host: str) -> str:
    """A line as `ssh-keygen -H` writes it."""
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, host.encode(), hashlib.sha1)
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} {HOST_KEY}"


@pytest.mark.parametrize(
    ("line", "host", "is_known"),
    [
        (f"10.0.1.1 {HOST_KEY}", ("10.0.1.1", 22), True),
        (f"gpu1,10.0.1.1 {HOST_KEY} collected 2026-11", ("10.0.1.1", 22), True),
        (f"10.0.1.* {HOST_KEY}", ("10.0.1.77", 22), True),
        (hashed("gpu1"), ("gpu1", 22), True),
        (hashed("gpu1"), ("gpu2", 22), False),
        (f"[gpu1]:2222 {HOST_KEY}", ("gpu1", 2222), True),
        (f"[gpu1]:2222 {HOST_KEY}", ("gpu1", 22), False),
        (f"@cert-authority *.example.com {HOST_KEY}", ("gpu1.example.com", 22), True),
        (f"@cert-authority *.example.com {HOST_KEY}", ("gpu1.example.org", 22), False),
        (f"@revoked gpu1 {HOST_KEY}", ("gpu1", 22), False),
        (f"# gpu1 {HOST_KEY}", ("gpu1", 22), False),
        ("", ("gpu1", 22), False),
    ],
)
def test_a_host_is_known_by_any_kind_of_line(line: str, host: tuple[str, int], is_known: bool) -> None:
    assert (list(KnownHosts(line).missing([host])) == []) is is_known


def test_hosts_without_a_key_are_counted_in_one_error(base: Path) -> None:
    errors = problems(stack(**{"hosts__far-[1:9]": {"address": "10.99.0.[1:9]"}}), base)
    assert errors is not None and len(errors.problems) == 1
    assert "no key for far-1, far-2, far-3, far-4, far-5 and 4 more" in str(errors)


def test_ten_thousand_hashed_lines_are_left_to_the_connection() -> None:
    """Each line has its own salt: trying every host on every line would take minutes."""
    known = KnownHosts("\n".join([hashed("gpu1")] * 200))
    assert list(known.missing([("gpu2", 22)] * 10_000)) == []


# --- a file of hosts in our own form


def load(base: Path, inventory: object, **changes: object) -> StackConfig:
    return StackConfig.load(stack(hosts=REMOVED, inventory=inventory, **changes), base)


def test_a_file_of_hosts_reads_as_the_section_does(base: Path) -> None:
    (base / "hosts.yml").write_text("hosts:\n  gpu-[01:02]: {address: '10.0.1.[1:2]', gpus: 8}\n  10.0.1.9:\n")
    config = load(base, "hosts.yml")
    assert {name: (host.address, host.gpus) for name, host in config.hosts.items()} == {
        "gpu-01": ("10.0.1.1", 8),
        "gpu-02": ("10.0.1.2", 8),
        "10.0.1.9": ("10.0.1.9", None),
    }


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("hosts:\n  gpu1:\n    address: 10.0.1.1\n    gpus: many\n", "hosts.yml:4: hosts.gpu1.gpus", 'found "many"'),
        ("hosts:\n  gpu1: {address: 10.0.1.1, gpu: 8}\n", "hosts.yml:2: hosts.gpu1.gpu", "did you mean 'gpus'"),
        ("hosts:\n  gpu1: {address: 10.0.1.1, ports: {alloy: 0}}\n", "hosts.yml:2: hosts.gpu1.ports.alloy", "found 0"),
        ("hosts:\n  gpu1: {address: 10.0.1.1}\n  gpu1: {address: 10.0.1.2}\n", "hosts.yml:3", "the key 'gpu1' occurs twice"),
        ("hosts:\n  gpu1: {address: 10.0.1.1\n", "hosts.yml:3", "did not find expected"),
        ("hosts:\n  gpu1: 10.0.1.1\n", "hosts.yml:2: hosts.gpu1", "write {address: 10.0.1.1}"),
        ("hosts: [gpu1]\n", "hosts.yml:1: hosts", "found a list of 1"),
        ("hosts:\n", "hosts.yml:1: hosts", "found null"),
        ("- gpu1\n", "hosts.yml:1", "begin with `hosts:`"),
        ("", "hosts.yml:1", "begin with `hosts:`"),
        ("hosts: {gpu1: {address: 10.0.1.1}}\nuser: ops\n", "hosts.yml:2: user", "unknown key 'user'"),
        ("hosts: {gpu1: {address: !!python/object:os.system x}}\n", "hosts.yml:1", "could not determine a constructor"),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "gpu-fleet:inventory.path", "encrypted by ansible-vault"),
    ],
)
def test_an_error_in_a_file_of_hosts_names_file_and_line(base: Path, text: str, where: str, says: str) -> None:
    (base / "hosts.yml").write_text(text)
    errors = problems(stack(hosts=REMOVED, inventory="hosts.yml"), base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == [where], str(errors)
    assert says in str(errors)


def test_a_limit_needs_groups(base: Path) -> None:
    (base / "hosts.yml").write_text("hosts: {gpu1: {address: 10.0.1.1}}\n")
    errors = problems(stack(hosts=REMOVED, inventory={"path": "hosts.yml", "limit": ["a"]}), base)
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:inventory.limit"]
