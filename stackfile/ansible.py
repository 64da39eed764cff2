"""Ansible inventories read as they are: YAML and INI, nested groups, group_vars and host_vars beside them.

What is read: the connection variables in `_VARIABLES`, `gpu_fleet_*` variables for everything else of a host (as
`gpu_fleet_gpus: 8`), and `datacenter` and `cluster_name`, by which one inventory serves several stacks. Variables take
precedence over each other as in Ansible.
Not done here: templates, vault, dynamic inventories and plugins; `ansible-inventory --list --yaml` makes a file of the last two.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from stackfile.hosts import HostEntry
from stackfile.patterns import PATTERN_EXPECTED, Listed, PatternError, expand
from stackfile.problems import Location, Problem, nearest, shown, unknown_key, why_unreadable
from stackfile.yaml_text import VaultText, YamlError, YamlText

# Our keys by Ansible's variables for them; where several mean the same, the first that is set counts.
_VARIABLES = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "privateKeyFile": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "connection": ("ansible_connection",),
    "sudo": ("ansible_become",),
    "bastion": ("ansible_ssh_common_args", "ansible_ssh_extra_args"),
}
_OURS = {
    f"gpu_fleet_{name}": key for name, model in HostEntry.model_fields.items() if (key := model.alias or name) not in _VARIABLES
}
_KEYS = {**_VARIABLES, **{key: (name,) for name, key in _OURS.items()}}
_ONLY_SSH = ("address", "port", "user", "privateKeyFile", "sudo", "bastion")  # Ansible ignores them on local hosts, and so do we
_BECOME = {"ansible_become_method": "sudo", "ansible_become_user": "root"}
_SUDO, _LOGIN = "`pulumi config set --secret gpu-fleet:sudoPassword` sets it", "logins are by key"
_PASSWORDS = {
    **dict.fromkeys(("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"), _SUDO),
    **dict.fromkeys(("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"), _LOGIN),
}
_MEMBERSHIP = ("datacenter", "cluster_name")
_PRIORITY = "ansible_group_priority"
_READ = {name for names in (*_KEYS.values(), _MEMBERSHIP, _BECOME, _PASSWORDS, (_PRIORITY,)) for name in names}
_CONNECTIONS = {"ssh": "ssh", "smart": "ssh", "paramiko": "ssh", "paramiko_ssh": "ssh", "local": "local"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SSH_OPTIONS_WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"  # ssh(1)
_JUMP_HOST = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:,@\s]+)(?::(?P<port>\d+))?")
_DEEPEST = 100  # groups in groups, two steps each
_VARIABLE_FILES = ("", ".yml", ".yaml", ".json")


def _is_read(name: object) -> bool:
    return name in _READ or (isinstance(name, str) and name.startswith("gpu_fleet_"))


@dataclass(frozen=True)
class Value:
    """A variable's value and where it was set."""

    value: object
    owner: str  # the host or group it was set on
    name: str
    file: str
    line: int | tuple[YamlText, Location]  # finding the line of a YAML key is slow, and only errors need it

    def __str__(self) -> str:
        line = self.line if isinstance(self.line, int) else self.line[0].line_of(self.line[1])
        return f"{self.file}:{line}: {self.owner}.{self.name}" if self.name else f"{self.file}:{line}: {self.owner}"


Variables = dict[str, Value]
Membership = tuple[str | None, str | None]  # datacenter and cluster of a stack or a host, None where not known


@dataclass
class Group:
    """One group. `hosts` are its own by expanded name, with the variables set there."""

    name: str
    hosts: dict[str, list[Variables]] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    variables: Variables = field(default_factory=dict)
    file_variables: Variables = field(default_factory=dict)  # from group_vars/


@dataclass
class AnsibleInventory:
    """The groups of one inventory file, and what is wrong with it."""

    file: str  # as messages give it
    problems: list[Problem]
    warnings: list[str]
    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group("all")})
    listed_at: dict[str, Value] = field(default_factory=dict)  # host -> where it is listed first
    host_files: dict[str, Variables] = field(default_factory=dict)  # from host_vars/
    is_whole: bool = True  # whether everything in it could be read

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def add_host(self, group: Group, pattern: str, values: Variables, place: Value) -> None:
        """Puts the hosts of a pattern into a group. `host:2222` is Ansible's way to write a port."""
        name, _, port = pattern.rpartition(":") if re.search(r"[^:\]]:\d+$|\]:\d+$", pattern) else (pattern, "", "")
        if port:
            values = {"ansible_port": replace(place, value=int(port)), **values}
        try:
            hosts = expand(name)
        except PatternError as error:
            self.problem(place, f'"{name}": {error}', PATTERN_EXPECTED, "correct the range")
            return
        for host in hosts:
            group.hosts.setdefault(host, []).append(values)
            self.listed_at.setdefault(host, place)

    def problem(self, place: object, what: str, expected: str = "", fix: str = "") -> None:
        self.is_whole = False
        self.problems.append(Problem(str(place), what, expected, fix))


def read_yaml(text: YamlText, content: Mapping[str, object], problems: list[Problem], warnings: list[str]) -> AnsibleInventory:
    """The groups of a YAML inventory; `content` is the text's, loaded."""
    inventory = AnsibleInventory(text.name, problems, warnings)

    def place(*path: str | int) -> Value:
        return Value(None, str(path[-1]), "", text.name, (text, path))

    def read_group(name: str, body: object, path: tuple[str, ...]) -> None:
        group = inventory.group(name)
        if body is None:
            return
        if len(path) > _DEEPEST:  # a YAML alias may contain itself
            inventory.problem(place(name), "contains itself", "a tree of groups", "remove the alias")
            return
        if not isinstance(body, Mapping):
            what, fix = f"found {shown(body)}", "indent what belongs to the group"
            inventory.problem(place(*path), what, "a mapping with hosts, children and vars", fix)
            return
        for key, section in body.items():
            here = (*path, str(key))
            if key not in ("hosts", "children", "vars"):
                meant = nearest(str(key), ("hosts", "children", "vars"))
                fix = f"did you mean {meant}?" if meant else "variables of a group go below `vars`, hosts below `hosts`"
                inventory.problem(place(*here), f"unknown key {str(key)!r} of the group {name}", "hosts, children, vars", fix)
                continue
            if isinstance(section, str) and key != "vars":
                section = {section: None}  # Ansible takes a single name as it is
            if section is not None and not isinstance(section, Mapping):
                fix = "write a colon after each name instead of a - before it" if isinstance(section, list) else "indent it"
                inventory.problem(place(*here), f"found {shown(section)}", f"a mapping of {key}", fix)
                continue
            for item, value in (section or {}).items():
                item = str(item)
                if key == "vars":
                    if _is_read(item):
                        group.variables[item] = Value(value, name, item, text.name, (text, (*here, item)))
                elif key == "children":
                    group.children.append(item)
                    read_group(item, value, (*here, item))
                elif value is not None and not isinstance(value, Mapping):
                    what, fix = f"found {shown(value, item)}", "write `ansible_host: …` below it"
                    inventory.problem(place(*here, item), what, "a mapping of variables", fix)
                else:
                    own = {
                        variable: Value(setting, item, variable, text.name, (text, (*here, item, variable)))
                        for variable, setting in (value or {}).items()
                        if _is_read(variable)
                    }
                    inventory.add_host(group, item, own, place(*here, item))

    for name, body in content.items():
        read_group(str(name), body, (str(name),))
    return inventory


def read_ini(file: str, text: str, problems: list[Problem], warnings: list[str]) -> AnsibleInventory:
    """The groups of an INI inventory."""
    inventory = AnsibleInventory(file, problems, warnings)
    group, kind = inventory.group("ungrouped"), "hosts"
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        place = Value(None, line.split()[0], "", file, number)
        if header := re.fullmatch(r"\[([^\[\]:]+)(?::(\w+))?\]\s*(?:[#;].*)?", line):
            group, kind = inventory.group(header.group(1)), header.group(2) or "hosts"
            if kind not in ("hosts", "children", "vars"):
                expected = "[group], [group:children] or [group:vars]"
                inventory.problem(place, f"unknown kind of section {kind!r}", expected, "correct it")
        elif kind == "children":
            group.children.append(line.split()[0])
        elif kind == "vars":
            name, equals, value = line.partition("=")
            if not equals:
                inventory.problem(replace(place, owner=group.name), "a line is not NAME=VALUE", "NAME=VALUE", "correct the line")
            elif _is_read(name := name.strip()):
                group.variables[name] = Value(_ini_value(value.strip()), group.name, name, file, number)
        elif kind == "hosts":
            try:
                host, *pairs = shlex.split(line, comments=True)
            except ValueError as error:
                inventory.problem(place, f"cannot be read: {str(error).lower()}", "HOST NAME=VALUE …", "close the quotes")
                continue
            values = {}
            for pair in pairs:
                name, equals, value = pair.partition("=")
                if not equals:
                    # Not shown: it may be the second half of a password with a space in it.
                    fix = "put quotes around values with spaces"
                    inventory.problem(place, "holds a word that is not NAME=VALUE", "HOST NAME=VALUE …", fix)
                elif _is_read(name):
                    values[name] = Value(_ini_value(value), host, name, file, number)
            inventory.add_host(group, host, values, place)
    return inventory


def _ini_value(text: str) -> object:
    """Ansible takes INI values as Python literals where they are some."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def add_variable_files(inventory: AnsibleInventory, directory: Path) -> None:
    """Reads group_vars/ and host_vars/ beside the inventory file."""
    shown_directory = inventory.file.rpartition("/")[0]
    for folder, owners in (("group_vars", set(inventory.groups)), ("host_vars", set(inventory.listed_at))):
        for owner, file in _files_of(directory / folder, owners):
            name = "/".join(filter(None, (shown_directory, file.relative_to(directory).as_posix())))
            variables = _variables_of(inventory, owner, file, name)
            if folder == "group_vars":
                inventory.groups[owner].file_variables |= variables
            else:
                inventory.host_files[owner] = inventory.host_files.get(owner, {}) | variables


def _files_of(folder: Path, owners: Set[str]) -> Iterator[tuple[str, Path]]:
    """(group or host, file of its variables): NAME, NAME.yml, … or every file below the directory NAME."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        owner = entry.stem if entry.suffix in _VARIABLE_FILES and entry.name not in owners else entry.name
        if owner not in owners:
            continue
        if entry.is_dir():
            for file in sorted(entry.rglob("*")):
                if file.is_file() and file.suffix in _VARIABLE_FILES and not file.name.startswith("."):
                    yield owner, file
        else:
            yield owner, entry


def _variables_of(inventory: AnsibleInventory, owner: str, file: Path, name: str) -> Variables:
    try:
        text = YamlText(name, file.read_text())
        if text.text.startswith("$ANSIBLE_VAULT"):
            inventory.warnings.append(f"{name}: is encrypted by ansible-vault and not read")
            return {}
        content = text.load() or {}
    except YamlError as error:
        inventory.problem(f"{name}:{error.line}", str(error), "YAML", "correct the file")
        return {}
    except (OSError, UnicodeDecodeError) as error:
        inventory.problem(name, why_unreadable(error), "a text file", "make it readable, or remove it")
        return {}
    if not isinstance(content, Mapping):
        inventory.problem(f"{name}:1", f"found {shown(content)}", "a mapping of variables", "write `name: value` lines")
        return {}
    return {key: Value(value, owner, key, name, (text, (key,))) for key, value in content.items() if _is_read(key)}


def select(inventory: AnsibleInventory, limit: Sequence[str], stack: Membership, where: str) -> list[Listed]:
    """The hosts of the inventory, with what Ansible would know of them, as entries of a host list.

    `limit`: only these groups and hosts; empty means all. `stack`: its datacenter and cluster; a host whose variables say
    others is left out, a host without the variable `datacenter` belongs to whoever reads it. `where` names the section of the
    stack file.
    """
    tree = _Tree(inventory)
    names = list(inventory.listed_at)
    if not names:
        if inventory.is_whole:
            fix = "add hosts, or remove gpu-fleet:inventory"
            inventory.problem(f"{where}.path", f"{inventory.file} lists no host", "at least one host", fix)
        return []
    if limit:
        wanted = set()
        for index, name in enumerate(limit):
            if name not in inventory.groups and name not in inventory.listed_at:
                meant = nearest(name, [*inventory.groups, *inventory.listed_at])
                fix = f"did you mean {meant}?" if meant else "correct the name"
                inventory.problem(
                    f"{where}.limit[{index}]", f'"{name}" is neither a group nor a host of {inventory.file}', fix=fix
                )
            wanted |= {name} | tree.hosts_below(name)
        names = [name for name in names if name in wanted]
    elsewhere: Counter[str] = Counter()
    entries = []
    for name in names:
        variables = tree.variables_of(name)
        theirs = _stack_of(variables, stack, inventory)
        if theirs == stack or None in stack:
            entries.append(_listed(inventory, name, variables))
        else:
            elsewhere["/".join(map(str, theirs))] += 1
    if elsewhere and not entries:
        found = ", ".join(f"{theirs} ({count})" for theirs, count in sorted(elsewhere.items()))
        fix = "correct gpu-fleet:datacenter or gpu-fleet:cluster, or the variables datacenter and cluster_name of the inventory"
        inventory.problem(f"{where}.path", f"no host of {inventory.file} belongs to {'/'.join(map(str, stack))}", found, fix)
    return entries


def _stack_of(variables: Variables, mine: Membership, inventory: AnsibleInventory) -> Membership:
    """Where a host says it belongs. `cluster_name` alone says nothing: other playbooks use that name for other things."""
    if "datacenter" not in variables:
        return mine
    found = [variables.get(name) for name in _MEMBERSHIP]
    datacenter, cluster = (
        str(value.value) if value and _is_plain(value, inventory) else default for value, default in zip(found, mine, strict=True)
    )
    return datacenter, cluster


class _Tree:
    """Which group is above which, and what a host inherits."""

    def __init__(self, inventory: AnsibleInventory):
        self._inventory = inventory
        self._parents: dict[str, list[str]] = {}
        for group in list(inventory.groups.values()):
            for child in group.children:
                inventory.group(child)  # a child that is defined nowhere is an empty group
                self._parents.setdefault(child, []).append(group.name)
        self._depths: dict[str, int] = {}
        for name in inventory.groups:
            self._depth(name, ())
        self._groups_of: dict[str, list[str]] = {}
        for group in inventory.groups.values():
            for host in group.hosts:
                self._groups_of.setdefault(host, []).append(group.name)
        self._inherited: dict[frozenset[str], Variables] = {}

    def _depth(self, name: str, below: tuple[str, ...]) -> int:
        """How far below `all` the group is; the deeper group's variables win."""
        if name in below:
            loop = " > ".join((name, *reversed(below[below.index(name) :])))
            self._inventory.problem(
                self._inventory.file, f"group {name} is its own descendant: {loop}", "a tree of groups", "remove one child"
            )
            return 0
        if name not in self._depths:
            parents = self._parents.get(name, [])
            depth = 0 if name == "all" else 1 + max((self._depth(parent, (*below, name)) for parent in parents), default=0)
            self._depths[name] = depth
        return self._depths[name]

    def _above(self, name: str, found: set[str]) -> set[str]:
        if name not in found:
            found.add(name)
            for parent in self._parents.get(name, []):
                self._above(parent, found)
        return found

    def hosts_below(self, name: str) -> set[str]:
        if name == "all":
            return set(self._inventory.listed_at)
        return {host for host, groups in self._groups_of.items() if any(name in self._above(group, set()) for group in groups)}

    def variables_of(self, host: str) -> Variables:
        """Ansible's precedence: of `all`, then of groups from the top down, in the inventory file; then in group_vars/; then the
        host's own."""
        direct = frozenset(self._groups_of[host])
        if direct not in self._inherited:
            names = {name for group in direct for name in self._above(group, set())} - {"all"}
            groups = [self._inventory.groups["all"], *sorted((self._inventory.groups[name] for name in names), key=self._rank)]
            inherited: Variables = {}
            for group in groups:
                inherited |= group.variables
            for group in groups:
                inherited |= group.file_variables
            self._inherited[direct] = inherited
        variables = dict(self._inherited[direct])
        for name in self._groups_of[host]:
            for own in self._inventory.groups[name].hosts[host]:
                variables |= own
        return variables | self._inventory.host_files.get(host, {})

    def _rank(self, group: Group) -> tuple[int, int, str]:
        priority = group.variables.get(_PRIORITY)
        return self._depths[group.name], priority.value if priority and isinstance(priority.value, int) else 1, group.name


def _is_plain(value: Value, inventory: AnsibleInventory) -> bool:
    """Whether the value is one that can be read here; says why when it cannot."""
    if isinstance(value.value, VaultText):
        fix = "write it in clear text, or leave it out; secrets of a stack are set by `pulumi config set --secret`"
        inventory.problem(
            value, f"{value.name} is encrypted by ansible-vault, which is not read here", "a value in clear text", fix
        )
    elif isinstance(value.value, str) and ("{{" in value.value or "{%" in value.value):
        fix = "write the value itself; a range of addresses is written in the host list of the stack file, as 10.0.1.[1:8]"
        inventory.problem(value, f"{value.name} is a template: {shown(value.value, value.name)}", "a value without {{ }}", fix)
    else:
        return True
    return False


def _listed(inventory: AnsibleInventory, host: str, variables: Variables) -> Listed:
    """A host as an entry of a host list: Ansible's variables under our names."""
    values: dict[str, object] = {}
    origins: dict[str, Value] = {}
    for key, names in _KEYS.items():
        for name in names:
            if name in variables and _is_plain(variables[name], inventory):
                translated = _translated(key, variables[name], inventory)
                if translated is not None:
                    values[key], origins[key] = translated, variables[name]
                    break
    if values.get("connection") == "local":
        for key in _ONLY_SSH:
            values.pop(key, None)
    for value in variables.values():
        _check(value, inventory)
    return Listed((host,), values, partial(_place_of, origins, inventory.listed_at[host]))


def _place_of(origins: Mapping[str, Value], host: Value, location: Location) -> str:
    origin = origins.get(str(location[0])) if location else None
    return ".".join([str(origin or host), *map(str, location[1:] if origin else location)])


def _translated(key: str, value: Value, inventory: AnsibleInventory) -> object:
    """A value of Ansible's in our terms; None when it says nothing to us. What is not understood is left for the host model."""
    given = value.value
    if key == "connection":
        if str(given) not in _CONNECTIONS:
            inventory.problem(value, f"found {shown(given, value.name)}", "ssh or local", "hosts are reached by SSH alone")
        return _CONNECTIONS.get(str(given))
    if key == "port" and isinstance(given, str) and given.isdigit():
        return int(given)
    if key == "sudo" and isinstance(given, str) and given.lower() in _BOOLEANS:
        return _BOOLEANS[given.lower()]
    if key == "bastion":
        return _bastion(value, inventory)
    if key in ("address", "user") and given is not None:
        return str(given)
    return given


def _check(value: Value, inventory: AnsibleInventory) -> None:
    if value.name in _PASSWORDS:
        inventory.warnings.append(f"{value.file}: {value.name} is not read from inventories; {_PASSWORDS[value.name]}")
    elif (right := _BECOME.get(value.name)) and _is_plain(value, inventory) and value.value != right:
        inventory.problem(value, f"found {shown(value.value)}", right, "only sudo to root is supported; remove the variable")
    elif value.name.startswith("gpu_fleet_") and value.name not in _OURS:
        inventory.problems.append(unknown_key(str(value), value.name, _OURS))


def _bastion(value: Value, inventory: AnsibleInventory) -> Mapping[str, object] | None:
    """The jump host in SSH arguments: -J, ProxyJump, or a ProxyCommand that is an ssh to it; the rest is not ours to take."""
    try:
        jump, ignored = _jump_of(shlex.split(str(value.value)))
    except ValueError:
        inventory.problem(value, f"{value.name} has an open quote", "arguments of ssh", "close it")
        return None
    if ignored:
        arguments = " ".join(ignored)
        inventory.warnings.append(f"{value.file}: {arguments} in {value.name} has no effect; host keys are always verified")
    if not jump:
        return None
    match = _JUMP_HOST.fullmatch(jump)
    if match is None:
        inventory.problem(value, f"{value.name} goes through {shown(jump)}", "one jump host, as USER@HOST:PORT", "name one alone")
        return None
    found = {"host": match["host"].strip("[]"), "user": match["user"], "port": match["port"] and int(match["port"])}
    return {key: part for key, part in found.items() if part}


def _jump_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """The jump host in the words, as -J takes it, and the words that say something else. Raises ValueError over an open quote."""
    jump, ignored = "", []
    rest = iter([word for word in words if word != "-o"])
    for word in rest:
        name, _, setting = word.removeprefix("-o").partition("=")
        if word == "-J":
            jump = next(rest, "")
        elif name.lower() == "proxyjump":
            jump = setting
        elif name.lower() == "proxycommand" and (found := _jump_of_command(shlex.split(setting))):
            jump = found
        else:
            ignored.append(word.removeprefix("-o"))
    return jump, ignored


def _jump_of_command(words: Sequence[str]) -> str:
    """The same of `ssh -W %h:%p -p 2022 -q -l jump HOST` and of `ssh HOST nc %h %p`; empty for another command. A key for the
    jump host alone cannot be expressed here: the host's key is used for both."""
    if not words or Path(words[0]).name != "ssh" or not any("%h" in word for word in words):
        return ""
    user, port = "", ""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            given, _, address = word.rpartition("@")
            address = f"[{address}]" if ":" in address else address
            login = given or user
            return (f"{login}@" if login else "") + address + (f":{port}" if port else "")
        option = word[1:2]
        if option and option in _SSH_OPTIONS_WITH_VALUE:
            setting = word[2:] or next(rest, "")
            user = setting if option == "l" else user
            port = setting if option == "p" else port
    return ""
