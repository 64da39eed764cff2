"""What the program replaces in Pulumi's SDK: done in the version it was written for, otherwise reported and left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version

import pulumi
import pytest
from pulumi.runtime import resource, stack
from pulumi.runtime.rpc_manager import RPCManager

from components import sdk_patches
from components.sdk_patches import patch_sdk

ROOT_CAUSE = "resource dcgm-exporter failed to register"


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The SDK's own functions, which come back after the test."""
    for owner, name in ((RPCManager, "do_rpc"), (resource, "_get_stack_trace")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return RPCManager.do_rpc, resource._get_stack_trace


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


@pytest.mark.parametrize("other", ["3.260.0", "3.25.9", "4.0.0"])
def test_another_version_is_left_alone_and_reported_once(
    other: str, untouched: tuple[object, ...], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_patches, "version", lambda package: other)
    patch_sdk()
    assert (RPCManager.do_rpc, resource._get_stack_trace) == untouched
    (warning,) = warnings
    assert f"found pulumi {other}, expected {sdk_patches.VERSION}" in warning
    assert "traceback" in warning and "state" in warning, "what it costs"


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
