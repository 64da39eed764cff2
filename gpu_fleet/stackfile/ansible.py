"""Ansible inventories read as they are: YAML and INI, nested groups, group_vars and host_vars beside them.

What is read: the connection variables in `_VARIABLES`, `gpu_fleet_*` variables for everything else of a host (as
`gpu_fleet_gpus: 8`), and `datacenter` and `cluster_name`, by which one inventory serves several stacks. Variables take
precedence over each other as in Ansible.
Not done here: templates, vault, dynamic inventories and plugins; `ansible-inventory --list --yaml` makes a file of the last two.
"""

from __future__ import annotations

import ast
import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpu_fleet.stackfile.hosts import HostEntry
from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, Listed, PatternError, expand
from gpu_fleet.stackfile.problems import Location, Problem, listed, nearest, shown, unknown_key, why_unreadable
from gpu_fleet.stackfile.yaml_text import VaultText, YamlError, YamlText

# Our keys by Ansible's variables for them; where several mean the same, the first that is set counts, as in Ansible.
_VARIABLES = {
    "address": ("ansible_ssh_host", "ansible_host"),
    "port": ("ansible_ssh_port", "ansible_port"),
    "user": ("ansible_ssh_user", "ansible_user"),
    "privateKeyFile": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "connection": ("ansible_connection",),
    "sudo": ("ansible_become",),
    "bastion": ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"),  # all three count, in this order
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
# A program in place of ssh, such as Teleport's or gcloud's, is there to reach the host in another way.
_PROGRAM, _PARAMIKO = "ansible_ssh_executable", "ansible_paramiko_proxy_command"
_OF_OPENSSH = ("ssh", "/usr/bin/ssh", "/bin/ssh", "/usr/local/bin/ssh")
_MEMBERSHIP = ("datacenter", "cluster_name")
_PRIORITY = "ansible_group_priority"
_READ = {
    name for names in (*_KEYS.values(), _MEMBERSHIP, _BECOME, _PASSWORDS, (_PRIORITY, _PROGRAM, _PARAMIKO)) for name in names
}
_CONNECTIONS = {"ssh": "ssh", "smart": "ssh", "paramiko": "ssh", "paramiko_ssh": "ssh", "local": "local"}
_COLLECTIONS = re.compile(r"ansible\.(?:builtin|legacy)\.")  # of the names that plugins have since 2.10
_CONTROLLER = ("localhost", "127.0.0.1", "::1")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SSH_OPTIONS_WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"  # ssh(1)
_SSH_LETTERS = {"J": "proxyjump", "p": "port", "l": "user", "i": "identityfile", "b": "bindaddress", "B": "bindinterface"}
# What else decides where a connection ends or comes from, and how to say it instead. Source: ssh_config(5) of OpenSSH 9.2.
_ROUTING = {
    **dict.fromkeys(("F", "include"), "a configuration of ssh is not read: write what it says of the host as variables"),
    "hostname": "write ansible_host",
    "port": "write ansible_port",
    "user": "write ansible_user",
    "proxycommand": "go through one jump host with ProxyJump, or deploy from a machine that reaches the host; or in pull mode",
    **dict.fromkeys(("proxyusefdpass", "W", "w", "tunnel", "canonicalizehostname"), "name the address itself as ansible_host"),
    **dict.fromkeys(("4", "6", "addressfamily"), "write the address itself as ansible_host"),
    **dict.fromkeys(("bindaddress", "bindinterface"), "deploy from a machine whose routes need no choice"),
}
_OWN_VARIABLE = {"hostname": "address", "port": "port", "user": "user"}  # options that may repeat what a variable says
_ABOUT_HOST_KEYS = re.compile(r".*hostkey.*|.*knownhosts.*|checkhostip")
_WITHOUT_MEANING = re.compile(
    r"[aACkMNnqSsTtvxXY]|control.*|serveralive.*|forward(?:agent|x11)|compression|loglevel|batchmode|.*timeout"
)
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


def _name_and_port(pattern: str) -> tuple[str, str]:
    """`host:2222`, `node[1:4]:2222` and `[2001:db8::1]:2222`; an IPv6 address without brackets has no port."""
    if (match := re.fullmatch(r"\[([^\[\]]+)\](?::(\d+))?", pattern)) and _is_ipv6(match[1]):
        return match[1], match[2] or ""
    match = re.fullmatch(r"((?:[^:\[\]]|\[[^\[\]]*\])+):(\d+)", pattern)
    return (match[1], match[2]) if match else (pattern, "")


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


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
        name, port = _name_and_port(pattern)
        if port:
            values = {"ansible_port": replace(place, value=int(port)), **values}
        try:
            hosts = (name,) if _is_ipv6(name) else expand(name)
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
                if key == "hosts" and not isinstance(item, str):  # `no` and 010 are False and 8
                    inventory.problem(place(*here, item), f"the name {item!r} is no text", "a name", "put it in quotes")
                    continue
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
    """(group or host, file of its variables): the first of NAME, which may be a directory of them, NAME.yml, …"""
    for owner in sorted(owners):
        entry = next((file for suffix in _VARIABLE_FILES if (file := folder / f"{owner}{suffix}").exists()), None)
        if entry is None:
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
    controller = []
    for name in names:
        variables = tree.variables_of(name)
        if name not in limit and _is_controller(name, variables):
            controller.append(name)
            continue
        theirs = _stack_of(variables, stack, inventory)
        if theirs == stack or None in stack:
            entries.append(_listed(inventory, name, variables))
        else:
            elsewhere["/".join(map(str, theirs))] += 1
    if controller:
        found, fix = listed(controller, "and"), "name it in gpu-fleet:inventory.limit to deploy to it"
        if entries or elsewhere:
            inventory.warnings.append(f"{inventory.file}: {found} is the machine that Ansible runs on, and left out; {fix}")
        else:
            inventory.problem(f"{where}.path", f"{inventory.file} lists no host but {found}", "a host", fix)
    if elsewhere and not entries:
        found = ", ".join(f"{theirs} ({count})" for theirs, count in sorted(elsewhere.items()))
        fix = "correct gpu-fleet:datacenter or gpu-fleet:cluster, or the variables datacenter and cluster_name of the inventory"
        inventory.problem(f"{where}.path", f"no host of {inventory.file} belongs to {'/'.join(map(str, stack))}", found, fix)
    return entries


def _is_controller(name: str, variables: Variables) -> bool:
    """Whether it is the machine that Ansible runs on, which inventories list for plays that work there."""
    if connection := variables.get("ansible_connection"):
        return _plugin(connection) == "local"
    return name in _CONTROLLER and not any(address in variables for address in _VARIABLES["address"])


def _plugin(value: Value) -> str:
    """The name of a plugin without that of Ansible's own collection."""
    return _COLLECTIONS.sub("", str(value.value), count=1)


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
            if key != "bastion" and name in variables and _is_plain(variables[name], inventory):
                translated = _translated(key, variables[name], inventory)
                if translated is not None:
                    values[key], origins[key] = translated, variables[name]
                    break
    if values.get("connection") == "local":
        for key in _ONLY_SSH:
            values.pop(key, None)
    else:
        _read_ssh_arguments(variables, values, origins, inventory)
        _refuse_other_routes(variables, inventory)
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
        if _plugin(value) not in _CONNECTIONS:
            fix = "hosts are reached by SSH alone; leave others out with gpu-fleet:inventory.limit"
            inventory.problem(value, f"found {shown(given, value.name)}", "ssh or local", fix)
        return _CONNECTIONS.get(_plugin(value))
    if key == "port" and isinstance(given, str) and given.isdigit():
        return int(given)
    if key == "sudo" and isinstance(given, str) and given.lower() in _BOOLEANS:
        return _BOOLEANS[given.lower()]
    if key == "address" and given is not None:
        return _name_and_port(str(given))[0] if str(given).startswith("[") else str(given)
    if key == "user" and given is not None:
        return str(given)
    return given


def _check(value: Value, inventory: AnsibleInventory) -> None:
    if value.name in _PASSWORDS:
        inventory.warnings.append(f"{value.file}: {value.name} is not read from inventories; {_PASSWORDS[value.name]}")
    elif (right := _BECOME.get(value.name)) and _is_plain(value, inventory) and _plugin(value) != right:
        inventory.problem(value, f"found {shown(value.value)}", right, "only sudo to root is supported; remove the variable")
    elif value.name.startswith("gpu_fleet_") and value.name not in _OURS:
        inventory.problems.append(unknown_key(str(value), value.name, _OURS))


def _read_ssh_arguments(
    variables: Variables, values: dict[str, object], origins: dict[str, Value], inventory: AnsibleInventory
) -> None:
    """The jump host and the key in the arguments of ssh; for each option the first one counts. What would route the connection
    otherwise is refused, never left out."""
    seen: set[str] = set()
    for name in _VARIABLES["bastion"]:
        value = variables.get(name)
        if value is None or value.value is None or not _is_plain(value, inventory):
            continue
        try:
            options = list(_ssh_options(shlex.split(str(value.value))))
        except ValueError:
            inventory.problem(value, f"{name} has an open quote", "arguments of ssh", "close it")
            continue
        for option, setting, text in options:
            kind = "jump" if option in ("proxyjump", "proxycommand") else option
            if kind in seen:
                if text.startswith("-J"):
                    what = f"{name} has {shown(text)} after another jump host or ProxyCommand, which ssh refuses"
                    inventory.problem(value, what, "one -J, before any other", "remove one of them")
                continue
            seen.add(kind)
            if kind == "jump":
                if (jump := _jump(option, setting, value, inventory)) is not None:
                    values["bastion"], origins["bastion"] = jump, value
            elif option == "identityfile":
                if "privateKeyFile" not in values:
                    values["privateKeyFile"], origins["privateKeyFile"] = setting, value
            elif option in _ROUTING and (option, setting) not in (("F", "none"), ("F", "/dev/null")):
                if setting != str(values.get(_OWN_VARIABLE.get(option, ""), "")):
                    what = f"{name} has {shown(text)}, which decides where the connection goes"
                    inventory.problem(value, what, "a jump host at most", _ROUTING[option])
            elif not option:
                inventory.problem(value, f"{name} has {shown(text)}, which is no option", "options of ssh", "remove it")
            elif _ABOUT_HOST_KEYS.fullmatch(option):
                inventory.warnings.append(f"{value.file}: {text} in {name} has no effect; host keys are always verified")
            elif not _WITHOUT_MEANING.fullmatch(option):
                inventory.warnings.append(f"{value.file}: {text} in {name} has no effect here")


def _refuse_other_routes(variables: Variables, inventory: AnsibleInventory) -> None:
    program, command = variables.get(_PROGRAM), variables.get(_PARAMIKO)
    fix = _ROUTING["proxycommand"]
    if program and program.value and _is_plain(program, inventory) and program.value not in _OF_OPENSSH:
        inventory.problem(program, f"found {shown(program.value)}, which decides how the host is reached", "OpenSSH's ssh", fix)
    connection = variables.get("ansible_connection")
    if command and command.value and connection and _plugin(connection).startswith("paramiko"):
        inventory.problem(command, f"found {shown(command.value)}", "a jump host at most", fix)


def _ssh_options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(option, its value, both as written) of the arguments of ssh. `-p 22`, `-p22`, `-qp 22`, `-o Port=22` and `-o "Port 22"`
    are the option `port`; letters without a name stay as they are. A word that is no option has an empty one."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            yield "", word, word
            continue
        for index, letter in enumerate(word[1:], start=2):
            if letter not in _SSH_OPTIONS_WITH_VALUE:
                yield letter, "", f"-{letter}"
                continue
            setting = word[index:] or next(rest, "")
            if letter == "o":
                name, setting = (*re.split(r"\s*[=\s]\s*", setting.strip(), maxsplit=1), "")[:2]
                yield name.lower(), setting, f"{name}={setting}"
            else:
                yield _SSH_LETTERS.get(letter, letter), setting, f"-{letter} {setting}"
            break


def _jump(option: str, setting: str, value: Value, inventory: AnsibleInventory) -> Mapping[str, object] | None:
    """The jump host that ProxyJump or an ssh in ProxyCommand names, as an entry's `bastion`; None for `none`."""
    if setting.lower() == "none":
        return None
    jump = setting if option == "proxyjump" else _jump_of_command(setting)
    match = _JUMP_HOST.fullmatch(jump) if "%" not in jump else None
    if match is None and option == "proxycommand":
        inventory.problem(value, f"{value.name} goes through {shown(setting)}", "an ssh to one jump host", _ROUTING[option])
    elif match is None:
        inventory.problem(value, f"{value.name} goes through {shown(jump)}", "one jump host, as USER@HOST:PORT", "name one alone")
    if match is None:
        return None
    found = {"host": match["host"].strip("[]"), "user": match["user"], "port": match["port"] and int(match["port"])}
    return {key: part for key, part in found.items() if part not in (None, "")}


def _jump_of_command(command: str) -> str:
    """The same of `ssh -W %h:%p -p 2022 -q -l jump HOST` and of `ssh HOST nc %h %p`; empty for another command, and for an ssh
    that is routed itself. A key for the jump host alone cannot be expressed here: the host's key is used for both."""
    try:
        program, *words = shlex.split(command)
    except ValueError:
        return ""
    if Path(program).name != "ssh" or not any("%h" in word for word in words):
        return ""
    login = {"user": "", "port": ""}
    for option, setting, text in _ssh_options(words):
        if not option:
            user, _, address = text.removeprefix("ssh://").rpartition("@")
            if ":" in address and not text.startswith("ssh://"):
                address = f"[{address}]"
            user, port = user or login["user"], f":{login['port']}" if login["port"] else ""
            return (f"{user}@" if user else "") + address + port
        if option in login:
            login[option] = login[option] or setting
        elif option == "proxyjump" or (option in _ROUTING and option != "W"):
            return ""
    return ""
