"""What panels' queries return of a real Mimir and Loki, asked as Grafana asks them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lab.showcase import Showcase

AT_ONCE = 6
STEP_S = 60
# With a step of a minute and Grafana's usual scrape interval of 15 s.
BUILT_IN = {"__rate_interval": "75s", "__interval": "60s", "__auto": "60s", "__range": "3600s", "__range_s": "3600", "search": ""}


@dataclass(frozen=True)
class Question:
    """One query with its variables filled in. `is_instant`: asked for the end of the range and not for all of it."""

    expression: str
    is_loki: bool
    is_instant: bool

    @classmethod
    def of(cls, panel: Mapping[str, Any], target: Mapping[str, Any], variables: Mapping[str, str]) -> Question:
        filled = re.sub(r"\$([a-zA-Z_]\w*)", lambda name: (BUILT_IN | dict(variables))[name[1]], target["expr"])
        is_loki = panel["datasource"]["type"] == "loki"
        return cls(filled, is_loki, bool(target.get("instant")) and not target.get("range"))


def ask(showcase: Showcase, questions: Iterable[Question]) -> dict[Question, list[dict[str, str]]]:
    """The labels of every series (or stream) that a question returns."""
    distinct = list(dict.fromkeys(questions))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(distinct, pool.map(lambda question: _ask(showcase, question), distinct), strict=True))


def _ask(showcase: Showcase, question: Question) -> list[dict[str, str]]:
    unit = 10**9 if question.is_loki else 1
    start, end = int(showcase.start_s * unit), int(showcase.end_s * unit)
    when = {"time": end} if question.is_instant else {"start": start, "end": end, "step": STEP_S}
    base = f"{showcase.loki}/loki/api/v1" if question.is_loki else f"{showcase.mimir}/prometheus/api/v1"
    asked = urllib.parse.urlencode({"query": question.expression, **when})
    try:
        with urllib.request.urlopen(f"{base}/query{'' if question.is_instant else '_range'}?{asked}", timeout=300) as answer:
            found = json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{question.expression}\n{error.read().decode()}") from None
    assert found["resultType"] in ("vector", "matrix", "streams"), question.expression
    return [one.get("metric", one.get("stream")) for one in found["result"]]
