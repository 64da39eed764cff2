"""Distribution packages for the lab's hosts, which reach no mirror: stand-ins of NVIDIA's under their real names, in a repository
that real apt installs from.

    nvidia-container-toolkit          the hook that `docker run --gpus` calls, and nvidia-ctk: they hand out the simulated GPUs
    datacenter-gpu-manager-4-core     a host engine that can be reached and does nothing
    datacenter-gpu-manager-exporter   the simulated dcgm-exporter of the host's own python

Not NVIDIA's programs: each does what the real one is needed for here, by the interface that others call it through.
"""

from __future__ import annotations

from lab.hosts.packages.repository import Repository
from lab.hosts.packages.stand_ins import build_stand_ins

__all__ = ["Repository", "build_stand_ins"]
