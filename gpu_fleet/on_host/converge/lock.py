"""One apply or remove at a time. The kernel releases the lock when its holder ends, so it is never stale."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from .errors import Failure, attempt
from .programs import read_or_empty

_TRIES = 60  # one a second


class Lock:
    """Whoever can open a file for reading can lock it: nobody else may."""

    def __init__(self, state: str) -> None:
        self._path = f"{state}/lock"
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def take(self, verb: str) -> None:
        for tries in range(_TRIES, 0, -1):
            descriptor = self._open()
            if try_lock(descriptor) and self._is_in_place(descriptor):
                self._descriptor = descriptor
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                os.truncate(descriptor, 0)
                os.write(descriptor, f"converge {verb}, process {os.getpid()}, since {now}\n".encode())
                return
            # Checks share the lock, and hold it only briefly: a timer's check must not stop an apply.
            is_shared = try_lock(descriptor, fcntl.LOCK_SH)
            os.close(descriptor)
            if tries == 1 or not is_shared:
                holder = read_or_empty(self._path).rstrip("\n")
                raise Failure("locked", f"another run is in progress on this host: {holder}; retry when it has ended")
            time.sleep(1)

    def share(self) -> None:
        """For a check, which nothing was applied for where there is no lock file."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY)
            for tries in range(_TRIES, 0, -1):
                if try_lock(descriptor, fcntl.LOCK_SH):
                    self._descriptor = descriptor
                    return
                if tries > 1:
                    time.sleep(1)
            holder = read_or_empty(self._path).rstrip("\n")
            raise Failure("locked", f"another run has been in progress on this host for a minute: {holder}")

    def _open(self) -> int:
        with attempt(f"cannot lock {self._path}"):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.fchmod(descriptor, 0o600)
        return descriptor

    def _is_in_place(self, descriptor: int) -> bool:
        """The previous run may have deleted the lock file after we opened it. The next run would create and lock a new file, and
        run at the same time as this one."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        return False


def try_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
