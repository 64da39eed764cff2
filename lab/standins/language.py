"""Stand-in of pulumi-language-python: starts programs, policy packs and plugins. What a program needs of a language host, the
LanguageServer of pulumi.automation does, in the program's own process (run_program.py).

Not done here: installing packages, generating SDKs and programs (`pulumi package add`, `pulumi convert`), uv and poetry, plugins
without __main__.py, a debugger. The engine gets the status that they are not implemented.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, language_pb2, language_pb2_grpc, plugin_pb2

from gpu_fleet.stackfile.stand_ins import StandInsRefused
from lab.standins import permission
from lab.standins.serving import serve

GRACE_S = 5.0  # between asking a program to end and ending it
ALREADY_REPORTED = 32  # run_program.py exits with it when the reason has been logged


class PythonHost(language_pb2_grpc.LanguageRuntimeServicer):
    """A program is in this process's group, as in the official host's: the engine ends a plugin by SIGINT to its group."""

    def __init__(self, engine_address: str) -> None:
        self._engine_address = engine_address
        self._programs: set[subprocess.Popen[bytes]] = set()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo()

    def GetRequiredPackages(self, request, context):
        """Those of the SDKs beside this program; without any the engine takes versions from the state, and then a second run
        finds changes."""
        files = Path(sysconfig.get_path("purelib")).glob("pulumi*/pulumi-plugin.json")
        named = [{"server": None, **json.loads(file.read_text())} for file in files]
        return language_pb2.GetRequiredPackagesResponse(
            packages=[
                plugin_pb2.PackageDependency(
                    kind="resource", name=one["name"], version=f"v{one['version']}", server=one["server"]
                )
                for one in named
            ]
        )

    def Run(self, request, context):
        try:
            if warning := permission.permit("pulumi-language-python", request.stack):
                with grpc.insecure_channel(self._engine_address) as channel, contextlib.suppress(grpc.RpcError):
                    level = engine_pb2.LogSeverity.Value("WARNING")
                    engine_pb2_grpc.EngineStub(channel).Log(engine_pb2.LogRequest(severity=level, message=warning))
        except StandInsRefused as refusal:
            return language_pb2.RunResponse(error=str(refusal))
        python, environment = _activated(request.info)
        # -P: the program's imports are its own. Output is inherited: the engine reads it line by line, while the program runs.
        command = [python, "-P", str(Path(__file__).with_name("run_program.py")), self._engine_address]
        environment["PULUMI_CONFIG"] = json.dumps(dict(request.config))
        try:
            with self._running(context, command, env=environment, stdin=subprocess.PIPE) as program:
                program.communicate(request.SerializeToString())
        except OSError as error:  # E2BIG: Linux gives a variable 128 KiB, and one holds the stack's configuration
            reason = f"fork/exec {python}: {(error.strerror or '').lower()}"
            return language_pb2.RunResponse(error=f"problem executing program (could not run language executor): {reason}")
        if program.returncode in (0, ALREADY_REPORTED):
            return language_pb2.RunResponse(bail=program.returncode != 0)
        return language_pb2.RunResponse(error=f"program exited with non-zero exit code: {program.returncode}")

    def RunPlugin(self, request, context):
        """A policy pack, or a component package in Python: arguments and working directory are those of the official host."""
        directory, (python, environment) = request.info.program_directory, _activated(request.info)
        if request.kind == "analyzer":
            command, where = [python, "-u", "-m", "pulumi.policy", *request.args, directory], directory
        else:
            command, where = [python, "-u", directory, *request.args], request.pwd
        environment |= dict(entry.split("=", 1) for entry in request.env)
        # The engine reads the plugin's port from its standard output, so the two must not be mixed.
        lines: queue.SimpleQueue[language_pb2.RunPluginResponse | None] = queue.SimpleQueue()

        def read(name: str) -> None:
            for line in getattr(program, name):
                lines.put(language_pb2.RunPluginResponse(**{name: line}))
            lines.put(None)

        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self._running(context, command, cwd=where, env=environment, **pipes) as program:
            for name in ("stdout", "stderr"):
                threading.Thread(target=read, args=(name,), daemon=True).start()
            for _ in range(2):
                yield from iter(lines.get, None)
            yield language_pb2.RunPluginResponse(exitcode=program.wait())

    def Cancel(self, request, context):
        """Answers at once, as the official host: what the engine does next is the second SIGINT that a program gets."""
        threading.Thread(target=self.end_programs, daemon=True).start()
        return empty_pb2.Empty()

    def end_programs(self) -> None:
        for program in list(self._programs):
            _end(program)

    @contextlib.contextmanager
    def _running(self, context: grpc.ServicerContext, command: list[str], **options) -> Iterator[subprocess.Popen[bytes]]:
        program = subprocess.Popen(command, **options)
        self._programs.add(program)
        context.add_callback(lambda: _end(program))
        try:
            yield program
        finally:
            self._programs.discard(program)


def _activated(info: language_pb2.ProgramInfo) -> tuple[str, dict[str, str]]:
    """The program's Python, and the environment as its `activate` leaves it."""
    virtualenv = json_format.MessageToDict(info.options).get("virtualenv", "")
    root = Path(info.root_directory, virtualenv) if virtualenv else Path(sys.prefix)
    path = os.pathsep.join([f"{root}/bin", os.environ.get("PATH", os.defpath)])
    return f"{root}/bin/python", {**os.environ, "VIRTUAL_ENV": str(root), "PATH": path}


def _end(program: subprocess.Popen[bytes]) -> None:
    """Asks with SIGINT, as the terminal would, then insists."""
    if program.poll() is None:
        program.send_signal(signal.SIGINT)
        try:
            program.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            program.kill()


def main(arguments: list[str]) -> int:
    """`arguments`: the engine's address, the last one; options before it (tracing) are not used here."""
    host = PythonHost(arguments[-1])
    return serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server), host.end_programs)
