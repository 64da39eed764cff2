"""What the program replaces in Pulumi's SDK: done in the version it was written for, otherwise reported and left out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pulumi
import pytest
from pulumi.runtime import resource, stack
from pulumi.runtime.rpc_manager import RPCManager

from components import sdk_patches
from components.sdk_patches import patch_sdk
from tests.checkout import REPO

ROOT_CAUSE = "resource dcgm-exporter failed to register"


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The SDK's own functions, which come back after the test."""
    for owner, name in ((RPCManager, "do_rpc"), (resource, "_get_stack_trace"), (pulumi.log, "debug")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return RPCManager.do_rpc, resource._get_stack_trace, pulumi.log.debug


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", found.append)
    return found


class Registration:
    """The SDK looks for the third `__init__` above it: that of a resource class. `frames`: what goes into the state."""

    def __init__(self, above: int = 2) -> None:
        self.frames = list(resource._get_stack_trace().frames) if above == 0 else Registration(above - 1).frames


def what_ends_the_program() -> Exception | None:
    async def depends_on_a_failed_one() -> None:
        raise stack.ResourceRegistrationFailed(ROOT_CAUSE)

    manager = RPCManager()
    asyncio.run(manager.do_rpc("register resource", depends_on_a_failed_one)())
    return manager.unhandled_exception


def test_in_the_pinned_version_all_are_replaced_without_a_word(warnings: list[str]) -> None:
    assert Registration().frames, "the SDK itself sends where a resource was made"
    patch_sdk()
    assert not Registration().frames, "1.3 kB per host would go into the state"
    ending = what_ends_the_program()
    assert isinstance(ending, pulumi.RunError), "any other exception ends in a traceback"
    assert ROOT_CAUSE in str(ending)
    assert not warnings


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The debug lines that reach the engine, by message."""
    found: list[str] = []

    def debug(msg: str, resource: object = None, stream_id: int | None = None, ephemeral: bool | None = None) -> None:
        found.append(msg)

    monkeypatch.setattr(pulumi.log, "debug", debug)
    patch_sdk()
    return found


def test_debug_lines_reach_the_engine_together_and_soon(sent: list[str]) -> None:
    async def program() -> None:
        pulumi.log.debug("registering a")
        await asyncio.to_thread(pulumi.log.debug, "from a thread")
        pulumi.log.debug("registered a")
        assert sent == []
        await asyncio.sleep(2 * sdk_patches.TOGETHER_S)
        assert sent == ["registering a\nfrom a thread\nregistered a"]
        pulumi.log.debug("later", stream_id=7)
        assert sent[1:] == ["later"], "a stream of its own waits for nobody"

    asyncio.run(program())


def test_the_last_debug_lines_are_sent_when_the_program_ends() -> None:
    program = (
        "import asyncio, pulumi\n"
        "pulumi.log.debug = lambda msg, resource=None, stream_id=None, ephemeral=None: print('sent', msg.split())\n"
        "from components.sdk_patches import patch_sdk\n"
        "patch_sdk()\n"
        "async def main(): pulumi.log.debug('first'); pulumi.log.debug('last')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout == "sent ['first', 'last']\n"


@pytest.mark.parametrize("other", ["3.260.0", "3.25.9", "4.0.0"])
def test_another_version_is_left_alone_and_reported_once(
    other: str, untouched: tuple[object, ...], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_patches, "version", lambda package: other)
    patch_sdk()
    assert (RPCManager.do_rpc, resource._get_stack_trace, pulumi.log.debug) == untouched
    (warning,) = warnings
    assert f"found pulumi {other}, expected {sdk_patches.VERSION}" in warning
    assert "traceback" in warning and "state" in warning and "CPU" in warning, "what it costs"


def test_a_patch_release_of_the_same_version_is_patched(
    untouched: tuple[object, ...], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_patches, "version", lambda package: f"{sdk_patches.VERSION}.7")
    patch_sdk()
    assert RPCManager.do_rpc != untouched[0]
    assert not warnings


def another_signature(self: object, name: str, rpc_function: Callable[..., object], retry: bool = False) -> object:
    return rpc_function


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        pytest.param(
            lambda patch: patch.delattr(resource, "_get_stack_trace"), "resource._get_stack_trace", id="stack trace gone"
        ),
        pytest.param(
            lambda patch: patch.setattr(resource, "_get_stack_trace", lambda skip: None), "takes (skip)", id="stack trace changed"
        ),
        pytest.param(
            lambda patch: patch.setattr(resource, "_get_stack_trace", None), "_get_stack_trace is no function", id="no function"
        ),
        pytest.param(
            lambda patch: patch.delattr(stack, "ResourceRegistrationFailed"),
            "stack.ResourceRegistrationFailed",
            id="exception gone",
        ),
        pytest.param(lambda patch: patch.delattr(RPCManager, "do_rpc"), "RPCManager.do_rpc", id="method gone"),
        pytest.param(
            lambda patch: patch.setattr(RPCManager, "do_rpc", another_signature),
            "name, rpc_function, retry)",
            id="method changed",
        ),
    ],
)
def test_what_is_not_as_it_was_read_is_reported_and_the_other_patch_is_made(
    change: Callable[[pytest.MonkeyPatch], None], reported: str, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    before = vars(RPCManager).get("do_rpc"), vars(resource).get("_get_stack_trace")
    patch_sdk()
    (warning,) = warnings
    assert reported in warning
    assert f"pulumi {version('pulumi')}" in warning, "which version to compare with"
    after = vars(RPCManager).get("do_rpc"), vars(resource).get("_get_stack_trace")
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1, "only the other one is replaced"
