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

    def Handshake(self, request, context):
        self._engine_address = request.engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo()

    def GetRequiredPackages(self, request, context):
        """Those of the SDKs beside this program; without any the engine takes versions from the state, and then a second run
        finds changes."""
        packages = []
        for file in Path(sysconfig.get_path("purelib")).glob("pulumi*/pulumi-plugin.json"):
            one = json.loads(file.read_text())
            named = {"name": one["name"], "version": f"v{one['version']}", "server": one.get("server")}
            packages.append(plugin_pb2.PackageDependency(kind="resource", **named))
        return language_pb2.GetRequiredPackagesResponse(packages=packages)

    def Run(self, request, context):
        try:
            if warning := permission.permit("pulumi-language-python", request.stack):
                self._warn(warning)
        except StandInsRefused as refusal:
            return language_pb2.RunResponse(error=str(refusal))
        python = _python(request.info)
        environment = _environment(python) | {"PULUMI_CONFIG": json.dumps(dict(request.config))}
        # -P: the program's imports are its own. Output is inherited: the engine reads it line by line, while the program runs.
        command = [python, "-P", str(Path(__file__).with_name("run_program.py")), self._engine_address]
        try:
            program = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        except OSError as error:  # E2BIG: Linux gives a variable 128 KiB, and one holds the stack's configuration
            reason = f"fork/exec {python}: {(error.strerror or '').lower()}"
            return language_pb2.RunResponse(error=f"problem executing program (could not run language executor): {reason}")
        with self._running(program, context):
            program.communicate(request.SerializeToString())
        if program.returncode in (0, ALREADY_REPORTED):
            return language_pb2.RunResponse(bail=program.returncode != 0)
        return language_pb2.RunResponse(error=f"program exited with non-zero exit code: {program.returncode}")

    def RunPlugin(self, request, context):
        """A policy pack, or a component package in Python: arguments and working directory are those of the official host."""
        directory, python = request.info.program_directory, _python(request.info)
        if request.kind == "analyzer":
            command, where = [python, "-u", "-m", "pulumi.policy", *request.args, directory], directory
        elif Path(directory, "__main__.py").is_file():
            command, where = [python, "-u", directory, *request.args], request.pwd
        else:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"{directory} has no __main__.py, and this stand-in runs no other plugin"
            )
        environment = _environment(python) | dict(entry.split("=", 1) for entry in request.env)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        program = subprocess.Popen(command, cwd=where, env=environment, **pipes)
        # The engine reads the plugin's port from its standard output, so the two must not be mixed.
        lines: queue.SimpleQueue[language_pb2.RunPluginResponse | None] = queue.SimpleQueue()

        def read(name: str) -> None:
            for line in getattr(program, name):
                lines.put(language_pb2.RunPluginResponse(**{name: line}))
            lines.put(None)

        with self._running(program, context):
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
    def _running(self, program: subprocess.Popen[bytes], context: grpc.ServicerContext) -> Iterator[None]:
        self._programs.add(program)
        context.add_callback(lambda: _end(program))
        try:
            yield
        finally:
            self._programs.discard(program)

    def _warn(self, text: str) -> None:
        with grpc.insecure_channel(self._engine_address) as channel, contextlib.suppress(grpc.RpcError):
            level = engine_pb2.LogSeverity.Value("WARNING")
            engine_pb2_grpc.EngineStub(channel).Log(engine_pb2.LogRequest(severity=level, message=text))


def _python(info: language_pb2.ProgramInfo) -> str:
    virtualenv = json_format.MessageToDict(info.options).get("virtualenv", "")
    return str(Path(info.root_directory, virtualenv, "bin/python")) if virtualenv else sys.executable


def _environment(python: str) -> dict[str, str]:
    """As `activate` leaves it."""
    directory = Path(python).parent
    path = os.pathsep.join([str(directory), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "VIRTUAL_ENV": str(directory.parent), "PATH": path}


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
    host = PythonHost(arguments[-1] if arguments else "")
    return serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server), host.end_programs)
