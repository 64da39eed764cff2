"""What Grafana's resources have in common: ids with an organisation, and when two sets of inputs mean the same."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from lab.standins.grafana.client import Grafana
from lab.standins.plugin import ResourceType
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import Property

ORGANISATION = Property(replaces=True)


class GrafanaResource(ResourceType):
    shows_old_inputs = False
    # Inputs that Grafana does not give back; what was put in is taken to be there.
    write_only: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, grafana: Grafana) -> None:
        self.grafana = grafana

    def comparable(self, inputs: Properties) -> Properties:
        return {name: pruned(value) for name, value in inputs.items() if name != "orgId" and not is_zero(pruned(value))}

    def refreshed(self, inputs: Properties, live: Properties) -> Properties:
        """The inputs that would give what is live: as they were written where they still do, else as Grafana writes them."""
        if not inputs:  # imported
            return {name: value for name, value in live.items() if not is_zero(value)}
        old, new = self.comparable(inputs), self.comparable(live)
        kept = {name: value for name, value in inputs.items() if name in self.write_only or old.get(name) == new.get(name)}
        changed = {name: value for name, value in live.items() if old.get(name) != new.get(name) and name not in self.write_only}
        return kept | {name: value for name, value in changed.items() if not is_zero(value) or name in inputs}


def id_of(organisation: str, *parts: str) -> str:
    return ":".join([organisation, *parts])


def parts_of(id: str) -> tuple[str, str]:
    """Organisation and rest; an id without an organisation is of the first one."""
    organisation, colon, rest = id.partition(":")
    return (organisation, rest) if colon and organisation.isdigit() else ("1", id)


def is_zero(value: Any) -> bool:
    """Values that Terraform's SDK, below the official plugin, cannot distinguish from a missing value."""
    return value is None or value is False or value in ("", 0, [], {})


def pruned(value: Any) -> Any:
    """Without zero values inside objects. Items of lists stay: their place is their name."""
    match value:
        case dict():
            return {name: pruned(item) for name, item in value.items() if not is_zero(pruned(item))}
        case list():
            return [pruned(item) for item in value]
    return value


def parsed(text: Any) -> Any:
    """JSON text as data, so that layout and order of keys make no difference; anything else as it is."""
    if not isinstance(text, str) or text == UNKNOWN:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def compact(data: Any) -> str:
    """JSON as the official plugin writes it into the state: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def is_json_object(text: Any) -> bool:
    return text == UNKNOWN or isinstance(parsed(text), dict)
