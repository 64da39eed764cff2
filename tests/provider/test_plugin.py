"""The plugin itself: how it starts and ends, its schema, its configuration, and the bundle."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, provider_pb2

from gpu_fleet import toolchain
from gpu_fleet.provider.schema import SCHEMA_FILE, schema
from gpu_fleet.provider.values import UNKNOWN, decode, encode, is_secret
from tests.provider.plugin import BUNDLE, HOST, PASSWORD, PLUGIN, Failure, Plugin, bundle_inputs, digest_of, urn

CONFIG = "pulumi:providers:gpu-fleet"
DiffResponse = provider_pb2.DiffResponse


# --- starting and ending ----------------------------------------------------------------------------------------------------


def test_it_says_hello_as_the_engine_expects(plugin: Plugin) -> None:
    answer = plugin.call("Handshake", provider_pb2.ProviderHandshakeRequest(engine_address=plugin.engine.address))
    assert answer.accept_secrets
    assert plugin.call("GetPluginInfo", Empty()).version == schema()["version"]
    configured = plugin.call("Configure", provider_pb2.ConfigureRequest())
    assert (configured.acceptSecrets, configured.supportsPreview) == (True, True)


def test_it_ends_when_its_engine_is_gone() -> None:
    """An engine that is killed cannot end its plugins."""
    start = f"import subprocess, sys, time; p = subprocess.Popen([{str(PLUGIN)!r}, '127.0.0.1:1'], stdout=subprocess.PIPE)\n"
    start += "p.stdout.readline(); print(p.pid, flush=True); time.sleep(600)"
    engine = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE)
    pid = int(engine.stdout.readline())
    engine.kill()
    engine.wait()
    engine.stdout.close()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the plugin outlived its engine"
        time.sleep(0.1)


def test_missing_packages_are_reported_with_the_command_that_installs_them(tmp_path: Path) -> None:
    shutil.copytree(PLUGIN.parent, tmp_path / "gpu_fleet/provider", ignore=shutil.ignore_patterns("__pycache__"))
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "gpu_fleet/provider" / PLUGIN.name], capture_output=True, text=True, env={"PATH": path}, check=False
    )
    assert done.returncode == 1
    assert "lacks aiohttp, asyncssh, grpc, pulumi, yaml; run `make setup`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_of_ours_shows_no_traceback_but_keeps_one_for_debug(plugin: Plugin) -> None:
    plugin.engine.lines.clear()
    request = provider_pb2.DeleteRequest(id="x", urn=urn(HOST), type=HOST)  # the engine always sends the old inputs
    with pytest.raises(Failure, match=r"internal error .* please report it") as failure:
        plugin.call("Delete", request)
    assert failure.value.code == grpc.StatusCode.INTERNAL
    assert "Traceback" not in failure.value.message
    assert any("Traceback" in text for text in plugin.engine.texts(engine_pb2.DEBUG))


def test_an_unknown_resource_type_is_reported(plugin: Plugin) -> None:
    with pytest.raises(Failure, match=r"no resource type gpu-fleet:host:Hots; it has gpu-fleet:host:Bundle, gpu-fleet:host:Host"):
        plugin.check("gpu-fleet:host:Hots", {})


# --- schema -----------------------------------------------------------------------------------------------------------------


def test_the_schema_is_served_and_whole(plugin: Plugin) -> None:
    served = json.loads(plugin.call("GetSchema", provider_pb2.GetSchemaRequest()).schema)
    assert served == schema()
    for name, resource in served["resources"].items():
        assert resource["description"], name
        for properties in (resource["inputProperties"], resource.get("properties", {})):
            assert all(given.get("description") for given in properties.values()), f"{name} has a property nobody explains"
        assert set(resource["requiredInputs"]) <= set(resource["inputProperties"])
    assert served["config"]["variables"] == served["provider"]["inputProperties"]


def test_pulumi_takes_the_schema_for_one() -> None:
    """`pulumi package gen-sdk` starts with the same check."""
    done = subprocess.run([toolchain.find("pulumi"), "schema", "check", SCHEMA_FILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_every_input_that_replaces_says_so_in_the_schema(plugin: Plugin) -> None:
    for name, resource in schema()["resources"].items():
        inputs = {key: "a" for key, given in resource["inputProperties"].items() if given.get("type") == "string"}
        for key, given in resource["inputProperties"].items():
            if key in inputs:
                replaces = bool(plugin.diff(name, inputs, {**inputs, key: "b"}).replaces)
                assert replaces == given.get("replaceOnChanges", False), f"{name}.{key}"


# --- configuration ----------------------------------------------------------------------------------------------------------


def check_config(plugin: Plugin, config: dict, old: dict | None = None) -> provider_pb2.CheckResponse:
    response = plugin.call("CheckConfig", provider_pb2.CheckRequest(urn=urn(CONFIG), news=encode(config), olds=encode(old or {})))
    plugin.answers.pop()
    return response


def test_secrets_of_the_configuration_are_secret_however_they_came(plugin: Plugin) -> None:
    given = {"sshPrivateKey": "key", "sudoPassword": PASSWORD, "secrets": json.dumps({"a": PASSWORD}), "rulerPassword": PASSWORD}
    fields = check_config(plugin, given).inputs.fields
    assert {name for name in fields if is_secret(fields[name])} == {*given, "digestKey"}


def test_the_key_of_the_digests_stays_as_it_was(plugin: Plugin) -> None:
    first = decode(check_config(plugin, {}).inputs)
    assert len(first["digestKey"]) == 32
    assert decode(check_config(plugin, {}, first).inputs) == first, "another key would make every host look changed"
    assert decode(check_config(plugin, {"digestKey": "mine"}, first).inputs) == {"digestKey": "mine"}


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"ssh": '{"usr": "ops"}'}, "ssh.usr"),
        ({"ssh": "ops"}, "ssh"),
        ({"lostHosts": {"a": 1}}, "lostHosts"),
        ({"secrets": {"a": 1}}, 'secrets["a"]'),
    ],
)
def test_wrong_configuration_is_refused_with_its_path(plugin: Plugin, config: dict, path: str) -> None:
    assert [failure.property for failure in check_config(plugin, config).failures] == [path]


def test_keys_of_the_stack_file_are_not_taken_for_errors(plugin: Plugin) -> None:
    """The project and the package have one name, so a default provider gets every key of the project."""
    assert not check_config(plugin, {"datacenter": "us-west", "hosts": "{}"}).failures


def test_another_configuration_is_an_update_and_never_a_replacement(plugin: Plugin) -> None:
    def diff(old: dict, new: dict) -> provider_pb2.DiffResponse:
        request = provider_pb2.DiffRequest(id="x", urn=urn(CONFIG), old_inputs=encode(old), news=encode(new))
        return plugin.call("DiffConfig", request)

    config = {"ssh": '{"user": "ops"}', "sudoPassword": "a-password"}
    assert diff(config, config).changes == DiffResponse.DIFF_NONE
    changed = diff(config, {"sudoPassword": "b-password"})
    assert (sorted(changed.diffs), list(changed.replaces)) == (["ssh", "sudoPassword"], [])
    assert "b-password" not in str(changed)


def test_unknown_secrets_of_a_preview_make_their_digest_unknown(plugin: Plugin) -> None:
    plugin.call("Configure", provider_pb2.ConfigureRequest(args=encode({"secrets": UNKNOWN})))
    inputs = {"host": "a", "connection": {"kind": "local"}, "bundle": "b", "settings": {}}
    assert plugin.checked(HOST, inputs)["secretsDigest"] is UNKNOWN


# --- bundles ----------------------------------------------------------------------------------------------------------------


def test_a_bundle_keeps_its_texts_and_digest_and_not_its_archive(plugin: Plugin) -> None:
    """The archive would be written with every checkpoint of every run."""
    inputs = bundle_inputs("exit 0", {"/etc/gpu-fleet/alloy/export.alloy": "text"})
    checked = plugin.checked(BUNDLE, inputs)
    assert checked == {"files": {"/etc/gpu-fleet/alloy/export.alloy": "text"}, "digest": digest_of(inputs)}
    assert plugin.create(BUNDLE, checked) == ("bundle", {"digest": digest_of(inputs)})
    assert decode(plugin.read(BUNDLE, "bundle", checked, {"digest": "x"}).properties) == {"digest": "x"}
    plugin.delete(BUNDLE, "bundle", checked)


def test_the_digest_is_known_in_a_preview(plugin: Plugin) -> None:
    checked = plugin.checked(BUNDLE, bundle_inputs("exit 0"))
    assert plugin.create(BUNDLE, checked, preview=True)[1] == {"digest": checked["digest"]}


def test_a_preview_shows_the_file_that_changed(plugin: Plugin) -> None:
    old = plugin.checked(BUNDLE, bundle_inputs("exit 0", {"/etc/a b": "one", "/etc/c": "same", "/etc/d": "gone"}))
    new = plugin.checked(BUNDLE, bundle_inputs("exit 1", {"/etc/a b": "two", "/etc/c": "same"}))
    diff = plugin.diff(BUNDLE, old, new)
    assert set(diff.detailedDiff) == {"digest", 'files["/etc/a b"]', 'files["/etc/d"]'}
    assert set(diff.diffs) == {"digest", "files"}
    assert not diff.replaces


@pytest.mark.parametrize(
    "archive",
    ["no base64!", base64.b64encode(b"no gzip").decode(), base64.b64encode(gzip.compress(b"x" * 99, mtime=0)[:-9]).decode()],
)
def test_a_broken_archive_is_refused(plugin: Plugin, archive: str) -> None:
    (failure,) = plugin.check(BUNDLE, {"files": {}, "archive": archive}).failures
    assert failure.property == "archive"


def test_an_unknown_archive_has_an_unknown_digest(plugin: Plugin) -> None:
    assert plugin.checked(BUNDLE, {"files": {}, "archive": UNKNOWN})["digest"] is UNKNOWN


def test_an_environment_without_plan_asks_no_host(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin({"PLAN": ""})
    inputs = {"host": "a", "connection": {"kind": "local", "prefix": str(tmp_path)}, "bundle": plugin.bundle(), "settings": {}}
    plugin.create(HOST, plugin.checked(HOST, inputs), preview=True)
    assert not plugin.engine.texts(engine_pb2.INFO)


def test_a_credential_plugin_that_hangs_keeps_no_run_from_ending(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    """It runs in a thread, which nobody can interrupt."""
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
        "users": [
            {
                "name": "u",
                "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["99"]}},
            }
        ],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    plugin = new_plugin(kubernetes={"kubeconfig": str(tmp_path / "kubeconfig")})
    kind = "gpu-fleet:kubernetes:Cluster"
    inputs = {"namespace": "gpu-fleet", "exporter": "install", "prometheusOperator": "none"}
    answer = plugin.start_create(kind, plugin.checked(kind, inputs))
    plugin.engine.wait_for_status("checking the cluster")
    plugin.call("Cancel", Empty())
    with pytest.raises(Failure, match=r"^stopped before anything was changed$"):
        answer()
    plugin.process.terminate()
    plugin.process.wait(60)  # it does not wait for the end of the sleep
