"""A host that gets another name in the stack file is one machine, created under its new name and deleted under the old one.
Whatever becomes of the two, nothing is removed from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.proto import engine_pb2

from components.fleet.renames import Moves
from tests.provider.plugin import BUNDLE, CONVERGE, HOST, Failure, LocalHost, Plugin, bundle_inputs
from tests.provider.test_engine import Stack

STACK = "us-west/training"


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    stack = Stack(tmp_path)
    stack.desired["exports"] = False
    return stack


def inputs_of(plugin: Plugin, host: LocalHost, name: str, do: str = "", prefix: str = "") -> dict[str, Any]:
    """As this run's program names the machine."""
    settings = {"GPU_FLEET_STACK": STACK, "GPU_FLEET_INSTANCE": name, "DO": do}
    connection = {"kind": "local", "prefix": prefix or str(host.prefix)}
    return plugin.checked(HOST, host.inputs(host=name, settings=settings, connection=connection))


def next_run(plugin: Plugin, host: LocalHost) -> None:
    plugin.configure()
    host.bundle = plugin.bundle()


def warnings(plugin: Plugin) -> list[str]:
    return plugin.engine.texts(engine_pb2.WARNING)


def test_a_renamed_host_keeps_its_machine_and_both_say_so(plugin: Plugin, host: LocalHost) -> None:
    old = inputs_of(plugin, host, "gpu-007")
    plugin.create(HOST, old)
    next_run(plugin, host)
    plugin.create(HOST, inputs_of(plugin, host, "node-007"))
    assert plugin.engine.texts(engine_pb2.INFO) == ["gpu-007 → node-007 (same machine)"]
    before = host.everything()
    plugin.delete(HOST, "gpu-007", old)
    assert host.everything() == before
    assert warnings(plugin) == ["gpu-007 → node-007 (same machine); nothing was removed from it, and gpu-007 leaves this stack"]


def test_a_machine_with_another_name_is_left_alone_by_a_run_that_does_not_know_the_rename(
    plugin: Plugin, host: LocalHost
) -> None:
    """`destroy`, or a run after one that was stopped between the two."""
    old, new = inputs_of(plugin, host, "gpu-007"), inputs_of(plugin, host, "node-007")
    plugin.create(HOST, new)
    next_run(plugin, host)
    before = host.everything()
    plugin.delete(HOST, "gpu-007", old)
    assert host.everything() == before
    (warning,) = warnings(plugin)
    assert "this machine's own record says that it is node-007, not gpu-007; nothing was removed from it" in warning
    plugin.delete(HOST, "node-007", new)
    assert host.everything() == []


def test_a_machine_with_another_name_reads_as_unhealthy_and_not_as_gone(plugin: Plugin, host: LocalHost) -> None:
    old, new = inputs_of(plugin, host, "gpu-007"), inputs_of(plugin, host, "node-007")
    plugin.create(HOST, new)
    with pytest.raises(Failure, match=r"^gpu-007: has another name: .* says that it is node-007, not gpu-007; ") as failure:
        plugin.read(HOST, "gpu-007", old, {"facts": {}, "drift": []})
    assert failure.value.kept.id == "gpu-007"
    assert "take gpu-007 out of the stack file" in failure.value.message


@pytest.mark.parametrize("is_in_state", [False, True])
def test_a_machine_gets_no_second_name_while_the_stack_has_its_first(
    plugin: Plugin, host: LocalHost, tmp_path: Path, is_in_state: bool
) -> None:
    """The stack file has two addresses of one machine. Another host of it may have that address for the first time, too."""
    other_address = tmp_path / "another network interface"
    other_address.symlink_to(host.prefix, target_is_directory=True)
    plugin.create(HOST, inputs_of(plugin, host, "gpu-a"))
    next_run(plugin, host)
    plugin.check(BUNDLE, bundle_inputs(CONVERGE.read_text()) | {"hosts": ["gpu-a", "gpu-b"]})
    before = {path: (host.prefix / path).stat().st_mtime_ns for path in host.everything() if "incoming" not in path}
    new = inputs_of(plugin, host, "gpu-b", prefix=str(other_address))
    with pytest.raises(Failure) as failure:
        if is_in_state:
            plugin.update(HOST, "gpu-b", {**new, "connection": {"kind": "local", "prefix": "/elsewhere"}}, new)
        else:
            plugin.create(HOST, new)
    assert failure.value.message == (
        "gpu-b: has another name: this machine is gpu-a, which the stack file has at another address; nothing was changed on it. "
        "Take gpu-b or gpu-a out of the stack file"
    )
    assert failure.value.kept is None, "nothing of gpu-b may be removed from it later"
    after = {path: (host.prefix / path).stat().st_mtime_ns for path in before}
    files = [path for path in before if (host.prefix / path).is_file()]
    assert [after[path] for path in files] == [before[path] for path in files]

    next_run(plugin, host)
    plugin.check(BUNDLE, bundle_inputs(CONVERGE.read_text()) | {"hosts": ["gpu-b"]})
    plugin.create(HOST, new)
    assert "gpu-a → gpu-b (same machine)" in plugin.engine.texts(engine_pb2.INFO), "once gpu-a has left the stack file"


@pytest.mark.parametrize("notation", ["the same address", "another notation of it"])
def test_while_the_new_name_fails_the_old_one_removes_nothing_and_stays(plugin: Plugin, host: LocalHost, notation: str) -> None:
    """With --continue-on-error the engine deletes the old one although the new one failed."""
    old = inputs_of(plugin, host, "gpu-007")
    plugin.create(HOST, old)
    prefix = str(host.prefix) if notation == "the same address" else f"{host.prefix.parent}/../{host.prefix.parent.name}/host"
    next_run(plugin, host)
    before = host.everything()
    with pytest.raises(Failure, match="no driver"):
        plugin.create(HOST, inputs_of(plugin, host, "node-007", "no-driver", prefix))
    with pytest.raises(
        Failure, match=r"^gpu-007: held back: the stack file calls this machine node-007 now, and node-007 was not"
    ):
        plugin.delete(HOST, "gpu-007", old)
    assert host.everything() == before

    next_run(plugin, host)
    plugin.create(HOST, inputs_of(plugin, host, "node-007", prefix=prefix))
    plugin.delete(HOST, "gpu-007", old)
    (warning,) = warnings(plugin)
    assert "node-007" in warning and "nothing was removed from it" in warning
    assert "var/lib/gpu-fleet/current/converge" in host.everything()


def test_a_run_that_leaves_the_new_name_out_removes_nothing(plugin: Plugin, host: LocalHost) -> None:
    """`up --target` of the old one: the engine checks the new one and does not create it."""
    old = inputs_of(plugin, host, "gpu-007")
    plugin.create(HOST, old)
    next_run(plugin, host)
    inputs_of(plugin, host, "node-007")
    with pytest.raises(Failure, match="held back"):
        plugin.delete(HOST, "gpu-007", old)
    assert "var/lib/gpu-fleet/current/converge" in host.everything()


def test_a_new_name_that_needs_no_change_in_this_run_counts_as_in_place(plugin: Plugin, host: LocalHost) -> None:
    """The run before was stopped between the two."""
    old = inputs_of(plugin, host, "gpu-007")
    plugin.create(HOST, old)
    new = inputs_of(plugin, host, "node-007")
    plugin.create(HOST, new)
    next_run(plugin, host)
    again = inputs_of(plugin, host, "node-007")
    assert not plugin.diff(HOST, again, again).diffs
    plugin.delete(HOST, "gpu-007", old)
    (warning,) = warnings(plugin)
    assert "gpu-007 → node-007 (same machine)" in warning


def test_a_preview_with_plan_hosts_says_which_machine_it_is(new_plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    plugin = new_plugin({"PLAN": "hosts"})
    host = LocalHost(tmp_path / "host", plugin.bundle())
    plugin.create(HOST, inputs_of(plugin, host, "gpu-007"))
    plugin.create(HOST, inputs_of(plugin, host, "node-007"), preview=True)
    (text,) = plugin.engine.texts(engine_pb2.INFO)
    assert "  gpu-007 → node-007 (same machine); nothing is removed from it" in text.splitlines()


# --- which machine has which name now, by the addresses of the last run ---------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "before", "now", "old_names", "left", "moved"),
    [
        ("a rename", {"a": "1", "b": "2"}, {"x": "1", "b": "2"}, {"x": "a"}, {}, ""),
        ("a move", {"a": "1"}, {"a": "9"}, {}, {"a": "1"}, "a"),
        ("swapped addresses", {"a": "1", "b": "2"}, {"a": "2", "b": "1"}, {}, {}, "ab"),
        ("a swap of which one half failed", {"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {}, {}, "ab"),
        ("numbers that shift", {"a": "1", "b": "2"}, {"b": "1", "c": "2"}, {}, {}, "b"),
        ("a name that goes on elsewhere", {"a": "1"}, {"a": "9", "x": "1"}, {}, {}, "a"),
        ("a rename and a move at once", {"a": "1"}, {"x": "9"}, {}, {}, ""),
        ("one address behind two ports", {"a": "1", "b": "1"}, {"x": "1", "b": "1"}, {}, {}, "b"),
        ("a new host", {}, {"a": "1"}, {}, {}, ""),
        ("another address of a machine", {"a": "1"}, {"a": "1", "b": "9"}, {}, {}, ""),
    ],
)
def test_what_became_of_the_hosts(what: str, before: dict, now: dict, old_names: dict, left: dict, moved: str) -> None:
    assert Moves.of(before, now) == Moves(old_names, left, frozenset(moved)), what


# --- by the real engine -------------------------------------------------------------------------------------------------------


def renumbered(stack: Stack, *names: str) -> None:
    stack.desired |= {"hosts": dict.fromkeys(names, ""), "machines": dict(zip(names, "abc", strict=False))}


def test_a_rename_is_shown_and_done_as_an_update_of_the_machine(stack: Stack) -> None:
    stack.desired["aliases"] = True
    renumbered(stack, "gpu-1", "gpu-2", "gpu-3")
    stack.up()
    before = stack.placed()
    renumbered(stack, "gpu-001", "gpu-002", "gpu-003")
    preview, _, output = stack.run("up", "--yes", "--diff").partition("\nUpdating (")
    assert "~ 3 to update" in preview and "create" not in preview and "delete" not in preview, preview
    assert "~ 3 updated" in output and "created" not in output and "deleted" not in output, output
    for number in "123":
        assert f"gpu-{number} → gpu-00{number} (same machine)" in preview, preview
        assert f"gpu-{number} → gpu-00{number} (same machine)" in output, output
    assert stack.placed() == before
    assert "unchanged" in (again := stack.up()) and "updated" not in again, again

    stack.desired |= {"hosts": {"gpu-001": ""}, "machines": {"gpu-001": "a"}}
    assert "- 2 deleted" in stack.up()
    assert {path.split("/hosts/")[1][0] for path in stack.placed()} == {"a"}, "a renamed host is removed under its new name"
    stack.desired["hosts"] = {}
    stack.up()
    assert not stack.placed()


def test_a_rename_that_failed_is_an_update_in_the_next_run_too(stack: Stack) -> None:
    stack.desired["aliases"] = True
    renumbered(stack, "gpu-1")
    stack.up()
    stack.desired |= {"hosts": {"gpu-001": "no-driver"}, "machines": {"gpu-001": "a"}}
    before = stack.placed()
    assert "gpu-001: no driver" in stack.up(fails=True)
    assert stack.placed() == before
    stack.desired["hosts"] = {"gpu-001": ""}
    output = stack.up()
    assert "~ 1 updated" in output and "created" not in output and "deleted" not in output, output
    assert stack.placed() == before


def test_a_stack_changes_its_datacenter_and_still_owns_its_hosts_and_no_others(stack: Stack) -> None:
    stack.up()
    stack.desired |= {"stack": "us-east/training", "hosts": {"node-1": "fail", "node-2": ""}}
    output = stack.run("up", "--yes", "--skip-preview", "--continue-on-error", fails=True)
    assert "service did not start" in output and "belongs to" not in output, output
    stack.desired |= {"stack": "us-east/inference", "hosts": {"node-1": "", "node-2": ""}}
    assert "~ 2 updated" in stack.up(), "after a change that failed half-way too"
    assert "formerStacks" not in stack.resource("Host::node-1")["outputs"]
    stack.run("refresh", "--yes", "--expect-no-changes")

    (settings,) = (stack.directory / "hosts/node-2").rglob("var/lib/gpu-fleet/settings")
    settings.write_text(settings.read_text().replace("us-east/inference", "other/stack"))
    stack.desired["stack"] = "us-east/research"
    assert "belongs to stack other/stack, not to us-east/research" in stack.up(fails=True)
    before = settings.read_text()
    output = stack.run("destroy", "--yes")
    assert "nothing was removed from it" in output
    assert settings.read_text() == before


def test_renumbering_the_hosts_of_a_pattern_removes_none_of_them_and_the_next_run_is_unchanged(stack: Stack) -> None:
    stack.desired |= {"hosts": dict.fromkeys(("gpu-1", "gpu-2", "gpu-3"), "")}
    stack.desired["machines"] = {"gpu-1": "a", "gpu-2": "b", "gpu-3": "c"}
    stack.up()
    stack.desired |= {"hosts": dict.fromkeys(("gpu-001", "gpu-002", "gpu-003"), "")}
    stack.desired["machines"] = {"gpu-001": "a", "gpu-002": "b", "gpu-003": "c"}
    before = stack.placed()
    output = stack.up()
    assert "+ 3 created" in output and "- 3 deleted" in output
    for number in "123":
        assert f"gpu-{number} → gpu-00{number} (same machine); nothing was removed from it" in output
    assert stack.placed() == before
    for directory, name in {"a": "gpu-001", "b": "gpu-002", "c": "gpu-003"}.items():
        env = (stack.directory / "hosts" / directory / "etc/gpu-fleet/gpu-fleet.env").read_text()
        assert f"GPU_FLEET_INSTANCE={name}\n" in env
    assert "unchanged" in (again := stack.up()) and "created" not in again and "updated" not in again, again
    stack.run("destroy", "--yes")
    assert not stack.placed()


def test_a_rename_that_fails_with_continue_on_error_is_finished_by_the_next_run_or_destroyed_under_both_names(
    stack: Stack,
) -> None:
    stack.desired |= {"hosts": {"gpu-007": ""}, "machines": {"gpu-007": "machine"}}
    stack.up()
    before = stack.placed()
    stack.desired |= {"hosts": {"node-007": "no-driver"}, "machines": {"node-007": "machine"}}
    output = stack.run("up", "--yes", "--skip-preview", "--continue-on-error", fails=True)
    assert "node-007: no driver" in output
    assert "gpu-007: held back: the stack file calls this machine node-007 now" in output, output
    assert stack.placed() == before
    assert stack.resource("host:Host::gpu-007")

    stack.desired["hosts"] = {"node-007": ""}
    output = stack.run("up", "--yes", "--skip-preview", "--continue-on-error")
    assert "gpu-007 → node-007 (same machine)" in output
    assert stack.placed() == before

    stack.desired |= {"hosts": {"rack-007": "no-driver"}, "machines": {"rack-007": "machine"}}
    stack.run("up", "--yes", "--skip-preview", "--continue-on-error", fails=True)
    assert stack.resource("host:Host::node-007") and stack.resource("host:Host::rack-007")
    stack.run("destroy", "--yes")
    assert not stack.placed()
