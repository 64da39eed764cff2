"""Keeps out of the state where in the program each resource was made.

pulumi 3.259 writes the Python stack of every registration into the state: 1.3 kB for each of a thousand hosts, as much as all the
rest of a Host, with the paths of whoever ran it. Nothing here reads it, and there is no switch (runtime/resource.py:
_get_stack_trace). Remove this when there is one.
"""

from __future__ import annotations

from pulumi.runtime import resource
from pulumi.runtime.proto import source_pb2


def leave_out_source_positions() -> None:
    resource._get_stack_trace = source_pb2.StackTrace
