"""The policy pack, as the engine starts and calls it. With a real engine: tests/e2e/test_operations.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import json_format, struct_pb2
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from gpu_fleet.policy.checks import POLICIES
from tests.checkout import REPO

SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "hunter2"}
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


@pytest.fixture
def pack() -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    command = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", str(REPO / "gpu_fleet/policy")]
    with subprocess.Popen(command, cwd=REPO / "gpu_fleet/policy", stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
            yield analyzer_pb2_grpc.AnalyzerStub(channel)
        process.terminate()
        assert process.wait(120) == 0


def analyze(pack: analyzer_pb2_grpc.AnalyzerStub, properties: dict[str, object]) -> list[analyzer_pb2.AnalyzeDiagnostic]:
    request = analyzer_pb2.AnalyzeRequest(
        type="grafana:oss/dataSource:DataSource",
        name="mimir",
        urn="urn:mimir",
        properties=json_format.ParseDict(properties, struct_pb2.Struct()),
    )
    return list(pack.Analyze(request).diagnostics)


def test_the_pack_lists_every_policy_with_its_level(pack: analyzer_pb2_grpc.AnalyzerStub) -> None:
    info = pack.GetAnalyzerInfo(Empty())
    levels = {one.name: one.enforcementLevel == analyzer_pb2.ADVISORY for one in info.policies}
    assert levels == {one.name: one.is_advisory for one in POLICIES}


def test_a_secret_and_an_unknown_value_are_no_violation_and_plain_text_is_one_at_its_level(
    pack: analyzer_pb2_grpc.AnalyzerStub,
) -> None:
    assert not analyze(pack, {"password": SECRET, "secureJson": {"password": UNKNOWN}})
    [one] = analyze(pack, {"password": "hunter2"})
    assert (one.policyName, one.urn, one.enforcementLevel) == ("secrets-encrypted", "urn:mimir", analyzer_pb2.MANDATORY)
    assert "`password` is plain text" in one.message and "hunter2" not in one.message
    pack.Configure(analyzer_pb2.ConfigureAnalyzerRequest(policyConfig={"all": {"enforcementLevel": "ADVISORY"}}))
    assert [one.enforcementLevel for one in analyze(pack, {"password": "hunter2"})] == [analyzer_pb2.ADVISORY]
    pack.Configure(analyzer_pb2.ConfigureAnalyzerRequest(policyConfig={"secrets-encrypted": {"enforcementLevel": "DISABLED"}}))
    assert not analyze(pack, {"password": "hunter2"})
