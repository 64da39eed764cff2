"""Errors in configuration as an operator reads them: where, what was found, what is expected, how to fix it.

pydantic finds most errors; `explain` rewrites its errors in plain words with the help of the JSON schema that editors use,
so that a message and an editor's hint never disagree. Values are shown only where they cannot be secrets.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
Place = Callable[[Location], str]  # names a location inside a section as a person finds it in the file

# Keys whose values are never shown, wherever they occur, and values that look like a secret.
_SECRET_KEY = re.compile(
    r"pass|secret|token|credential|auth|private|pwd|(api|routing|integration|service|license).?key", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|\$ANSIBLE_VAULT|//[^/@\s]*:[^/@\s]*@|hooks\.slack\.com/|\b(glsa|glc|ghp|xox[abp])[_-]|\b[0-9a-fA-F]{32,}\b"
)
_KEYS_OF_FILES = {"privatekeyfile", "ansiblesshprivatekeyfile", "ansibleprivatekeyfile"}  # a path is no secret
_LONGEST_VALUE_SHOWN = 80


@dataclass(frozen=True)
class Problem:
    """One error. `where` is its place in the file, `what` says what was found there."""

    where: str
    what: str
    expected: str = ""
    fix: str = ""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}"]
        if self.expected:
            lines.append(f"expected: {self.expected}")
        if self.fix:
            lines.append(f"fix:      {self.fix}")
        return "\n".join(lines)


class ConfigErrors(Exception):
    """Every error of a configuration at once; str() is the whole text for the user."""

    SUBJECT: ClassVar = "the configuration of this stack"

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(sorted(set(problems), key=lambda problem: (_natural(problem.where), problem.what)))
        super().__init__(self._text())

    def _text(self) -> str:
        count = len(self.problems)
        width = len(str(count))
        lines = [f"{count} {'error' if count == 1 else 'errors'} in {self.SUBJECT}; nothing was changed."]
        for number, problem in enumerate(self.problems, start=1):
            first, *rest = str(problem).split("\n")
            lines += ["", f"{number:>{width}}. {first}", *(" " * (width + 2) + line for line in rest)]
        return "\n".join(lines)


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts line 9 before line 10."""
    return [(not piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in re.split(r"(\d+)", text) if piece]


def is_secret_key(key: object) -> bool:
    text = str(key)
    return _plain(text) not in _KEYS_OF_FILES and bool(_SECRET_KEY.search(text))


def _plain(key: str) -> str:
    """The same for camelCase, snake_case and kebab-case."""
    return re.sub(r"[-_. ]", "", key).lower()


def shown(value: object, *keys: object) -> str:
    """`value` for an error text; `keys` lead to it. Whatever may be a secret is only named."""
    if isinstance(value, Mapping):
        names = ", ".join(sorted(str(key) for key in value))
        return f"a mapping with {names}" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if any(is_secret_key(key) for key in keys) or _SECRET_VALUE.search(text):
        return "(a value that is not shown, it may be a secret)"
    return text if len(text) <= _LONGEST_VALUE_SHOWN else text[:_LONGEST_VALUE_SHOWN] + '…"'


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely meant, also across camelCase, snake_case and kebab-case."""
    plain, by_plain = _plain(word), {_plain(name): name for name in known}
    longer = [name for name in by_plain if len(plain) >= 3 and name.startswith(plain)]
    if len(longer) == 1:
        return by_plain[longer[0]]
    found = difflib.get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None


def listed(names: Iterable[str], last: str = "or") -> str:
    """`a, b or c`."""
    *head, tail = names
    return f"{', '.join(head)} {last} {tail}" if head else tail


def why_unreadable(error: Exception) -> str:
    """What an error of reading a text file means, as the rest of a sentence about the file."""
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, IsADirectoryError):
        return "is a directory"
    if isinstance(error, PermissionError):
        return "cannot be read by you"
    return "is not a text file" if isinstance(error, UnicodeDecodeError) else "cannot be read"


def unknown_key(where: str, key: str, known: Iterable[str], fix: str = "") -> Problem:
    known = sorted(known)
    meant = nearest(key, known)
    return Problem(
        where,
        f"unknown key {key!r}" + (f", did you mean {meant!r}?" if meant else ""),
        expected=", ".join(known),
        fix=fix or (f"rename it to {meant}, or remove it" if meant else "remove it"),
    )


def first_causes(error: ValidationError) -> list[ErrorDetails]:
    """pydantic's errors without those that only follow from others: a list is not too short because its items are wrong."""
    details = error.errors(include_url=False)
    locations = [detail["loc"] for detail in details]

    def follows(detail: ErrorDetails) -> bool:
        depth = len(detail["loc"])
        return detail["type"] == "too_short" and any(len(other) > depth and other[:depth] == detail["loc"] for other in locations)

    return [detail for detail in details if not follows(detail)]


def explain(error: Mapping[str, Any], schema: Mapping[str, Any], place: Place, secret_hint: str = "") -> Problem:
    """A pydantic error (an entry of `ValidationError.errors()`) in plain words.

    `schema` is the JSON schema of what was validated; `secret_hint` says where this section's secrets belong.
    """
    location, node, parent = _follow(tuple(error["loc"]), schema)
    where, value = place(location), error.get("input")
    kind, context = error["type"], error.get("ctx", {})
    key = str(location[-1]) if location else ""

    if kind == "refused":
        return Problem(where, context["what"], context["expected"], context["fix"])
    if kind == "extra_forbidden":
        known = parent.get("properties", {})
        if is_secret_key(key) and _plain(key) not in map(_plain, known):
            return Problem(where, "a secret is not allowed here: this section is stored in clear text", fix=secret_hint)
        ours, fix = _FOREIGN_KEYS.get(_plain(key), ("", ""))
        if ours in known:
            return Problem(where, f"unknown key {key!r}", ", ".join(sorted(known)), fix)
        return unknown_key(where, key, known)
    if kind == "missing":
        example = next(iter(node.get("examples", ())), None)
        fix = f"add `{key}: {example}`" if example is not None else f"add `{key}`"
        return Problem(where, "is missing", _expected(node), f"{fix} ({node['description']})" if "description" in node else fix)
    return Problem(where, f"found {shown(value, *location)}", _expected(node), _fix(value, node))


_ANSIBLE = "; gpu-fleet:inventory reads files with Ansible's names"
_INVENTORY = "this is an Ansible inventory: write it into a file, and the file's path into gpu-fleet:inventory"
# Keys of other tools (Ansible, Salt, ssh_config, Alertmanager), as _plain gives them: ours for the same thing, and the fix where
# a section has it.
_FOREIGN_KEYS = {
    "opsgenie": ("webhook", "use `webhook` with `authorizationSecret` for Opsgenie and similar services"),
    **{name: ("address", "write `address`") for name in ("host", "hostname", "ip", "ipaddress", "addr", "fqdn")},
    "ansiblehost": ("address", f"write `address`{_ANSIBLE}"),
    "ansibleuser": ("user", f"write `user`{_ANSIBLE}"),
    "ansibleport": ("port", f"write `port`{_ANSIBLE}"),
    "ansiblebecome": ("sudo", f"write `sudo: true`{_ANSIBLE}"),
    "become": ("sudo", "write `sudo: true`"),
    **{name: ("address", _INVENTORY) for name in ("hosts", "children", "vars")},
    **{name: ("gpus", "write `gpus`") for name in ("gpucount", "numgpus", "ngpus")},
    "identityfile": ("privateKeyFile", "write `privateKeyFile`"),
    "proxyjump": ("bastion", "write `bastion: {host: jump.example.com}`"),
    "stricthostkeychecking": ("knownHostsFile", "remove it: host keys are always verified"),
    **{f"{name}configs": (name, f"write `{name}`") for name in ("slack", "email", "pagerduty", "webhook")},
    "msteamsconfigs": ("teams", "write `teams`"),
    "msteamsv2configs": ("teams", "write `teams`"),
    "instance": ("address", "the label `instance` is the host's name: change the key of this entry"),
}


def _fix(value: object, node: Mapping[str, Any]) -> str:
    types = _types(node)
    if isinstance(value, str) and types & {"integer", "number"} and re.fullmatch(r"\d+", value):
        return f"write {value} without quotes"
    if isinstance(value, str) and "boolean" in types and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return f"write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'} without quotes"
    if isinstance(value, bool) and types == {"string"}:
        return "put it in quotes: YAML reads yes, no, on and off as true or false"
    if isinstance(value, int) and f"{value}s" in node.get("enum", ()):
        return f"write {value}s"
    if isinstance(value, (int, float)) and types == {"string"}:
        return f'put it in quotes: "{value}"'
    if value is None and types == {"string"}:
        return "write a value; what begins with # is a comment unless it is in quotes"
    if "object" in types and not isinstance(value, Mapping):
        return _fix_of_no_mapping(value, node)
    if isinstance(value, str) and "enum" in node and (meant := nearest(value, node["enum"])):
        return f"did you mean {meant}?"
    if "array" in types and not isinstance(value, (list, tuple)):
        return f"write a list: [{value}]" if isinstance(value, (str, int)) else "write a list, with - before each item"
    return f"correct it; the key means: {node['description']}" if "description" in node else "correct it"


def _fix_of_no_mapping(value: object, node: Mapping[str, Any]) -> str:
    if isinstance(value, (list, tuple)):
        return "remove the - before its items, and write each as `NAME: …`"
    keys: Mapping[str, Any] = node.get("properties", {})
    takers = [key for key, one in keys.items() if value in (one.get("const"), *one.get("enum", ())) and value is not None]
    if not isinstance(value, (str, bool)) and value is not None:
        takers = [key for key, one in keys.items() if _types(one) & {"integer", "number"}]
    if len(takers) == 1:
        return f"write {{{takers[0]}: {value}}}"
    return (
        f"write its keys: {{{', '.join(f'{key}: …' for key in node.get('required') or list(keys)[:1])}}}"
        if keys
        else "write its keys"
    )


def _types(node: Mapping[str, Any]) -> set[str]:
    return {option["type"] for option in node.get("anyOf", [node]) if "type" in option}


def _expected(node: Mapping[str, Any]) -> str:
    """What a JSON schema node accepts, in words."""
    if "x-expected" in node:
        return str(node["x-expected"])
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return listed(str(name) for name in node["enum"])
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if options:
        return " or ".join(filter(None, (_expected(option) for option in options)))
    match node.get("type"):
        case "integer" | "number" as kind:
            noun = "a whole number" if kind == "integer" else "a number"
            low, high = node.get("minimum"), node.get("maximum")
            if low is not None and high is not None:
                return f"{noun} from {low} to {high}"
            return noun if low is None else f"{noun}, {low} or more"
        case "boolean":
            return "true or false"
        case "string":
            return f"text such as {node['examples'][0]}" if node.get("examples") else "text"
        case "array":
            return f"a list, each item {_expected(node.get('items', {}))}".removesuffix(", each item ")
        case "object":
            keys = node.get("properties")
            return "a mapping with the keys " + ", ".join(sorted(keys)) if keys else "a mapping"
    return ""


def _follow(location: Location, schema: Mapping[str, Any]) -> tuple[Location, Mapping[str, Any], Mapping[str, Any]]:
    """Walks `location` down the schema: (location as in the file, node there, node above)."""
    definitions = schema.get("$defs", {})

    def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[1]]
            return {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:
            return {**resolved(options[0]), **{key: value for key, value in node.items() if key != "anyOf"}}
        return node

    kept: list[str | int] = []
    parent: Mapping[str, Any] = {}
    node = resolved(schema)
    for step in location:
        if step == "[key]":  # pydantic says so when the key of a mapping is wrong, not its value
            continue
        if step in ("[number]", "[array]", "[object]"):  # which of several types a value was taken for (prices.py)
            node = next(found for option in node["oneOf"] if (found := resolved(option)).get("type") == str(step)[1:-1])
            continue
        kept.append(step)
        parent = node
        if isinstance(step, int):
            child = node.get("items", {})
        else:
            of_others = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties", {}))
            child = node.get("properties", {}).get(step, of_others)
        node = resolved(child) if isinstance(child, Mapping) else {}
    return tuple(kept), node, parent
