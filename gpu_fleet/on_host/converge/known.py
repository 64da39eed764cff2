"""A host as one run knows it: what it should have, and who can change it."""

from __future__ import annotations

from typing import NamedTuple

from . import attributes
from .accounts import Accounts
from .difference import Differences
from .disk import Disk
from .downloads import Downloads
from .errors import Failure
from .files import Files
from .foreign import Foreign
from .host import Host
from .manifest import Part
from .packages import Packages
from .parts import Parts
from .ready import Readiness
from .records import Placed
from .services import Services
from .settings import Settings
from .wanted import Wanted


class Known(NamedTuple):
    """`probes`: why the probe of a part failed."""

    wanted: Wanted
    differences: Differences
    parts: Parts
    packages: Packages
    foreign: Foreign
    files: Files
    probes: dict[str, Failure]


def know(
    host: Host,
    disk: Disk,
    parts: dict[str, Part],
    placed: Placed,
    settings: Settings,
    manager: str,
    probes: dict[str, Failure],
) -> Known:
    wanted = Wanted(host, parts, settings, placed, manager)
    managers: dict[str, Services] = {}

    def by_name(name: str) -> Services:
        if name not in managers:
            managers[name] = _manager(name, host, disk, settings, placed)
        return managers[name]

    files = Files(host, disk, placed)
    files.unusual = attributes.survey(host, wanted.paths)
    accounts, packages = Accounts(host, disk, placed), Packages(host, disk, placed)
    downloads, foreign = Downloads(host, files, placed), Foreign(host, disk, files)
    services = by_name(manager)
    readiness = Readiness(host, settings, services)
    differences = Differences(host, settings, wanted, placed, files, downloads, accounts, packages, services, readiness)
    work = Parts(host, disk, placed, wanted, differences, files, downloads, accounts, packages, foreign, by_name, readiness)
    return Known(wanted, differences, work, packages, foreign, files, probes)


def _manager(name: str, host: Host, disk: Disk, settings: Settings, placed: Placed) -> Services:
    """Only the one that is needed is imported: XML-RPC takes a tenth of a second."""
    if name == "systemd":
        from .systemd import Systemd

        return Systemd(host, disk)
    from .supervisord import Supervisord

    return Supervisord(host, settings, placed)
