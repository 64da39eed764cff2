"""The secret gpu-fleet:sudoPasswords: what it may hold, and that no message shows any of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.stackfile.problems import ConfigErrors
from gpu_fleet.stackfile.sudo_passwords import sudo_passwords, warning_of_unknown
from tests.stackfile.test_config import load

PLANTED = "hunter2-planted"


def test_each_host_of_a_pattern_gets_its_password_in_yaml_or_json() -> None:
    assert sudo_passwords('gpu-[001:003]: first one\nnested: "0123"\n') == {
        "gpu-001": "first one",
        "gpu-002": "first one",
        "gpu-003": "first one",
        "nested": "0123",
    }
    assert sudo_passwords('{"gpu-001": "a: b"}') == {"gpu-001": "a: b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"gpu-001: '{PLANTED}", "is not YAML in line"),
        (PLANTED, "is not a mapping"),
        ("", "is not a mapping"),
        (f"gpu-001: {PLANTED}\n{PLANTED}: 17", "entry 2 is not a host with a password in one line"),
        (f"gpu-001: [{PLANTED}]", "entry 1 is not a host with a password in one line"),
        (f"gpu-[001:002]: {PLANTED}\ngpu-002: {PLANTED}", "entry 2 names a host of an earlier entry"),
        (f"gpu-[{PLANTED}]: a", "entry 1 is a pattern that cannot be expanded"),
    ],
)
def test_what_is_wrong_is_reported_by_its_entry_and_never_shown(text: str, says: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        sudo_passwords(text)
    message = str(error.value)
    assert "gpu-fleet:sudoPasswords: " in message and says in message
    assert "pulumi config set --secret gpu-fleet:sudoPasswords" in message
    assert PLANTED not in message


def test_a_password_of_a_host_that_leaves_the_stack_is_kept_with_a_warning() -> None:
    """It is needed to remove what is on that host."""
    assert warning_of_unknown({"a", "b"}, {"a", "b", "c"}) is None
    warning = warning_of_unknown({"a", PLANTED}, {"a"})
    assert warning is not None and "1 of its 2 hosts are not in the stack file" in warning and PLANTED not in warning


def test_the_idle_timeout_reaches_the_provider_in_seconds(base: Path) -> None:
    assert "idleSeconds" not in load(base).ssh_values, "a default in the state would change every stack"
    assert load(base, ssh__idleTimeout="1h30m").ssh_values["idleSeconds"] == 5400
