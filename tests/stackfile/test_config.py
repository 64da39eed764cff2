"""What a good stack file becomes, and how it is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import asyncssh
import pulumi
import pytest
import yaml
from pulumi.runtime import get_config_env, set_all_config

from components import provider
from components.fleet import wiring
from components.fleet.fleet import connection, own_connection
from components.rulers.wiring import rulers_args
from components.stack import LoadedConfig, read_stack
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Part
from gpu_fleet.stackfile.alerts import Receiver
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from gpu_fleet.stackfile.new_stack import new_stack
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.checkout import STACK_FILES
from tests.stackfile.stacks import HOST_KEY, REMOVED, problems, stack, write_known_hosts, write_private

ROOT = Path(__file__).parents[2]


def load(base: Path, *, secrets: set[str] = frozenset(), **changes: object) -> StackConfig:
    return StackConfig.load(stack(**changes), base, secrets)


def test_a_pattern_becomes_hosts_with_the_addresses_of_its_range(base: Path) -> None:
    config = load(base)
    assert {name: host.address for name, host in config.hosts.items()} == {
        "gpu-node-001": "10.0.1.1",
        "gpu-node-002": "10.0.1.2",
        "old-amd-node": "10.0.9.9",
    }
    assert config.hosts["gpu-node-002"].gpus == 8
    assert config.hosts["old-amd-node"].gpus is None, "what is not stated is not checked"


def test_a_host_inherits_from_ssh_what_it_does_not_set(base: Path) -> None:
    bastion = {"host": "10.0.0.1", "user": "jump"}
    config = load(
        base, ssh__port=2222, ssh__bastion=bastion, **{"hosts__old-amd-node__port": 22, "hosts__old-amd-node__user": "root"}
    )
    common, own = config.hosts["gpu-node-001"], config.hosts["old-amd-node"]
    assert (common.port, common.user, common.sudo) == (2222, "ops", True)
    assert (own.port, own.user, own.sudo) == (22, "root", False), "root needs no sudo"
    assert common.bastion is not None and common.bastion.host == "10.0.0.1"


def test_a_host_without_address_is_reached_by_its_name(base: Path) -> None:
    (base / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
    config = load(base, hosts={"gpu[a:b].example.com": None})
    assert [host.address for host in config.hosts.values()] == ["gpua.example.com", "gpub.example.com"]


def test_paths_of_a_local_host_start_at_the_stack_file(base: Path) -> None:
    local = {"connection": "local", "prefix": ".dev/host", "toolPath": [".dev/bin"], "kernelLog": ".dev/kern.log"}
    host = load(base, hosts={"here": local}).hosts["here"]
    assert (host.prefix, host.tool_path, host.kernel_log) == (
        str(base / ".dev/host"),
        (str(base / ".dev/bin"),),
        str(base / ".dev/kern.log"),
    )
    assert (host.address, host.user, host.sudo) == ("", "", False)


def test_only_a_python_that_is_written_becomes_a_setting_of_the_host(base: Path) -> None:
    written = {"gpua": "auto", "gpub": "present", "gpuc": "/opt/python/bin/python3"}
    hosts = {name: {"address": f"10.0.1.{ord(name[-1])}", "python": python} for name, python in written.items()}
    config = load(base, hosts=hosts)
    settings = (host_settings(host, config) for host in config.hosts.values())
    found = [{name: value for name, value in given.items() if "PYTHON" in name} for given in settings]
    assert found == [{}, {"GPU_FLEET_PYTHON_INSTALL": "no"}, {"GPU_FLEET_PYTHON": "/opt/python/bin/python3"}]


def test_settings_hold_what_differs_between_hosts_and_no_secret(base: Path) -> None:
    config = load(
        base, secrets={"metricsPassword"}, metrics__username="writer", **{"hosts__gpu-node-[001:002]__toolPath": ["/a", "/b c"]}
    )
    settings = host_settings(config.hosts["gpu-node-002"], config)
    assert settings["GPU_FLEET_INSTANCE"] == "gpu-node-002"
    assert settings["GPU_FLEET_DATACENTER"] == "us-west"
    assert settings["GPU_FLEET_CLUSTER"] == "training"
    assert settings["GPU_FLEET_GPUS"] == "8"
    assert settings["GPU_FLEET_TOOL_PATH"] == "/a:/b c"
    assert settings["GPU_FLEET_METRICS_USERNAME"] == "writer"
    assert settings["GPU_FLEET_METRICS_TENANT"] == "us-west"
    assert settings["GPU_FLEET_LOGS_TENANT"] == ""
    assert settings["GPU_FLEET_ALLOY_LISTEN"] == "127.0.0.1:12345"
    assert host_settings(config.hosts["old-amd-node"], config)["GPU_FLEET_GPUS"] == "", "empty means: do not count"
    assert not [name for name in settings if "PASSWORD" in name]


def test_settings_of_two_hosts_have_the_same_names(base: Path) -> None:
    config = load(base, logs=REMOVED)
    first, second, third = (set(host_settings(host, config)) for host in config.hosts.values())
    assert first == second == third, "one bundle serves all hosts, so all of them must be given every name"


def test_a_stack_without_hosts_needs_no_datacenter(base: Path) -> None:
    only = {"grafana": {"url": "https://grafana.example.com/"}}
    config = StackConfig.load(only, base, {"grafanaAuth"})
    assert config.grafana is not None and config.grafana.url == "https://grafana.example.com"
    assert config.hosts == {} and config.datacenter == ""


def test_a_lost_host_needs_no_key(base: Path) -> None:
    config = load(base, **{"hosts__gone": {"address": "10.99.0.1", "lost": True}})
    assert config.hosts["gone"].lost


def test_a_host_that_pulls_is_expected_to_report_and_nothing_is_done_to_it(
    base: Path, monkeypatch: pytest.MonkeyPatch, event_loop: None
) -> None:
    monkeypatch.setattr(wiring, "_bundle", lambda config: SimpleNamespace(settings={}))
    pulled = {"hosts__edge-[1:2]": {"connection": "pull", "gpus": 8}}
    config = load(base, **pulled, rulers={"mimir": {"url": "http://127.0.0.1:9009"}})
    waves = wiring.fleet_args(config, None).waves
    assert not {host.name for wave in waves for host in wave} & {"edge-1", "edge-2"}
    expected = "".join(group.yaml for group in rulers_args(LoadedConfig(config=config, secrets={}), None).mimir_groups)
    assert "edge-1" in expected and "edge-2" in expected


def test_a_host_gets_only_the_settings_that_differ_from_the_bundle(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {"GPU_FLEET_GPUS": "", "GPU_FLEET_VENDOR": "auto", "GPU_FLEET_TOOL_PATH": ""}
    monkeypatch.setattr(wiring, "_bundle", lambda config: SimpleNamespace(settings=defaults))
    settings = wiring.fleet_args(load(base), None).settings["gpu-node-002"]
    assert settings["GPU_FLEET_GPUS"] == "8"
    assert not {"GPU_FLEET_VENDOR", "GPU_FLEET_TOOL_PATH"} & settings.keys(), "a state of 1,000 hosts would repeat it"


def test_a_preview_names_the_hosts_that_may_get_a_container_runtime(base: Path) -> None:
    assert wiring.runtime_notice(load(base)) == "", "nothing is installed by default"
    config = load(base, dcgm={"install": True})
    assert wiring.runtime_notice(config).endswith("Hosts that may get them: gpu-node-001, gpu-node-002"), (
        "not the one with AMD GPUs"
    )
    assert wiring.runtime_notice(load(base, dcgm={"install": True, "source": "packages"})) == ""


def test_a_host_has_only_the_connection_settings_that_the_stack_does_not_set(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_bundle", lambda config: SimpleNamespace(settings={}))
    config = load(base, **{"ssh__user": "ops", "hosts__gpu-node-[001:002]__port": 2222})
    args = wiring.fleet_args(config, None)
    ours = own_connection(config.hosts["gpu-node-001"], args.ssh)
    assert (ours["port"], ours["address"]) == (2222, config.hosts["gpu-node-001"].address)
    assert not {"user", "privateKeyFile"} & ours.keys()
    assert {**args.ssh, **ours}.items() >= connection(config.hosts["gpu-node-001"]).items(), "as the provider puts them together"


def test_the_bundle_has_the_settings_of_all_hosts_and_no_identity(base: Path) -> None:
    config = load(base)
    shared = shared_settings(config)
    assert shared["GPU_FLEET_METRICS_URL"] == config.metrics.url
    assert shared["GPU_FLEET_CLUSTER"] == "training"
    assert not {"GPU_FLEET_INSTANCE", "GPU_FLEET_STACK"} & shared.keys(), "removal works without a bundle, and needs the stack"
    bundle = Bundle.of([Part(name="a", settings={"GPU_FLEET_CLUSTER": "none", "A": "1"})], settings=shared)
    assert bundle.settings == {**shared, "A": "1"}


def test_a_canary_that_is_lost_is_none(base: Path) -> None:
    config = load(base, rollout={"canary": "gone"}, **{"hosts__gone": {"address": "10.99.0.1", "lost": True}})
    assert provider.provider_args(LoadedConfig(config=config, secrets={})).rollout["hasCanary"] is False


def test_one_address_behind_two_bastions_is_two_machines(base: Path) -> None:
    twins = {f"hosts__gpu-{site}": {"address": "192.168.1.1", "bastion": {"host": f"10.0.0.{site}"}} for site in (1, 2)}
    assert len(load(base, **twins).hosts) == 5


def test_metrics_and_passwords_over_plain_http_are_warned_of_except_on_this_machine(base: Path) -> None:
    open_ = load(base, metrics__url="http://m.example.com/api/v1/push").warnings
    assert open_ == ("gpu-fleet:metrics.url: metrics are sent in clear text to http://m.example.com/api/v1/push; use https",)
    far = load(base, secrets={"metricsPassword"}, metrics__username="w", metrics__url="http://m.example.com/api/v1/push")
    near = load(base, secrets={"metricsPassword"}, metrics__username="w", metrics__url="http://127.0.0.1:9009/api/v1/push")
    assert ["the password is sent in clear text" in warning for warning in far.warnings] == [True]
    assert near.warnings == ()


def test_a_receiver_without_channels_is_valid(base: Path) -> None:
    routes = [{"matchers": ["alertname=GpuIdleWhileAllocated"], "receiver": "nobody"}]
    config = StackConfig.load(stack(alerts__receivers__nobody={}, alerts__receiver="team", alerts__routes=routes), base)
    assert config.alerts.receivers["nobody"] == Receiver()


def test_receivers_take_their_secrets_from_keys_of_their_own(base: Path) -> None:
    receivers = {
        "oncall": {"pagerduty": {"routingKeySecret": "pagerdutyKey"}},
        "team": {
            "slack": {"urlSecret": "slackUrl", "channel": "#gpu"},
            "email": {"to": "a@x.org", "from": "b@x.org", "smarthost": "s:25"},
        },
    }
    routes = [{"matchers": ["severity=critical"], "receiver": "oncall", "continue": True, "muteTimings": ["sunday"]}]
    timings = {"sunday": {"weekdays": ["sunday"], "times": [{"start": "22:00", "end": "24:00"}], "location": "Europe/Berlin"}}
    alerts = {"receiver": "team", "receivers": receivers, "routes": routes, "muteTimings": timings}
    config = load(base, secrets={"slackUrl", "pagerdutyKey"}, alerts=alerts)
    assert config.alerts is not None
    assert config.alerts.routes[0].go_on
    assert config.alerts.receivers["team"].slack.url_secret == "slackUrl"


# --- files that the stack file names


def private_key(passphrase: str | None = None) -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_private_key("pkcs8-pem", passphrase=passphrase).decode()


def test_a_private_key_that_its_owner_alone_reads_is_accepted(base: Path) -> None:
    write_private(base / "id", private_key())
    assert load(base, ssh__privateKeyFile="id").hosts["gpu-node-001"].private_key_file == "id"


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (private_key(), 0o644, "can be read by others (mode 0644)"),
        (private_key(passphrase="x"), 0o600, "has a passphrase"),
        (f"{HOST_KEY} ops@host\n", 0o600, "is a public key"),
        ("ssh-ed25519 AAAA ops@host\n", 0o600, "is not a private key"),
    ],
    ids=["world-readable", "with a passphrase", "the public half", "no key"],
)
def test_a_private_key_that_cannot_be_used_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, content: str, mode: int, says: str
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    write_private(base / "id", content, mode)
    errors = problems(stack(ssh__privateKeyFile="id"), base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == ["gpu-fleet:ssh.privateKeyFile"], "reported once, not once per host"
    assert says in str(errors) and "PRIVATE KEY" not in str(errors)


@pytest.mark.parametrize("content", [private_key(passphrase="x"), f"{HOST_KEY} ops@host\n"], ids=["with a passphrase", "public"])
def test_a_key_that_an_agent_may_hold_is_accepted(base: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    write_private(base / "id", content)
    assert load(base, ssh__privateKeyFile="id")


def test_the_secret_key_comes_before_a_file_that_is_elsewhere(base: Path) -> None:
    """CI logs in with a key of its own to the hosts of an inventory that names the engineers' files."""
    assert load(base, secrets={"sshPrivateKey"}, ssh__privateKeyFile="/home/somebody/.ssh/id_ed25519")


def test_a_broken_line_of_known_hosts_is_named(base: Path) -> None:
    (base / "known_hosts").write_text("# collected\n10.0.1.1 ssh-ed25519\n")
    errors = problems(stack(), base)
    assert errors is not None
    assert "known_hosts: line 2 is not `HOST TYPE KEY`" in str(errors)


def test_a_byte_order_mark_of_known_hosts_is_named(base: Path) -> None:
    """An editor wrote it. Without this, the first host would have no key, which everybody can see there."""
    (base / "known_hosts").write_text(f"10.0.*,192.168.1.*,gpu1.corp*,fd00* {HOST_KEY}\n", encoding="utf-8-sig")
    errors = problems(stack(), base)
    assert "known_hosts: line 1 begins with a byte order mark" in str(errors) and "has no key" not in str(errors)


# --- reading it


@pytest.mark.parametrize("file", STACK_FILES, ids=lambda file: file.name)
def test_stack_files_of_the_repository_are_good(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_AUTH", "anonymous")  # as CI gives it for previews
    assert StackConfig.from_file(file).warnings == ()


def test_a_stack_file_is_read_with_its_secrets_left_encrypted(base: Path) -> None:
    write_known_hosts(base)
    keys = {f"gpu-fleet:{key}": value for key, value in stack(metrics__username="w").items()}
    keys |= {"gpu-fleet:metricsPassword": {"secure": "v1:abc"}, "aws:region": "eu-west-1"}
    (base / "Pulumi.x.yaml").write_text(yaml.safe_dump({"config": keys, "encryptionsalt": "v1:x"}))
    assert StackConfig.from_file(base / "Pulumi.x.yaml", base).metrics.username == "w"


def test_a_secret_inside_a_section_is_refused_in_a_stack_file(base: Path) -> None:
    keys = {"gpu-fleet:metrics": {"url": "https://m.example.com/api/v1/push", "password": {"secure": "v1:abc"}}}
    (base / "Pulumi.x.yaml").write_text(yaml.safe_dump({"config": keys}))
    with pytest.raises(ConfigErrors, match="gpu-fleet:metrics: holds an encrypted value"):
        StackConfig.from_file(base / "Pulumi.x.yaml", base)


@pytest.fixture
def event_loop() -> Iterator[None]:
    """Outputs want one, and a test that ran before may have taken the thread's away."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture
def pulumi_config(event_loop, monkeypatch: pytest.MonkeyPatch):
    """Sets the configuration of the running stack as the language host does: mappings as JSON, secrets by name."""

    def set_it(values: dict[str, object], secrets: set[str] = frozenset()) -> None:
        texts = {f"gpu-fleet:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        texts["gpu-fleet-other:zone"] = "x"  # of another program
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
        monkeypatch.setattr(pulumi.runtime.settings.SETTINGS, "root_directory", str(ROOT))
        set_all_config(get_config_env(), [f"gpu-fleet:{key}" for key in secrets])

    yield set_it
    set_all_config({}, [])


def host_on_this_machine() -> dict[str, object]:
    return {
        "hosts": {"here": {"connection": "local", "prefix": ".dev/host"}},
        "metrics__url": "http://127.0.0.1:9009/api/v1/push",
    }


def test_pulumi_hands_out_secrets_as_outputs_only(pulumi_config) -> None:
    values = stack(ssh=REMOVED, metrics__username="w", **host_on_this_machine())
    pulumi_config({**values, "metricsPassword": "hunter2"}, {"metricsPassword"})
    loaded = read_stack()
    assert list(loaded.config.hosts) == ["here"]
    assert isinstance(loaded.secrets["metricsPassword"], pulumi.Output)
    assert "hunter2" not in repr(loaded.config)


def test_a_secret_in_clear_ends_the_program_without_showing_it(pulumi_config) -> None:
    pulumi_config({**stack(ssh=REMOVED, metrics__username="w", **host_on_this_machine()), "metricsPassword": "hunter2"})
    with pytest.raises(pulumi.RunError) as error:
        read_stack()
    assert "pulumi config set --secret gpu-fleet:metricsPassword" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_keys_of_other_programs_are_none_of_our_business(pulumi_config) -> None:
    pulumi_config(stack(ssh=REMOVED, **host_on_this_machine()))
    assert read_stack().config.datacenter == "us-west"


# --- a new stack


def test_a_new_stack_passes_validation() -> None:
    text = new_stack("eu-north", "inference")
    config = yaml.safe_load(text)["config"]
    assert (config["gpu-fleet:datacenter"], config["gpu-fleet:cluster"]) == ("eu-north", "inference")
    StackConfig.load({key.removeprefix("gpu-fleet:"): value for key, value in config.items()}, ROOT)


def test_a_new_stack_with_every_comment_taken_away_passes_validation(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commented lines are what people will use, so they must be as right as the others."""
    body = new_stack("eu-north", "inference").partition("config:\n")[2]
    lines = []
    for line in body.splitlines():
        bare = line.strip().removeprefix("# ")
        is_key = line.strip().startswith("#") and (bare.startswith("gpu-fleet:") or line.startswith(("  #   ", "    # ")))
        lines.append(line.replace("# ", "", 1) if is_key else line)
    config = yaml.safe_load("\n".join(lines))
    assert len(config) >= 11, "a section of the template was not recognised"
    (base / "inventory").mkdir()
    (base / "inventory" / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
    (base / ".ssh").mkdir()
    write_private(base / ".ssh" / "id_ed25519", private_key())
    monkeypatch.setenv("HOME", str(base))
    secrets = {"metricsPassword", "logsPassword", "grafanaAuth", "slackUrl"}
    loaded = StackConfig.load({key.removeprefix("gpu-fleet:"): value for key, value in config.items()}, base, secrets)
    assert len(loaded.hosts) == 18
