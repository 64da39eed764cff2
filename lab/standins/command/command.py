"""What local and remote commands have in common: when which of their three commands runs, and what becomes of its output.

Source: the provider and the schema of pulumi-command 1.2.1.
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from lab.standins.plugin import Call, Failure, ResourceType
from lab.standins.properties import UNKNOWN, Properties, has_unknown
from lab.standins.schema import ListOf, MapOf, Property

LOGGING = Property(values=("stdout", "stderr", "stdoutAndStderr", "none"))

# Of every command, local or remote.
RUNNING = {
    "stdin": Property(),
    "logging": LOGGING,
    "environment": Property(type=MapOf("string")),
    "addPreviousOutputInEnv": Property(type="boolean"),
}
# Of every command that is a resource.
LIFECYCLE = {
    "create": Property(),
    "update": Property(),
    "delete": Property(),
    "triggers": Property(type=ListOf("any"), replaces=True),
}
OUTPUT = {"stdout": Property(required=True), "stderr": Property(required=True)}


def new_id(name: str) -> str:
    return name + secrets.token_hex(8)


class CommandResource(ResourceType):
    outputs = OUTPUT

    @abstractmethod
    def run(self, call: Call, command: str, inputs: Properties, previous: Properties) -> Properties:
        """Runs one command and gives the outputs; `previous`: those of the run before it, empty for none."""

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        if "create" not in inputs:
            return new_id(call.name), {"stdout": "", "stderr": ""}
        return new_id(call.name), self.run(call, inputs["create"], inputs, {})

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        command = news.get("update", news.get("create"))
        previous = {name: olds.get(name) for name in self.outputs}
        return previous if command is None else self.run(call, command, news, previous)

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        """What it prints is unknown as soon as any input is another one; the official plugin does not look which."""
        changed = any(has_unknown(news.get(name)) or (name in olds and news.get(name) != olds[name]) for name in self.inputs)
        return {name: UNKNOWN if changed and olds.get(name) is not None else olds.get(name) for name in self.outputs}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        if "delete" in outputs:
            self.run(call, outputs["delete"], outputs, outputs)


def previous_output(inputs: Properties, previous: Properties) -> dict[str, str]:
    """The variables with the output of the previous run of a command."""
    if inputs.get("addPreviousOutputInEnv") is False:
        return {}
    names = {"PULUMI_COMMAND_STDOUT": "stdout", "PULUMI_COMMAND_STDERR": "stderr"}
    return {variable: previous[name] for variable, name in names.items() if previous.get(name)}


class Recorder:
    """What a command prints: each stream for the outputs, both in order for an error, complete lines for the person."""

    def __init__(self, logging: str | None, log: Callable[[str], None]) -> None:
        shown = logging or "stdoutAndStderr"
        self._shown = {"stdout": shown in ("stdout", "stdoutAndStderr"), "stderr": shown in ("stderr", "stdoutAndStderr")}
        self._log = log
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._both = bytearray()

    def take(self, stream: str, piece: bytes) -> None:
        """`piece`: whole lines, so that lines of the two streams do not mix."""
        self._streams[stream] += piece
        self._both += piece
        if self._shown[stream]:
            for line in piece.decode(errors="replace").splitlines():
                self._log(line)

    def outputs(self) -> dict[str, Any]:
        return {name: text.decode(errors="replace").removesuffix("\n") for name, text in self._streams.items()}

    def failure(self, cause: str, command: str) -> Failure:
        """As the official plugin words it: with the command and everything it printed."""
        quoted = json.dumps(command, ensure_ascii=False)
        return Failure(f"{cause}: running {quoted}:\n{self._both.decode(errors='replace')}")
