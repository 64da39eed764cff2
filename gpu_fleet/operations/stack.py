"""The stack that a command works on, as its `--stack` names it: the file, and the configuration as Pulumi sees it.

Stack files are in the checkout or in a directory of the user's own (docs/own-directory.md), which `make STACKS=DIR` passes on in
the environment. Every command then works in that directory, as pulumi does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet.operations.backend import emptied
from gpu_fleet.operations.engine import OperationError, error_of, pulumi
from gpu_fleet.operations.own_directory import our_provider
from gpu_fleet.stackfile.config import ROOT, HostList, StackConfig, environments_of, given_otherwise, hosts_of, keys_of_file
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import nearest, why_unreadable
from gpu_fleet.stackfile.yaml_text import Loader, reason_of

_PREFIX, _SUFFIX = "Pulumi.", ".yaml"
PROVIDER = ROOT / "gpu_fleet/provider"
# pulumi 3.259.0, pkg/backend/httpstate/client and sdk/go/common/util/cmdutil: what it prints where nobody has logged in.
NOT_LOGGED_IN = "PULUMI_ACCESS_TOKEN must be set"


STACKS = "GPU_FLEET_STACKS"


def project() -> Path:
    """The directory of Pulumi.yaml: stack files are there, and their relative paths start there."""
    given = os.environ.get(STACKS)
    return Path(given).expanduser().absolute() if given else ROOT


def enter_project() -> Path:
    """Works in the directory that the user gave, if any: paths in arguments start there, and pulumi finds the project. Raises
    OperationError.
    """
    directory = project()
    if os.environ.get(STACKS):
        if not (directory / "Pulumi.yaml").is_file():
            raise OperationError(
                f"STACKS: {directory} has no Pulumi.yaml. To prepare it and create a first stack:\n"
                f"    make new-stack STACKS={directory} DATACENTER=us-west CLUSTER=training"
            )
        _find_provider(directory / "Pulumi.yaml")
        os.environ[STACKS] = str(directory)
        os.chdir(directory)
    return directory


def _find_provider(file: Path) -> None:
    """The file is the user's, so an update of the checkout does not follow a provider that has moved."""
    ours = our_provider(file)
    if ours is None or not isinstance(ours.get("path"), str):
        return  # what pulumi says of such a file is better
    path = file.parent / ours["path"]
    if not (path / f"pulumi-resource-{PROJECT}").is_file() and path.parent.resolve() == ROOT.resolve():
        moved = os.path.relpath(PROVIDER, file.parent)
        raise OperationError(f"{file}: plugins.providers: {PROJECT} has moved within its checkout. Set\n    path: {moved}")


def stack_file(stack: str) -> Path:
    """The stack's file. `stack`: its name, with or without organization and project. Raises OperationError."""
    if given := os.environ.get("PULUMI_OPTION_CONFIG_FILE"):  # pulumi's own variable for --config-file
        return Path(given)
    stacks = stack_files()
    *path, name = stack.split("/")
    if name in stacks and len(path) <= 2 and ".." not in path:
        return stacks[name]
    existing = ", ".join(stacks) or "none"
    if not name:
        raise OperationError(f"no stack given: add STACK=NAME. Stack files in {_shown(project())}: {existing}")
    similar = nearest(name, stacks)
    datacenter, _, cluster = name.rpartition("-") if "-" in name else ("us-west", "", name)
    raise OperationError(
        f"there is no stack file {_PREFIX}{name}{_SUFFIX}"
        + (f": did you mean STACK={similar}?" if similar else f"; stack files in {_shown(project())}: {existing}.")
        + "\nThese two commands create the stack and show what it would deploy:\n"
        f"    make new-stack DATACENTER={datacenter} CLUSTER={cluster}\n"
        f"    make preview STACK={datacenter}-{cluster}"
    )


def stack_files() -> dict[str, Path]:
    """By the stack's name."""
    files = sorted(project().glob(f"{_PREFIX}*{_SUFFIX}"))
    return {path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): path for path in files}


def _shown(directory: Path) -> str:
    return "this directory" if directory == Path.cwd() else str(directory)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The keys of a stack without their `gpu-fleet:`. `values`: those in clear. `secrets`: names of the encrypted ones."""

    file: Path
    values: Mapping[str, object]
    secrets: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.secrets | self.values.keys()

    def load(self) -> StackConfig:
        """Raises ConfigErrors."""
        return StackConfig.load(self.values, project(), self.secrets | given_otherwise(self.values))

    def hosts(self) -> HostList:
        """The hosts alone, also while the rest of the file has errors. Raises ConfigErrors for errors within a section."""
        return hosts_of(self.values, project(), self.secrets)


def configuration(stack: str) -> Configuration:
    """What `pulumi up` would see, with `config` of Pulumi.yaml. Reads no secret, and needs a login only for a stack with Pulumi
    ESC environments. Raises OperationError.
    """
    file, shared = stack_file(stack), project() / "Pulumi.yaml"
    _check_yaml(file)
    _check_yaml(shared)
    if environments_of(file):
        return deployed_configuration(stack)
    values, secrets = keys_of_file(file, shared)
    return Configuration(file=file, values=values, secrets=frozenset(secrets))


def deployed_configuration(stack: str) -> Configuration:
    """The same, from pulumi, and therefore only of a stack that exists in the backend. Raises OperationError."""
    file = stack_file(stack)
    # Without --open a value that an environment gets from elsewhere, such as a login of a cloud, is the text "[unknown]".
    done = pulumi("config", "--json", "--open", "--stack", stack)
    if done.returncode != 0:
        reason = _why_not(stack, file, error_of(done))
        if environments := _environments(file):
            reason = (
                f"{file.name} imports Pulumi ESC environments ({environments}), whose values only Pulumi Cloud can open; log in "
                f"with `pulumi login` in `make shell`, or write the values into the file.\n{reason}"
            )
        raise OperationError(reason)
    if how_to_restore := emptied(stack):
        raise OperationError(how_to_restore)
    prefix = f"{PROJECT}:"
    found: dict[str, Any] = {
        key.removeprefix(prefix): entry for key, entry in json.loads(done.stdout).items() if key.startswith(prefix)
    }
    return Configuration(
        file=file,
        values={key: entry.get("objectValue", entry.get("value")) for key, entry in found.items() if not entry["secret"]},
        secrets=frozenset(key for key, entry in found.items() if entry["secret"]),
    )


def _why_not(stack: str, file: Path, error: str) -> str:
    if stack == "dev" and (ROOT / ".dev/env").exists() and "PULUMI_BACKEND_URL" not in os.environ:
        return "the stack dev has a backend of its own: run the command inside `make shell STACK=dev`"
    if NOT_LOGGED_IN in error:
        return (
            "pulumi is not logged in to a backend, where stacks are kept. Log in once:\n"
            "    make shell\n"
            "    pulumi login URL          # file://DIRECTORY, s3://BUCKET, or none for Pulumi Cloud"
        )
    if f"no stack named '{stack}' found" in error:
        return (
            f"{file.name} exists, but the backend that pulumi is logged in to has no stack {stack}. Log in to the one that\n"
            "has it (`pulumi login URL` in `make shell`), or create the stack with these two commands:\n"
            f"    make shell STACK={stack}\n"
            f"    pulumi stack init {stack}"
        )
    return error


def _environments(file: Path) -> str:
    """Empty for a file that is not YAML: pulumi's own error says so."""
    try:
        return environments_of(file)
    except (OSError, ValueError, yaml.YAMLError):
        return ""


def _check_yaml(file: Path) -> None:
    """Raises OperationError, without the text of the file: it may hold a secret."""
    text = ""
    try:
        text = file.read_text()
        loaded = yaml.load(text, Loader)  # noqa: S506  # a safe one, which refuses a key written twice, as Pulumi does
    except (OSError, UnicodeDecodeError) as error:
        raise OperationError(f"{file.name} {why_unreadable(error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise OperationError(f"{file.name}{where}: not valid YAML: {reason_of(error, text)}") from None
    config = loaded.get("config") if isinstance(loaded, Mapping) else None
    if not isinstance(loaded or {}, Mapping) or not isinstance(config or {}, Mapping):
        raise OperationError(
            f"{file.name}: expected `config:`, and below it, indented, a line for each key: `{PROJECT}:datacenter: …`"
        )
    # Pulumi reads nothing there, and reports nothing.
    if outside := [str(key) for key in loaded or {} if str(key).startswith(f"{PROJECT}:")]:
        raise OperationError(
            f"{file.name}: {', '.join(outside)}: found beside `config:`, where nothing reads it; expected below it. Move it "
            "there, indented by two spaces like the other keys."
        )
    if file.name != "Pulumi.yaml" and (bare := [str(key) for key in config or {} if not _is_of_a_project(str(key))]):
        raise OperationError(
            f"{file.name}: {', '.join(bare)}: found below `config:` without `{PROJECT}:`. Write it before the name of each "
            f"section, as in `{PROJECT}:datacenter: us-west`; indent what belongs to a section by two more spaces."
        )


def _is_of_a_project(key: str) -> bool:
    """Keys of other projects, such as `pulumi:tags` and providers', have their names before the colon; a misspelt one is none."""
    project, colon, name = key.partition(":")
    return bool(colon and name) and (project == PROJECT or re.sub(r"\W|_", "", project).lower() != "gpufleet")
