"""Whatever stands in a stack file or an inventory, the answer is a list of errors and never a traceback."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.stackfile.stacks import HOST_KEY, REMOVED, problems, stack

ODD = [
    [],
    {},
    "",
    None,
    1.5,
    True,
    -1,
    10**30,
    "x",
    ["x"],
    [None],
    [[]],
    {"x": None},
    {1: 2},
    {"x": {"y": []}},
    "{{ x }}",
    "[",
    "a\nb",
]

HOST = {
    **{
        "address": "10.0.1.1",
        "port": 22,
        "user": "x",
        "sudo": True,
        "hostKey": HOST_KEY,
        "bastion": {"host": "10.0.0.1"},
        "gpus": 8,
    },
    **{"connection": "ssh", "exporter": "auto", "vendor": "auto", "kernelLog": "auto", "toolPath": ["/x"], "ports": {"alloy": 1}},
}
ALERTS = {
    "targets": ["ruler"],
    "receivers": {"team": {"webhook": {"url": "https://x.org"}, "slack": {"urlSecret": "slackUrl", "channel": "#x"}}},
    "routes": [{"matchers": ["a=b"], "receiver": "team", "muteTimings": ["night"]}],
    "muteTimings": {"night": {"times": [{"start": "00:00", "end": "01:00"}], "weekdays": ["monday"], "location": "UTC"}},
}
FULL = stack(
    hosts__gpu1=HOST,
    alerts=ALERTS,
    inventory={"path": "hosts.yml", "limit": ["a"]},
    artifacts={"source": "mirror", "url": "https://m.example.com"},
    grafana={"url": "https://g.example.com", "folder": "x"},
    backend={"directory": "x", "mimir": {"port": 1}},
)


def paths(node: object, above: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield (*above, key)
        yield from paths(value, (*above, key))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_value_anywhere_in_a_stack_file_is_no_traceback(odd: object, base: Path) -> None:
    for path in paths(FULL):
        raw = copy.deepcopy(FULL)
        node = raw
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = odd
        problems(raw, base)


PLACES = [
    "hosts: %s",
    "hosts: {gpu1: %s}",
    "all: %s",
    "all: {hosts: %s}",
    "all: {children: %s}",
    "all: {children: {a: %s}}",
    "all: {vars: %s, hosts: {gpu1: }}",
    "all: {hosts: {gpu1: %s}}",
    *(
        f"all: {{hosts: {{gpu1: {{{name}: %s}}}}}}"
        for name in (
            "ansible_host",
            "ansible_port",
            "ansible_user",
            "ansible_connection",
            "ansible_become",
            "ansible_become_user",
        )
    ),
    *(
        f"all: {{hosts: {{gpu1: {{{name}: %s}}}}}}"
        for name in ("ansible_ssh_common_args", "ansible_group_priority", "datacenter", "gpu_fleet_ports", "gpu_fleet_tool_path")
    ),
]


@pytest.mark.parametrize("place", PLACES)
def test_an_odd_value_in_an_inventory_is_no_traceback(place: str, base: Path) -> None:
    for odd in ODD:
        written = yaml.safe_dump([odd], default_flow_style=True).strip()[1:-1]
        (base / "hosts.yml").write_text(place % written)
        problems(stack(hosts=REMOVED, inventory="hosts.yml"), base)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {children: *a}",
        "a: &a\n  hosts: *a",
        "? [1, 2]\n: x",
        "all: {hosts: {1: , 2.5: , true: , null: }}",
        "<<: 3",
        "a: b\n---\nc: d",
        "\t",
        "\0",
    ],
)
def test_odd_yaml_is_no_traceback(text: str, base: Path) -> None:
    (base / "hosts.yml").write_text(text)
    assert problems(stack(hosts=REMOVED, inventory="hosts.yml"), base) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        "[a:b:c]",
        "=",
        "x =y",
        "[all:vars]\n=x",
        "x ansible_port=[1]",
        "x:99999",
        "fe80::1",
        "x ansible_ssh_common_args=-J",
        "x ansible_host=",
    ],
)
def test_odd_ini_is_no_traceback(text: str, base: Path) -> None:
    (base / "hosts").write_text(text)
    assert problems(stack(hosts=REMOVED, inventory="hosts"), base) is not None
