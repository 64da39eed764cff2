"""command:local:Command, of the stand-in and of the official plugin."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.standins.running import (
    UNKNOWN,
    Refused,
    Resource,
    RunningPlugin,
    is_secret,
    revealed,
    secret,
)

TYPE = "command:local:Command"


@pytest.fixture
def resource(command: RunningPlugin) -> Resource:
    return command.resource(TYPE)


def test_create_runs_the_command_and_keeps_what_it_printed(resource: Resource) -> None:
    outputs = resource.create(create="echo to stdout; echo to stderr >&2")
    assert (outputs["stdout"], outputs["stderr"]) == ("to stdout", "to stderr"), "the last newline is not part of an output"
    assert resource.id


def test_the_lines_are_shown_while_it_runs(command: RunningPlugin, resource: Resource) -> None:
    resource.create(create="echo a line of the create command")
    command.engine.wait_for("a line of the create command")


def test_logging_none_shows_nothing_and_still_keeps_the_output(command: RunningPlugin, resource: Resource) -> None:
    outputs = resource.create(create="echo not to be shown", logging="none")
    assert outputs["stdout"] == "not to be shown"
    command.resource(TYPE).create(create="echo a later line")
    command.engine.wait_for("a later line")
    assert "not to be shown" not in command.engine.lines


def test_the_environment_reaches_the_command(resource: Resource) -> None:
    assert resource.create(create='echo "$NAME"', environment={"NAME": "a value with spaces"})["stdout"] == "a value with spaces"


def test_without_a_create_command_nothing_runs(resource: Resource) -> None:
    outputs = resource.create(delete="echo gone")
    assert (outputs["stdout"], outputs["stderr"]) == ("", "")


def test_a_failing_command_is_reported_with_its_status_and_everything_it_printed(resource: Resource) -> None:
    with pytest.raises(Refused) as refused:
        resource.create(create="echo before it failed; echo the cause >&2; exit 3")
    text = str(refused.value)
    assert text.startswith('exit status 3: running "echo before it failed; echo the cause >&2; exit 3":\n')
    assert "before it failed" in text and "the cause" in text


def test_without_an_update_command_an_update_runs_create_again(resource: Resource) -> None:
    resource.create(create="echo run by create", environment={"N": "1"})
    assert resource.update(create="echo run by create $N", environment={"N": "2"})["stdout"] == "run by create 2"


def test_delete_runs_the_delete_command(resource: Resource, tmp_path: Path) -> None:
    resource.create(create="echo made", delete=f"echo undone > {tmp_path}/trace")
    resource.delete()
    assert (tmp_path / "trace").read_text() == "undone\n"


def test_a_failing_delete_is_an_error_so_that_the_resource_stays_in_the_state(resource: Resource) -> None:
    resource.create(create="true", delete="echo still in use; exit 1")
    with pytest.raises(Refused, match="still in use"):
        resource.delete()


def test_a_preview_runs_nothing_and_knows_no_output(resource: Resource, tmp_path: Path) -> None:
    outputs = resource.preview(create=f"touch {tmp_path}/ran", environment={"A": "1"})
    assert (outputs["stdout"], outputs["stderr"]) == (UNKNOWN, UNKNOWN)
    assert outputs["environment"] == {"A": "1"}
    assert not (tmp_path / "ran").exists()


def test_the_preview_of_an_update_knows_no_output_when_an_input_changes(resource: Resource) -> None:
    resource.create(create="echo one")
    assert resource.preview_update(create="echo two")["stdout"] == UNKNOWN


def test_a_change_is_reported_by_its_path(resource: Resource) -> None:
    resource.create(create="echo", environment={"A": "1", "B": "2"})
    assert resource.diff(create="echo", environment={"A": "1", "B": "2"}) == ({}, set())
    kinds, replaces = resource.diff(create="echo", environment={"A": "1", "B": "3", "C": "4"}, delete="x")
    assert kinds == {"environment.B": "UPDATE", "environment.C": "ADD", "delete": "ADD"}
    assert not replaces, "a changed command is updated: there is one on the machine already"


def test_what_is_secret_as_input_is_secret_as_output(resource: Resource) -> None:
    outputs = resource.create(create="echo", environment={"PLAIN": "1", "TOKEN": secret("hush")}, delete=secret("in"))
    assert is_secret(outputs["environment"]) or is_secret(outputs["environment"]["TOKEN"])
    assert is_secret(outputs["delete"])
    assert revealed(outputs["environment"]) == {"PLAIN": "1", "TOKEN": "hush"}


def test_inputs_that_are_unknown_in_a_preview_are_accepted(resource: Resource) -> None:
    assert resource.preview(create=UNKNOWN, environment={"A": UNKNOWN})["stdout"] == UNKNOWN


@pytest.mark.parametrize(
    ("inputs", "property_"),
    [
        ({"create": "true", "updates": "true"}, "updates"),
        ({"create": "true", "environment": {"A": 1}}, "environment"),
        ({"create": ["true"]}, "create"),
        ({"create": "true", "environment": "A=1"}, "environment"),
    ],
)
def test_inputs_it_does_not_know_are_refused(resource: Resource, inputs: dict[str, object], property_: str) -> None:
    failures = resource.failures(inputs)
    assert any(property_ in path or property_ in reason for path, reason in failures.items()), failures


def test_refresh_believes_the_state(resource: Resource) -> None:
    outputs = resource.create(create="echo kept")
    assert resource.refresh() and resource.outputs == outputs


def test_cancel_ends_the_commands_that_run(command_binary: Path, tmp_path: Path) -> None:
    plugin = RunningPlugin(command_binary, tmp_path)
    plugin.configure({})
    ended: list[str] = []

    def run() -> None:
        try:
            plugin.resource(TYPE).create(create="echo started; exec sleep 300")
        except Refused as refused:
            ended.append(str(refused))

    running = threading.Thread(target=run)
    running.start()
    plugin.engine.wait_for("started")
    plugin.cancel()
    running.join(20)
    plugin.stop()
    assert ended and "signal: killed" in ended[0]
