"""sudo on a host: how a command is started with it, what its questions are answered, and why it refused.

The password is written only once sudo runs, when it waits for one, and once. sudo-rs puts our prompt into a text of its own, and
PAM modules such as sssd's have prompts of theirs, so what counts is an unfinished line that asks for a password. What is printed
before sudo runs (start-up files of the shell, set -x) is never answered.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Final

QUIET_S: Final = 1.0  # until an unfinished line that is not our prompt counts as a question: sudo prints errors word by word
# Whether the password is checked on this host alone: the account is in /etc/passwd, and PAM asks no directory, where one may
# have the same name. sssd's module is in every stack of RHEL, and asks nobody where sssd does not run.
_LOCAL: Final = (
    'is_local=; if grep -q "^$(id -un):" /etc/passwd && '
    '! grep -Eqs "^[^#]*pam_(krb5|ldap|winbind|radius|tacplus)" /etc/pam.d/* && '
    '! { [ -S /var/lib/sss/pipes/pam ] && grep -Eqs "^[^#]*pam_sss" /etc/pam.d/*; }; then is_local=" for a local account"; fi; '
)
# The same language everywhere, and sh in place of the login's shell, which may be fish or tcsh. Not -p: it hides what PAM asks.
_ANNOUNCED: Final = (
    "export LC_ALL=C SUDO_PROMPT='gpu-fleet asks for the sudo password of %p:'; "  # %p: root with rootpw and targetpw
    f'{_LOCAL}echo "$0$is_local" >&2; exec "$@"'
)
# sudo passes its own standard input on unless it records it; before 1.9.13 a pty of `use_pty` is in between, too.
_UNLESS_RECORDED: Final = (
    "[ /proc/$PPID/fd/0 -ef /proc/$$/fd/0 ] || ! sudo -nlU \"$SUDO_USER\" | grep -Eiq '[ ,]log_(input|stdin)' || "
    """{ echo '{"event":"recorded"}'; exit; }; exec "$@\""""
)
# sudo's, where PAM asks no more than "Password:"; sudo-rs's, with what PAM asks.
_OURS: Final = re.compile(
    rb"(?:\[sudo: (?=.*\])|(?<!\[sudo: ))gpu-fleet asks for the sudo password of (?P<whose>\S+):(?:\] (?P<pam>.*[:?>]))?\s*$"
)
_ASKS: Final = re.compile(rb"[:?>]\s*$")
_FOR_A_PASSWORD: Final = re.compile(rb"(?i)password|first factor")  # sssd's name of the password where there are two factors
_FOR_MORE: Final = re.compile(rb"(?i)one-?time|\b(?:otp|code|token|pin|new|retype|current)\b")
_WRONG: Final = re.compile(r"(?i)incorrect (?:password|authentication)|authentication fail|try again|no password was provided")


class SharedPassword:
    """The password of a login of a directory (sssd, FreeIPA, Active Directory), which hosts of a stack share. Until one of them
    has accepted it, it is given to one host at a time, and after two refusals to none: each refusal counts, and a wrong password
    given to every host locks the login out of all (ansible issues 12754 and 76236). That of a local account is given to every
    host, once: a refusal is that host's alone, which may be the only one with another password."""

    MOST_REFUSALS: Final = 2

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._whose: object = None
        self._is_accepted = False
        self._refused_by: list[str] = []

    async def begin(self, who: object) -> str:
        """Waits until it may be given. Returns why it may not; `end` follows in any case."""
        if self._is_accepted:
            return ""
        await self._turn.acquire()
        if not self._is_accepted and len(self._refused_by) < self.MOST_REFUSALS:
            self._whose = who
            return ""
        self._turn.release()
        return "" if self._is_accepted else f"it was refused on {' and '.join(self._refused_by)}"

    def end(self, who: object, host: str, *, is_accepted: bool, is_refused: bool) -> None:
        """Neither: the host ended without an answer."""
        self._is_accepted |= is_accepted
        if is_refused:
            self._refused_by.append(host)
        if self._whose is who:
            self._whose = None
            self._turn.release()


class Sudo:
    """One sudo. `key`: of the stack file, which holds the password."""

    def __init__(self, password: str | None, key: str):
        self._password = password
        self.key = key
        self._marker = f"gpu-fleet starts sudo ({secrets.token_hex(4)})".encode()
        self._asked: list[bytes] = []
        self._is_local = False
        self.has_begun = False

    def command(self, argv: Sequence[str], *, has_secrets: bool) -> list[str]:
        """`has_secrets`: whether some will be on its standard input, which it must not record then."""
        checked = ["sh", "-c", _UNLESS_RECORDED, "gpu-fleet", *argv] if has_secrets else argv
        # Not without -u: sudoers may name another user (runas_default).
        sudo = ["sudo", "-S" if self._password else "-n", "-u", "root", "--"]
        return ["sh", "-c", _ANNOUNCED, self._marker.decode(), *sudo, *checked]

    def begins(self, line: bytes) -> bool:
        """Whether the line says that sudo begins: standard error before it is the login's, after it sudo's."""
        is_local = line.endswith(self._marker + b" for a local account")
        is_it = not self.has_begun and (is_local or line.endswith(self._marker))
        self.has_begun |= is_it
        self._is_local |= is_it and is_local
        return is_it

    @property
    def is_of_directory(self) -> bool:
        """Whether the password that was asked for last may be checked by others than the host. root's never is."""
        whose = _OURS.search(self._asked[-1]) if self._asked else None
        return not self._is_local and not (whose and whose["whose"] == b"root")

    def is_prompt(self, line: bytes) -> bool:
        """Whether the unfinished line is our own prompt, also within a text of sudo-rs."""
        return self.has_begun and bool(_OURS.search(line))

    def may_ask(self, line: bytes) -> bool:
        """Whether the unfinished line is a question if nothing follows."""
        return self.has_begun and bool(_ASKS.search(line))

    def answer(self, question: bytes) -> bytes | None:
        """What is written to its standard input; None where the question is not to be answered and sudo to be ended.

        A second question means that the password was wrong, and each wrong one may count towards a lock-out."""
        self._asked.append(question.strip())
        if len(self._asked) == 1 and self._password and _is_for_a_password(question):
            return f"{self._password}\n".encode()
        if len(self._asked) == 2 and b"optional" in question.lower():  # sssd: "Second Factor (optional):"
            return b"\n"
        return None

    def refusal(self, output: Sequence[str], code: int, shown: Callable[[bytes], str]) -> str:
        """Why nothing ran, in one line. `output`: what it printed since it was answered. `shown`: cleans text of the host."""
        if len(output) > 1 and self._asked and output[-1].endswith("a password is required"):  # after PAM refused the account
            output = output[:-1]
        last = output[-1] if output else ""
        if self._asked and not _is_for_a_password(self._asked[0]):
            return f'it asks "{shown(self._asked[0])}", and can be given a password alone'
        if len(self._asked) > 1 and not _is_for_a_password(self._asked[-1]):
            return f'after the password it asks "{shown(self._asked[-1])}", and can be given a password alone'
        if self.is_wrong(output):
            whose = _OURS.search(self._asked[0])
            root = "; the password it asks for is root's (rootpw or targetpw)" if whose and whose["whose"] == b"root" else ""
            return f"the password of {self.key} was refused{root}"
        return (last.removeprefix("sudo: ").removeprefix("sudo-rs: ") or f"it ended with code {code}") + self._hint(last)

    def is_wrong(self, output: Sequence[str]) -> bool:
        """Whether the password was given and refused. `output` as for `refusal`."""
        if not self._asked or not _is_for_a_password(self._asked[0]) or not _is_for_a_password(self._asked[-1]):
            return False
        return len(self._asked) > 1 or any(map(_WRONG.search, output))

    def recorded(self) -> str:
        return (
            "log_input is set on this host, which keeps what sudo reads, so the secrets were not sent; exempt the login: "
            "`Defaults:LOGIN !log_input, !log_stdin` in sudoers, or set `user` to root"
        )

    def _hint(self, output: str) -> str:
        if " tty" in output:
            return "; standard input carries the bundle, so exempt the login: `Defaults:LOGIN !requiretty` in sudoers"
        if "exec: " in output and "Permission denied" in output:
            return "; what sudo starts may start nothing itself: exempt the login, `Defaults:LOGIN !noexec` or EXEC: in its rule"
        if "not found" in output.lower() or "unknown command" in output.lower():
            return "; install it, or set `user` to root"
        return "" if self._password else "; set gpu-fleet:sudoPassword, or let the login use sudo without one"


def _is_for_a_password(question: bytes) -> bool:
    ours = _OURS.search(question)
    asked = (ours["pam"] or b"password") if ours else question
    return bool(_FOR_A_PASSWORD.search(asked) and not _FOR_MORE.search(asked))
