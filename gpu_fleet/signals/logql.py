"""Reads a LogQL expression, as far as it is like PromQL: everything but the pipeline of a log query is.

A pipeline (`|= "x" | json | level="err"`) is read stage by stage and taken out; what remains parses as PromQL, with the stream
selector as a metric of its own. Not read: templates of line_format, grouping behind the range of an unwrapped value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import promql_parser

from gpu_fleet.signals import promql
from gpu_fleet.signals.catalogue import Catalogue, Labels, nearest, plain_names
from gpu_fleet.signals.promql import Answer, Finding, Reader
from gpu_fleet.stackfile.problems import listed

_STRING: Final = r'(?:"(?:[^"\\]|\\.)*"|`[^`]*`)'
_NAME: Final = r"[a-zA-Z_]\w*"
_NUMBER: Final = r"-?[\d.]+[a-zA-Zµ]*"
_OPERATOR: Final = r"(?:==|!=|=~|!~|>=|<=|=|>|<)"
_IP: Final = rf"ip\(\s*{_STRING}\s*\)"


def _list_of(item: str, between: str = r"\s*,\s*") -> str:
    return rf"{item}(?:{between}{item})*"


_FILTER: Final = re.compile(rf"(?:\|=|!=|\|~|!~|\|>|!>)\s*(?:{_IP}|{_STRING})(?:\s+or\s+{_STRING})*")
_EXTRACTION: Final = rf"{_NAME}(?:\s*=\s*{_STRING})?"
_ASSIGNMENT: Final = rf"{_NAME}\s*=\s*(?:{_STRING}|{_NAME})"
_CHOICE: Final = rf"{_NAME}(?:\s*=~?\s*{_STRING})?"
_COMPARISON: Final = rf"\(*\s*{_NAME}\s*{_OPERATOR}\s*(?:{_IP}|{_STRING}|{_NUMBER})\s*\)*"
_JUNCTION: Final = r"(?:\s*,|\s*\band\b|\s*\bor\b|\s)\s*"
# Kind -> how it is written behind its bar. `text` is where the labels are.
_STAGES: Final = {
    kind: re.compile(rf"\|\s*{form}")
    for kind, form in {
        "open": rf"(?:json|logfmt|unpack)\b(?:\s+--[\w-]+)*(?:\s+{_list_of(_EXTRACTION)})?",
        "extract": rf"(?:regexp|pattern)\s+(?P<text>{_STRING})",
        "format": rf"label_format\s+(?P<text>{_list_of(_ASSIGNMENT)})",
        "plain": rf"(?:line_format\s+{_STRING}|decolorize\b|(?:drop|keep)\s+{_list_of(_CHOICE)})",
        "unwrap": rf"unwrap\s+(?:{_NAME}\s*\(\s*)?(?P<text>{_NAME})\s*\)?",
        "where": rf"(?P<text>{_list_of(_COMPARISON, _JUNCTION)})",
    }.items()
}
_SELECTOR: Final = re.compile(rf"\{{(?:[^{{}}\"`]|{_STRING})*\}}")
_RANGE: Final = re.compile(r"\s*\[[^\]]*\](?:\s*offset\s+\S+?(?=[\s)|]|$))?")
_LINE_FUNCTIONS: Final = re.compile(r"\b(?:bytes_rate|bytes_over_time|rate_counter)(?=\s*\()")
_SPACE: Final = re.compile(r"\s*")
_PIPELINE: Final = "__pipeline__"  # a matcher in place of a pipeline, in the text that the PromQL parser reads


@dataclass
class _Pipeline:
    """`made`, `used`: labels that its stages create and use, in order. `any`: a parser creates labels that cannot be listed."""

    made: set[str] = field(default_factory=set)
    used: list[str] = field(default_factory=list)
    any: bool = False


def read(expression: str, catalogue: Catalogue) -> Answer:
    """The whole expression against what is known of the logs."""
    try:
        text, pipelines = _without_pipelines(expression)
        tree = promql_parser.parse(text)
    except ValueError as error:
        return Answer(None, (Finding(f"the query does not parse: {error}"),))
    reader = _LogReader(catalogue, pipelines)
    if not list(promql.selectors(tree)):
        return Answer(None, (Finding('the query selects no stream, {job="kernel"} for example'),))
    labels = reader.labels_of(tree)
    return Answer(labels, reader.findings())


class _LogReader(Reader):
    """Reads a log stream as PromQL reads a metric."""

    def __init__(self, catalogue: Catalogue, pipelines: list[_Pipeline]) -> None:
        super().__init__(catalogue)
        self.pipelines = pipelines

    def labels_of_selector(self, selector: promql_parser.VectorSelector) -> Labels | None:
        pipeline = _Pipeline()
        labels: Labels | None = frozenset().union(*self.catalogue.logs.values())
        used = []
        for matcher in selector.matchers.matchers:
            if matcher.name == _PIPELINE:
                pipeline = self.pipelines[int(matcher.value)]
            elif matcher.name == "job" and (jobs := _jobs(matcher)):
                labels = promql.together(self._labels_of_job(job) for job in jobs)
            else:
                used.append(matcher.name)
        if labels is None or pipeline.any:
            return None
        for name in used:
            if name not in labels:
                self._unknown_label(name, labels, f"the log stream has no label {name!r}")
        labels |= pipeline.made
        for name in pipeline.used:
            if name not in labels:
                self._unknown_label(name, labels, f"the pipeline uses the label {name!r}, which no line has at that point")
        return labels

    def _labels_of_job(self, job: str) -> Labels | None:
        if job in self.catalogue.logs:
            return self.catalogue.logs[job]
        self.noted.append(partial(_unknown_job, job, self.catalogue))
        return None


def _unknown_job(job: str, catalogue: Catalogue) -> Finding:
    meant = nearest(job, catalogue.logs)
    known = f"known: {listed(sorted(catalogue.logs), 'and')}; add one of yours to alerts/catalogue/logs.txt"
    return Finding(f"no logs have job={job!r}", f"did you mean {meant!r}? ({known})" if meant else known)


def _jobs(matcher: promql_parser.Matcher) -> tuple[str, ...] | None:
    """The jobs that a matcher lists; None: it does not list them."""
    if matcher.op == promql_parser.MatchOp.Equal:
        return (matcher.value,)
    return plain_names(matcher.value) if matcher.op == promql_parser.MatchOp.Re else None


def _without_pipelines(expression: str) -> tuple[str, list[_Pipeline]]:
    """The expression with a matcher in place of each pipeline. Raises ValueError for a stage that cannot be read."""
    text, position = "", 0
    pipelines: list[_Pipeline] = []
    while found := _SELECTOR.search(expression, position):
        pipeline = _Pipeline()
        text += expression[position : found.start()]
        # The range can be before or after the pipeline.
        time_range, end = _range_at(expression, found.end())
        end = _read_stages(expression, end, pipeline)
        if not time_range:
            time_range, end = _range_at(expression, end)
        matchers = found[0][1:-1].strip().rstrip(",")
        if not matchers:
            raise ValueError("a stream selector needs at least one label")
        text += f'{{{matchers}, {_PIPELINE}="{len(pipelines)}"}}{time_range}'
        pipelines.append(pipeline)
        position = end
    return _LINE_FUNCTIONS.sub("rate", text + expression[position:]), pipelines


def _range_at(expression: str, start: int) -> tuple[str, int]:
    found = _RANGE.match(expression, start)
    return (found[0], found.end()) if found else ("", start)


def _after_space(expression: str, start: int) -> int:
    found = _SPACE.match(expression, start)
    return found.end() if found else start


def _read_stages(expression: str, start: int, pipeline: _Pipeline) -> int:
    """Reads stages up to the first text that is not one; returns its position."""
    while (position := _after_space(expression, start)) < len(expression) and expression[position] in "|!":
        stage = _FILTER.match(expression, position)
        if stage is None:
            stage = _read_stage(expression, position, pipeline)
        start = stage.end()
    return start


def _read_stage(expression: str, position: int, pipeline: _Pipeline) -> re.Match[str]:
    for kind, form in _STAGES.items():
        if stage := form.match(expression, position):
            _note(kind, stage, pipeline)
            return stage
    raise ValueError(f"the stage beginning with {expression[position : position + 30]!r} is not known")


def _note(kind: str, stage: re.Match[str], pipeline: _Pipeline) -> None:
    if kind == "open":
        pipeline.any = True
    elif kind == "extract":
        pipeline.made |= set(re.findall(r"\(\?P?<(\w+)>", stage["text"])) | set(re.findall(r"<(\w+)>", stage["text"]))
    elif kind == "format":
        pipeline.made |= set(re.findall(rf"({_NAME})\s*=", re.sub(_STRING, '""', stage["text"])))
    elif kind == "unwrap":
        pipeline.used += [stage["text"]] if stage["text"] not in pipeline.made else []
    elif kind == "where":
        names = re.findall(rf"({_NAME})\s*{_OPERATOR}", re.sub(_STRING, '""', stage["text"]))
        pipeline.used += [name for name in names if name not in pipeline.made]
