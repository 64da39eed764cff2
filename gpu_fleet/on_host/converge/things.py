"""What one run works with: a host, what it should have, and one object for each kind of thing on it."""

from __future__ import annotations

from . import attributes
from .accounts import Accounts
from .checks import Readiness
from .disk import Disk
from .downloads import Downloads
from .files import Files
from .foreign import Foreign
from .gpu_containers import GpuContainers
from .host import Host
from .manifest import Part
from .packages import Packages
from .records import Placed
from .services import Services
from .settings import Settings
from .wanted import Wanted


class Things:
    """`parts`: all of the manifest. `services`: those of the service manager of this host."""

    def __init__(self, host: Host, disk: Disk, parts: dict[str, Part], placed: Placed, settings: Settings, manager: str) -> None:
        self.host, self.disk, self.parts, self.placed, self.settings = host, disk, parts, placed, settings
        self.wanted = Wanted(host, parts, settings, placed, manager)
        self.files = Files(host, disk, placed, attributes.survey(host, self.wanted.paths))
        self.downloads = Downloads(host, self.files, placed)
        self.accounts = Accounts(host, disk, placed)
        self._gpu_containers = GpuContainers(host)
        self.packages = Packages(host, disk, placed, self._gpu_containers)
        self.foreign = Foreign(host, disk, self.files)
        self._managers: dict[str, Services] = {}
        self.services = self.manager(manager)
        self.readiness = Readiness(host, settings, self.services)

    def manager(self, name: str) -> Services:
        """What an earlier run placed may be of the other one. Only the one that is needed is imported: XML-RPC takes a tenth of a
        second."""
        if name not in self._managers:
            if name == "systemd":
                from .systemd import Systemd

                self._managers[name] = Systemd(self.host, self.disk, self._gpu_containers)
            else:
                from .supervisord import Supervisord

                self._managers[name] = Supervisord(self.host, self.settings, self.placed)
        return self._managers[name]
