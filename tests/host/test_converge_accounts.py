"""Users and groups, as the files of /etc and a directory service have them."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
from pathlib import Path

import pytest

from gpu_fleet.on_host.converge import account_lock, accounts
from gpu_fleet.on_host.converge.disk import Disk
from gpu_fleet.on_host.converge.errors import Failure
from gpu_fleet.on_host.converge.host import Host
from gpu_fleet.on_host.converge.manifest import User
from gpu_fleet.on_host.converge.records import Placed, Record

NAME = "gpu-fleet-textfile"
WANTED = User(NAME, "/nonexistent", ("video", "render", "docker"))


class Site:
    """Of `files` is /etc/group; of a directory service, or of the image of an ostree system, is `directory`: group -> members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.files: dict[str, list[str]] = {NAME: [], "video": [NAME]}
        self.directory: dict[str, list[str]] = {}
        self.ran: list[str] = []
        (directory / "state").mkdir()
        self.placed = Placed(str(directory / "state"), Disk())
        self.placed.update([Record("user", NAME, "textfile")])
        host = Host("apply", str(directory), owners=True)
        self.accounts = accounts.Accounts(host, Disk(), self.placed)
        entry = pwd.struct_passwd((NAME, "x", 990, 1000, "", "/nonexistent", self.accounts._no_login))
        monkeypatch.setattr(pwd, "getpwnam", {NAME: entry}.__getitem__)
        monkeypatch.setattr(grp, "getgrnam", lambda name: self._groups()[name])
        monkeypatch.setattr(grp, "getgrgid", lambda gid: next(group for group in self._groups().values() if group.gr_gid == gid))
        monkeypatch.setattr(
            "os.getgrouplist", lambda *_: [each.gr_gid for each in self._groups().values() if NAME in each.gr_mem]
        )
        monkeypatch.setattr(accounts, "read_or_empty", self._read)
        monkeypatch.setattr(accounts, "must", lambda _, *command: self.ran.append(" ".join(command)))

    def _groups(self) -> dict[str, grp.struct_group]:
        every = [*self.files.items(), *self.directory.items()]
        return {name: grp.struct_group((name, "x", 1000 + at, members)) for at, (name, members) in enumerate(every)}

    def _read(self, path: str) -> str:
        assert path in ("/etc/group", "/etc/passwd")
        return "".join(f"{name}:x:1:{','.join(members)}\n" for name, members in self.files.items())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    return Site(monkeypatch, tmp_path)


def test_a_group_that_etc_does_not_have_is_no_drift_that_an_apply_could_repair(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of shadow 4.13 and libnss-extrausers: `usermod --groups render` ends with 0, and the user is in no other group than before.
    pyinfra issue 1008, rpm-ostree issue 1318."""
    site.directory["render"] = []
    assert site.accounts.user_difference(WANTED).text == "", "each apply would restart the exporter, and change nothing"
    site.accounts.place_user(WANTED, "textfile")
    assert f"--groups video --shell {site.accounts._no_login} {NAME}" in site.ran[-1]
    assert "cannot be added to group render, which /etc/group does not have" in capsys.readouterr().err
    site.directory["render"] = [NAME]
    assert site.accounts.user_difference(WANTED).text == "", "as this was solved where the group is defined"


def test_membership_in_a_group_of_etc_is_watched_in_both_directions(site: Site) -> None:
    site.files["video"].clear()
    assert site.accounts.user_difference(WANTED) == ("is not in group video", True)
    site.files |= {"video": [NAME], "adm": ["syslog", NAME]}
    assert site.accounts.user_difference(WANTED) == ("is in group adm", True)


def test_a_locked_file_of_accounts_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hosts that are hardened: shadow says that it cannot open the file, not why."""

    def refuse(what: str, *_: str) -> None:
        raise Failure("internal", f"{what}: useradd: cannot open /etc/group")

    monkeypatch.setattr(accounts, "must", refuse)
    monkeypatch.setattr(accounts.attributes, "flags_of", lambda path: 0x10 if path == "/etc/group" else 0)
    with pytest.raises(Failure) as caught:
        site.accounts.place_group("gpu-fleet-new", "host")
    assert caught.value.code == "no-write", "an internal error asks for a report"
    assert caught.value.message.endswith(
        "/etc/group is locked against changes (chattr +i): unlock it (chattr -i) and apply again"
    )


OURSELVES = f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        ("", "was locked by a program that was cut off: remove what it left (rm {0}.lock) and apply again"),
        ("4194305\0", "was locked by a program that was cut off: remove what it left (rm {0}.lock) and apply again"),
        (f"{os.getpid()}", f"is locked by {OURSELVES}: apply again once it has ended. If it has nothing to do with accounts, "),
        (None, f"is locked by {OURSELVES}: apply again once it has ended"),
    ],
    ids=["by power that failed", "by one that ended", "by one that runs", "all files, by another tool"],
)
def test_who_has_locked_the_accounts_is_named_with_what_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lock: str | None, says: str
) -> None:
    """As vipw does, or a useradd that lost power. Public report: mystikos issue 1089."""
    passwd, every = tmp_path / "passwd", tmp_path / ".pwd.lock"

    def refuse(what: str, *_: str) -> None:
        raise Failure("internal", f"{what}: useradd: cannot lock {passwd}; try again later.")

    monkeypatch.setattr(accounts, "must", refuse)
    monkeypatch.setattr(account_lock, "_OF_ALL", str(every))
    if lock is not None:
        (tmp_path / "passwd.lock").write_text(lock)
    with every.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with pytest.raises(Failure) as caught:
            site.accounts.place_group("gpu-fleet-new", "host")
    assert caught.value.code == "locked", "an internal error asks for a report"
    assert caught.value.message.startswith(f"cannot create group gpu-fleet-new: {passwd} {says.format(passwd)}")


def test_a_group_of_a_directory_is_left_there(site: Site) -> None:
    """groupdel fails: `cannot remove entry ... from /etc/group` (shadow 4.13, libnss-extrausers), and so would each removal."""
    site.directory["gpu-fleet"] = []
    site.accounts.place_group("gpu-fleet", "host")
    site.accounts.drop_group("gpu-fleet")
    assert site.ran == []
