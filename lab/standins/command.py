"""Stand-in of pulumi-resource-command: of version 1.2.1 what this project uses of `local.Command`; everything else is refused."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from lab.standins import plugin
from lab.standins.plugin import Call, Failure, ResourceType
from lab.standins.properties import UNKNOWN, Properties, has_unknown
from lab.standins.schema import MapOf, Property

INPUTS = {
    "create": Property(),
    "delete": Property(),
    "environment": Property(type=MapOf("string")),
    "logging": Property(values=("stdout", "stderr", "stdoutAndStderr", "none")),
}
OUTPUTS = {"stdout": Property(required=True), "stderr": Property(required=True)}


class LocalCommand(ResourceType):
    type_name = "command:local:Command"
    inputs = INPUTS
    outputs = OUTPUTS

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        return call.name + secrets.token_hex(8), _run(call, inputs.get("create"), inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        """Runs `create` again, as the official plugin does without an `update`."""
        return _run(call, news.get("create"), news)

    def preview_update(self, olds: Properties, news: Properties) -> Properties:
        """What it prints is unknown as soon as any input is another one; the official plugin does not look which."""
        changed = any(has_unknown(news.get(name)) or (name in olds and news.get(name) != olds[name]) for name in self.inputs)
        return {name: UNKNOWN if changed and olds.get(name) is not None else olds.get(name) for name in self.outputs}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        _run(call, outputs.get("delete"), outputs)


def _run(call: Call, command: str | None, inputs: Properties) -> Properties:
    if command is None:
        return {"stdout": "", "stderr": ""}
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env={**os.environ, **inputs.get("environment", {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed: dict[str, list[str]] = {"stdout": [], "stderr": [], "both": []}
    shown = inputs.get("logging") or "stdoutAndStderr"

    def read(name: str, stream: IO[bytes]) -> None:
        for line in (line.decode(errors="replace") for line in stream):
            printed[name].append(line)
            printed["both"].append(line)
            if shown in (name, "stdoutAndStderr"):
                call.log(line.removesuffix("\n"))

    with call.ending(process.kill):
        readers = [threading.Thread(target=read, args=(name, getattr(process, name))) for name in ("stdout", "stderr")]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        code = process.wait()
    if code:
        cause = f"exit status {code}" if code > 0 else f"signal: {(signal.strsignal(-code) or str(-code)).lower()}"
        raise Failure(f"{cause}: running {json.dumps(command, ensure_ascii=False)}:\n{''.join(printed['both'])}")
    return {name: "".join(printed[name]).removesuffix("\n") for name in ("stdout", "stderr")}


def main(arguments: Sequence[str]) -> int:
    return plugin.main(arguments, plugin.Plugin("command", "1.2.1", [LocalCommand()]))
