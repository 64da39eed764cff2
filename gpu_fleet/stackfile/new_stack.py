"""A commented stack file for a new datacenter and cluster. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.stackfile.config import ROOT, StackConfig
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.values import ruler_of

TEMPLATE = Path(__file__).with_name("new-stack.yaml")
# The example servers of the template, and the paths that metrics and logs are pushed to.
_MIMIR, _MIMIR_PUSH = "https://mimir.example.com", "/api/v1/push"
_RULERS = re.compile(r"(?m)^  # The ruler, which .*\n(?:  #.*\n)*  gpu-fleet:rulers:\n    mimir: .*\n")
_NO_RULER = """\
  # This store has no ruler that `make up` could write to: `make rules FOR=prometheus STACK=NAME` writes rules and inventory to a
  # file for it (docs/stores.md).
"""
_LOKI, _LOKI_PUSH = "https://loki.example.com", "/loki/api/v1/push"


def new_stack(
    datacenter: str, cluster: str, *, metrics_url: str = "", logs_url: str = "", username: str = "", logs_username: str = ""
) -> str:
    """The text of the file. Default: example URLs, and no login. `username`: of Mimir and Loki, whose passwords are secrets.
    `logs_username`: Loki's, where it is another one (Grafana Cloud).

    Raises ConfigErrors when a value is not accepted.
    """
    users = (username, logs_username or username)
    login, logs_login = ({"username": user} if user else {} for user in users)
    values: dict[str, object] = {
        "datacenter": datacenter,
        "cluster": cluster,
        "metrics": {"url": metrics_url or _MIMIR + _MIMIR_PUSH, **login},
        "logs": {"url": logs_url or _LOKI + _LOKI_PUSH, **logs_login},
    }
    StackConfig.load(values, ROOT, {"metricsPassword", "logsPassword"} if any(users) else frozenset())
    text = TEMPLATE.read_text()
    for key, value in {"datacenter": datacenter, "cluster": cluster}.items():
        text = _replaced(text, f"  {PROJECT}:{key}: .*", f"  {PROJECT}:{key}: {json.dumps(value)}")
    if metrics_url:
        text = text.replace(_MIMIR + _MIMIR_PUSH, metrics_url)
        ruler = ruler_of(metrics_url)
        text = text.replace(_MIMIR, ruler) if ruler else _RULERS.sub(_NO_RULER, text)
    if logs_url:
        text = text.replace(_LOKI + _LOKI_PUSH, logs_url).replace(_LOKI, logs_url.removesuffix(_LOKI_PUSH))
    remaining = iter(users)  # metrics come before logs
    text = re.sub(
        r"    # username: writer\n",
        lambda line: f"    username: {json.dumps(user)}\n" if (user := next(remaining)) else line[0],
        text,
    )
    if username:
        text = re.sub(r"(    mimir: \{url: [^}]*)\}", rf"\1, username: {json.dumps(username)}}}", text, count=1)
    return text


def _replaced(text: str, pattern: str, line: str) -> str:
    assert len(re.findall(f"^{pattern}$", text, re.MULTILINE)) == 1, f"{TEMPLATE.name} must have one line {pattern}"
    return re.sub(f"^{pattern}$", lambda _: line, text, flags=re.MULTILINE)


def passwords_of(values: Mapping[str, object]) -> list[str]:
    """The names of the secrets that the sections of a new stack need: one for each that has a user name."""
    sections = {"metrics": "metricsPassword", "logs": "logsPassword", "rulers": "rulersPassword"}
    return [secret for section, secret in sections.items() if _has_username(values.get(section))]


def _has_username(section: object) -> bool:
    """Whether the section, or a server in it, has one."""
    return isinstance(section, Mapping) and ("username" in section or any(map(_has_username, section.values())))
