"""Bare machines of other distributions, old and new, that one `pulumi up` sets up by a login whose sudo asks for a password.

Debian 11 and Ubuntu 20.04 to 26.04 bring Python 3.8 to 3.14, systemd 245 to 259, sudo and sudo-rs, GNU's coreutils and uutils.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lab.dev import query
from lab.hosts import VARIANTS, Site
from lab.hosts.image import OTHERS, SUDO_PASSWORD
from tests.hosts.stack import CLUSTER, DATACENTER, Backend, Stack, config_of, left_as_found

TEXTFILE = ("debian-11", "ubuntu-24.04")
LABELS = f'datacenter="{DATACENTER}",cluster="{CLUSTER}"'


@pytest.fixture(scope="module")
def machines() -> Iterator[Site]:
    with Site.up({name: VARIANTS[name] for name in OTHERS}) as site:
        yield site


@pytest.fixture(scope="module")
def stores(machines: Site, backend: Backend) -> Backend:
    def relayed(url: str, store: str) -> str:
        return f"http://{machines.relay(urlsplit(store).port or 0)}{urlsplit(url).path}"

    return replace(backend, metrics=relayed(backend.metrics, backend.mimir), logs=relayed(backend.logs, backend.loki))


def test_they_are_set_up_seen_left_alone_and_left_as_they_were(
    machines: Site, stores: Backend, artifacts: Path, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    hosts = {
        name: {**entry, **({"exporter": "textfile"} if name in TEXTFILE else {})}
        for name, entry in machines.stack_hosts().items()
    }
    config = config_of(machines, hosts, artifacts, stores)
    config["ssh"]["user"] = "careful"
    stack = Stack(tmp_path / "stack", "others", config, {"sudoPassword": SUDO_PASSWORD}).create()
    for host in machines.hosts.values():
        host.ssh("true", user="careful")  # the first login of a user leaves files in some homes
    with left_as_found(*machines.hosts.values()):
        try:
            stack.up()
            seen = f"node_gpu_utilization_percent{{{LABELS}}} or nvidia_smi_utilization_gpu_ratio{{{LABELS}}}"
            of_each = lambda: Counter(one["metric"]["instance"] for one in query.metrics(stores.mimir, seen))  # noqa: E731
            eventually("all GPUs in Mimir", lambda: of_each() == dict.fromkeys(hosts, 8), shown=of_each)
            for host in machines.hosts.values():
                host.inject_xid(79, gpu_index=3)
            line = f'{{{LABELS},job="kernel",xid="79",instance="%s"}}'
            logged = lambda: {name for name in hosts if query.log_lines(stores.loki, line % name)}  # noqa: E731
            eventually("their lines in Loki", lambda: logged() == hosts.keys(), shown=logged)
            stack.up_unchanged()
        finally:
            stack.clear()
            for host in machines.hosts.values():
                host.repair_gpus()
