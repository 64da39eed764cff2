"""Files and directories: how they differ from the bundle, and how they are placed. Nothing is ever written in place."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from typing import Iterable

from . import attributes
from .disk import Disk, copy_exactly, create, opened, remove_tree, sha256_of, unlink
from .errors import Failure, attempt
from .host import Host, has_our_name
from .manifest import Directory, File
from .programs import run
from .records import Placed, Record

NEW = ".gpu-fleet-new"  # a suffix that no service reads


class Files:
    """`unusual`: what attributes.survey found."""

    def __init__(self, host: Host, disk: Disk, placed: Placed, unusual: dict[str, str] | None = None) -> None:
        self._host = host
        self._disk = disk
        self._placed = placed
        self.unusual = unusual or {}

    # --- differences, empty where there is none ---------------------------------------------------------------------------------

    def file_difference(self, file: File) -> str:
        kind = self.kind_difference(file.path)
        if kind:
            return kind
        if sha256_of(self._host.at(file.path)) != file.sha256:
            return "content differs"
        return self.meta_difference(file.path, file.mode, file.owner, file.group)

    def kind_difference(self, path: str) -> str:
        """Unless it is a regular file. Reading a named pipe at such a path would never end."""
        at = self._host.at(path)
        if os.path.islink(at):
            return "is a symbolic link"
        if not os.path.exists(at):
            return "missing"
        return "" if os.path.isfile(at) else "is not a file"

    def meta_difference(self, path: str, mode: int, owner: str, group: str) -> str:
        status = os.stat(self._host.at(path))
        found = stat.S_IMODE(status.st_mode)
        # On some systems directories inherit set-group-id from their parent, and chmod keeps it; that is not drift.
        if stat.S_ISDIR(status.st_mode):
            found &= 0o777
        if found != mode:
            return f"mode is {found:o}, not {mode:o}"
        if self._host.owners:
            names = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
            if names != f"{owner}:{group}":
                return f"owner is {names}, not {owner}:{group}"
        return self.unusual.get(path, "")

    def directory_difference(self, directory: Directory) -> str:
        path, mode, owner, group, contents = directory
        at = self._host.at(path)
        if os.path.islink(at) and contents != "runtime" and self._placed.get("dir", path):
            # A symbolic link that existed before us, or that redirects our programs' data to another disk, is the administrator's
            # choice.
            return "is a symbolic link"
        if not os.path.exists(at):
            return "missing"
        if not os.path.isdir(at):
            return "is not a directory"
        return self.meta_difference(path, mode, owner, group)

    # --- placing ----------------------------------------------------------------------------------------------------------------

    def _is_ours(self, directory: str) -> bool:
        return has_our_name(directory) or self._placed.get("dir", directory) is not None

    def unlock(self, path: str) -> None:
        """Also its directory, unless that is not ours."""
        parent = os.path.dirname(path)
        with contextlib.suppress(OSError):
            attributes.unlock(self._host, self.unusual, (path, parent) if self._is_ours(parent) else (path,))

    def refuse_unwritable(self, path: str) -> None:
        """Where it is to be placed: on a read-only file system, such as the image of an ostree system, or in a directory that
        somebody has locked. Asked before anything is changed."""
        directory = self._existing(path)
        if self._host.owners and path.startswith("/opt/gpu-fleet/"):
            self._refuse_closed(path)
        if os.access(directory, os.W_OK):
            return
        name = directory[len(self._host.prefix) :]
        why = self.unusual.get(name) or "cannot be written by this user"
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            why = "is on a read-only file system; mount a writable one there, or make our directory below it a link to one"
        elif self._is_ours(name):
            return  # `unlock` comes before
        raise Failure("no-write", f"{path} cannot be placed: {directory} {why}")

    def _existing(self, path: str) -> str:
        """The directory in which it is, or will be, without links."""
        directory = os.path.realpath(self._host.at(path))
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        return directory

    def _refuse_closed(self, path: str) -> None:
        """Programs there run as users of their own, which have to reach them. Links below our directory are replaced."""
        directory = self._existing("/opt/gpu-fleet")
        while directory not in ("/", self._host.prefix):
            mode = stat.S_IMODE(os.stat(directory).st_mode)
            if not self._is_ours(directory) and not mode & stat.S_IXOTH:
                raise Failure(
                    "no-write",
                    f"{path} cannot be placed: {directory} has mode {mode:04o}, and services that do not run as root could not "
                    f"reach it; `chmod o+x {directory}`, or make /opt/gpu-fleet a link to a directory that everybody may enter",
                )
            directory = os.path.dirname(directory)

    def new_name(self, path: str) -> str:
        """Where the next version of a file is written. Always the same name, so that a run after an interrupted one overwrites
        the leftover; hidden."""
        directory, name = os.path.split(self._host.at(path))
        return f"{directory}/.{name}{NEW}"

    def place_file(self, file: File) -> None:
        self.make_parents(file.path)
        self.unlock(file.path)
        new = self.new_name(file.path)
        try:
            with attempt(f"cannot write {self._host.at(file.path)}"):
                create(new, file.content)
        except Failure:
            unlink(new)
            raise
        self.swap_in(file.path, file.mode, file.owner, file.group)

    def swap_in(self, path: str, mode: int, owner: str, group: str) -> None:
        """The new version becomes `path`."""
        at, new = self._host.at(path), self.new_name(path)
        with attempt(f"cannot set the mode of {at}"), opened(new) as file:
            os.fchmod(file, mode)
        self._set_owner(path, owner, group, new)
        with attempt(f"cannot write {at}"):
            self._disk.commit(new, at)

    def _set_owner(self, path: str, owner: str, group: str, new: str, whole: bool = False) -> None:
        """Of `new`, which is or becomes `path`. `whole`: and of everything in it."""
        if not self._host.owners:
            return
        what = f"cannot set the owner of {self._host.at(path)} to {owner}:{group}"
        try:
            uid, gid = pwd.getpwnam(owner).pw_uid, grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise Failure("internal", f"{what}: {error.args[0] if error.args else 'unknown name'}") from error
        with attempt(what):
            if os.path.isdir(new):
                attributes.own_directory(new, uid, gid, whole)
            else:
                with opened(new) as file:
                    attributes.own(file, uid, gid)

    def missing_parents(self, path: str) -> list[str]:
        """Directories above it that do not exist, the deepest first. Not links to nowhere: `place_directory` follows them."""
        missing = []
        parent = os.path.dirname(path)
        while parent != "/" and parent and not os.path.isdir(self._host.at(parent)):
            if not os.path.islink(self._host.at(parent)):
                missing.append(parent)
            parent = os.path.dirname(parent)
        return missing

    def make_parents(self, path: str) -> None:
        """The records have them already."""
        missing = self.missing_parents(path)
        if not missing:
            return
        with attempt(f"cannot create the directory of {self._host.at(path)}"):
            for parent in reversed(missing):
                os.mkdir(self._host.at(parent))
        for parent in missing:
            self._disk.will_flush(os.path.dirname(self._host.at(parent)))
            self._label(parent)

    def _label(self, directory: str) -> None:
        """Gives a new directory the label that SELinux's policy has for its path; files created in it inherit the label. systemd
        starts programs in /opt/gpu-fleet/bin and libexec in their own domain (unconfined_service_t) only where that label is
        bin_t; otherwise they would run in systemd's domain (init_t), with its permissions and restrictions.
        Source: corecommands.fc and unconfinedservice.te of fedora-selinux/selinux-policy, read 2026-11-21."""
        run("restorecon", self._host.at(directory))

    def place_directory(self, directory: Directory) -> None:
        path, mode, owner, group, contents = directory
        at = self._host.at(path)
        recorded = self._placed.get("dir", path)
        whole = False
        self.unlock(path)
        if os.path.islink(at) and contents != "runtime" and recorded:
            with attempt(f"cannot replace the link {at} by a directory"):
                self._replace_link(path)
        if not os.path.isdir(at):
            # A file or dangling link in place of a directory of ours is only a change to our installation.
            if os.path.lexists(at) and recorded:
                unlink(at)
            self.make_parents(path)
            with attempt(f"cannot create the directory {at}"):
                os.mkdir(os.path.realpath(at), mode)  # at may be an administrator's link to nowhere
                os.chmod(at, mode)
            self._label(path)
        else:
            status = os.stat(at)
            with attempt(f"cannot set the mode of {at}"):
                os.chmod(at, mode | (stat.S_IMODE(status.st_mode) & 0o7000))
            # The files in it may belong to an account that no longer exists.
            names = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
            whole = contents == "runtime" and recorded is not None and names != f"{owner}:{group}"
        self._disk.will_flush(at)
        self._disk.will_flush(os.path.dirname(at))
        self._set_owner(path, owner, group, at, whole)

    def _replace_link(self, path: str) -> None:
        """By a directory with the content of its target: differences were determined through the link."""
        at, new = self._host.at(path), self.new_name(path)
        remove_tree(new)
        os.mkdir(new)
        if os.path.isdir(at):
            for name in os.listdir(at):
                copy_exactly(f"{at}/{name}", f"{new}/{name}")
        os.unlink(at)
        os.rename(new, at)

    # --- removing ---------------------------------------------------------------------------------------------------------------

    def drop_file(self, path: str) -> None:
        """What we placed, and a half-written next version of it."""
        self.unlock(path)
        self._disk.will_flush(os.path.dirname(self._host.at(path)))
        with attempt(f"cannot remove {self._host.at(path)}"):
            unlink(self._host.at(path))
            unlink(self.new_name(path))

    def drop_directory(self, path: str) -> None:
        """One that our programs filled."""
        self.unlock(path)
        self._disk.will_flush(os.path.dirname(self._host.at(path)))
        with attempt(f"cannot remove {self._host.at(path)}"):
            remove_tree(self._host.at(path))

    def sweep(self, records: Iterable[Record]) -> None:
        """Removes these directories, deepest first, where they are empty. One that holds foreign files stays."""
        swept = []
        for record in sorted(records, key=lambda record: record.key, reverse=True):
            at = self._host.at(record.key)
            if os.path.islink(at):
                unlink(at)
            elif os.path.isdir(at):
                try:
                    os.rmdir(at)
                except OSError:
                    continue
            self._disk.will_flush(os.path.dirname(at))
            swept.append(record)
        self._placed.forget(swept)


def user_name(uid: int) -> str:
    """`UNKNOWN` for a number without a name, as stat prints it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "UNKNOWN"


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return "UNKNOWN"
