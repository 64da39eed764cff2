"""Hosts through the real plugin process, on this machine below a prefix."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, provider_pb2

import gpu_fleet.provider.host
from gpu_fleet.provider.envelope import Envelope
from gpu_fleet.provider.host import HostError, Hosts, Place
from gpu_fleet.provider.transport import LocalTransport
from gpu_fleet.provider.values import UNKNOWN, decode
from tests.provider.plugin import CONVERGE, HOST, PASSWORD, Failure, LocalHost, Plugin, bundle_tar, urn

DiffResponse = provider_pb2.DiffResponse


def created(plugin: Plugin, host: LocalHost) -> tuple[dict, dict]:
    inputs = plugin.checked(HOST, host.inputs())
    return inputs, plugin.create(HOST, inputs)[1]


# --- check ------------------------------------------------------------------------------------------------------------------


def test_every_wrong_input_is_reported_at_once_with_its_path(plugin: Plugin) -> None:
    inputs = {"host": 7, "connection": {"kind": "telnet", "prot": 22}, "settings": {"A": True}, "bundel": "abc"}
    failures = {failure.property: failure.reason for failure in plugin.check(HOST, inputs).failures}
    assert set(failures) == {"host", "connection.kind", "connection.prot", 'settings["A"]', "bundel", "bundle"}
    assert "did you mean port?" in failures["connection.prot"]
    assert "ssh, local" in failures["connection.kind"]
    assert "did you mean bundle?" in failures["bundel"]


@pytest.mark.parametrize(
    ("connection", "path"),
    [
        ({"kind": "ssh"}, "connection.address"),
        ({"kind": "local", "prefix": ".dev/host"}, "connection.prefix"),
    ],
)
def test_a_connection_that_makes_no_sense_is_refused(plugin: Plugin, host: LocalHost, connection: dict, path: str) -> None:
    assert [failure.property for failure in plugin.check(HOST, host.inputs(connection=connection)).failures] == [path]


def test_a_setting_of_two_lines_is_refused_without_showing_it(plugin: Plugin, host: LocalHost) -> None:
    (failure,) = plugin.check(HOST, host.inputs(settings={"A": "one\ntwo-secret"})).failures
    assert failure.property == "settings.A"
    assert "two-secret" not in failure.reason


def test_unknown_inputs_of_a_preview_survive_the_check(plugin: Plugin, host: LocalHost) -> None:
    settings = {"GPU_FLEET_METRICS_URL": UNKNOWN}
    assert plugin.checked(HOST, host.inputs(settings=settings, bundle=UNKNOWN))["settings"] == settings


def test_another_password_changes_the_digest_and_another_key_does_not(plugin: Plugin, host: LocalHost) -> None:
    def digest(**config: object) -> str:
        plugin.configure(digestKey="k" * 32, **config)
        return plugin.checked(HOST, host.inputs())["secretsDigest"]

    first = digest(secrets={"metrics-password": "one-password"})
    assert digest(secrets={"metrics-password": "one-password"}, sshPrivateKey="another key", sudoPassword="another") == first
    assert digest(secrets={"metrics-password": "two-password"}) != first
    assert digest(secrets={}) == ""


def test_the_digest_of_secrets_depends_on_a_key_that_is_not_in_the_host(plugin: Plugin, host: LocalHost) -> None:
    """Else a short password could be found by trying."""
    digests = set()
    for _ in range(2):
        plugin.configure(secrets={"metrics-password": PASSWORD})
        digests.add(plugin.checked(HOST, host.inputs())["secretsDigest"])
    assert len(digests) == 2


# --- diff -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["port", "user", "privateKeyFile", "hostKey", "sudo"])
def test_another_route_to_a_host_changes_nothing_there(plugin: Plugin, host: LocalHost, way: str) -> None:
    old = {"kind": "ssh", "address": "10.0.0.1", "bastion": {"host": "jump"}}
    new = {**old, way: "other", "bastion": {"host": "jump2", "port": 2222}}
    assert plugin.diff(HOST, host.inputs(connection=old), host.inputs(connection=new)).changes == DiffResponse.DIFF_NONE


def test_what_reaches_the_host_is_an_update_shown_value_by_value(plugin: Plugin, host: LocalHost) -> None:
    old = host.inputs(connection={"kind": "ssh", "address": "10.0.0.1"}, secretsDigest="a", settings={"A": "1", "B": "2"})
    new = host.inputs(
        connection={"kind": "ssh", "address": "10.0.0.2"}, secretsDigest="b", settings={"A": "3", "C": "4"}, bundle="d"
    )
    diff = plugin.diff(HOST, old, new)
    assert set(diff.detailedDiff) == {"connection.address", "secretsDigest", "settings.A", "settings.B", "settings.C", "bundle"}
    assert set(diff.diffs) == {"connection", "secretsDigest", "settings", "bundle"}
    assert diff.detailedDiff["settings.B"].kind == provider_pb2.PropertyDiff.DELETE
    assert not diff.replaces


@pytest.mark.parametrize("changed", [{"connection": {"kind": "local", "prefix": "/elsewhere"}}, {"connection": {"kind": "ssh"}}])
def test_another_host_is_a_replacement_that_first_removes_the_old_one(plugin: Plugin, host: LocalHost, changed: dict) -> None:
    diff = plugin.diff(HOST, host.inputs(), host.inputs(**changed))
    assert diff.replaces
    assert diff.deleteBeforeReplace, "both would need the same ports"


def test_an_unknown_value_may_be_a_change(plugin: Plugin, host: LocalHost) -> None:
    diff = plugin.diff(HOST, host.inputs(), host.inputs(bundle=UNKNOWN))
    assert list(diff.detailedDiff) == ["bundle"]


# --- previews ---------------------------------------------------------------------------------------------------------------


def test_a_preview_touches_nothing(plugin: Plugin, host: LocalHost) -> None:
    inputs = plugin.checked(HOST, host.inputs(settings={"A": UNKNOWN}, bundle=UNKNOWN))
    expected = {"facts": UNKNOWN, "drift": [], "address": str(host.prefix)}
    assert plugin.create(HOST, inputs, preview=True) == ("", expected)
    assert plugin.update(HOST, "node-1", inputs, inputs, preview=True) == expected
    assert not host.prefix.exists()


def test_plan_hosts_connects_to_the_host_and_reports_what_would_change(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin({"PLAN": "hosts"})
    host = LocalHost(tmp_path / "host", plugin.bundle())
    plugin.create(HOST, plugin.checked(HOST, host.inputs("planned-failure")), preview=True)
    (text,) = plugin.engine.texts(engine_pb2.INFO)
    assert text.splitlines()[0] == "node-1: 1 of 3 parts would change"
    assert "    would write /etc/gpu-fleet/alloy/export.alloy" in text
    assert "driver: would fail: no nvidia-smi here" in text
    assert not host.prefix.exists(), "a preview changes nothing on a host"


def test_plan_hosts_finds_a_host_that_differs_though_its_inputs_do_not(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin({"PLAN": "hosts"})
    host = LocalHost(tmp_path / "host", plugin.bundle())
    inputs = plugin.checked(HOST, host.inputs())
    assert plugin.diff(HOST, inputs, inputs).diffs == ["drift"]


def test_plan_hosts_warns_of_a_host_that_would_only_fail(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    """The state calls it unchanged, so nothing else in the preview would name it."""
    plugin = new_plugin({"PLAN": "hosts"})
    inputs = plugin.checked(HOST, LocalHost(tmp_path / "host", plugin.bundle()).inputs("only-failure"))
    assert plugin.diff(HOST, inputs, inputs).diffs == []
    assert plugin.engine.texts(engine_pb2.WARNING) == ["node-1: driver: would fail: no nvidia-smi here"]


def test_plan_hosts_says_which_host_it_could_not_reach(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin({"PLAN": "hosts"})
    host = LocalHost(tmp_path / "host", plugin.bundle())
    plugin.create(HOST, plugin.checked(HOST, host.inputs(settings={"A": UNKNOWN})), preview=True)
    assert plugin.engine.texts(engine_pb2.INFO) == ["node-1: not planned; some of its values are known only after the update"]


# --- create, update, delete -------------------------------------------------------------------------------------------------


def test_a_host_gets_settings_and_secrets_and_gives_facts(plugin: Plugin, host: LocalHost) -> None:
    id_, outputs = plugin.create(HOST, plugin.checked(HOST, host.inputs()))
    assert id_ == "node-1"
    assert outputs == {"facts": {"GPU_COUNT": "8"}, "drift": [], "address": str(host.prefix)}, (
        "facts that say no would fill the state"
    )
    assert host.placed("etc/gpu-fleet/secrets/metrics-password") == PASSWORD
    assert host.placed("etc/gpu-fleet/gpu-fleet.env") == "DO=\nGPU_FLEET_STACK=us-west/training\n"
    assert host.placed("var/lib/gpu-fleet/stack") == "us-west/training"


def test_nothing_that_travelled_stays_on_the_host(plugin: Plugin, host: LocalHost) -> None:
    created(plugin, host)
    assert not [path for path in host.everything() if "incoming" in path]


def test_programs_on_this_machine_do_not_inherit_the_engines_secrets(plugin: Plugin, host: LocalHost) -> None:
    created(plugin, host)
    names = {line.partition("=")[0] for line in host.placed("var/lib/gpu-fleet/environment").splitlines()}
    assert "PATH" in names
    assert not {name for name in names if name.startswith("PULUMI")}


def test_progress_of_a_host_is_shown_on_its_own_line(plugin: Plugin, host: LocalHost) -> None:
    host.name = "talkative"
    created(plugin, host)
    plugin.engine.wait_for_status("alloy: writing files")
    plugin.engine.wait_for_status("1 of 3 parts changed")
    assert {line.urn for line in plugin.engine.lines if "writing files" in line.message} == {urn(HOST, "talkative")}


def test_a_local_host_reads_artifacts_where_they_are(plugin: Plugin, host: LocalHost, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / ("a" * 64)).write_text("node_exporter")
    plugin.configure(artifactDirectory=str(artifacts))
    host.bundle = plugin.bundle()
    created(plugin, host)
    assert host.placed("etc/gpu-fleet/" + "a" * 64) == "node_exporter"


def test_a_part_that_fails_is_the_cause_and_the_host_stays_in_the_state(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("fail")))
    lines = failure.value.message.splitlines()
    assert lines[0] == "node-1: service did not start: alloy: no answer within 15 s"
    assert lines[1:] == ["    bind: address in use", "    gpu-exporter: port taken: 9400 is used by foo"]
    assert failure.value.kept.id == "node-1", "without it in the state nothing would ever remove what was placed"
    assert failure.value.kept.reasons == [failure.value.message]


def test_a_failed_update_keeps_the_host_in_the_state(plugin: Plugin, host: LocalHost) -> None:
    inputs, _ = created(plugin, host)
    with pytest.raises(Failure) as failure:
        plugin.update(HOST, "node-1", inputs, host.inputs("fail"))
    assert failure.value.kept.id == "node-1"


def test_a_fatal_probe_is_the_cause(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure, match=r"^node-1: no driver: driver: nvidia-smi is not on this host$"):
        plugin.create(HOST, plugin.checked(HOST, host.inputs("no-driver")))
    assert not (host.prefix / "var").exists(), "a host that was refused keeps nothing of us"


def test_a_converge_program_that_breaks_is_reported_with_its_last_words(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("crash")))
    assert failure.value.message.splitlines() == [
        "node-1: internal error: the converge program ended with code 2 and no result",
        "    converge: line 7: syntax error",
    ]


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        # RHEL's hardening guide, ComplianceAsCode issue 12379
        (
            "PermissionError: [Errno 1] Operation not permitted: '/usr/lib64/python3.6/base64.py'",
            "no write permission",
            "fapolicyd",
        ),
        ("converge: 3: Cannot fork", "out of resources", "end what needs so much"),
        (
            "/usr/bin/python3: error while loading shared libraries: libm.so.6: failed to map segment",
            "out of resources",
            "ulimit -a",
        ),
        ("OSError: [Errno 28] No space left on device: '/var/lib/gpu-fleet/x'", "disk full", "df -i"),
    ],
)
def test_a_host_that_does_not_let_the_program_run_is_no_internal_error(
    plugin: Plugin, host: LocalHost, said: str, cause: str, fix: str
) -> None:
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs(f"dies {said}")))
    first = failure.value.message.splitlines()[0]
    assert first.startswith(f"node-1: {cause}: the converge program ended with code 1") and said in first and fix in first


def test_a_place_that_cannot_be_written_is_reported(plugin: Plugin, host: LocalHost) -> None:
    host.prefix.write_text("a file where a directory should be")
    with pytest.raises(Failure, match=r"^node-1: no write permission: mkdir: .*Not a directory"):
        plugin.create(HOST, plugin.checked(HOST, host.inputs()))


def test_a_bundle_of_another_run_is_reported_with_the_fix(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure, match="--target") as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs(bundle="f" * 64)))
    assert failure.value.kept is None, "nothing was placed"


def test_secrets_that_a_program_prints_are_hidden(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("leak")))
    assert "refused [secret]" in failure.value.message
    plugin.engine.wait_for_status("https://writer:[secret]@mimir")


def test_deleting_twice_is_no_error(plugin: Plugin, host: LocalHost) -> None:
    inputs, _ = created(plugin, host)
    plugin.delete(HOST, "node-1", inputs)
    plugin.delete(HOST, "node-1", inputs)


def test_a_removal_that_fails_is_reported(plugin: Plugin, host: LocalHost) -> None:
    inputs = plugin.checked(HOST, host.inputs("stays"))
    plugin.create(HOST, inputs)
    with pytest.raises(
        Failure, match=r"^node-1: no write permission: alloy: cannot remove /etc/gpu-fleet/alloy: read-only file system$"
    ):
        plugin.delete(HOST, "node-1", inputs)


def test_a_lost_host_is_neither_read_nor_removed(plugin: Plugin, host: LocalHost) -> None:
    inputs, outputs = created(plugin, host)
    before = host.everything()
    plugin.configure(lostHosts=["node-1"])
    assert plugin.read(HOST, "node-1", inputs, outputs).id == "node-1"
    plugin.delete(HOST, "node-1", inputs)
    assert host.everything() == before


# --- read -------------------------------------------------------------------------------------------------------------------


def test_reading_needs_no_bundle(new_plugin: Callable[..., Plugin], plugin: Plugin, host: LocalHost) -> None:
    """`refresh` does not run the program, so no Bundle is registered."""
    inputs, outputs = created(plugin, host)
    assert decode(new_plugin().read(HOST, "node-1", inputs, outputs).properties) == outputs


def test_a_host_with_nothing_of_ours_is_reported_as_gone(plugin: Plugin, host: LocalHost) -> None:
    inputs = plugin.checked(HOST, host.inputs())
    assert plugin.read(HOST, "node-1", inputs, {"drift": []}).id == ""
    (warning,) = plugin.engine.texts(engine_pb2.WARNING)
    assert warning == "node-1: nothing of gpu-fleet is on this host any more; the next `up` places it again"


# --- many, and stopping -----------------------------------------------------------------------------------------------------


def test_fifty_hosts_at_once_each_get_their_own(plugin: Plugin, tmp_path: Path) -> None:
    bundle = plugin.bundle()
    hosts = [LocalHost(tmp_path / str(number), bundle, f"node-{number}") for number in range(50)]
    pending = [
        plugin.start_create(HOST, plugin.checked(HOST, host.inputs(settings={"ME": host.name, "DO": ""}))) for host in hosts
    ]
    assert [answer().id for answer in pending] == [host.name for host in hosts]
    for host in hosts:
        assert host.placed("etc/gpu-fleet/gpu-fleet.env") == f"DO=\nME={host.name}\n"


def child_of(host: LocalHost) -> Path:
    """The /proc entry of the process that a hanging converge program left running."""
    return Path("/proc") / host.placed("var/lib/gpu-fleet/child").strip()


def is_gone_soon(process: Path) -> bool:
    deadline = time.monotonic() + 120
    while (process / "exe").exists():  # a zombie has none
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_cancel_ends_the_work_on_the_host_and_keeps_it_in_the_state(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin()
    host = LocalHost(tmp_path / "host", plugin.bundle())
    answer = plugin.start_create(HOST, plugin.checked(HOST, host.inputs("hang")))
    plugin.engine.wait_for_status("waiting for ever")
    plugin.call("Cancel", Empty())
    with pytest.raises(
        Failure,
        match=r'^node-1: stopped: `apply` was stopped after \d+ s \(its last line: "waiting for ever"\); .*the next `up`',
    ) as failure:
        answer()
    assert failure.value.kept.id == "node-1"
    assert is_gone_soon(child_of(host)), "work went on after Ctrl-C"
    assert not [path for path in host.everything() if "incoming" in path]


def test_after_a_cancel_no_host_is_begun(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin()
    host = LocalHost(tmp_path / "host", plugin.bundle())
    inputs = plugin.checked(HOST, host.inputs())
    plugin.call("Cancel", Empty())
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, inputs)
    assert (failure.value.code, failure.value.kept) == (grpc.StatusCode.CANCELLED, None)
    assert not host.prefix.exists()


def test_a_custom_timeout_ends_the_work(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure, match="stopped: not finished within the 5 s of customTimeouts") as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("hang")), timeout=5)
    assert failure.value.kept.id == "node-1"
    assert is_gone_soon(child_of(host))


def test_a_plugin_that_is_killed_leaves_no_work_behind(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin()
    host = LocalHost(tmp_path / "host", plugin.bundle())
    _answer = plugin.start_create(HOST, plugin.checked(HOST, host.inputs("hang")))  # kept: grpc cancels what nobody holds
    plugin.engine.wait_for_status("waiting for ever")
    plugin.process.kill()
    assert is_gone_soon(child_of(host)), "an engine that is killed kills its plugins, which must not leave hosts half at work"


def test_the_bundle_is_the_bytes_that_were_checked(plugin: Plugin, host: LocalHost) -> None:
    other = "#!/bin/sh\n# another program\n" + (Path(__file__).parent / "obedient_converge.sh").read_text()
    assert plugin.bundle(other) != host.bundle
    host.bundle = plugin.bundle(other)
    created(plugin, host)
    placed = host.placed("var/lib/gpu-fleet/current/converge")
    assert hashlib.sha256(placed.encode()).digest() == hashlib.sha256(other.encode()).digest()


# --- no success without a result ----------------------------------------------------------------------------------------------


def test_a_program_that_ends_well_without_a_result_did_nothing(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure, match="ended with code 0 and no result"):
        plugin.create(HOST, plugin.checked(HOST, host.inputs("silent")))
    inputs, outputs = created(plugin, host)
    settings = host.prefix / "var/lib/gpu-fleet/settings"
    settings.write_text(settings.read_text().replace("DO=\n", "DO=silent\n"))
    before = host.everything()
    with pytest.raises(Failure, match=r"no result; .*the next `up` places it again") as failure:
        plugin.read(HOST, "node-1", inputs, outputs)
    assert failure.value.kept.id == "node-1", "marked, so that the next `up` goes there"
    with pytest.raises(Failure, match="no result"):
        plugin.delete(HOST, "node-1", inputs)
    assert host.everything() == before


@pytest.mark.parametrize("lost", ["emptied", "deleted"])
def test_a_program_that_is_lost_on_the_host_is_neither_gone_nor_removed(plugin: Plugin, host: LocalHost, lost: str) -> None:
    inputs, outputs = created(plugin, host)
    program = host.prefix / "var/lib/gpu-fleet/current/converge"
    if lost == "emptied":
        program.write_bytes(b"")
    else:
        program.unlink()
    with pytest.raises(
        Failure, match=r"^node-1: damaged: .*is missing or empty; nothing was done; the next `up` places it again"
    ):
        plugin.read(HOST, "node-1", inputs, outputs)
    with pytest.raises(Failure, match=r"^node-1: damaged: "):
        plugin.delete(HOST, "node-1", inputs)
    assert plugin.update(HOST, "node-1", inputs, inputs) == outputs
    plugin.delete(HOST, "node-1", inputs)
    assert host.everything() == []


# --- hosts that print too much, too little, or what they should not ------------------------------------------------------------


def memory_peak(plugin: Plugin) -> int:
    """Bytes of the plugin's process that were ever in memory at once."""
    status = Path(f"/proc/{plugin.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) << 10


def test_a_host_that_prints_endlessly_costs_no_memory_and_affects_no_other(
    plugin: Plugin, host: LocalHost, tmp_path: Path
) -> None:
    created(plugin, LocalHost(tmp_path / "first", host.bundle, "first"))
    before = memory_peak(plugin)
    flooding = plugin.start_create(HOST, plugin.checked(HOST, host.inputs("flood")))
    created(plugin, LocalHost(tmp_path / "other", host.bundle, "other"))
    flooding()
    kept = memory_peak(plugin) - before
    assert kept < 40 << 20, f"{kept >> 20} MB were kept of 400 MB in lines and without"


def test_a_host_that_falls_silent_is_given_up_with_its_last_words(plugin: Plugin, host: LocalHost) -> None:
    plugin.configure(ssh={"idleSeconds": 5})
    host.bundle = plugin.bundle()
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("hang")))
    assert failure.value.message == (
        'node-1: no output: `apply` printed nothing for 5 s (its last line: "waiting for ever"), and was stopped; what was '
        "changed until then stays, and the next `up` finishes it; `idleTimeout` of gpu-fleet:ssh sets this limit"
    )
    assert failure.value.kept.id == "node-1"
    assert is_gone_soon(child_of(host))


def test_a_host_that_prints_now_and_then_is_waited_for(plugin: Plugin, host: LocalHost) -> None:
    """In all longer than the limit; between two lines a busy machine has most of the limit to spare."""
    plugin.configure(ssh={"idleSeconds": 5})
    slow = 'for number in 1 2 3 4; do sleep 1.5; echo "$number" >&2; done\n'
    shebang, rest = CONVERGE.read_text().split("\n", 1)
    host.bundle = plugin.bundle(f"{shebang}\n{slow}{rest}")
    created(plugin, host)


def test_a_host_that_prints_now_and_then_without_end_is_given_up(plugin: Plugin, host: LocalHost) -> None:
    plugin.configure(ssh={"idleSeconds": 2})
    shebang, rest = CONVERGE.read_text().split("\n", 1)
    host.bundle = plugin.bundle(f"{shebang}\nwhile :; do sleep 0.2; echo working >&2; done\n{rest}")
    with pytest.raises(Failure) as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs()))
    assert failure.value.message.startswith('node-1: stopped: `apply` was not finished after 12 s (its last line: "working")')


def test_a_password_with_quotation_marks_is_hidden(plugin: Plugin, host: LocalHost) -> None:
    plugin.configure(secrets={"metrics-password": 'say "no" \\ twice'})
    host.bundle = plugin.bundle()
    with pytest.raises(Failure, match=r"^node-1: download: alloy: refused \[secret\]$") as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("quotes")))
    kept = decode(failure.value.kept.properties)
    assert kept["facts"] == {"GPU_MODEL": "[secret]"}
    assert kept["drift"] == ["alloy: url is https://writer:[secret]@mimir"], "the state and each preview would show it"


def test_work_that_a_shutdown_ends_is_reported_as_that(plugin: Plugin, host: LocalHost) -> None:
    with pytest.raises(Failure, match=r"^node-1: stopped: `apply` was ended on the host by SIGTERM: it shut down") as failure:
        plugin.create(HOST, plugin.checked(HOST, host.inputs("shutdown")))
    assert failure.value.kept.id == "node-1"


def test_a_host_that_never_stops_printing_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never silent, so no other limit would end it."""
    monkeypatch.setattr(gpu_fleet.provider.host, "_MOST_OUTPUT", 1_000_000)
    hosts = Hosts(LocalTransport(), lambda: LocalTransport())
    place = Place(connection={"kind": "local", "prefix": str(tmp_path)}, name="node-1")
    envelope = Envelope(bundle=bundle_tar(CONVERGE.read_text()), settings={"DO": "flood"}, secrets={})
    with pytest.raises(
        HostError, match=r"^too much output: the host printed more than 0 MB while `apply` ran, and was stopped"
    ) as error:
        asyncio.run(hosts.apply(place, envelope, lambda line: None))
    assert error.value.outcome is not None, "it was changed, and stays in the state"
