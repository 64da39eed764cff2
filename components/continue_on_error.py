"""Lets `pulumi up --continue-on-error` end with the causes alone.

With that flag a resource that failed leaves those that depend on it unregistered, which pulumi's own shutdown means to pass over
in silence (runtime/stack.py: ResourceRegistrationFailed). pulumi 3.259 does so for outputs and forgets it for registrations, so
that one failed Helm release would end in a traceback of thirty lines. Remove this when a release no longer does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pulumi.runtime.rpc_manager import RPCManager
from pulumi.runtime.stack import ResourceRegistrationFailed

_do_rpc = RPCManager.do_rpc


def _do_rpc_quietly(self: RPCManager, name: str, rpc_function: Callable[..., Awaitable[Any]]) -> Any:
    async def registered_or_not(*arguments: Any, **options: Any) -> Any:
        try:
            return await rpc_function(*arguments, **options)
        except ResourceRegistrationFailed:
            return None  # the engine has told why, and its own exit status stays

    return _do_rpc(self, name, registered_or_not)


def spare_the_traceback() -> None:
    RPCManager.do_rpc = _do_rpc_quietly  # type: ignore[method-assign]
