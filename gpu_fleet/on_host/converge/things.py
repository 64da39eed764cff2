"""What one run works with: a host, what it should have, and one object for each kind of thing on it."""

from __future__ import annotations

from typing import Callable, NamedTuple

from . import attributes
from .accounts import Accounts
from .disk import Disk
from .downloads import Downloads
from .files import Files
from .foreign import Foreign
from .gpu_containers import GpuContainers
from .host import Host
from .manifest import Part
from .packages import Packages
from .ready import Readiness
from .records import Placed
from .services import Services
from .settings import Settings
from .wanted import Wanted


class Things(NamedTuple):
    """`parts`: all of the manifest. `services`: those of the service manager of this host. `manager`: a service manager by its
    name: what an earlier run placed may be of the other one."""

    host: Host
    parts: dict[str, Part]
    settings: Settings
    wanted: Wanted
    placed: Placed
    disk: Disk
    files: Files
    downloads: Downloads
    accounts: Accounts
    packages: Packages
    foreign: Foreign
    services: Services
    manager: Callable[[str], Services]
    readiness: Readiness


def things_of(host: Host, disk: Disk, parts: dict[str, Part], placed: Placed, settings: Settings, manager: str) -> Things:
    wanted = Wanted(host, parts, settings, placed, manager)
    gpu_containers = GpuContainers(host)
    managers: dict[str, Services] = {}

    def by_name(name: str) -> Services:
        if name not in managers:
            managers[name] = _manager(name, host, disk, settings, placed, gpu_containers)
        return managers[name]

    files = Files(host, disk, placed)
    files.unusual = attributes.survey(host, wanted.paths)
    services = by_name(manager)
    return Things(
        *(host, parts, settings, wanted, placed, disk, files, Downloads(host, files, placed), Accounts(host, disk, placed)),
        *(
            Packages(host, disk, placed, gpu_containers),
            Foreign(host, disk, files),
            services,
            by_name,
            Readiness(host, settings, services),
        ),
    )


def _manager(name: str, host: Host, disk: Disk, settings: Settings, placed: Placed, gpu_containers: GpuContainers) -> Services:
    """Only the one that is needed is imported: XML-RPC takes a tenth of a second."""
    if name == "systemd":
        from .systemd import Systemd

        return Systemd(host, disk, gpu_containers)
    from .supervisord import Supervisord

    return Supervisord(host, settings, placed)
