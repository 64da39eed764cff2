"""What stacks would register, as JSON: the program of a checkout, run without an engine, a login, secrets or hosts.

    python components/registered.py DIRECTORY FILE...

prints one line of JSON per stack file, which is given relative to DIRECTORY: `file`, `resources` (each `type`, `name`,
`inputs`), `outputs`, `config` (the keys that are not secret), `secrets` (a digest of each encrypted value, and of what encrypts
them), `environments` (of Pulumi ESC, null without any), `warnings`, and `error`, which is null unless the program ended early.
What the program itself prints goes to stderr. Program and stack files are those of DIRECTORY, so another commit is read with its
own code; this file therefore imports nothing of the project. A secret, and what only a deployed resource knows, is `UNKNOWN`.

Not here: values of Pulumi ESC environments, which only Pulumi Cloud can open.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pulumi
import pulumi_kubernetes  # noqa: F401  # imported here once, not in the process of each stack, which would take a second
import pulumiverse_grafana  # noqa: F401
import yaml
from google.protobuf import json_format
from pulumi.runtime import mocks, proto, rpc
from pulumi.runtime.stack import run_pulumi_func

UNKNOWN: Final = "[unknown]"
PROJECT: Final = "gpu-fleet"


class _Engine(mocks.MockEngine):
    def __init__(self) -> None:
        super().__init__(None)
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def Log(self, request: Any) -> None:
        if request.severity == proto.engine_pb2.WARNING:
            self.warnings.append(request.message)
        elif request.severity == proto.engine_pb2.ERROR:
            self.errors.append(request.message)


class _Monitor(mocks.MockMonitor):
    """Takes registrations as the engine gets them, with what is secret and unknown still marked."""

    def __init__(self) -> None:
        super().__init__(_NothingDeployed())
        self.registered: list[dict[str, Any]] = []
        self.outputs: dict[str, Any] = {}

    def RegisterResource(self, request: Any) -> Any:
        response = super().RegisterResource(request)  # type: ignore[no-untyped-call]  # the SDK gives it no types
        if request.type != "pulumi:pulumi:Stack":
            inputs = _plain(json_format.MessageToDict(request.object))
            self.registered.append({"type": request.type, "name": request.name, "inputs": inputs})
        return response


class _NoHooks:
    """Nothing is created, so no hook of a resource is ever called."""

    def register_resource_hook(self, hook: object) -> None:
        pass

    def register_error_hook(self, hook: object) -> None:
        pass


class _NothingDeployed(mocks.Mocks):
    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return {}, []

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        return "", args.inputs


def _plain(value: Any) -> Any:
    """Without the engine's marks. What is marked as a secret is not shown: one may come from the environment (GRAFANA_AUTH)."""
    if isinstance(value, dict):
        if value.get(rpc._special_sig_key) == rpc._special_secret_sig:
            return UNKNOWN
        if rpc._special_sig_key in value:
            return _plain(value["value"]) if "value" in value else UNKNOWN
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value == rpc.UNKNOWN:
        return UNKNOWN
    return int(value) if isinstance(value, float) and value.is_integer() else value


def registered(directory: Path, file: str) -> dict[str, Any]:
    """Must be called in a process of its own: the program is imported, and Pulumi's SDK keeps what it is given."""
    engine, monitor = _Engine(), _Monitor()
    stack = Path(file).name.removeprefix("Pulumi.").removesuffix(".yaml")
    try:
        project, content = (_mapping(directory, name) for name in ("Pulumi.yaml", file))
    except ValueError as unreadable:
        return _unread(file, str(unreadable))
    values, secrets, environments = _configuration(project, content, directory, engine.warnings)
    os.environ["PULUMI_CONFIG"] = json.dumps(
        {**{key: _text(value) for key, value in values.items()}, **dict.fromkeys(secrets, UNKNOWN)}
    )
    pulumi.runtime.set_all_config(json.loads(os.environ["PULUMI_CONFIG"]), secrets)
    # Nobody here can decrypt a secret, so it is what an output of a resource is that does not exist yet.
    setattr(pulumi.Config, "require_secret", lambda self, key: _unknown())  # noqa: B010
    setattr(pulumi.Config, "get_secret", lambda self, key, default=None: _unknown())  # noqa: B010
    os.environ.setdefault("GRAFANA_AUTH", UNKNOWN)  # whoever deploys may have it there instead of in the stack file
    os.environ["GPU_FLEET_COMPARED_ONLY"] = "1"  # gpu_fleet/stackfile/validation/subject.py
    os.chdir(directory)
    sys.path[0] = str(directory)
    error = None
    try:
        asyncio.run(_run(engine, monitor, stack))
    except pulumi.RunError as refused:
        error = str(refused)
    except SystemExit as ended:  # a file that cannot be read (alerts/texts.py), or a program that ends itself
        error = ended.code if isinstance(ended.code, str) else f"the program ended itself, by exit({ended.code or 0})"
    except BaseException as failure:  # a program that is wrong is what a report must show
        error = f"{type(failure).__name__}: {failure}"
    return {
        "file": file,
        "resources": monitor.registered,
        "outputs": monitor.outputs,
        "config": {key.removeprefix(f"{PROJECT}:"): value for key, value in values.items()},
        "secrets": _secrets(content),
        "environments": environments,
        "warnings": engine.warnings,
        "error": error or "\n".join(engine.errors) or None,
    }


def _unread(file: str, why: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"resources": [], "outputs": {}, "config": {}, "secrets": {}, "warnings": []}
    return {"file": file, **empty, "environments": None, "error": why}


async def _run(engine: _Engine, monitor: _Monitor, stack: str) -> None:
    mocks.set_mocks(_NothingDeployed(), PROJECT, stack, preview=True, monitor=monitor)
    pulumi.runtime.settings.SETTINGS.engine = engine
    pulumi.runtime.settings.SETTINGS.callbacks = _NoHooks()
    pulumi.runtime.settings.SETTINGS.root_directory = str(Path.cwd())
    await run_pulumi_func(_program)
    root = pulumi.runtime.settings.get_root_resource()
    outputs = await rpc.serialize_properties(getattr(root, "outputs", {}), {})
    monitor.outputs = _plain(json_format.MessageToDict(outputs))


def _program() -> None:
    runpy.run_path("__main__.py", run_name="__main__")


class _Loader(yaml.SafeLoader):
    """Refuses what Pulumi refuses and PyYAML takes: a key that is written twice, and a number as a key. Other keys are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
                raise yaml.constructor.ConstructorError(None, None, f'a key is a number; write "{key.value}"', key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} occurs twice", key.start_mark)
            seen.add(key.value)
            key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def _mapping(directory: Path, name: str) -> dict[str, Any]:
    """Raises ValueError, without the text of the file: it may hold a secret. Nothing of gpu_fleet is imported for it: the program
    that runs here imports that of its own commit."""
    try:
        content = yaml.load((directory / name).read_text(), _Loader) or {}  # noqa: S506  # a safe one
        if isinstance(content, dict) and isinstance(content.get("config") or {}, dict):
            return content
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not a text file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{name}{where}: not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    raise ValueError(f"{name}: expected a mapping, with a mapping below config")


def _configuration(
    project: Mapping[str, Any], file: Mapping[str, Any], directory: Path, warnings: list[str]
) -> tuple[dict[str, Any], list[str], str | None]:
    """The stack file over what Pulumi.yaml gives every stack, as Pulumi reads them; the keys whose values are encrypted; and the
    ESC environments."""
    environments = _text(file["environment"]) if file.get("environment") else None
    values: dict[str, Any] = {}
    for key, entry in (project.get("config") or {}).items():
        name = key if ":" in key else f"{project['name']}:{key}"
        declared = isinstance(entry, dict) and entry.keys() & {"type", "default", "value", "secret"}
        if not declared:
            values[name] = entry
        elif "value" in entry or "default" in entry:
            values[name] = entry.get("value", entry.get("default"))
    values.update(file.get("config") or {})
    _replace_artifacts(values, directory, warnings)
    encrypted = [key for key, value in values.items() if isinstance(value, Mapping) and "secure" in value]
    return {key: value for key, value in values.items() if key not in encrypted}, encrypted, environments


def _secrets(file: Mapping[str, Any]) -> dict[str, str]:
    """Key -> digest of the encrypted value, which changes whenever a value is set, also to the same as before. The key "" stands
    for what encrypts them all: a passphrase's salt or the key of a service."""
    encrypted = {
        key.removeprefix(f"{PROJECT}:"): value["secure"]
        for key, value in (file.get("config") or {}).items()
        if isinstance(value, Mapping) and "secure" in value
    }
    encrypted[""] = json.dumps([file.get(key) for key in ("secretsprovider", "encryptedkey", "encryptionsalt")])
    return {key: hashlib.sha256(str(value).encode()).hexdigest() for key, value in encrypted.items()}


def _replace_artifacts(values: dict[str, Any], directory: Path, warnings: list[str]) -> None:
    """A directory of artifacts (`source: controller`) is seldom part of a checkout, and nothing can be said without its sums."""
    section = values.get(f"{PROJECT}:artifacts")
    if isinstance(section, Mapping) and section.get("source") == "controller":
        given = Path(str(section.get("directory", ""))).expanduser()
        if not (directory / given / "SHA256SUMS").exists():
            values[f"{PROJECT}:artifacts"] = {"source": "upstream"}
            warnings.append(f"{given} is not in this checkout: programs are compared as if hosts got them from upstream")


def _text(value: Any) -> str:
    """As Pulumi passes it to a program."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _unknown() -> pulumi.Output[Any]:
    async def future(value: Any) -> Any:
        return value

    return pulumi.Output(set(), future(rpc.UNKNOWN), future(False), future(True))


def main(arguments: Sequence[str]) -> int:
    directory, *files = arguments
    for file in files:
        sys.stdout.flush()
        with tempfile.TemporaryFile("w+") as found:
            if child := os.fork():
                _, status = os.waitpid(child, 0)
                found.seek(0)
                how = f"the program's process ended early, with status {os.waitstatus_to_exitcode(status)}"
                print(found.read() or json.dumps(_unread(file, how)), flush=True)
                continue
            os.dup2(2, 1)  # what a program prints is no part of the report
            text = json.dumps(registered(Path(directory).resolve(), file))
            found.write(text)
            found.flush()
            os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
