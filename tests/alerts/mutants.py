"""Do the rule tests notice a changed rule? `make mutants` changes every threshold, operator and `for` of the rules written by
hand, one at a time, and runs promtool's tests: a mutant that no test turns red survives.

The outcome is kept in mutants.yaml beside this file, by rule: a digest of the rule, how many mutants it has, and those that
survive, each with the reason why nobody needs to see them die. test_mutants.py holds the rules to it without running any mutant.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

import alerts
from alerts.generate import generated_groups
from alerts.model import document
from gpu_fleet import toolchain

ROOT: Final = Path(alerts.__file__).parent
KEPT: Final = Path(__file__).with_name("mutants.yaml")
HEAD: Final = """\
# What became of the mutants of each rule that is written by hand: `make mutants` writes it, the reasons of survivors are ours.
"""

OTHER_COMPARISONS: Final = {
    ">": (">=", "<"),
    "<": ("<=", ">"),
    ">=": (">", "<="),
    "<=": ("<", ">="),
    "==": ("!=",),
    "!=": ("==",),
}
COMPARED: Final = re.compile(r'(?<![\w"{,~=!<>])(==|!=|>=|<=|>|<)\s*(?:bool\s+)?(-?\d[\d.]*)?(?![\w"])')
_SEEN_BY: Final[Counter[str]] = Counter()  # mutants, by the name of a case
SET_OPERATORS: Final = {"and": "unless", "unless": "and"}


@dataclass(frozen=True)
class Mutant:
    """`what`: the change in words, the same for the same change of the same rule. `rule`: the changed rule."""

    what: str
    rule: Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """A rule written by hand: its file, its position there and its name, which is unique within the file."""

    file: Path
    group: int
    index: int
    name: str
    rule: Mapping[str, Any]

    @property
    def digest(self) -> str:
        significant = {key: self.rule.get(key) for key in ("expr", "for", "keep_firing_for", "labels")}
        return hashlib.sha256(json.dumps(significant, sort_keys=True).encode()).hexdigest()[:12]


def origins() -> list[Origin]:
    """Every rule of the files that are not generated."""
    found, generated = [], set(generated_groups())
    for file in sorted({*alerts.rule_files("mimir"), *alerts.rule_files("grafana")} - generated):
        seen: dict[str, int] = {}
        for group_index, group in enumerate(document(file)["groups"]):
            for index, rule in enumerate(group["rules"]):
                labels = rule.get("labels", {})
                name = " ".join(
                    filter(None, (rule.get("alert"), rule.get("record"), labels.get("severity"), labels.get("source")))
                )
                seen[name] = seen.get(name, 0) + 1
                if seen[name] > 1:
                    name += f" ({seen[name]})"
                found.append(Origin(file, group_index, index, name, rule))
    return found


def mutants(rule: Mapping[str, Any]) -> Iterator[Mutant]:
    """The rule with one change each."""
    expr = rule["expr"]
    for match in COMPARED.finditer(expr):
        for other in OTHER_COMPARISONS[match[1]]:
            yield _changed(rule, match.start(1), match.end(1), other)
        if match[2]:
            value = float(match[2])
            for changed in (value * 1.1, value * 0.9) if value else (1.0, -1.0):
                yield _changed(rule, match.start(2), match.end(2), f"{changed:g}")
    for match in re.finditer(r"\b(and|unless)\b", expr):
        yield _changed(rule, match.start(), match.end(), SET_OPERATORS[match[1]])
    if "alert" in rule:
        number, unit = re.fullmatch(r"(\d+)([smhd])", rule.get("for", "0m")).groups()  # type: ignore[union-attr]
        for wait in (int(number) + 1, int(number) - 1):
            if wait >= 0:
                yield Mutant(f"for: {wait}{unit}", {**rule, "for": f"{wait}{unit}"})


def _changed(rule: Mapping[str, Any], start: int, end: int, text: str) -> Mutant:
    expr = rule["expr"]
    before = expr.count("\n", 0, start) + 1
    around = " ".join(f"{expr[max(0, start - 24) : start]}[{expr[start:end]} -> {text}]{expr[end : end + 12]}".split())
    return Mutant(f"line {before}: {around}", {**rule, "expr": expr[:start] + text + expr[end:]})


# --- running them -----------------------------------------------------------------------------------------------------------


@cache
def _tests() -> list[tuple[list[Path], dict[str, Any]]]:
    """promtool's test files: the rule files that each names, and its content; the quick ones first."""
    found = []
    for file in sorted((ROOT / "tests").glob("*.test.yaml"), key=lambda file: file.name == "xid.test.yaml"):
        content = read(file.read_text())
        found.append(([(file.parent / name).resolve() for name in content["rule_files"]], content))
    return found


def read(text: str) -> dict[str, Any]:
    """As promtool does, to which `values: 0x200` are 200 times 0: to YAML it is the number 512, which no test can have."""
    return yaml.load(re.sub(r"(?m)\b(values: )(0x\d+)(?= *(?:[},]|$))", r"\1'\2'", text), yaml.CSafeLoader)


def survives(origin: Origin, mutant: Mutant) -> bool:
    """Whether every test that could see the change stays green."""
    name = origin.rule.get("alert") or origin.rule["record"]
    for files, content in _tests():
        if origin.file not in files:
            continue
        cases = [case for case in content["tests"] if "record" in origin.rule or name in json.dumps(case)]
        # One at a time, those first that saw most mutants so far: the first one that turns red is enough.
        for case in sorted(cases, key=lambda case: -_SEEN_BY[case["name"]]):
            if not _is_green(origin, mutant, files, {**content, "tests": [case]}):
                _SEEN_BY[case["name"]] += 1
                return False
    return True


def _is_green(origin: Origin, mutant: Mutant, files: list[Path], test: Mapping[str, Any]) -> bool:
    """promtool over the mutant with what the file records, without the alerts that have nothing to do with it."""
    groups = copy.deepcopy(document(origin.file)["groups"])
    groups[origin.group]["rules"][origin.index] = dict(mutant.rule)
    if "alert" in origin.rule:
        for group in groups:
            group["rules"] = [one for one in group["rules"] if "record" in one or one["alert"] == origin.rule["alert"]]
        files = [origin.file]  # no alert asks for what another file's alerts say
    with tempfile.TemporaryDirectory() as directory:
        changed = Path(directory, "changed.yaml")
        changed.write_text(yaml.dump({"groups": [group for group in groups if group["rules"]]}, Dumper=yaml.CSafeDumper))
        names = {group["name"] for group in groups if group["rules"]}
        given = [changed if file == origin.file else file for file in files]
        order = [group for group in test.get("group_eval_order", ()) if len(files) > 1 or group in names]
        content = {**test, "rule_files": [str(file) for file in given], "group_eval_order": order}
        Path(directory, "test.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper))
        command = [toolchain.find("promtool"), "test", "rules", Path(directory, "test.yaml")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


# --- the records ------------------------------------------------------------------------------------------------------------


def kept() -> dict[str, dict[str, dict[str, Any]]]:
    """File name, rule name, and `rule` (digest), `mutants` (how many), `survivors` (change -> reason)."""
    return yaml.safe_load(KEPT.read_text()) if KEPT.exists() else {}


def main(arguments: list[str]) -> int:
    """All rules, or with --changed those that are not as they were, or have survivors without a reason."""
    before, result = kept(), {}
    todo: list[tuple[Origin, list[Mutant]]] = []
    for origin in origins():
        file = str(origin.file.relative_to(ROOT))
        known = before.get(file, {}).get(origin.name, {})
        result.setdefault(file, {})[origin.name] = known
        is_settled = known.get("rule") == origin.digest and all(known["survivors"].values())
        if "--changed" not in arguments or not is_settled:
            todo.append((origin, list(mutants(origin.rule))))
    pairs = [(origin, mutant) for origin, made in todo for mutant in made]
    print(f"{len(pairs)} mutants of {len(todo)} rules", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda pair: survives(*pair), pairs))
    alive = {id(mutant) for (_, mutant), is_alive in zip(pairs, outcomes, strict=True) if is_alive}
    for origin, made in todo:
        file = str(origin.file.relative_to(ROOT))
        reasons = before.get(file, {}).get(origin.name, {}).get("survivors", {})
        survivors = {mutant.what: reasons.get(mutant.what, "") for mutant in made if id(mutant) in alive}
        result[file][origin.name] = {"rule": origin.digest, "mutants": len(made), "survivors": survivors}
        for what in survivors:
            print(f"survives: {file}: {origin.name}: {what}")
    KEPT.write_text(HEAD + yaml.safe_dump(result, sort_keys=False, width=130, allow_unicode=True))
    every = list(itertools.chain.from_iterable(rules.values() for rules in result.values()))
    count, lived = sum(rule["mutants"] for rule in every), sum(len(rule["survivors"]) for rule in every)
    print(f"{count - lived} of {count} mutants are seen by a test ({(count - lived) / count:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
