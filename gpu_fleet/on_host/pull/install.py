"""The installer: options, passwords, the first envelope. A second run changes the settings given to it and keeps the others."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Callable, Mapping, NamedTuple, NoReturn

from ..converge import proxies
from ..converge.errors import Failure, attempt, explained
from ..converge.events import say
from ..converge.programs import end_on_signals
from .envelope import Envelope
from .index import Index, Trust, read_index
from .kept import Kept, settings_of, settings_text
from .origin import Origin, Refused
from .passwords import Passwords

_USAGE = """\
usage: sh install-gpu-fleet [OPTION...]
  --datacenter NAME, --cluster NAME    labels of this host's metrics and logs; default: the stack's
  --instance NAME                      label of this host; default: its host name
  --from URL|DIR                       location of the publication; default: as published, else this installer's directory
  --metrics-url URL, --logs-url URL    push URLs of metrics and logs; default: the stack's
  --username NAME                      user name for both; default: the stack's
  --password-file FILE                 file with its password; default: a prompt on the terminal
  --logs-username NAME, --logs-password-file FILE     if logs have another login
  --secrets-directory DIR              where metrics-bearer-token, metrics-client-key and the like are, as the bundle needs them
  --setting NAME=VALUE                 any other setting of this host, such as GPU_FLEET_GPUS=8; may be repeated
  --python PATH|present                this host's Python; present: there is one, which is not to be installed
  --prefix DIR                         install everything below DIR, without root
"""
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 # by systemd, from all of our services
_UNPUBLISHED = {"GPU_FLEET_INSTANCE", "GPU_FLEET_PYTHON", "GPU_FLEET_PYTHON_INSTALL"}
_OWN = ("GPU_FLEET_STACK", "GPU_FLEET_MODE", "GPU_FLEET_PULL_FROM", "GPU_FLEET_PULL_KEY", "GPU_FLEET_PULL_STACK")


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        text = re.sub("^argument ", "", message).replace(': "', ' "', 1).replace(": expected one argument", " needs a value")
        sys.stderr.write(f"install-gpu-fleet: {text}\n{_USAGE}")
        sys.exit(2)

    def print_help(self, file: object = None) -> None:
        sys.stderr.write(_USAGE)


class _Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        name = self.option_strings[0]
        parser.error(
            f"a password on the command line is visible in the process list; use {name}-file FILE, or omit it for a prompt"
        )


def _setting(name: str, fits: str, expected: str) -> Callable[[str], dict[str, str]]:
    """Converts the value of an option into settings. `fits`: a regular expression."""

    def convert(value: str) -> dict[str, str]:
        given, _, text = (f"{name}={value}" if name else value).partition("=")
        if not re.fullmatch("[^\0-\x1f\x7f]*", text):
            raise argparse.ArgumentTypeError(f"the value of {given} has a line break or another control character")
        if not re.fullmatch(fits, value):
            raise argparse.ArgumentTypeError(f'"{value if name else given}": {expected}')
        return {given: text}

    return convert


def _origin(value: str) -> str:
    """Made absolute, because the timer's service has another working directory."""
    if re.match("https?://.*@", value):
        raise argparse.ArgumentTypeError(
            "a login in the URL would be visible in logs and process lists; let the server admit this host without one, or use a "
            "directory"
        )
    if re.match("(https?://|file:///).", value):
        return value.rstrip("/")
    if not os.path.isdir(value):
        raise argparse.ArgumentTypeError(f'"{value}" is neither a URL nor a directory on this host')
    return os.path.abspath(value)


def _python(value: str) -> dict[str, str]:
    if not value.startswith("/") and value not in ("auto", "present"):
        raise argparse.ArgumentTypeError(f'"{value}": give a path, or present or auto')
    return {"GPU_FLEET_PYTHON": value if "/" in value else "", "GPU_FLEET_PYTHON_INSTALL": "no" if value == "present" else ""}


def _prefix(value: str) -> str:
    if not value.startswith("/"):
        raise argparse.ArgumentTypeError(f'"{value}": give an absolute path')
    return value.rstrip("/")


def _parse(arguments: list[str]) -> argparse.Namespace:
    options = _Options(prog="install-gpu-fleet", allow_abbrev=False)
    label = ("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "use letters, digits and . _ - between them")
    url = ("https?://.+", "give a URL that begins with https:// or http://")
    for option, name, fits, expected in (
        ("--datacenter", "GPU_FLEET_DATACENTER", *label),
        ("--cluster", "GPU_FLEET_CLUSTER", *label),
        ("--instance", "GPU_FLEET_INSTANCE", *label),
        ("--metrics-url", "GPU_FLEET_METRICS_URL", *url),
        ("--logs-url", "GPU_FLEET_LOGS_URL", *url),
        ("--logs-username", "GPU_FLEET_LOGS_USERNAME", ".*", ""),
        ("--setting", "", "GPU_FLEET_[^=]*=.*", "give GPU_FLEET_NAME=VALUE"),
    ):
        options.add_argument(option, dest="given", action="append", type=_setting(name, fits, expected))
    options.add_argument("--python", dest="given", action="append", type=_python)
    options.add_argument("--username", type=_setting("GPU_FLEET_METRICS_USERNAME", ".*", ""), default={})
    for option in ("--password", "--logs-password"):
        options.add_argument(option, nargs="?", action=_Refused)
    for option in ("--password-file", "--logs-password-file", "--secrets-directory"):
        options.add_argument(option, default="")
    options.add_argument("--from", dest="origin", type=_origin)
    options.add_argument("--prefix", type=_prefix)
    options.set_defaults(given=[], origin=None, prefix=None)
    found, unknown = options.parse_known_args(arguments)
    if unknown:
        options.error(f"unknown option {unknown[0].partition('=')[0]}")
    for name in found.username.values():
        found.given.insert(0, {"GPU_FLEET_METRICS_USERNAME": name, "GPU_FLEET_LOGS_USERNAME": name})
    return found


class Installation(NamedTuple):
    """`published`: what publish.py wrote into the installer: stack, keys, version. `given`: settings given now."""

    kept: Kept
    origin: Origin
    published: Mapping[str, str]
    given: Mapping[str, str]
    passwords: Passwords

    def perform(self) -> int:
        """Returns the exit code. Raises Failure."""
        directory = self.origin.directory
        if not self.kept.prefix and os.path.isdir("/run/systemd/system") and f"{directory}/".startswith(_HIDDEN):
            raise Refused(
                f"{directory} is hidden from the service that will read it later; first copy the directory elsewhere, such as to "
                "/srv/gpu-fleet",
            )
        self.kept.recover()
        floor = max(int(self.published["version"]), self.kept.seen_version)
        with self.kept.work() as work:
            index = read_index(self.origin, Trust(self.published["stack"], self.published["keys"].split(","), floor), work)
            say(f"bundle {index.bundle} of stack {self.published['stack']}, version {index.version}: the signature is valid")
            is_ours = self.kept.settings.get("GPU_FLEET_PULL_STACK") == self.published["stack"]
            newest = Envelope(f"{work}/newest", self.kept, self.origin, self.kept.line("stack") if is_ours else "")
            with attempt(f"cannot write below {self.kept.state}"):
                os.makedirs(f"{newest.path}/secrets")
                newest.get_bundle(index)
                settings = self._settings(index)
                with open(f"{newest.path}/settings", "wb") as file:
                    file.write(settings_text(settings))
            self.passwords.write(newest, settings)
            if not self.kept.exists:
                return self._apply(newest, index, settings)
            with self.kept.lock(60):
                return self._apply(newest, index, settings)

    def _apply(self, newest: Envelope, index: Index, settings: Mapping[str, str]) -> int:
        try:
            newest.apply(settings["GPU_FLEET_STACK"])
        except Failure as failure:
            if os.path.isfile(f"{self.kept.state}/settings"):
                failure.message += "; what came up stays, and the rest is tried again every 15 minutes"
            raise
        finally:
            if self.kept.exists:
                self.kept.remember(index)
        self.kept.keep_good(newest.path, index.version)
        self.kept.forgive()
        now = f"from now on this host applies what is published at {self.origin.url}"
        return self.kept.report(True, f"bundle {index.bundle[:12]} is running; {now}")

    def _settings(self, index: Index) -> dict[str, str]:
        """The published ones, overridden by those given to this host before, overridden by those given now."""
        unknown = sorted(set(self.given) - set(index.settings) - _UNPUBLISHED)
        if unknown:
            known = " ".join(sorted(index.settings))
            raise Refused(f"unknown setting {' '.join(unknown)}; expected one of: {known}")
        before = self.kept.settings
        names = before.get("GPU_FLEET_PULL_GIVEN", "").split()
        own = {name: value for name, value in before.items() if name in names}
        own.setdefault("GPU_FLEET_INSTANCE", os.uname().nodename.split(".")[0])
        own.update(self.given)
        merged = {**index.settings, **own}
        cluster = f"{merged.get('GPU_FLEET_DATACENTER', '')}/{merged.get('GPU_FLEET_CLUSTER', '')}"
        of_pull = (cluster, "pull", self.origin.url, self.published["keys"], self.published["stack"])
        own.update(zip(_OWN, of_pull))
        # The names that a later publication does not change.
        own["GPU_FLEET_PULL_GIVEN"] = " ".join(sorted({*own, "GPU_FLEET_PULL_GIVEN"}))
        return {**index.settings, **own}


def main(arguments: list[str]) -> int:
    """The first: the path of the installer; beside this program is `published`."""
    end_on_signals()
    program, *options = arguments
    given = _parse(options)
    published = settings_of(os.path.join(sys.path[0], "published"))
    try:
        prefix = given.prefix or ""
        if not prefix and os.geteuid() != 0:
            raise Refused(f"this installs services and users; run it as root (sudo sh {program} ...)")
        proxies.find(prefix)
        kept = Kept(prefix)
        origin = Origin(given.origin or published["from"] or os.path.abspath(os.path.dirname(program)))
        passwords = Passwords(given.password_file, given.logs_password_file, given.secrets_directory)
        settings = {name: value for each in given.given for name, value in each.items()}
        return Installation(kept, origin, published, settings, passwords).perform()
    except (Failure, OSError) as error:
        say(f"install-gpu-fleet: {explained(error).message}")
        return 1
