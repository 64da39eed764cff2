"""The LanguageRuntime service for programs in JavaScript or TypeScript whose packages are installed: what a run needs.

SDKs of packages are small ones (generate.py). Not done here: what the stand-in for Python does not do either, installing
packages, and synchronous invokes. It serves stacks of the lab alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from lab.standins.language.generate import answer
from lab.standins.language.host import PythonHost
from lab.standins.nodejs.generate import typescript_sdk
from lab.standins.serving import serve
from stackfile.stand_ins import is_of_lab


class NodeHost(language_pb2_grpc.LanguageRuntimeServicer):
    def __init__(self, engine_address: str) -> None:
        self._processes = PythonHost(engine_address)  # a run is a process of its own in both
        self._engine_address = engine_address

    def Handshake(self, request, context):
        self._engine_address = request.engine_address
        return self._processes.Handshake(request, context)

    def GetPluginInfo(self, request, context):
        return self._processes.GetPluginInfo(request, context)

    def Cancel(self, request, context):
        return self._processes.Cancel(request, context)

    def RuntimeOptionsPrompts(self, request, context):
        return language_pb2.RuntimeOptionsResponse()

    def GetProgramDependencies(self, request, context):
        return language_pb2.GetProgramDependenciesResponse()

    def GetRequiredPackages(self, request, context):
        return language_pb2.GetRequiredPackagesResponse(packages=_plugins(Path(request.info.program_directory)))

    def GeneratePackage(self, request, context):
        return answer(request, typescript_sdk)

    def Run(self, request, context):
        if not is_of_lab(request.stack):
            return language_pb2.RunResponse(error="this stand-in of pulumi-language-nodejs serves stacks of the lab alone")
        if (node := shutil.which("node")) is None:
            return language_pb2.RunResponse(error="there is no node on the PATH")
        directory = Path(request.info.program_directory)
        options = {
            "monitor": request.monitor_address,
            "engine": self._engine_address,
            "organization": request.organization,
            "project": request.project,
            "root-directory": request.info.root_directory,
            "stack": request.stack,
            "pwd": str(directory),
            "parallel": str(request.parallel),
        }
        arguments = [word for name, value in options.items() if value for word in (f"--{name}", value)]
        command = [
            node,
            str(directory / "node_modules/@pulumi/pulumi/cmd/run"),
            *arguments,
            *(["--dry-run"] if request.dryRun else []),
            request.info.entry_point,
            *request.args,
        ]
        return self._processes._ran(command, {**os.environ, "PULUMI_NODEJS_TYPESCRIPT": "true"}, request, context)


def _plugins(program: Path) -> Iterator[plugin_pb2.PackageDependency]:
    """What the packages beside the program say that they need (`pulumi` of their package.json)."""
    files = [*program.glob("node_modules/*/package.json"), *program.glob("node_modules/@*/*/package.json")]
    for package in (json.loads(file.read_text()) for file in sorted(files)):
        plugin = package.get("pulumi") or {}
        if plugin.get("resource"):
            version = str(plugin.get("version") or package["version"]).removeprefix("v")
            yield plugin_pb2.PackageDependency(
                name=plugin.get("name") or package["name"].removeprefix("@pulumi/"),
                kind="resource",
                version=f"v{version}",
                server=plugin.get("server", ""),
            )


def main(arguments: list[str]) -> int:
    """`arguments`: the engine's address, the last one."""
    host = NodeHost(arguments[-1] if arguments else "")
    end = host._processes.end_programs
    return serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server), end)
