"""What package transactions of both families have."""

from __future__ import annotations

import os
import re
import subprocess
import time

from .disk import sync
from .programs import lines_of, read_or_empty, run

PATIENCE_S = 900  # for another installer's locks
MOST_BYTES = 16 << 20  # of what a command prints; a hook that repeats itself without end must not fill the disk


class Transaction:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        records = (line.split("\t") for line in lines_of(read_or_empty(f"{directory}/../placed")))
        self._ours = {fields[1] for fields in records if fields[0] == "package"}

    def at(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def read(self, name: str) -> str:
        return read_or_empty(self.at(name))

    def read_bytes(self, name: str) -> bytes:
        with open(self.at(name), "rb") as file:
            return file.read()

    def append(self, name: str, text: str) -> None:
        with open(self.at(name), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)

    def refuse(self, reason: str) -> None:
        """The first one counts."""
        if not self.read("refused"):
            self.append("refused", f"{reason}\n")

    def flush(self, name: str) -> None:
        sync(self.at(name))

    def is_ours(self, name: str) -> bool:
        """A package that an earlier transaction of ours installed."""
        return name in self._ours

    def run(self, *command: str, output: str = "log", errors: str = "stderr", fresh: bool = False) -> int:
        """Appends what it prints. A daemon that a package starts does not inherit our lock."""
        with open(self.at(output), "ab") as out, open(self.at(errors), "wb" if fresh else "ab") as err:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                while True:
                    try:
                        return process.wait(1)
                    except subprocess.TimeoutExpired:
                        for file in (out, err):  # not a pipe, which a daemon that a package starts may keep
                            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                                os.ftruncate(file.fileno(), MOST_BYTES // 2)
            except OSError as error:
                err.write(f"{command[0]}: {error.strerror}\n".encode())
                return 127

    def run_past_locks(self, *command: str, is_locked: str, output: str = "log") -> int:
        """Again while what it says matches `is_locked`. Leaves in `attempt` what its last run printed: errors, then the output,
        where apt has what dpkg says."""
        waited_s = 0
        while True:
            logged = len(self.read_bytes(output))
            code = self.run(*command, output=output, errors="attempt", fresh=True)
            said = self.read("attempt")
            if code == 0 or not re.search(is_locked, said) or waited_s >= PATIENCE_S:
                with open(self.at("attempt"), "ab") as file:
                    file.write(b"\n" + self.read_bytes(output)[logged:])
                self.append("stderr", said)
                return code
            time.sleep(2)
            waited_s += 2

    def check_file(self, name: str, path: str) -> None:
        """A path of a package that is not installed yet. What exists there belongs to somebody, and dpkg and rpm would overwrite
        it without a word where it is of no package, as after an installation from an archive."""
        file = os.path.basename(path)
        if re.search(r"/systemd/system/[^@]*\.(service|socket|timer)$", path) and os.path.isdir("/run/systemd/system"):
            state = run("systemctl", "show", "--property=LoadState", "--value", file).stdout.strip()
            if state not in ("", "not-found"):
                where = run("systemctl", "show", "--property=FragmentPath", "--value", file).stdout.strip()
                self.refuse(f"{name} contains the unit {file}, which exists on this host ({where})")
        elif re.search(r"/s?bin/[^/]*$", path):
            for other in ("/usr/local/bin", "/usr/local/sbin", "/opt/bin"):
                if os.path.exists(f"{other}/{file}"):
                    self.refuse(f"{name} contains the program {file}, which exists on this host ({other}/{file})")
        if os.path.lexists(path) and not self.owns(name, path):
            self.refuse(f"{name} contains {path}, which exists on this host")

    def owns(self, name: str, path: str) -> bool:
        """Is the path of this package, in another state or version?"""
        raise NotImplementedError
