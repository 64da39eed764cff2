"""command:local:Command and command:local:run: commands on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO

from lab.standins.command.command import LIFECYCLE, OUTPUT, RUNNING, CommandResource, Recorder, previous_output
from lab.standins.plugin import Call, Failure, Function
from lab.standins.properties import ARCHIVE, ASSET, SIGNATURE, Properties
from lab.standins.schema import ListOf, MapOf, Property

RUN_INPUTS = {
    **RUNNING,
    "interpreter": Property(type=ListOf("string")),
    "dir": Property(),
    "assetPaths": Property(type=ListOf("string")),
    "archivePaths": Property(type=ListOf("string")),
}
INPUTS = {**RUN_INPUTS, **LIFECYCLE}
OUTPUTS = {**OUTPUT, "assets": Property(type=MapOf("asset")), "archive": Property(type="asset")}


class LocalCommand(CommandResource):
    type_name = "command:local:Command"
    inputs = INPUTS
    outputs = OUTPUTS

    def run(self, call: Call, command: str, inputs: Properties, previous: Properties) -> Properties:
        return run(call, command, inputs, previous)


def run(call: Call, command: str, inputs: Properties, previous: Properties) -> Properties:
    arguments = [*(inputs.get("interpreter") or ["/bin/sh", "-c"]), command]
    directory = inputs.get("dir") or str(Path.cwd())
    environment = {**os.environ, **inputs.get("environment", {}), **previous_output(inputs, previous)}
    recorder = Recorder(inputs.get("logging"), call.log)
    try:
        process = subprocess.Popen(
            arguments,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE if inputs.get("stdin") else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        what = "chdir" if error.filename == directory else "fork/exec"
        raise recorder.failure(f"{what} {error.filename}: {(error.strerror or '').lower()}", command) from error
    with call.ending(process.kill):
        readers = [threading.Thread(target=_read, args=(name, getattr(process, name), recorder)) for name in ("stdout", "stderr")]
        for reader in readers:
            reader.start()
        if process.stdin is not None:
            _write(process.stdin, inputs["stdin"])
        process.wait()
        for reader in readers:
            reader.join()
    if process.returncode:
        raise recorder.failure(_cause(process.returncode), command)
    outputs = recorder.outputs()
    if "assetPaths" in inputs:
        outputs["assets"] = {
            path: {SIGNATURE: ASSET, "path": str(Path(directory, path))} for path in matching(directory, inputs["assetPaths"])
        }
    if "archivePaths" in inputs:
        files = matching(directory, inputs["archivePaths"])
        outputs["archive"] = {
            SIGNATURE: ARCHIVE,
            "assets": {path: {SIGNATURE: ASSET, "path": str(Path(directory, path))} for path in files},
        }
    return outputs


def _read(name: str, stream: IO[bytes], recorder: Recorder) -> None:
    for line in stream:
        recorder.take(name, line)


def _write(stream: IO[bytes], text: str) -> None:
    try:
        with stream:
            stream.write(text.encode())
    except BrokenPipeError:
        pass  # it did not want all of it, which is its own business


def _cause(code: int) -> str:
    if code > 0:
        return f"exit status {code}"
    return f"signal: {(signal.strsignal(-code) or str(-code)).lower()}"


def matching(directory: str, patterns: list[str]) -> list[str]:
    """The files below a directory that the globs choose: later ones win, `!` leaves out, `**` crosses directories."""
    rules = [(_expression(pattern.removeprefix("!")), not pattern.startswith("!")) for pattern in patterns]
    chosen = []
    for file in sorted(path for path in Path(directory).rglob("*") if path.is_file()):
        relative = file.relative_to(directory).as_posix()
        verdicts = [takes for expression, takes in rules if expression.fullmatch(relative)]
        if verdicts and verdicts[-1]:
            chosen.append(relative)
    return chosen


def _expression(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    if set("[]{}\\") & set(pattern):
        raise Failure(f"the glob {pattern!r}: this stand-in of the command plugin knows only *, ** and ?")
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*|\*|\?)", pattern)))


local_run = Function(
    name="command:local:run",
    inputs={**RUN_INPUTS, "command": Property(required=True)},
    outputs=OUTPUTS,
    call=lambda call, inputs: {**inputs, **run(call, inputs["command"], inputs, {})},
)
