"""Users and groups: one group for users who may read the environment file and enter the directory of the secrets, and one group
for each secret, so that a program exposed to the network cannot read another program's credentials."""

from __future__ import annotations

import grp
import os
import pwd
import signal
from typing import Iterable, NamedTuple

from . import account_lock, attributes
from .disk import Disk
from .errors import Failure
from .events import say
from .host import Host, has_our_name
from .manifest import User
from .processes import has_user, is_of_prefix, pids, send
from .programs import must, read_or_empty, until
from .records import Placed, Record

_FILES = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc")


class Difference(NamedTuple):
    """`regrouped`: the user's processes run with other groups than they should."""

    text: str = ""
    regrouped: bool = False


def user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _is_local(file: str, name: str) -> bool:
    return f"\n{name}:" in "\n" + read_or_empty(f"/etc/{file}")


def _groups_of(name: str) -> list[str]:
    """Those of /etc/group that it is a member of. usermod changes no others: of a group that only a directory service or the
    image of an ostree system has (/usr/lib/group) it reports success, and does nothing."""
    entries = (line.split(":") for line in read_or_empty("/etc/group").split("\n") if name in line)
    return [entry[0] for entry in entries if name in entry[-1].split(",")]


class Accounts:
    def __init__(self, host: Host, disk: Disk, placed: Placed) -> None:
        self._host = host
        self._disk = disk
        self._placed = placed
        self._no_login = "/usr/sbin/nologin" if os.access("/usr/sbin/nologin", os.X_OK) else "/bin/false"

    def is_lost(self, kind: str, name: str) -> bool:
        """A local account with our name whose record was lost. `kind`: user or group."""
        file = {"user": "passwd", "group": "group"}[kind]
        return has_our_name(name) and not self._placed.get(kind, name) and _is_local(file, name)

    def group_difference(self, name: str) -> str:
        if not has_group(name):
            return "missing"
        return "exists without a record, to be adopted" if self.is_lost("group", name) else ""

    def user_difference(self, wanted: User) -> Difference:
        """Groups that do not exist on this host are no difference. Everything else about a user that existed before us is the
        administrator's choice."""
        if not self._host.owners:
            return Difference()
        entry = user(wanted.name)
        if entry is None:
            return Difference("missing")
        if self.is_lost("user", wanted.name):
            return Difference("exists without a record, to be adopted")
        try:
            primary = grp.getgrgid(entry.pw_gid).gr_name
        except KeyError:
            primary = ""
        has, wants = {primary, *_groups_of(wanted.name)} - {""}, _present(wanted.groups)
        text = ""
        for group in wants:
            if group not in has:
                text = f"is not in group {group}"
        regrouped = bool(text)
        if not self._placed.get("user", wanted.name):
            return Difference(text, regrouped)
        for group in sorted(has):
            if group not in (wanted.name, *wants):
                text, regrouped = f"is in group {group}", True
        if entry.pw_dir != wanted.home:
            text = f"home is {entry.pw_dir}, not {wanted.home}"
        if entry.pw_shell != self._no_login:
            text = f"login shell is {entry.pw_shell}, not {self._no_login}"
        if not primary:
            text = "its group does not exist"
        return Difference(text, regrouped)

    def place_user(self, wanted: User, part: str) -> bool:
        """Returns whether its home has to change, for which nothing of the user may run: `move_home`."""
        name = wanted.name
        self._flush_etc()
        if self.is_lost("user", name):
            self._placed.update([Record("user", name, part)])
        if user(name) is None:
            self._placed.update([Record("user", name, part)])
            group = f"--gid={name}" if has_group(name) else "--user-group"
            self._change(
                f"cannot create user {name}",
                *("useradd", "--system", "--no-create-home", group, "--home-dir", wanted.home, "--shell", self._no_login, name),
            )
        for group in wanted.groups:
            if has_group(group) and not _is_local("group", group):
                say(
                    f"user {name} cannot be added to group {group}, which /etc/group does not have; if it needs it, add it where "
                    f"the group is defined, or copy the group (getent group {group} >>/etc/group) and apply again"
                )
        groups = ",".join(_present(wanted.groups))
        if not self._placed.get("user", name):
            if groups:
                self._change(f"cannot add user {name} to groups {groups}", "usermod", "--append", "--groups", groups, name)
            return False
        entry = user(name)
        # useradd writes one file after the other: power that fails in between leaves a user without its group.
        if not has_group(name):
            gid = entry.pw_gid if entry else 0
            self._change(f"cannot create group {name}", "groupadd", "--system", "--gid", str(gid), name)
        self._change(f"cannot change user {name}", "usermod", "--gid", name, "--groups", groups, "--shell", self._no_login, name)
        entry = user(name)
        return entry is not None and entry.pw_dir != wanted.home

    def move_home(self, wanted: User) -> None:
        self._change(f"cannot change the home of user {wanted.name}", "usermod", "--home", wanted.home, wanted.name)

    def place_group(self, name: str, part: str) -> None:
        self._flush_etc()
        self._placed.update([Record("group", name, part)])
        if not has_group(name):
            self._change(f"cannot create group {name}", "groupadd", "--system", name)

    def drop_user(self, name: str) -> None:
        """With its own group, and out of other groups. userdel writes /etc/passwd first and /etc/group last: a run that was
        killed or lost power in between leaves the user's name in groups, and userdel finds nothing to remove any more."""
        self._flush_etc()
        entry = user(name)
        if entry is not None:
            self._end_processes(entry.pw_uid)
            self._change(f"cannot remove user {name}", "userdel", name)
        if not has_our_name(name):
            return
        if _is_local("group", name):
            self._change(f"cannot remove group {name}", "groupdel", name)
        for group in _groups_of(name):
            self._change(f"cannot remove user {name} from group {group}", "gpasswd", "--delete", name, group)

    def _end_processes(self, uid: int) -> None:
        """Of ours, for which userdel would refuse. supervisord ends a program's process group; timeout, and the nvidia-smi that
        it runs, are in one of their own. Containers may have processes under the same number: those are not ours."""

        def have_ended() -> bool:
            left = [pid for pid in pids() if has_user(pid, uid) and is_of_prefix(pid, self._host.prefix)]
            return not [pid for pid in left if send(pid, signal.SIGKILL)]

        until(50, have_ended)

    def drop_group(self, name: str) -> None:
        if _is_local("group", name):  # groupdel removes no other
            self._flush_etc()
            self._change(f"cannot remove group {name}", "groupdel", name)

    def _change(self, what: str, *command: str) -> None:
        try:
            must(what, *command)
        except Failure as failure:
            locked = account_lock.explained(failure.message)
            if locked:
                raise Failure("locked", f"{what}: {locked}") from failure
            for path, why in attributes.survey(self._host, _FILES).items():
                raise Failure("no-write", f"{failure.message}; {path} {why}: unlock it (chattr -i) and apply again") from failure
            raise

    def _flush_etc(self) -> None:
        """The tools for accounts flush their files, not the directory in which they rename them."""
        self._disk.will_flush(self._host.at("/etc"))


def _present(groups: Iterable[str]) -> list[str]:
    return [group for group in groups if _is_local("group", group)]
