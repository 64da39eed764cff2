"""Hosts whose bundles have the host program in Python (gpu_fleet/on_host/converge) in place of the one in shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Part
from tests.host.hosts import SimulatedHost

# Starts the program with `kill -9` of the whole run at the Nth change of the file system, N from a file; counts the changes, and
# writes what is flushed to disk and what is renamed, in order.
DEADLY = """
import atexit, os, runpy, signal, sys
directory, program = sys.argv[1:3]
at, count, calls, fsync = int(open(f"{directory}/at").read()), 0, [], os.fsync
def flush(descriptor):
    calls.append("sync " + os.readlink(f"/proc/self/fd/{descriptor}"))
    fsync(descriptor)
os.fsync = flush
changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}
def watch(event, arguments):
    global count
    if event == "os.rename":
        calls.append(f"rename {arguments[0]} -> {arguments[1]}")
    if event in changes or (event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        count += 1
        if count == at:
            os.killpg(0, signal.SIGKILL)
atexit.register(lambda: print(count, file=open(f"{directory}/count", "w")))
atexit.register(lambda: print(*calls, sep="\\n", file=open(f"{directory}/calls", "w")))
sys.argv[:] = sys.argv[2:]
sys.addaudithook(watch)
runpy.run_path(os.path.dirname(program) + "/lib/converge.pyz", run_name="__main__")
"""


class SwitchedHost(SimulatedHost):
    def bundle(self, parts: Sequence[Part]) -> Bundle:
        return Bundle.of(parts, rootfs=self.directory / "rootfs", in_python=True)

    def kill_at(self, directory: Path, change: int) -> None:
        """The next runs end at this change of the file system; 0: at none."""
        directory.mkdir(exist_ok=True)
        (directory / "at").write_text(str(change))
        (directory / "deadly.py").write_text(DEADLY)
        self.shell = (sys.executable, "-I", "-S", "-B", str(directory / "deadly.py"), str(directory))
