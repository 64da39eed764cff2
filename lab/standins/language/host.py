"""The LanguageRuntime service: what the engine asks about a Python project, and one process per run of its program.

The program is in this process's group, as in the official host's: the engine ends a plugin by SIGINT to its group.
SDKs of packages are small ones (generate.py). Not done here: adding them to a project (`pulumi package add`), generating programs
(`pulumi convert`), plugins without __main__.py, a debugger. The engine gets the status that they are not implemented.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, language_pb2, language_pb2_grpc, plugin_pb2

from lab.standins import permission
from lab.standins.language import list_packages
from lab.standins.language.environment import HERE, BadEnvironment, Package, PythonEnvironment
from lab.standins.language.generate import answer, python_sdk
from lab.standins.language.run_program import FAILED_AND_TOLD
from lab.standins.serving import serve
from stackfile.stand_ins import StandInsRefused

GRACE_S = 5.0  # between asking a program to end and ending it
WITHOUT_PLUGIN = {"pulumi-policy", "pulumi-esc-sdk"}  # named like an SDK, and none


class PythonHost(language_pb2_grpc.LanguageRuntimeServicer):
    def __init__(self, engine_address: str) -> None:
        self._engine_address = engine_address
        self._programs: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def Handshake(self, request, context):
        self._engine_address = request.engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version=list_packages.version("pulumi"))

    def GetRequiredPackages(self, request, context):
        with _told(context):
            environment = _environment(request.info)
            if not environment.exists:
                for line in environment.install(Path(request.info.program_directory)):
                    sys.stdout.buffer.write(line)
                sys.stdout.flush()
            needed = [dependency for package in environment.packages() if (dependency := _plugin_of(package))]
        return language_pb2.GetRequiredPackagesResponse(packages=needed)

    def GetProgramDependencies(self, request, context):
        with _told(context):
            packages = [
                language_pb2.DependencyInfo(name=package.name, version=package.version)
                for package in _environment(request.info).packages()
                if request.transitiveDependencies or not package.is_required_by_another
            ]
        return language_pb2.GetProgramDependenciesResponse(dependencies=packages)

    def InstallDependencies(self, request, context):
        with _told(context):
            for line in _environment(request.info, plugin=request.is_plugin).install(Path(request.info.program_directory)):
                yield language_pb2.InstallDependenciesResponse(stdout=line)

    def RuntimeOptionsPrompts(self, request, context):
        """Nothing to ask: there is one toolchain, and a project without `virtualenv` runs with the PATH's Python."""
        return language_pb2.RuntimeOptionsResponse()

    def Template(self, request, context):
        return language_pb2.TemplateResponse()

    def About(self, request, context):
        with _told(context):
            python = _environment(request.info).python
            version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
        return language_pb2.AboutResponse(
            executable=python, version=version.removeprefix("Python ").strip(), metadata={"toolchain": "Pip", "host": "stand-in"}
        )

    def GeneratePackage(self, request, context):
        return answer(request, python_sdk)

    def Run(self, request, context):
        if request.attach_debugger:
            return language_pb2.RunResponse(error="this stand-in of pulumi-language-python starts no debugger")
        try:
            if warning := permission.permit("pulumi-language-python", request.stack):
                self._warn(warning)
        except StandInsRefused as refusal:
            return language_pb2.RunResponse(error=str(refusal))
        with _told(context):
            environment = _environment(request.info)
            return self._ran(self._command(environment.python, request), environment.variables(), request, context)

    def _ran(self, command, variables, request, context):
        variables = variables | {
            "PULUMI_CONFIG": json.dumps(dict(request.config)),
            "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
        }
        try:
            # It inherits stdout and stderr: the engine reads them line by line, while the program runs.
            program = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
        except OSError as error:  # E2BIG: Linux gives a variable 128 KiB, and one holds the stack's configuration
            reason = f"fork/exec {command[0]}: {error.strerror.lower()}"
            return language_pb2.RunResponse(error=f"problem executing program (could not run language executor): {reason}")
        with self._lock:
            self._programs.add(program)
        context.add_callback(lambda: _end([program]))
        code = program.wait()
        with self._lock:
            self._programs.discard(program)
        if code == 0:
            return language_pb2.RunResponse()
        if code == FAILED_AND_TOLD:
            return language_pb2.RunResponse(bail=True)
        if code < 0:
            return language_pb2.RunResponse(error=f"program exited unexpectedly: signal {-code}")
        return language_pb2.RunResponse(error=f"program exited with non-zero exit code: {code}")

    def RunPlugin(self, request, context):
        """A policy pack, or a provider or component package in Python: arguments and working directory are those of the official
        host (main.go, pulumi 3.259.0)."""
        directory = request.info.program_directory
        is_policy = request.kind == "analyzer"
        with _told(context):
            environment = _environment(request.info, plugin=not is_policy)
            command = [environment.python, "-u"]
        if is_policy:
            command += ["-m", "pulumi.policy", *request.args, directory]
        elif Path(directory, "__main__.py").is_file():
            command += [directory, *request.args]
        else:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"{directory} has no __main__.py, and this stand-in runs no other plugin"
            )
        variables = environment.variables() | dict(entry.split("=", 1) for entry in request.env)
        program = subprocess.Popen(
            command,
            cwd=directory if is_policy else request.pwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with self._lock:
            self._programs.add(program)
        context.add_callback(lambda: _end([program]))
        # The engine reads the plugin's port from its standard output, so the two must not be mixed.
        lines: queue.SimpleQueue[language_pb2.RunPluginResponse | None] = queue.SimpleQueue()

        def read(name: str, stream: IO[bytes]) -> None:
            for line in stream:
                lines.put(language_pb2.RunPluginResponse(**{name: line}))
            lines.put(None)

        for name, stream in (("stdout", program.stdout), ("stderr", program.stderr)):
            threading.Thread(target=read, args=(name, stream), daemon=True).start()
        for _ in range(2):
            yield from iter(lines.get, None)
        with self._lock:
            self._programs.discard(program)
        yield language_pb2.RunPluginResponse(exitcode=program.wait())

    def Cancel(self, request, context):
        """Answers at once, as the official host: what the engine does next is the second SIGINT that a program gets."""
        threading.Thread(target=self.end_programs, daemon=True).start()
        return empty_pb2.Empty()

    def end_programs(self) -> None:
        with self._lock:
            programs = list(self._programs)
        _end(programs)

    def _warn(self, text: str) -> None:
        with grpc.insecure_channel(self._engine_address) as channel, contextlib.suppress(grpc.RpcError):
            level = engine_pb2.LogSeverity.Value("WARNING")
            engine_pb2_grpc.EngineStub(channel).Log(engine_pb2.LogRequest(severity=level, message=text))

    def _command(self, python: str, request: language_pb2.RunRequest) -> list[str]:
        options = {
            "monitor": request.monitor_address,
            "engine": self._engine_address,
            "project": request.project,
            "stack": request.stack,
            "organization": request.organization,
            "root-directory": request.info.root_directory,
            "pwd": request.pwd,
            "dry-run": json.dumps(request.dryRun),
            "parallel": str(request.parallel),
        }
        return [
            python,
            "-P",  # the program's imports are its own
            str(HERE / "run_program.py"),
            *(f"--{name}={value}" for name, value in options.items()),
            "--",
            request.info.entry_point,
            *request.args,
        ]


@contextlib.contextmanager
def _told(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except BadEnvironment as error:
        context.abort(grpc.StatusCode.UNKNOWN, str(error))


def _environment(info: language_pb2.ProgramInfo, *, plugin: bool = False) -> PythonEnvironment:
    options = json_format.MessageToDict(info.options)
    return PythonEnvironment.of(info.root_directory, {"virtualenv": "venv", **options} if plugin else options)


def _plugin_of(package: Package) -> plugin_pb2.PackageDependency | None:
    """The plugin that an SDK needs; None for an ordinary package and for an SDK that says it needs none."""
    plugin = package.plugin
    if package.name in WITHOUT_PLUGIN or (plugin is None and not package.name.startswith("pulumi-")):
        return None
    plugin = plugin or {"resource": True}
    version = str(plugin.get("version") or package.version)
    if not plugin.get("resource") or not re.fullmatch(r"v?\d+\.\d+\.\d+.*", version):
        return None
    return plugin_pb2.PackageDependency(
        name=str(plugin.get("name") or package.name.removeprefix("pulumi-")),
        kind="resource",
        version="v" + version.removeprefix("v"),
        server=str(plugin.get("server", "")),
    )


def _end(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks with SIGINT, as the terminal would, then insists."""
    for program in programs:
        if program.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                program.send_signal(signal.SIGINT)
    for program in programs:
        try:
            program.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            program.kill()


def main(arguments: list[str]) -> int:
    """`arguments`: the engine's address, the last one; options before it (tracing) are not used here."""
    host = PythonHost(arguments[-1] if arguments else "")
    return serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server), host.end_programs)
