"""Measures how long it takes to read and validate the configuration of 10,000 hosts: python -m bench.config_10k

Three ways to list them: one pattern, an Ansible inventory with a mapping per host, and the same with a known_hosts file of
20,000 lines. The limit is 2 s each.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from gpu_fleet.stackfile.config import StackConfig

BOUND_S = 2.0
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMr2lzzJNsTWXYnmJQ40JDtxB6tMUpvuAoPEaDG8HZ5c"
COMMON = {
    "datacenter": "us-west",
    "cluster": "training",
    "ssh": {"user": "ops", "knownHostsFile": "known_hosts"},
    "metrics": {"url": "https://mimir.example.com/api/v1/push"},
}


def addresses() -> list[str]:
    return [f"10.{block}.{rack}.{unit}" for block in range(10) for rack in range(10) for unit in range(1, 101)]


def ansible_inventory() -> str:
    """100 racks of 100 hosts, four lines a host."""
    lines = ["all:", "  vars: {ansible_port: 2222}", "  children:"]
    for number, address in enumerate(addresses()):
        if number % 100 == 0:
            lines += [f"    rack{number // 100:02}:", "      hosts:"]
        lines += [f"        gpu-node-{number:05}:", f"          ansible_host: {address}"]
        lines += ["          gpu_fleet_gpus: 8", f"          rack_unit: {number % 42}"]
    return "\n".join(lines) + "\n"


def seconds(raw: dict[str, object], base: Path) -> float:
    start = time.perf_counter()
    config = StackConfig.load(COMMON | raw, base)
    taken = time.perf_counter() - start
    assert len(config.hosts) == 10_000
    return taken


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        (base / "hosts.yml").write_text(ansible_inventory())
        (base / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
        pattern = {"gpu-node-[0:9]-[0:9]-[001:100]": {"address": "10.[0:9].[0:9].[1:100]", "gpus": 8}}
        figures = {
            "one pattern": seconds({"hosts": pattern}, base),
            "Ansible inventory": seconds({"inventory": "hosts.yml"}, base),
        }
        lines = [
            f"{prefix}{address}{suffix} {HOST_KEY}\n" for address in addresses() for prefix, suffix in (("", ""), ("[", "]:2222"))
        ]
        (base / "known_hosts").write_text("".join(lines))
        figures["Ansible inventory, 20,000 known hosts"] = seconds({"inventory": "hosts.yml"}, base)
    for name, taken in figures.items():
        print(f"{name:<40} {taken:5.2f} s")
    return 0 if max(figures.values()) < BOUND_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
