"""The policies: every example passes, and each policy finds what it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.operations import policies
from gpu_fleet.operations.pr_report.pictures import Picture, pictures
from gpu_fleet.policy.checks import POLICIES, UNKNOWN, Grouped, findings
from tests.checkout import EXAMPLES, REPO, stack_of

HOST, BUNDLE, RELEASE = "gpu-fleet:host:Host", "gpu-fleet:host:Bundle", "kubernetes:helm.sh/v3:Release"
COMMAND, GROUP = "command:local:Command", "gpu-fleet:ruler:RuleGroup"
RULE = {"alert": "GpuTooWarm", "expr": "up == 0"}


def host(**settings: str) -> tuple[str, dict[str, Any]]:
    return HOST, {"settings": {f"GPU_FLEET_{name}": value for name, value in settings.items()}}


def bundle(**files: str) -> tuple[str, dict[str, Any]]:
    return BUNDLE, {"files": files}


def release(chart: str = "alloy", **values: Any) -> tuple[str, dict[str, Any]]:
    return RELEASE, {"chart": chart, "version": "1.0.0", "values": values}


def download(checksum: str) -> tuple[str, dict[str, Any]]:
    return bundle(manifest=f"download\t/opt/gpu-fleet/bin/alloy\t755\tamd64\t{checksum}\t-\thttps://example.com/alloy")


def found(type_: str, inputs: Mapping[str, Any], **providers: Mapping[str, Any]) -> Grouped:
    given = [(f"pulumi:providers:{name.replace('_', '-')}", name, values) for name, values in providers.items()]
    return findings([*given, (type_, "one", inputs)])


EVERYWHERE = "0.0.0.0:9100"
VIOLATING: list[tuple[str, tuple[str, dict[str, Any]], str]] = [
    ("ssh-host-keys", (HOST, {"connection": {"kind": "ssh", "address": "10.0.0.1"}}), "~/.ssh/known_hosts"),
    ("ssh-host-keys", ("command:remote:Command", {"connection": {"host": "10.0.0.1"}}), "accepts any host key"),
    ("secrets-encrypted", ("grafana:oss/dataSource:DataSource", {"secureJson": {"basicAuthPassword": "hunter2"}}), "plain text"),
    ("secrets-encrypted", ("gpu-fleet:ruler:AlertmanagerConfig", {"config": "url: https://a:b@pager.example.com"}), "a URL"),
    ("secrets-encrypted", bundle(key="-----BEGIN OPENSSH PRIVATE KEY-----\nabc"), "a private key"),
    ("secrets-encrypted", ("pulumi:providers:gpu-fleet", {"secrets": json.dumps({"token": "hunter2"})}), "`secrets.token`"),
    ("digests-pinned", download("unpinned"), "https://example.com/alloy has no SHA-256"),
    ("digests-pinned", bundle(settings="GPU_FLEET_DCGM_IMAGE=nvcr.io/dcgm-exporter:4.6\n"), "nvcr.io/dcgm-exporter:4.6"),
    ("digests-pinned", release(image={"repository": "grafana/alloy", "tag": "v1"}), "`values.image`: grafana/alloy:v1"),
    ("digests-pinned", (RELEASE, {"chart": "alloy", "values": {}}), "no version"),
    ("digests-pinned", ("kubernetes:batch/v1:Job", {"spec": {"containers": [{"image": "cuda:12"}]}}), "cuda:12"),
    ("loopback-only", bundle(settings=f"GPU_FLEET_NODE_EXPORTER_LISTEN={EVERYWHERE}\n"), EVERYWHERE),
    ("loopback-only", host(ALLOY_LISTEN="10.0.0.7:12345"), "10.0.0.7:12345"),
    ("loopback-only", bundle(settings=f"GPU_FLEET_SCRAPE_NODE_LISTEN={EVERYWHERE}\n", manifest=""), EVERYWHERE),
    ("loopback-only", (COMMAND, {"environment": {"SERVICE_LISTEN": "127.0.0.1:1 [::]:2"}}), "[::]:2"),
    ("alert-runbooks", (GROUP, {"rules": json.dumps({"rules": [RULE]})}), "the alert GpuTooWarm"),
    (
        "alert-runbooks",
        ("kubernetes:monitoring.coreos.com/v1:PrometheusRule", {"spec": {"groups": [{"rules": [RULE]}]}}),
        "GpuTooWarm",
    ),
    ("alert-runbooks", ("grafana:alerting/ruleGroup:RuleGroup", {"rules": [{"name": "GpuTooWarm"}]}), "GpuTooWarm"),
    ("retention-stated", host(ROLE="monitoring", MONITORING_METRICS_RETENTION="90d"), "MONITORING_LOGS_RETENTION"),
    ("retention-stated", (COMMAND, {"environment": {"SERVICE_COMMAND": "mimir -config.file=a"}}), "METRICS_RETENTION"),
    ("retention-stated", release("kube-prometheus-stack", prometheus={}), "prometheus.prometheusSpec.retention"),
    ("no-stand-ins", host(TOOL_PATH="/srv/gpu-fleet/.dev/gpus/bin"), "`settings.GPU_FLEET_TOOL_PATH` names .dev/gpus"),
    ("no-stand-ins", (COMMAND, {"create": "python -m lab.grafana"}), "lab.grafana"),
    ("own-users", bundle(**{"/etc/systemd/system/gpu-fleet-alloy.service": "[Service]\nExecStart=/x\n"}), "runs as root"),
    ("pod-privileges", release(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "SYS_ADMIN"),
    ("pod-privileges", release(rbac={"rules": [{"resources": ["secrets"]}]}), "access to secrets"),
    ("pod-privileges", release(securityContext={"privileged": True}), "`values.securityContext.privileged` is true"),
    ("network-policies", ("gpu-fleet:kubernetes:Cluster", {"networkPolicies": False}), "every pod"),
    ("encrypted-transport", host(METRICS_URL="http://mimir.example.com/api/v1/push"), "http://mimir.example.com"),
    ("chart-images", ("gpu-fleet:kubernetes:Manifest", {"objects": {"DaemonSet a": "spec:\n- image: a/b:v1\n"}}), "a/b:v1"),
]


@pytest.mark.parametrize(("policy", "resource", "said"), VIOLATING)
def test_a_violation_is_found_with_what_was_expected_and_how_to_fix_it(
    policy: str, resource: tuple[str, dict[str, Any]], said: str
) -> None:
    [((named, violation), where)] = [entry for entry in found(*resource).items() if entry[0][0].name == policy]
    assert said in violation.found
    assert violation.expected and violation.fix
    assert where == [f"{resource[0]}::one"] and named.description


def test_each_policy_has_a_violating_case() -> None:
    assert {name for name, *_ in VIOLATING} == {policy.name for policy in POLICIES}


@pytest.mark.parametrize(
    "resource",
    [
        (HOST, {"connection": {"kind": "ssh", "hostKey": "ssh-ed25519 AAAA"}}),
        ("grafana:oss/dataSource:DataSource", {"secureJson": {"basicAuthPassword": UNKNOWN}}),
        release(auth={"passwordFile": "/etc/gpu-fleet/secrets/a", "existingSecret": "gpu-fleet", "bearerToken": "true"}),
        download("a" * 64),
        bundle(settings="GPU_FLEET_SCRAPE_NODE_LISTEN=0.0.0.0:9110\n", manifest="part\tscrape-node\nsecret\tscrape-web-config\n"),
        host(ALLOY_LISTEN="[::1]:12345", METRICS_URL="http://127.0.0.1:9009/api/v1/push"),
        host(LOGS_URL="http://loki.monitoring.svc:3100/loki/api/v1/push"),
        release(image={"repository": "grafana/alloy", "tag": "v1@sha256:" + "a" * 64}),
        release(customMetrics="DCGM_FI_PROF_A, gauge", securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        bundle(**{"/etc/systemd/system/gpu-fleet-pull.service": "[Service]\nExecStart=/x\n"}),
    ],
)
def test_what_is_right_is_no_violation(resource: tuple[str, dict[str, Any]]) -> None:
    assert not found(*resource)


def test_a_known_hosts_file_of_the_provider_serves_every_host() -> None:
    inputs = {"connection": {"kind": "ssh"}}
    assert found(HOST, inputs)
    assert not found(HOST, inputs, gpu_fleet={"ssh": json.dumps({"knownHostsFile": "inventory/known_hosts"})})


@pytest.fixture(scope="module")
def examples() -> dict[str, Picture]:
    return pictures(REPO, {stack_of(file): str(file.relative_to(REPO)) for file in EXAMPLES})


def test_every_example_can_be_deployed_but_for_its_secrets(examples: dict[str, Picture]) -> None:
    assert len(examples) == len(EXAMPLES) == 5
    assert {stack: one.error for stack, one in examples.items() if one.error} == {}
    assert all(one.resources for one in examples.values())


def test_no_example_violates_a_policy(examples: dict[str, Picture]) -> None:
    for stack, picture in examples.items():
        violated = [
            key for key in findings((one.type, one.name, one.inputs) for one in picture.resources) if not key[0].is_advisory
        ]
        assert not violated, f"{stack}: {violated}"


def test_the_checks_read_what_the_examples_register(examples: dict[str, Picture]) -> None:
    """A renamed type or setting would otherwise make a policy pass everything."""
    types = {one.type for picture in examples.values() for one in picture.resources}
    assert {HOST, BUNDLE, RELEASE, GROUP, "gpu-fleet:kubernetes:Cluster", "gpu-fleet:kubernetes:Manifest"} <= types
    [west] = [one for one in examples["us-west-training"].resources if one.type == BUNDLE]
    broken = {name: text.replace("127.0.0.1", "10.0.0.1") for name, text in west.inputs["files"].items()}
    broken["manifest"] = broken["manifest"].replace("fac853cbc3983a50", "unpinned")
    names = {policy.name for policy, _ in found(BUNDLE, {"files": broken})}
    assert {"loopback-only", "digests-pinned"} <= names


def test_the_order_in_which_a_program_registers_its_resources_changes_nothing() -> None:
    _, inputs = host(TOOL_PATH="/srv/.dev/gpus/bin")
    hosts = [(HOST, f"gpu-node-{number:03}", inputs) for number in (2, 1, 3)]
    [names] = [names for (policy, _), names in findings(hosts).items() if policy.name == "no-stand-ins"]
    assert names == [f"{HOST}::gpu-node-00{number}" for number in (1, 2, 3)]


def test_make_policies_shows_one_entry_for_what_many_hosts_share_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (REPO / "examples/Pulumi.us-west-training.yaml").read_text()
    broken = text.replace('[1:16]", gpus: 8', '[1:16]", gpus: 8, toolPath: [/srv/.dev/gpus/bin]')
    assert broken != text
    (tmp_path / "Pulumi.us-west-training.yaml").write_text(broken)
    monkeypatch.setenv("PULUMI_OPTION_CONFIG_FILE", str(tmp_path / "Pulumi.us-west-training.yaml"))
    assert policies.main(["--stack", "us-west-training"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("no-stand-ins: gpu-fleet:host:Host::gpu-node-001 and 15 more") == 1
    assert "  fix:      remove it from the stack file" in printed


def test_the_stack_dev_may_have_what_make_dev_simulates(capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(["--stack", "dev"]) == 0
    assert "dev: no violation in" in capsys.readouterr().out
