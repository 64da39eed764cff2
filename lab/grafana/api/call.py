"""One request and one answer, without the web framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.grafana.errors import ApiError


@dataclass(frozen=True)
class Call:
    """`path` and `query` hold the parameters by name; `body` is the parsed JSON, None when there is none."""

    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    provenance: str = "api"  # "" when X-Disable-Provenance asks that the UI may edit the object

    def document(self) -> dict[str, Any]:
        if not isinstance(self.body, dict):
            raise ApiError(400, "bad request data")
        return self.body


@dataclass(frozen=True)
class Answer:
    body: Any
    status: int = 200


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    answer: Callable[[Call], Answer]
