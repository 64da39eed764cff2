"""The parts of a stack as one content-addressed archive: the converge program, its manifest, and the files.

The same parts give the same bytes on any machine, so the digest alone shows whether a host is up to date. The archive contains no
value that differs between hosts and no secret. The manifest's format is documented in converge/README.md.
Not done here: choosing parts (parts/) and sending the archive to a host (the provider).
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_fleet.host.part import (
    FIND_PYTHON,
    ROOTFS,
    Check,
    Directory,
    File,
    FileCheck,
    HttpCheck,
    Part,
    PortCheck,
    Source,
    Unit,
    User,
    secret_group,
)
from gpu_fleet.host.program import PROGRAM, host_modules, zipped

START = Path(__file__).parent / "converge/converge"  # finds a Python, and starts the program with it
MANIFEST_FORMAT = 1

ENV_FILE = "/etc/gpu-fleet/gpu-fleet.env"
SECRETS_DIRECTORY = "/etc/gpu-fleet/secrets"
STATE_DIRECTORY = "/var/lib/gpu-fleet"
GROUP = "gpu-fleet"

SUPERVISOR_DIRECTORY = "/etc/gpu-fleet/supervisor.d"

HOST_PART = "host"  # in every bundle: directories, the environment file, secrets, supervisord's configuration, ENVIRONMENT
HOST_DIRECTORIES = (
    Directory(path="/etc/gpu-fleet"),
    Directory(path=SECRETS_DIRECTORY, mode=0o750, group=GROUP, contents="placed"),
    Directory(path="/opt/gpu-fleet"),
    Directory(path="/var/log/gpu-fleet", contents="runtime"),
    Directory(path="/run/gpu-fleet", contents="runtime"),
    Directory(path=SUPERVISOR_DIRECTORY, contents="placed"),
)
ENVIRONMENT = "/opt/gpu-fleet/libexec/environment"  # read by every script, converge among them
SUPERVISOR_CONFIG = "/etc/gpu-fleet/supervisord.conf"
SUPERVISOR_ONLY = frozenset({"/run/gpu-fleet", SUPERVISOR_DIRECTORY, SUPERVISOR_CONFIG})  # not placed on hosts with systemd

# Facts and settings that no part declares: the provider sends them for every host, or converge adds them itself.
GIVEN_NAMES = frozenset(
    {
        "GPU_FLEET_PREFIX",
        "GPU_FLEET_STACK",
        "GPU_FLEET_INSTANCE",
        "GPU_FLEET_DATACENTER",
        "GPU_FLEET_CLUSTER",
        "GPU_FLEET_SERVICE_MANAGER",
        "GPU_FLEET_SUPERVISORD",
    }
)

# Where parts may place things: nothing outside these roots is ever written or removed by a bundle.
ALLOWED_ROOTS = ("/etc/", "/opt/gpu-fleet/", "/var/lib/", "/var/log/gpu-fleet/", "/run/gpu-fleet/")
# Created by every distribution; never recorded as ours, so never removed.
SYSTEM_DIRECTORIES = frozenset(
    {"/", "/etc", "/etc/systemd", "/etc/systemd/system", "/opt", "/run", "/var", "/var/lib", "/var/log", STATE_DIRECTORY}
)

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


class BundleError(ValueError):
    """The parts contradict themselves or each other: errors in this repository, not in a stack file. Has all of them."""

    def __init__(self, errors: Sequence[str]):
        super().__init__("the parts do not make a bundle:\n" + "\n".join(f"  - {error}" for error in errors))
        self.errors = tuple(errors)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file that the controller has to send, because its source has no URL."""

    part: str
    path: str
    arch: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """`tar`: the archive, uncompressed. `digest`: its sha256 in hex. `texts`: its content, for people to read and to diff, by
    path on the host (`/etc/...`) or in the archive (`manifest`, `converge`, ...); bytes that are not text appear as their
    sha256. `artifacts`: sha256 -> what it is for, of the downloads that the controller sends."""

    tar: bytes
    digest: str
    texts: dict[str, str]
    artifacts: dict[str, Artifact]

    @property
    def settings(self) -> dict[str, str]:
        """The environment file's values that a host does not override."""
        return dict(line.split("=", 1) for line in self.texts["settings"].splitlines())

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        *,
        settings: Mapping[str, str] | None = None,
        rootfs: Path = ROOTFS,
    ) -> Bundle:
        """The bundle of `parts`, in their order. `settings`: what the stack sets for every host, overriding the parts' defaults.
        `rootfs`: directory with the files of their units.

        Raises BundleError with every error found.
        """
        every = [_host_part(parts), *parts]
        unit_files = {part.name: tuple(_unit_files(part, rootfs)) for part in every}
        modules = host_modules()
        errors = [*_errors(every, unit_files), *_errors_of_probes(every, modules)]
        if errors:
            raise BundleError(errors)

        members = {START.name: START.read_bytes(), PROGRAM: zipped(modules)}
        members["manifest"] = "".join("\t".join(record) + "\n" for record in _records(every, unit_files)).encode()
        defaults = _settings(every) | dict(settings or {})
        members["settings"] = "".join(f"{name}={value}\n" for name, value in sorted(defaults.items())).encode()
        for part in every:
            for file in (*part.files, *(file for _, file in unit_files[part.name])):
                members[f"files{file.path}"] = file.content

        sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sorted(members.items()))
        # A host's copy is verified against it before it is run again. Not in `texts`: it changes with every other file.
        tar = _tar({**members, "SHA256SUMS": sums.encode()})
        texts = {path.removeprefix("files"): _readable(content) for path, content in _shown(members)}
        artifacts = {
            source.sha256: Artifact(part=part.name, path=download.path, arch=arch)
            for part in parts
            for download in part.downloads
            for arch, source in sorted(download.sources.items())
            if not source.url
        }
        return cls(tar=tar, digest=hashlib.sha256(tar).hexdigest(), texts=texts, artifacts=artifacts)


def _host_part(parts: Sequence[Part]) -> Part:
    """What the other parts depend on, as a separate part: applied first, removed last."""
    listed = {directory.path for part in parts for directory in part.directories}
    parents = {
        str(parent)
        for part in parts
        for path in (
            *(ENVIRONMENT, FIND_PYTHON),
            *(file.path for file in part.files),
            *(download.path for download in part.downloads),
            *listed,
        )
        for parent in PurePosixPath(path).parents
    }
    own = {directory.path for directory in HOST_DIRECTORIES}
    missing = sorted(parents - listed - own - SYSTEM_DIRECTORIES)
    files = (
        File.from_rootfs(ENVIRONMENT),
        File.from_rootfs(FIND_PYTHON),
        # A site that keeps /etc in git (etckeeper) commits every night, and pushes.
        File(path="/etc/gpu-fleet/.gitignore", content=b"/secrets/\n"),
        File(path=SUPERVISOR_CONFIG, content=START.with_name("supervisord.conf").read_bytes()),
    )
    return Part(name=HOST_PART, directories=(*HOST_DIRECTORIES, *(Directory(path=path) for path in missing)), files=files)


def _unit_files(part: Part, rootfs: Path) -> Iterator[tuple[str, File]]:
    """The service manager and the file, of every file of the part's units that exists under `rootfs`."""
    for unit in part.units:
        for manager, path in _unit_paths(unit):
            source = rootfs / path.lstrip("/")
            if source.is_file():
                yield manager, File(path=path, content=source.read_bytes())


def _unit_paths(unit: Unit) -> Iterator[tuple[str, str]]:
    yield "systemd", f"/etc/systemd/system/{unit.name}.service"
    if unit.timer:
        yield "systemd", f"/etc/systemd/system/{unit.name}.timer"
    if not unit.systemd_only:
        yield "supervisor", f"{SUPERVISOR_DIRECTORY}/{unit.name}.conf"


def _settings(parts: Iterable[Part]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.settings.items()}


# --- the manifest -----------------------------------------------------------------------------------------------------------


def _records(parts: Sequence[Part], unit_files: dict[str, tuple[tuple[str, File], ...]]) -> Iterator[tuple[str, ...]]:
    """The manifest's lines as tuples of fields. An empty field is written `-`: a shell's `read` would swallow it."""
    yield "format", str(MANIFEST_FORMAT)
    for part in parts:
        yield "part", part.name
        for name, allowed in sorted(part.when.items()):
            yield "when", name, ",".join(allowed)
        if part.probe:
            yield "probe", part.probe, "fatal" if part.fatal else "-"
        for family, packages in sorted(part.packages.items()):
            for package in packages:
                yield "package", family, package
        if part.keep:
            yield "keep", part.keep
        for user in part.users:
            yield "user", user.name, user.home, ",".join(user.groups) or "-"
        for directory in part.directories:
            yield (
                "dir",
                _manager(directory.path),
                directory.path,
                f"{directory.mode:o}",
                directory.owner,
                directory.group,
                directory.contents,
            )
        for file in part.files:
            yield _file_record(_manager(file.path), file)
        for manager, file in unit_files[part.name]:
            yield _file_record(manager, file)
        for download in part.downloads:
            for arch, source in sorted(download.sources.items()):
                yield (
                    "download",
                    download.path,
                    f"{download.mode:o}",
                    arch,
                    source.sha256,
                    source.member or "-",
                    source.url or "-",
                )
        for secret in part.secrets:
            yield "secret", secret
        for unit in part.units:
            yield "unit", unit.name, "timer" if unit.timer else "service"
            for cause in (*(path for _, path in _unit_paths(unit)), *unit.restart_on):
                yield "restart", unit.name, cause
            for cause in unit.reload_on:
                yield "reload", unit.name, cause
        for check in part.checks:
            yield _check_record(check)


def _manager(path: str) -> str:
    return "supervisor" if path in SUPERVISOR_ONLY else "any"


def _file_record(manager: str, file: File) -> tuple[str, ...]:
    return "file", manager, file.path, f"{file.mode:o}", file.owner, file.group, hashlib.sha256(file.content).hexdigest()


def _check_record(check: Check) -> tuple[str, ...]:
    match check:
        case HttpCheck():
            return "check", "http", str(check.within_s), check.url, "-", check.contains or "-"
        case FileCheck():
            return "check", "file", str(check.within_s), check.path, str(check.fresh_s), check.contains or "-"
        case PortCheck():
            return "check", "port", str(check.within_s), check.address, "-", "-"


# --- errors ---------------------------------------------------------------------------------------------------------------


def _errors(parts: Sequence[Part], unit_files: dict[str, tuple[tuple[str, File], ...]]) -> Iterator[str]:
    yield from _errors_between(parts, unit_files)
    known = set(GIVEN_NAMES) | set(_settings(parts))
    causes = {"settings", "identity"}
    has_facts = False  # a probe's facts are not declared, so after one any name may be a fact
    for part in parts:
        has_facts = has_facts or bool(part.probe)
        causes |= {file.path for file in part.files} | {download.path for download in part.downloads}
        causes |= {f"secrets/{secret}" for secret in part.secrets}
        for error in (
            *_errors_of_names(part, known, has_facts),
            *_errors_of_paths(part),
            *_errors_of_downloads(part),
            *_errors_of_units(part, unit_files[part.name], causes),
            *_errors_of_fields(part),
        ):
            yield f"{part.name}: {error}"


def _errors_of_probes(parts: Sequence[Part], modules: Mapping[str, bytes]) -> Iterator[str]:
    for part in parts:
        for key, module in (("probe", part.probe), ("keep", part.keep)):
            if module and f"on_host/probe/{module}.py" not in modules:
                yield f"{part.name}: {key} {module} is not a module of gpu_fleet/on_host/probe"


def _errors_between(parts: Sequence[Part], unit_files: dict[str, tuple[tuple[str, File], ...]]) -> Iterator[str]:
    names: set[str] = set()
    owners: dict[str, str] = {ENV_FILE: HOST_PART}
    directories: dict[str, tuple[str, Directory]] = {}
    users: dict[str, tuple[str, User]] = {}
    settings: dict[str, tuple[str, str]] = {}
    for part in parts:
        if part.name in names:
            why = " (every bundle already has a part of this name)" if part.name == HOST_PART else ""
            yield f"{part.name}: two parts have this name{why}"
        names.add(part.name)
        unit_paths = [file.path for _, file in unit_files[part.name]]
        for path in (*(file.path for file in part.files), *(download.path for download in part.downloads), *unit_paths):
            if path in owners:
                yield f"{part.name}: places {path}, and so does {owners[path]}"
            owners[path] = part.name
        for directory in part.directories:
            other, same = directories.setdefault(directory.path, (part.name, directory))
            if same != directory:
                yield f"{part.name}: declares directory {directory.path} with another mode, owner, group or contents than {other}"
        for user in part.users:
            other, same_user = users.setdefault(user.name, (part.name, user))
            if same_user != user:
                yield f"{part.name}: declares user {user.name} with another home or other groups than {other}"
        for name, value in part.settings.items():
            other, same_value = settings.setdefault(name, (part.name, value))
            if same_value != value:
                yield f"{part.name}: gives {name} the default {value!r}, but {other} gives {same_value!r}"


def _errors_of_names(part: Part, known: set[str], has_facts: bool) -> Iterator[str]:
    if not _NAME.fullmatch(part.name):
        yield f"name {part.name!r}: use lower-case letters, digits and '-'"
    for name in (*part.settings, *part.when):
        if not _VARIABLE.fullmatch(name):
            yield f"{name!r} is not a valid name for an environment file"
    for name, value in part.settings.items():
        if not value.isprintable():
            yield f"setting {name}: {value!r} has characters that an environment file cannot represent"
    for name, allowed in part.when.items():
        if name not in known and not has_facts:
            yield f"when {name}: no setting has this name and no probe runs before this part that could print it"
        for value in allowed:
            if not value or "," in value:
                yield f"when {name}: value {value!r} must not be empty or contain a comma"
    for user in part.users:
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user.name):
            yield f"user {user.name!r} is not a name that useradd accepts"
    for secret in part.secrets:
        if not _NAME.fullmatch(secret):
            yield f"secret {secret!r}: use lower-case letters, digits and '-'"
        elif len(secret_group(secret)) > 32:
            yield f"secret {secret!r}: its group {secret_group(secret)!r} is longer than the 32 characters that groupadd accepts"


def _errors_of_paths(part: Part) -> Iterator[str]:
    if part.name == HOST_PART:
        return
    directories = {directory.path for directory in part.directories}
    for path in (*(file.path for file in part.files), *(download.path for download in part.downloads), *sorted(directories)):
        if not path.startswith(ALLOWED_ROOTS):
            yield f"{path} is outside {', '.join(ALLOWED_ROOTS)}"
        elif path != str(PurePosixPath(path)) or ".." in PurePosixPath(path).parts:
            yield f"{path} is not a normalized absolute path"
        elif path.startswith((f"{SECRETS_DIRECTORY}/", f"{SUPERVISOR_DIRECTORY}/")):
            yield f"{path} is where converge places secrets and units; name them in `secrets` or `units`"
    for file in part.files:
        is_program = "/bin/" in file.path or "/libexec/" in file.path
        if is_program and file.content.startswith(b"#!") and not file.mode & 0o100:
            yield f"{file.path} starts with #! but its mode {file.mode:o} is not executable"
        if file.mode & 0o7022:
            yield f"{file.path}: mode {file.mode:o} is writable by others than the owner, or has a set-id bit"


def _errors_of_downloads(part: Part) -> Iterator[str]:
    for download in part.downloads:
        if "/bin/" in download.path and not download.mode & 0o100:
            yield f"{download.path}: mode {download.mode:o} is not executable"
        if not download.sources:
            yield f"{download.path} has no source for any architecture"
        for arch, source in download.sources.items():
            yield from (f"{download.path} ({arch}): {error}" for error in _errors_of_source(arch, source))


def _errors_of_source(arch: str, source: Source) -> Iterator[str]:
    if arch not in ("amd64", "arm64"):
        yield "architectures are amd64 and arm64"
    if not _SHA256.fullmatch(source.sha256):
        yield f"sha256 {source.sha256!r} is not 64 lower-case hex digits"
    if source.url and not source.url.startswith(("https://", "http://")):
        yield f"url {source.url!r} is not http or https"
    if source.member and not source.url.endswith((".tar.gz", ".tgz", ".zip")):
        yield f"member {source.member!r} needs a url that ends in .tar.gz, .tgz or .zip"


def _errors_of_units(part: Part, unit_files: Sequence[tuple[str, File]], causes: set[str]) -> Iterator[str]:
    shipped = {file.path for _, file in unit_files}
    for unit in part.units:
        for _, path in _unit_paths(unit):
            if path not in shipped:
                yield f"unit {unit.name} has no file rootfs{path}"
        for cause in (*unit.restart_on, *unit.reload_on):
            if cause not in causes and not cause.startswith("setting/"):
                yield f"unit {unit.name}: restart_on {cause!r} is placed by neither this part nor one before it"
    for path in sorted(shipped):
        if path.endswith(".conf"):
            content = next(file.content for _, file in unit_files if file.path == path)
            if f"[program:{PurePosixPath(path).stem}]".encode() not in content:
                yield f"{path} must contain [program:{PurePosixPath(path).stem}]"


def _errors_of_fields(part: Part) -> Iterator[str]:
    """Values that the manifest's line format cannot represent."""
    for record in _records([part], {part.name: ()}):
        for value in record[1:]:
            if not value or not value.isprintable() or value != value.strip():
                yield f"{record[0]}: {value!r} must be printable text without leading or trailing spaces"
    for check in part.checks:
        if isinstance(check, FileCheck):
            continue
        what = check.url if isinstance(check, HttpCheck) else check.address
        for name in _REFERENCE.findall(what):
            if not _VARIABLE.fullmatch(name):
                yield f"check {what}: ${{{name}}} is not a valid name for an environment file"


# --- bytes ------------------------------------------------------------------------------------------------------------------


def _tar(members: dict[str, bytes]) -> bytes:
    """An uncompressed archive whose bytes depend only on `members`: fixed order, owner, time and modes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(members):
            info = tarfile.TarInfo(name)
            info.size = len(members[name])
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(members[name]))
    return buffer.getvalue()


def _shown(members: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """What people read: a zip is its files."""
    for path, content in sorted(members.items()):
        if path.endswith(".pyz"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                yield from ((f"{path}/{name}", archive.read(name)) for name in archive.namelist())
        else:
            yield path, content


def _readable(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.replace("\n", "").replace("\t", "").isprintable():  # not one of 270,000 characters at a time
        return text
    return "" if not content else f"sha256:{hashlib.sha256(content).hexdigest()}"
