"""Lets `pulumi up --continue-on-error` end with the causes alone.

With that flag a resource that failed leaves those that depend on it unregistered, and pulumi 3.259 then ends the program with a
traceback of thirty lines (runtime/stack.py: ResourceRegistrationFailed). The program must fail there: after one that ends well
the engine deletes what was not registered. So it fails in one line. Remove this when a release no longer needs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pulumi
from pulumi.runtime.rpc_manager import RPCManager
from pulumi.runtime.stack import ResourceRegistrationFailed

_do_rpc = RPCManager.do_rpc


def _do_rpc_in_words(self: RPCManager, name: str, rpc_function: Callable[..., Awaitable[Any]]) -> Any:
    async def registered_or_not(*arguments: Any, **options: Any) -> Any:
        try:
            return await rpc_function(*arguments, **options)
        except ResourceRegistrationFailed as error:
            raise pulumi.RunError(f"what depends on it was left as it is: {error}") from None

    return _do_rpc(self, name, registered_or_not)


def spare_the_traceback() -> None:
    RPCManager.do_rpc = _do_rpc_in_words  # type: ignore[method-assign]
