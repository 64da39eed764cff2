"""The section about Prometheus servers that fetch metrics from the hosts, beside what Alloy pushes."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_fleet.stackfile.values import AbsolutePath, Port, Section, Username, refuse


def _ip_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        fix = "write `address: 0.0.0.0` for every interface"
        raise refuse(f'"{text}" is not an IP address', expected="an IP address that every host has", fix=fix) from None
    return text


_ListenAddress = Annotated[str, AfterValidator(_ip_address), Field(json_schema_extra={"x-expected": "an IP address"})]


class ScrapeTls(Section):
    """Server certificate of a host; your PKI places it there, and its renewal is picked up without a restart."""

    certificate_file: AbsolutePath = Field(examples=["/etc/pki/tls/certs/host.pem"])
    """Path of the certificate (PEM, with the chain) on every host."""
    key_file: AbsolutePath = Field(examples=["/etc/pki/tls/private/host.key"])
    """Path of its private key on every host, readable by the group `gpu-fleet`."""


class Scrape(Section):
    """Lets a Prometheus of yours scrape the hosts, over TLS and with a login. Default: exporters answer on loopback only."""

    username: Username
    """User of basic authentication; its password is the secret gpu-fleet:scrapePassword, of which hosts get a bcrypt hash."""
    tls: ScrapeTls
    """The hosts' certificates; required."""
    address: _ListenAddress = Field(default="0.0.0.0", examples=["10.0.1.7"])  # noqa: S104 never without TLS and a login
    """Address to listen on, on every host."""
    node_exporter_port: Port = 9110
    """Port of the host's metrics; not one of `ports`."""
    gpu_exporter_port: Port = 9111
    """Port of the GPUs' metrics, on hosts that run dcgm-exporter or nvidia_gpu_exporter."""
