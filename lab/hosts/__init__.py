"""Throw-away hosts with real systemd, journald and sshd, for tests. They need root and no GPU.

    with Site.up({"node-1": VARIANTS["metal"]}) as site:
        site.hosts["node-1"].ssh("systemctl status")
        site.hosts["node-1"].inject_xid(79, gpu_index=3)

Each site has a network of its own that nothing else reaches, an address that swallows packets and one that stalls. Whatever is
left of a killed test is taken down by the next one.
Not done here: bringing the hosts to a state; that is what they are for. Limits: no privileged containers, no memory limits,
no route to any other network.
"""

from __future__ import annotations

from lab.hosts.errors import HostsError
from lab.hosts.host import Host
from lab.hosts.site import Site
from lab.hosts.variants import VARIANTS, Variant

__all__ = ["Host", "HostsError", "Site", "VARIANTS", "Variant"]
