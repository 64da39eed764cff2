"""What becomes of a state that a killed run left, by a model of the engine: what is imported has no pending operations any more,
and a refresh takes from the world what it is asked for. Killed again at every step, the end is the same."""

from __future__ import annotations

import copy
import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_fleet.operations import deploy, destroy, interrupted, state
from gpu_fleet.operations.engine import OperationError

URN = "urn:pulumi:observability::gpu-fleet::{}::{}"
PROVIDER = URN.format("pulumi:providers:grafana", "grafana")
FOLDER, BOARD, GROUP = "grafana:oss/folder:Folder", "grafana:oss/dashboard:Dashboard", "grafana:alerting/ruleGroup:RuleGroup"
TIMING, POINT = "grafana:alerting/muteTiming:MuteTiming", "grafana:alerting/contactPoint:ContactPoint"
FOUND: Any = SimpleNamespace(
    load=lambda: SimpleNamespace(grafana=SimpleNamespace(url="https://grafana.example.com"), kubernetes=None),
    secrets={"grafanaAuth"},
    keys={"hosts", "grafana"},
    hosts=lambda: SimpleNamespace(hosts={}),
)


class Killed(BaseException):
    """kill -9"""


def resource(type_: str, name: str, /, *, id: str = "", **inputs: Any) -> dict[str, Any]:
    of_grafana = {"provider": f"{PROVIDER}::1f2e"} if type_.startswith("grafana:") else {}
    saved = {"id": id, "outputs": dict(inputs)} if id else {}
    return {"urn": URN.format(type_, name), "type": type_, "custom": True, "inputs": inputs, **of_grafana, **saved}


def host(name: str) -> dict[str, Any]:
    return resource("gpu-fleet:host:Host", name, host=name, connection={"address": "10.0.0.7"})


def board(uid: str, **saved: Any) -> dict[str, Any]:
    return resource(BOARD, uid, folder="gpu-fleet", configJson=json.dumps({"uid": uid}), **saved)


class Engine:
    """`world`: what Grafana has, by id. `login`: with which it answers. `given`: that of the stack file. `left`: steps until it
    is killed."""

    def __init__(self, resources: list[dict[str, Any]], **pending: list[dict[str, Any]]) -> None:
        login = {"auth": {interrupted._SIGNATURE: "s", "ciphertext": "old"}, "url": "https://grafana.example.com"}
        operations = [{"type": what, "resource": one} for what, found in pending.items() for one in found]
        provider = {**resource("pulumi:providers:grafana", "grafana", id="1f2e"), "inputs": login}
        self.deployment = {"resources": [provider, *resources], "pending_operations": operations}
        self.world: dict[str, dict[str, Any]] = {}
        self.login = self.given = "old"
        self.left = -1
        self.steps = 0

    def __call__(self, *arguments: str, stdin: str = "", **_: str) -> subprocess.CompletedProcess[str]:
        if arguments[:2] == ("stack", "export"):
            return self._ended(0, json.dumps({"version": 3, "deployment": self.deployment}))
        if arguments[:2] == ("stack", "import"):
            self._step()
            self.deployment = {**json.loads(stdin)["deployment"], "pending_operations": []}
            return self._ended(0)
        assert arguments[0] == "refresh"
        return self._refresh([one.removeprefix("--target=") for one in arguments if one.startswith("--target=")])

    def _refresh(self, targets: list[str]) -> subprocess.CompletedProcess[str]:
        known = {one["urn"]: one for one in self.deployment["resources"]}
        assert targets and set(targets) <= known.keys(), "no resource named so in the state: pulumi refuses the whole run"
        auth = known[PROVIDER]["inputs"]["auth"]
        if (auth.get("ciphertext") or json.loads(auth["plaintext"])) != self.login:
            return self._ended(255, "", "error: 401 Unauthorized")
        for urn in targets:
            self._step()
            resources = self.deployment["resources"]
            at = next(number for number, one in enumerate(resources) if one["urn"] == urn and not one.get("delete"))
            if found := self.world.get(resources[at]["id"]):
                read = {key: value for key, value in resources[at].items() if key != "initErrors"}
                resources[at] = {**read, "inputs": found, "outputs": found}
            else:
                del resources[at]
        return self._ended(0)

    def _step(self) -> None:
        if self.steps == self.left:
            raise Killed
        self.steps += 1

    @staticmethod
    def _ended(status: int, stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], status, stdout, stderr)

    def names(self) -> set[str]:
        assert not self.deployment["pending_operations"], "pulumi would warn of them in every run"
        return {one["urn"].rpartition("::")[2] for one in self.deployment["resources"]} - {"grafana"}


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `make up` does to a state before it runs pulumi."""

    def prepared(engine: Engine) -> None:
        for module in (state, interrupted):
            monkeypatch.setattr(module, "pulumi", engine)
        monkeypatch.setattr(interrupted, "secret", lambda *_: engine.given, raising=False)
        monkeypatch.setattr(deploy, "release_locks", lambda _: None)
        deploy._brings_up_new_ones("observability", {}, FOUND)

    return prepared


SETTLED = {"gpu-fleet", "team", "gpu-1", "gpu-2", "there"}


def everything() -> Engine:
    """Two hosts and two dashboards were being created, the mute timing of somebody else was met, a rule group was being removed,
    and of a contact point one integration was being replaced by another."""
    group = resource(GROUP, "gone", id="gpu-fleet:gone", name="gone", folderUid="gpu-fleet")
    point = resource(POINT, "team", id="team", name="team", webhooks=[{"uid": "1"}])
    timing = resource(TIMING, "move", name="move", intervals=[{"months": ["december"]}])
    engine = Engine(
        [resource(FOLDER, "gpu-fleet", id="gpu-fleet", title="GPU fleet"), group, point],
        creating=[host("gpu-1"), host("gpu-2"), board("there"), board("never"), timing],
        deleting=[group],
        updating=[point],
    )
    engine.world = {
        "there": board("there")["inputs"],
        "move": {"name": "move", "intervals": [{"weekdays": ["saturday"]}]},
        "team": {"name": "team", "webhooks": [{"uid": "1"}, {"uid": "2"}]},
    }
    return engine


def test_everything_that_was_open_is_settled_by_one_command(prepare: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engine = everything()
    prepare(engine)
    assert engine.names() == SETTLED
    hosts = [one for one in engine.deployment["resources"] if one["type"] == state.HOST]
    assert all(one["initErrors"] for one in hosts), "the next `up` brings them up"
    [point] = [one for one in engine.deployment["resources"] if one["type"] == POINT]
    assert len(point["outputs"]["webhooks"]) == 2, "the next `up` removes the one that is too many"
    printed = capsys.readouterr().err
    assert "left alone: MuteTiming move (move)" in printed and "had created Dashboard there: in the state now" in printed
    steps = engine.steps
    prepare(engine)
    assert engine.steps == steps, "nothing is open, so nothing is saved"


def test_killed_again_at_each_step_the_end_is_the_same(prepare: Any) -> None:
    whole = everything()
    prepare(whole)
    for left in range(whole.steps):
        engine = everything()
        engine.left = left
        with pytest.raises(Killed):
            prepare(engine)
        engine.left = -1
        prepare(engine)
        assert engine.names() == SETTLED, f"killed after {left} of {whole.steps} steps"


def renamed(**old: Any) -> Engine:
    """A contact point was being replaced by one of another name, which a route names."""
    policy = resource("grafana:alerting/notificationPolicy:NotificationPolicy", "policy", id="policy", contactPoint="team")
    before = {**resource(POINT, "team", id="team", name="team", webhooks=[{"uid": "1"}]), **old}
    return Engine([before, policy], creating=[resource(POINT, "team", name="night", webhooks=[{"uid": "2"}])])


def points(engine: Engine) -> list[tuple[str, bool]]:
    """Id, and whether the next run removes it."""
    return [(one["id"], one.get("delete", False)) for one in engine.deployment["resources"] if one["type"] == POINT]


def test_what_replaces_another_is_taken_into_the_state_and_the_other_is_still_to_be_removed(prepare: Any) -> None:
    engine = renamed()
    engine.world = {"night": {"name": "night", "webhooks": [{"uid": "2"}]}}
    prepare(engine)
    assert points(engine) == [("night", False), ("team", True)]
    engine = renamed()
    prepare(engine)
    assert points(engine) == [("team", True)], "it did not come to be: the next run creates it"
    engine = renamed(pendingReplacement=True)
    engine.world = {"night": {"name": "night", "webhooks": [{"uid": "2"}]}}
    prepare(engine)
    assert points(engine) == [("night", False)], "the other was removed first"


def test_a_thing_of_somebody_else_replaces_nothing(prepare: Any) -> None:
    engine = renamed()
    engine.world = {"night": {"name": "night", "emails": [{"uid": "3"}]}}
    prepare(engine)
    assert points(engine) == [("team", False)]


def test_pulumi_itself_may_not_forget_what_has_not_been_read(prepare: Any) -> None:
    engine = everything()
    engine.login = "neither"
    with pytest.raises(OperationError):
        prepare(engine)
    [note] = [one for one in engine.deployment["resources"] if one["type"] == interrupted.NOTE]
    assert note["protect"], "a plain `pulumi up` would remove it, since no program registers it"


def test_a_changed_login_reads_what_the_old_one_was_creating(prepare: Any) -> None:
    engine = everything()
    engine.login = engine.given = "new"
    prepare(engine)
    assert engine.names() == SETTLED


def test_a_grafana_that_does_not_answer_ends_the_run_and_nothing_is_forgotten(prepare: Any) -> None:
    engine = everything()
    engine.login = "neither"
    for _ in range(2):
        with pytest.raises(
            OperationError, match=r"401 Unauthorized\n.*`make up STACK=observability` continues once they can be read"
        ):
            prepare(engine)
    engine.login = engine.given
    prepare(engine)
    assert engine.names() == SETTLED


def test_a_removal_that_was_killed_is_settled_before_the_next(prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make destroy`, killed after Grafana had deleted the group: its plugin answers 404 to a second removal."""
    group = resource(GROUP, "gone", id="gpu-fleet:gone", name="gone", folderUid="gpu-fleet")
    engine = Engine([resource(FOLDER, "gpu-fleet", id="gpu-fleet", title="GPU fleet"), group], deleting=[copy.deepcopy(group)])
    for module in (state, interrupted):
        monkeypatch.setattr(module, "pulumi", engine)
    monkeypatch.setattr(interrupted, "secret", lambda *_: engine.given, raising=False)
    monkeypatch.setattr(destroy, "deployed_configuration", lambda _: FOUND)
    destroy._settled("observability")
    assert engine.names() == {"gpu-fleet"}
