"""The Python environment of a project, from `runtime.options` of its Pulumi.yaml.

Source: sdk/python/toolchain of pulumi 3.259.0. Not done here: poetry, uv and type checkers; asking for one is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.standins.language import list_packages

HERE = Path(__file__).parent
# What the official language host takes for an option (main.go: parseOptions), and first what stands for none and is done here.
_KNOWN = {"typechecker": ("", "mypy", "pyright"), "toolchain": ("pip", "poetry", "uv")}


class BadEnvironment(Exception):
    """What is wrong with the environment and what to do, for the person who ran pulumi."""


@dataclass(frozen=True)
class Package:
    """An installed distribution; `plugin` is its pulumi-plugin.json, None when it has none."""

    name: str
    version: str
    is_required_by_another: bool
    plugin: Mapping[str, object] | None


@dataclass(frozen=True)
class PythonEnvironment:
    """`virtualenv` is as written in Pulumi.yaml, relative to `root`; empty means the `python3` of the PATH."""

    root: Path
    virtualenv: str

    @classmethod
    def of(cls, root: str, options: Mapping[str, object]) -> PythonEnvironment:
        """Raises BadEnvironment: as the official language host for what it refuses too, and for what it alone can do."""
        for option, known in _KNOWN.items():
            value = options.get(option, known[0])
            if not isinstance(value, str):
                raise BadEnvironment(f"{option} option must be a string")
            if value not in known:
                raise BadEnvironment(f"unsupported {option} option: {value}")
            if value != known[0]:
                raise BadEnvironment(f"runtime option {option}: {value}: the stand-in of pulumi-language-python cannot do that")
        virtualenv = options.get("virtualenv", "")
        if not isinstance(virtualenv, str):
            raise BadEnvironment("virtualenv option must be a string")
        return cls(Path(root), virtualenv)

    @property
    def directory(self) -> Path | None:
        return self.root / self.virtualenv if self.virtualenv else None

    @property
    def python(self) -> str:
        """Raises BadEnvironment when there is none."""
        if self.directory is None:
            name = os.environ.get("PULUMI_PYTHON_CMD", "python3")
            if (found := shutil.which(name)) is None:
                raise BadEnvironment(f"there is no {name} on the PATH")
            return found
        if not self.exists:
            state = "doesn't appear to be a virtual environment" if self.directory.exists() else "doesn't exist"
            raise BadEnvironment(
                f"The 'virtualenv' option in Pulumi.yaml is set to {self.virtualenv!r}, but {self.directory} {state}; "
                "run `pulumi install` to create it and to install requirements.txt into it."
            )
        return str(self.directory / "bin" / "python")

    @property
    def exists(self) -> bool:
        return self.directory is None or (self.directory / "bin" / "python").is_file()

    def variables(self) -> dict[str, str]:
        """The environment as `activate` leaves it."""
        variables = dict(os.environ)
        if self.directory is not None:
            variables["VIRTUAL_ENV"] = str(self.directory)
            variables["PATH"] = os.pathsep.join([str(self.directory / "bin"), variables.get("PATH", os.defpath)])
            variables.pop("PYTHONHOME", None)
        return variables

    def packages(self) -> list[Package]:
        if self.directory is not None and self.directory.resolve() == Path(sys.prefix).resolve():
            return [Package(**package) for package in list_packages.packages()]  # our own: no other Python has to start
        listed = subprocess.run(
            [self.python, "-P", str(HERE / "list_packages.py")], env=self.variables(), capture_output=True, text=True, check=False
        )
        if listed.returncode:
            raise BadEnvironment(f"cannot list the packages of {self.python}:\n{listed.stderr.strip()}")
        return [Package(**package) for package in json.loads(listed.stdout)]

    def install(self, directory: Path) -> Iterator[bytes]:
        """Makes the virtual environment and installs requirements.txt of `directory`; gives what the programs print."""
        if not self.exists:
            yield b"Creating virtual environment...\n"
            yield from _output(
                [PythonEnvironment(self.root, "").python, "-m", "venv", str(self.directory)], directory, self.variables()
            )
        if (directory / "requirements.txt").is_file():
            yield b"Installing dependencies in virtual environment...\n"
            pip = [self.python, "-m", "pip", "install", "-r", "requirements.txt"]
            yield from _output(pip, directory, self.variables())


def _output(command: list[str], directory: Path, variables: Mapping[str, str]) -> Iterator[bytes]:
    with subprocess.Popen(
        command, cwd=directory, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise BadEnvironment(f"`{' '.join(command)}` ended with {process.returncode}; its output is above")
