"""Which stack a command is about, as its `--stack` says."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parents[1]  # where Pulumi.yaml is
_PREFIX, _SUFFIX = "Pulumi.", ".yaml"


class OperationError(Exception):
    """Something a person can mend; str() says what and how."""


def stack_file(stack: str) -> Path:
    """The stack's file. `stack`: its name, organization and project before it or not. Raises OperationError."""
    if given := os.environ.get("PULUMI_OPTION_CONFIG_FILE"):  # pulumi's own variable for --config-file
        return Path(given)
    stacks = sorted(path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in _ROOT.glob(f"{_PREFIX}*{_SUFFIX}"))
    name = stack.rpartition("/")[2]
    if name not in stacks:
        what = f"there is no stack file {_PREFIX}{name}{_SUFFIX}" if name else "no stack is named"
        raise OperationError(f"{what}: STACK is one of {', '.join(stacks)}, or `make new-stack` writes another")
    return _ROOT / f"{_PREFIX}{name}{_SUFFIX}"
