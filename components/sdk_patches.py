"""What this program replaces in Pulumi's Python SDK: two functions.

Private names may go, or mean something else, with any release. So a patch is made only in the version it was written for, and
only when what it replaces is there as it was read; otherwise it is not applied, and a warning says what that costs. For an
upgrade of pulumi, read both places again, then change VERSION, or delete a patch that is not needed any more.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import pulumi

VERSION = "3.259"


class _Changed(Exception):
    """The SDK is not as it was read; the text says where."""


def patch_sdk() -> None:
    """Once, before the first resource."""
    patches = {
        _report_dependents_in_one_line: "With --continue-on-error a resource that fails ends the run with a traceback.",
        _keep_source_positions_out_of_the_state: "The state holds 1.3 kB more per resource, with paths of this machine.",
    }
    installed = version("pulumi")
    if not f"{installed}.".startswith(f"{VERSION}."):
        fix = f"Install the version of requirements.txt, or adapt components/sdk_patches.py to {installed}."
        _warn(f"found pulumi {installed}, expected {VERSION}", *patches.values(), fix)
        return
    for patch, cost in patches.items():
        try:
            patch()
        except _Changed as change:
            _warn(str(change), cost, f"Adapt components/sdk_patches.py to pulumi {installed}.")


def _warn(found: str, *sentences: str) -> None:
    pulumi.log.warn(" ".join([f"SDK patches are not applied: {found}.", *sentences]))


def _report_dependents_in_one_line() -> None:
    """Lets `pulumi up --continue-on-error` end with the causes alone.

    With that flag a resource that failed leaves those that depend on it unregistered, and the program ends with a traceback of
    thirty lines for each run. The program must fail there: after one that ends well the engine deletes what was not registered.
    So it fails in one line.

    Upstream: the exception came with https://github.com/pulumi/pulumi/pull/23844; no issue about the traceback was found
    (GitHub, read 2026-11-22).
    """
    manager = _found("pulumi.runtime.rpc_manager", "RPCManager")
    failed = _found("pulumi.runtime.stack", "ResourceRegistrationFailed")
    do_rpc = _function("pulumi.runtime.rpc_manager", "RPCManager.do_rpc", ["self", "name", "rpc_function"])

    def do_rpc_in_words(self: object, name: str, rpc_function: Callable[..., Awaitable[Any]]) -> Any:
        async def registered_or_not(*arguments: Any, **options: Any) -> Any:
            try:
                return await rpc_function(*arguments, **options)
            except failed as error:
                raise pulumi.RunError(f"dependents were not updated: {error}") from None

        return do_rpc(self, name, registered_or_not)

    manager.do_rpc = do_rpc_in_words


def _keep_source_positions_out_of_the_state() -> None:
    """Keeps out of the state where in the program each resource was made.

    The SDK sends the Python stack of every registration, and the engine writes it into the state: 1.3 kB for each of a thousand
    hosts, as much as all the rest of a Host, with the paths of whoever ran it. Nothing here reads it, and there is no switch.

    Upstream: https://github.com/pulumi/pulumi/issues/13436 asked for source positions and is open;
    https://github.com/pulumi/pulumi/pull/20430 added whole stacks. No issue that asks for a switch was found (GitHub, read
    2026-11-22).
    """
    resource = _found("pulumi.runtime", "resource")
    empty_stack = _found("pulumi.runtime.proto.source_pb2", "StackTrace")
    _function("pulumi.runtime.resource", "_get_stack_trace", [])
    resource._get_stack_trace = empty_stack


def _found(module: str, path: str) -> Any:
    """What is at the dotted `path` of a module. Raises _Changed."""
    try:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        raise _Changed(f"found no {module}.{path}") from None
    return found


def _function(module: str, path: str, parameters: list[str]) -> Callable[..., Any]:
    """A function with exactly these parameters. Raises _Changed."""
    found = _found(module, path)
    if not inspect.isfunction(found):
        raise _Changed(f"{module}.{path} is no function")
    if (taken := list(inspect.signature(found).parameters)) != parameters:
        raise _Changed(f"{module}.{path} takes ({', '.join(taken)}), expected ({', '.join(parameters)})")
    return found
