"""The policy pack: serves the checks of checks.py to the engine of `pulumi preview --policy-pack gpu_fleet/policy`.

It speaks the engine's Analyzer protocol with the messages of the `pulumi` package, as gpu_fleet/provider/ speaks that of
providers, in this project's virtual environment. It does not use the package pulumi-policy: 1.21.0 requires protobuf 5, our other
packages are locked with protobuf 6; and it gives a policy the values of secrets without their marks, so that no policy could find
a password in plain text (pulumi/pulumi-policy, sdk/python 1.21.0: METADATA; policy.py and deserialize.py, `proxy_secrets`; read
2026-11-22).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, plugin_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from gpu_fleet.policy.checks import POLICIES, UNKNOWN, Policy, Resource

_NAME: Final = "gpu-fleet"
# The engine's marks in a message. Source: pulumi 3.259.0, sdk/go/common/resource/sig and plugin/rpc.go, read 2026-11-22.
_SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_UNKNOWNS: Final = (
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",  # a text; a value of another type is one too where its type is not known
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
)
_LIMIT: Final = (("grpc.max_receive_message_length", 400 << 20),)  # a Bundle has every file of the hosts


class Pack(analyzer_pb2_grpc.AnalyzerServicer):
    """Keeps the enforcement levels that `--policy-pack-config` sets, by the name of a policy or `all`."""

    def __init__(self) -> None:
        self._levels: dict[str, analyzer_pb2.EnforcementLevel.ValueType] = {}

    def GetAnalyzerInfo(self, request: Empty, context: grpc.ServicerContext) -> analyzer_pb2.AnalyzerInfo:
        policies = [
            analyzer_pb2.PolicyInfo(
                name=one.name,
                description=one.description,
                enforcementLevel=_default(one),
                policy_type=analyzer_pb2.POLICY_TYPE_RESOURCE,
            )
            for one in POLICIES
        ]
        return analyzer_pb2.AnalyzerInfo(
            name=_NAME, displayName="GPU Fleet", version="1.0.0", supportsConfig=True, policies=policies
        )

    def GetPluginInfo(self, request: Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version="1.0.0")

    def Configure(self, request: analyzer_pb2.ConfigureAnalyzerRequest, context: grpc.ServicerContext) -> Empty:
        self._levels = {name: config.enforcementLevel for name, config in request.policyConfig.items()}
        return Empty()

    def Analyze(self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext) -> analyzer_pb2.AnalyzeResponse:
        one = Resource(
            type=request.type,
            name=request.name,
            inputs=plain(json_format.MessageToDict(request.properties)),
            provider=plain(json_format.MessageToDict(request.provider.properties)),
        )
        return analyzer_pb2.AnalyzeResponse(
            diagnostics=[
                analyzer_pb2.AnalyzeDiagnostic(
                    policyName=policy.name,
                    policyPackName=_NAME,
                    policyPackVersion="1.0.0",
                    description=policy.description,
                    message=f"{found.found}; expected: {found.expected}. To fix: {found.fix}",
                    enforcementLevel=level,
                    urn=request.urn,
                )
                for policy in POLICIES
                if (level := self._level(policy)) != analyzer_pb2.DISABLED
                for found in policy.check(one)
            ]
        )

    def AnalyzeStack(
        self, request: analyzer_pb2.AnalyzeStackRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzeResponse:
        return analyzer_pb2.AnalyzeResponse()  # every check needs one resource and its provider alone

    def Remediate(self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext) -> analyzer_pb2.RemediateResponse:
        return analyzer_pb2.RemediateResponse()

    def _level(self, policy: Policy) -> analyzer_pb2.EnforcementLevel.ValueType:
        return self._levels.get(policy.name, self._levels.get("all", _default(policy)))


def _default(policy: Policy) -> analyzer_pb2.EnforcementLevel.ValueType:
    return analyzer_pb2.ADVISORY if policy.is_advisory else analyzer_pb2.MANDATORY


def plain(value: Any) -> Any:
    """Without the engine's marks, as components/registered.py has it: a secret is UNKNOWN, and so is what is not known yet."""
    if isinstance(value, Mapping):
        return UNKNOWN if _SIGNATURE in value else {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return UNKNOWN if value in _UNKNOWNS else value


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=_LIMIT)
    analyzer_pb2_grpc.add_AnalyzerServicer_to_server(Pack(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print(port, flush=True)
    # Python runs a handler between its own instructions: a signal just before a wait without a limit would never be seen.
    while not ended.wait(1):
        pass
    server.stop(grace=None)


if __name__ == "__main__":
    main()
