"""A staged rollout, by requests to the provider in one run; test_rollout_engine.py has the real engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from gpu_fleet.provider.host import HostError
from gpu_fleet.provider.rollout import Rollout, RolloutRules
from tests.provider.plugin import HOST, Failure, LocalHost, Plugin

Host = Callable[..., dict]


@pytest.fixture
def host(plugin: Plugin, tmp_path) -> Host:
    """Makes the inputs of a host as the program sends them: `do` as in obedient_converge.sh, `wave` of a rollout."""

    def inputs(name: str, wave: int | None, do: str = "") -> dict:
        return LocalHost(tmp_path / name, plugin.bundle(), name).inputs(do, **({} if wave is None else {"wave": wave}))

    return inputs


def up(plugin: Plugin, inputs: dict) -> str:
    """What the host failed with, or nothing."""
    try:
        plugin.create(HOST, plugin.checked(HOST, inputs))
    except Failure as failure:
        return failure.message.splitlines()[0]
    return ""


def test_the_wave_of_a_host_is_not_in_its_state(plugin: Plugin, host: Host) -> None:
    assert "wave" not in plugin.checked(HOST, host("node-1", 3)), "another canary would be a change of every host"


def test_a_failed_canary_holds_everybody_else_back_with_its_name_and_cause(plugin: Plugin, host: Host, tmp_path) -> None:
    plugin.configure(rollout={"hasCanary": True, "maxFailures": 10})
    assert "service did not start" in up(plugin, host("canary", 0, "fail"))
    assert up(plugin, host("second", 0)) == "", "the other canaries are worth their answer"
    error = up(plugin, host("node-1", 1))
    assert error == "node-1: held back: canary canary failed: service did not start: alloy: no answer within 15 s"
    assert not (tmp_path / "node-1").exists(), "a host that is held back is not contacted"


def test_batches_go_on_until_too_many_failed(plugin: Plugin, host: Host) -> None:
    plugin.configure(rollout={"maxFailures": 1})
    assert up(plugin, host("node-1", 0, "fail"))
    assert up(plugin, host("node-2", 1)) == "", "one may fail"
    assert "service did not start" in up(plugin, host("node-3", 1, "fail"))
    error = up(plugin, host("node-4", 2))
    assert error.startswith("node-4: held back: 2 hosts before it failed, maxFailures is 1; first node-1: service did not start")


def test_a_host_without_a_wave_and_a_deletion_are_never_held_back(plugin: Plugin, host: Host) -> None:
    plugin.configure(rollout={"hasCanary": True})
    assert up(plugin, host("canary", 0, "fail"))
    assert up(plugin, host("alone", None)) == ""
    plugin.delete(HOST, "node-1", plugin.checked(HOST, host("node-1", 1)))


def test_a_host_that_is_held_back_is_not_replaced(plugin: Plugin, host: Host) -> None:
    plugin.configure(rollout={"hasCanary": True})
    old = plugin.checked(HOST, host("node-1", 1))
    plugin.create(HOST, old)
    assert up(plugin, host("canary", 0, "fail"))
    moved = plugin.checked(HOST, host("node-1", 1) | {"connection": {"kind": "local", "prefix": "/elsewhere"}})
    assert plugin.diff(HOST, old, moved).replaces
    with pytest.raises(Failure, match=r"^node-1: held back: canary canary failed"):
        plugin.delete(HOST, "node-1", old)


def test_a_host_that_is_to_be_replaced_and_cannot_be_removed_stops_its_wave(plugin: Plugin, host: Host) -> None:
    plugin.configure(rollout={"hasCanary": True})
    old = plugin.checked(HOST, host("canary", 0, "stays"))
    plugin.create(HOST, old)
    moved = plugin.checked(HOST, host("canary", 0) | {"connection": {"kind": "local", "prefix": "/elsewhere"}})
    assert plugin.diff(HOST, old, moved).replaces
    with pytest.raises(Failure, match=r"^canary: no write permission: "):
        plugin.delete(HOST, "canary", old)
    assert up(plugin, host("node-1", 1)).startswith("node-1: held back: canary canary failed: no write permission")


def test_a_preview_holds_nobody_back(plugin: Plugin, host: Host) -> None:
    plugin.configure(rollout={"hasCanary": True})
    assert up(plugin, host("canary", 0, "fail"))
    plugin.create(HOST, plugin.checked(HOST, host("node-1", 1)), preview=True)


def test_another_rollout_makes_no_other_provider(plugin: Plugin) -> None:
    from pulumi.runtime.proto import provider_pb2

    from gpu_fleet.provider.values import encode

    old, new = {"rollout": '{"maxFailures": 0}'}, {"rollout": '{"maxFailures": 9}'}
    request = provider_pb2.DiffRequest(old_inputs=encode(old), news=encode(new), olds=encode(old))
    diff = plugin.call("DiffConfig", request)
    assert list(diff.diffs) == ["rollout"]
    assert not diff.replaces, "a replaced provider replaces every host"


def test_the_pause_counts_from_the_last_host_that_was_changed() -> None:
    async def waited_s(pause_s: int, *before: str) -> float:
        rollout = Rollout(RolloutRules(pause_s=pause_s))
        for name, wave in {"a": 0, "b": 1}.items():
            rollout.assign(name, wave)
        for name in before:
            async with rollout.turn(name, lambda _: None):
                pass
        begin = time.monotonic()
        async with rollout.turn("b", lambda _: None):
            return time.monotonic() - begin

    assert asyncio.run(waited_s(600)) < 300, "nobody of the wave before it was called: nothing changed there"
    assert asyncio.run(waited_s(2, "a")) >= 1.9


def test_a_failure_during_the_pause_still_holds_back() -> None:
    async def run() -> None:
        rollout = Rollout(RolloutRules(pause_s=2))
        for name, wave in {"a": 0, "b": 0, "c": 1}.items():
            rollout.assign(name, wave)
        async with rollout.turn("a", lambda _: None):
            pass

        async def later() -> None:
            async with rollout.turn("c", lambda _: None):
                raise AssertionError("not held back")

        waiting = asyncio.create_task(later())
        await asyncio.sleep(0.05)
        with pytest.raises(ValueError, match="broken"):
            async with rollout.turn("b", lambda _: None):
                raise ValueError("broken")
        with pytest.raises(HostError, match="held back: 1 host before it failed, maxFailures is 0; first b: broken"):
            await waiting

    asyncio.run(run())
