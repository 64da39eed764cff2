"""No change can be missing from the report: one leaf of any input is changed, and the report names it. The pictures are those of
the example stacks; what the words of a section leave out, gpu_fleet/operations/pr_report/values.py says."""

from __future__ import annotations

import copy
import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet.operations.pr_report import pictures as of_checkout
from gpu_fleet.operations.pr_report import values
from gpu_fleet.operations.pr_report.pictures import Picture, Resource, changed_files, pictures
from gpu_fleet.operations.pr_report.report import changed, markdown
from tests import checkout
from tests.operations.test_pr_report import edit, git, project, report  # noqa: F401  # a fixture

_EACH = 5  # leaves of a type of resource in a stack


@pytest.fixture(scope="module")
def examples() -> dict[str, Picture]:
    return pictures(checkout.REPO, {checkout.stack_of(file): str(file.relative_to(checkout.REPO)) for file in checkout.EXAMPLES})


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every leaf, through JSON in texts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))
    if not isinstance(value, (dict, list)):
        yield path


def with_another(value: Any, path: tuple[Any, ...]) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other(inner[path[-1]])
    return value


def other(leaf: Any) -> Any:
    return not leaf if isinstance(leaf, bool) else leaf + 1 if isinstance(leaf, int | float) else f"{leaf or ''}another"


def said(old: Picture, new: Picture) -> str:
    changes = changed({"s": old}, {"s": new})
    text = markdown(changes, base="main", compared=1)
    assert "Nothing, in any of" not in text and changes[0].said, "a change is never called nothing"
    assert max(map(len, text.splitlines())) <= 300 and text.count("```") % 2 == 0, text
    return text


def test_every_key_of_a_stack_file_is_named_as_it_is_written_there(examples: dict[str, Picture]) -> None:
    for stack, picture in examples.items():
        for path in paths(dict(picture.config)):
            text = said(picture, replace(picture, config=with_another(picture.config, path)))
            names = [str(part) for part in path if not isinstance(part, int)]
            assert all(name in text for name in names), (stack, path, text)


def test_a_leaf_of_any_resource_is_reported_at_its_resource(examples: dict[str, Picture]) -> None:
    chance = random.Random(30)
    for stack, picture in examples.items():
        kinds: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}
        for place, one in sorted(
            enumerate(picture.resources), key=lambda pair: (pair[1].type, pair[1].name)
        ):  # the engine's order varies
            inputs = parsed(one)
            kinds.setdefault(one.type, []).extend((place, path) for path in paths(inputs) if not follows(one.type, path))
        for kind, leaves in kinds.items():
            for place, path in chance.sample(leaves, min(_EACH, len(leaves))):
                one = picture.resources[place]
                inputs = with_another(parsed(one), path)
                changed_one = replace(one, inputs=written(one.inputs, inputs))
                resources = (*picture.resources[:place], changed_one, *picture.resources[place + 1 :])
                text = said(picture, replace(picture, resources=resources))
                assert any(name in text for name in names_of(one, inputs, path)), (stack, kind, one.name, path, text)


def follows(kind: str, path: tuple[Any, ...]) -> bool:
    """What is made of other inputs alone; a change of it and of nothing else is reported too, but without its place."""
    return path[0] in values._FOLLOWS.get(kind, ())


def parsed(one: Resource) -> dict[str, Any]:
    return json.loads(json.dumps(values._parsed(one)))  # type: ignore[no-any-return]


def written(one: Any, inputs: Any) -> Any:
    """What was text is text again: the same one if it says the same. JSON is YAML, so a group of rules can be JSON too."""
    if isinstance(one, str) and not isinstance(inputs, str):
        return one if yaml.load(one, yaml.CSafeLoader) == inputs else json.dumps(inputs)
    return {key: written(one[key], value) for key, value in inputs.items()} if isinstance(inputs, dict) else inputs


def names_of(one: Resource, inputs: dict[str, Any], path: tuple[Any, ...]) -> list[str]:
    """Any of these says where the change is: the resource, the file, the rule, the panel's dashboard."""
    names = [one.name, *([path[1]] if path[0] in ("files", "templates", "objects") else [])]
    inner: Any = inputs
    for part in path:
        inner = inner[part]
        if isinstance(inner, dict):
            names += [inner[key] for key in ("alert", "record", "uid") if isinstance(inner.get(key), str)]
    return names


def test_of_two_changes_in_one_rule_and_its_group_both_are_said(examples: dict[str, Picture]) -> None:
    picture = examples["observability"]
    [place] = [number for number, one in enumerate(picture.resources) if one.name.endswith("mimir-gpu-fleet-amd-events")]
    inputs = parsed(picture.resources[place])
    inputs["rules"]["interval"] = "77s"
    inputs["rules"]["rules"][0]["for"] = "88m"
    resources = list(picture.resources)
    resources[place] = replace(resources[place], inputs=written(resources[place].inputs, inputs))
    text = said(picture, replace(picture, resources=tuple(resources)))
    assert "`rules.interval`: `10s` → `77s`" in text and "88 min" in text


def test_a_secret_is_named_and_never_shown() -> None:
    old, new = (Picture(outputs={}, config={"grafanaAuth": f"{word}-clear", "n": {"secure": f"{word}-hidden"}}) for word in "ab")
    text = said(old, new)
    assert "`grafanaAuth`: set to another value" in text and "`n.secure`" in text and "clear" not in text and "hidden" not in text


def test_a_stack_with_an_error_still_says_what_else_changes(examples: dict[str, Picture]) -> None:
    picture = examples["us-west-training"]
    config = with_another(picture.config, ("rollout", "batch"))
    [place] = [number for number, one in enumerate(picture.resources) if one.name == "gpu-node-003"]
    moved = with_another(dict(picture.resources[place].inputs), ("connection", "address"))
    resources = (*picture.resources[:place], replace(picture.resources[place], inputs=moved))
    text = said(picture, replace(picture, config=config, resources=resources, error="a part is wrong"))
    assert "a part is wrong" in text and "`rollout.batch`" in text and "`gpu-node-003`" in text and "removed" not in text


def test_how_many_hosts_get_a_file_and_which_services_restart(examples: dict[str, Picture]) -> None:
    picture = examples["us-west-training"]
    [place] = [number for number, one in enumerate(picture.resources) if one.type == values.BUNDLE]
    inputs = dict(picture.resources[place].inputs)
    inputs["files"] = {**inputs["files"], "/etc/dcgm-exporter/counters.csv": "# none\n"}
    resources = (*picture.resources[:place], replace(picture.resources[place], inputs=inputs), *picture.resources[place + 1 :])
    text = said(picture, replace(picture, resources=resources))
    assert "18 hosts get these files; of these services those that run there restart: `gpu-fleet-dcgm-exporter`" in text
    assert "gpu-fleet-alloy" not in text


def with_files(picture: Picture, **files: str) -> Picture:
    """With other texts of the bundle."""
    [place] = [number for number, one in enumerate(picture.resources) if one.type == values.BUNDLE]
    inputs = dict(picture.resources[place].inputs)
    inputs["files"] = {**inputs["files"], **files}
    resources = (*picture.resources[:place], replace(picture.resources[place], inputs=inputs), *picture.resources[place + 1 :])
    return replace(picture, resources=resources)


def test_a_program_is_named_with_its_versions_and_a_sum_that_should_have_changed(examples: dict[str, Picture]) -> None:
    picture = examples["us-west-training"]
    [files] = [one.inputs["files"] for one in picture.of_type(values.BUNDLE).values()]
    [was] = [
        line
        for line in files["manifest"].splitlines()
        if line.startswith("download\t") and "node_exporter" in line and "amd64" in line
    ]
    version = was.rpartition("node_exporter-")[2].split(".linux")[0]
    fields = was.replace(version, "9.9.9").split("\t")
    text = said(picture, with_files(picture, manifest=files["manifest"].replace(was, "\t".join(fields))))
    name = "node_exporter-{}.linux-amd64.tar.gz"
    assert f"`{name.format(version)}` → `{name.format('9.9.9')}`, **and the sha256 is that of the old one**" in text
    fields[4] = "0" * 64
    text = said(picture, with_files(picture, manifest=files["manifest"].replace(was, "\t".join(fields))))
    assert f"→ `{name.format('9.9.9')}`\n" in text and "```" not in text, "one line says it"


def test_only_what_reads_the_name_of_a_cluster_restarts_with_it(examples: dict[str, Picture]) -> None:
    picture = examples["us-west-training"]
    [files] = [one.inputs["files"] for one in picture.of_type(values.BUNDLE).values()]
    settings = files["settings"].replace("GPU_FLEET_CLUSTER=training", "GPU_FLEET_CLUSTER=other")
    text = said(picture, with_files(picture, settings=settings))
    assert "18 hosts get these files; of these services those that run there restart: `gpu-fleet-alloy`\n" in text


def test_a_port_and_a_rollout_are_named_as_the_stack_file_has_them(examples: dict[str, Picture]) -> None:
    picture = examples["us-west-training"]
    config = copy.deepcopy(dict(picture.config))
    config["hosts"]["nested-gpu-node"]["ports"] = {"alloy": 12346}
    config["rollout"]["pause"] = "50m"
    resources = []
    for one in picture.resources:
        inputs = copy.deepcopy(dict(one.inputs))
        if one.name == "nested-gpu-node":
            inputs["settings"]["GPU_FLEET_ALLOY_LISTEN"] = "127.0.0.1:12346"
        if "rollout" in inputs:
            inputs["rollout"] = with_another(json.loads(inputs["rollout"]), ("pauseSeconds",))
        resources.append(replace(one, inputs=inputs))
    text = said(picture, replace(picture, config=config, resources=tuple(resources)))
    assert "- `nested-gpu-node`: `hosts.nested-gpu-node.ports.alloy` unset → `12346`" in text
    assert "- `rollout.pause`: `5m` → `50m`" in text and "pauseSeconds" not in text and "Everything else" not in text


_EDITS = {
    "a rule": ("alerts/rules/gpu.yaml", "gpu:temperature_limit:celsius\n          ) >= 85", ") >= 88", "GpuTemperatureHigh"),
    "a runbook": ("alerts/runbooks/GpuMissing.md", "\n", "\nA sentence of this branch.\n", "A sentence of this branch"),
}


@pytest.mark.parametrize("what", _EDITS)
def test_an_edited_file_is_named_and_what_follows_from_it_is_shown(project: Path, what: str) -> None:  # noqa: F811
    file, old, new, shown = _EDITS[what]
    new = old.replace(") >= 85", new) if what == "a rule" else new
    try:
        edit(project / file, old, new)
        done = report(project)
        assert f"- `{file}`" in done.stdout and shown in done.stdout, done.stdout + done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 300
    finally:
        git(project, "checkout", "--quiet", "--", ".")


def test_a_file_that_no_stack_leads_to_is_named_beside_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "known_hosts").write_text("a\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=base")
    (tmp_path / "known_hosts").write_text("b\n")
    (tmp_path / "new").write_text("c\n")
    monkeypatch.setattr(of_checkout, "project", lambda: tmp_path)
    assert changed_files("main") == ["known_hosts", "new"]
    text = markdown([], base="main", compared=2, files=["known_hosts", "new"])
    assert "Nothing, in any of 2 stacks" in text and "- `known_hosts`" in text
    assert subprocess.run(["git", "-C", tmp_path, "status", "--short"], capture_output=True, check=True).stdout
