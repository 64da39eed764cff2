"""Both sides of scraping hosts from outside: the exporters' web configuration, and the scrape configuration of a Prometheus."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import bcrypt
import pulumi
import yaml

from gpu_fleet.host.parts.adoption import GPU_EXPORTER_ADOPTED, NODE_EXPORTER_ADOPTED
from gpu_fleet.host.parts.exporter_choice import DCGM_EXPORTER, NVIDIA_GPU_EXPORTER
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.scrape import Scrape

if TYPE_CHECKING:
    from gpu_fleet.stackfile.config import StackConfig

_LONGEST_PASSWORD = 72  # bytes that bcrypt can take
_ROUNDS = 10  # the exporters compare in some 50 ms, and remember the answer


def listen(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def web_config(section: Scrape, stack: str, password: str) -> str:
    """The exporters' `--web.config.file`. It changes only when the login or the certificate's path does. Raises RunError."""
    check_password("scrapePassword", password)
    hashed = password_hash(stack, section.username, password)
    tls = {"cert_file": section.tls.certificate_file, "key_file": section.tls.key_file, "min_version": "TLS12"}
    return yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": {section.username: hashed}}, sort_keys=False)


def check_password(key: str, password: str) -> None:
    """Raises RunError for one that bcrypt cannot take. `key`: of the stack file."""
    if not 0 < len(password.encode()) <= _LONGEST_PASSWORD or "\0" in password:
        raise pulumi.RunError(f"{PROJECT}:{key}: expected 1 to {_LONGEST_PASSWORD} bytes without NUL; set another one")


def password_hash(stack: str, username: str, password: str) -> str:
    """The same for the same login, so that nothing changes without a reason: the salt comes from the stack's and the user's name;
    not from the password, since the hash shows it to its readers."""
    seed = hashlib.sha256(f"{PROJECT}\n{stack}\n{username}".encode()).digest()[:16]
    return bcrypt.hashpw(password.encode(), _salt(seed)).decode()


def _salt(seed: bytes) -> bytes:
    """Sixteen bytes in bcrypt's own base64."""
    usual = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    theirs = b"./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    text = base64.b64encode(seed).rstrip(b"=").translate(bytes.maketrans(usual, theirs))
    return b"$2b$%d$%s" % (_ROUNDS, text)


def scrape_config(config: StackConfig, facts: Mapping[str, Mapping[str, str]]) -> str:
    """`scrape_configs` of Prometheus: a job per exporter, with the labels that Alloy gives. `facts`: of each host by name.

    Hosts whose exporter was adopted are left out: only its owner knows how it is reached. So is dcgm-exporter beside an adopted
    node_exporter, since it is reached through ours.
    """
    section = config.scrape
    assert section is not None
    ports = {"node-exporter": section.node_exporter_port, "gpu-exporter": section.gpu_exporter_port}
    targets: dict[str, list[dict[str, Any]]] = {job: [] for job in ports}
    for name, known in sorted(facts.items()):
        host = config.hosts[name]
        mode = known.get("GPU_FLEET_EXPORTER_MODE", "")  # empty where the host has not reported
        has_node_exporter = known.get(NODE_EXPORTER_ADOPTED) != "yes"
        can_be_reached = {NVIDIA_GPU_EXPORTER: True, DCGM_EXPORTER: has_node_exporter}
        jobs = {
            "node-exporter": has_node_exporter,
            "gpu-exporter": can_be_reached.get(mode, False) and known.get(GPU_EXPORTER_ADOPTED) != "yes",
        }
        labels = {"instance": name, "datacenter": config.datacenter, "cluster": config.cluster, "exporter_mode": mode}
        address = "127.0.0.1" if host.connection == "local" else host.address
        for job, is_open in jobs.items():
            if is_open:
                targets[job].append({"targets": [listen(address, ports[job])], "labels": labels.copy()})
    login = {"username": section.username, "password_file": "gpu-fleet-scrape.password"}
    jobs_text = [
        {
            "job_name": job,
            "scheme": "https",
            "basic_auth": login.copy(),
            "tls_config": {"ca_file": "gpu-fleet-ca.pem"},
            "scrape_interval": f"{config.scrape_interval_s}s",
            "static_configs": hosts,
        }
        for job, hosts in targets.items()
        if hosts
    ]
    return yaml.safe_dump({"scrape_configs": jobs_text}, sort_keys=False)
