"""What the store knows about each node: the same rules as the alerts'. What is not known is unknown, and unknown is never pass.

The texts of reasons hold no times or counts that change by themselves: each change is a write to every node that has it.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PASS, WARN, FAIL, UNKNOWN = "pass", "warn", "fail", "unknown"
STATES = (PASS, WARN, FAIL, UNKNOWN)  # the number of a state is its metric's value, as on hosts
ANSWER_S = 10
MOST_REASONS = 32

Samples = list[tuple[dict[str, str], float]]
Ask = Callable[[str], Samples]


class StoreError(Exception):
    """The store did not answer, or not in full."""


class Reason(NamedTuple):
    """`code`: one word, for metrics. `gpu`: empty: the node's."""

    state: str
    code: str
    gpu: str
    text: str


def state_of(reasons: Iterable[Reason]) -> str:
    """A failure that is known counts more than what is not known."""
    found = {reason.state for reason in reasons}
    return next((state for state in (FAIL, UNKNOWN, WARN) if state in found), PASS)


def verdicts(nodes: Iterable[str], table: Mapping[str, Any], ask: Ask) -> dict[str, list[Reason]]:
    """The reasons of each node; none: it passes. `table`: alerts/readiness.py makes it. Raises StoreError."""
    unknown: dict[str, list[Reason]] = {}
    reasons: dict[str, list[Reason]] = {}
    fresh = {one["code"]: {labels["instance"]: value for labels, value in ask(one["query"])} for one in table["fresh"]}
    for node in nodes:
        old = [one for one in table["fresh"] if not fresh[one["code"]].get(node, one["most_s"] + 1) <= one["most_s"]]
        unknown[node] = [Reason(UNKNOWN, one["code"], "", one["text"]) for one in old]
    for signal in table["signals"]:
        for labels, value in ask(signal["query"]):
            node = labels["instance"]
            if any(reason.code in signal["not_while"] for reason in unknown.get(node, ())):
                continue
            reasons.setdefault(node, []).append(_reason(signal, labels, value))
    return {node: [*reasons.get(node, ()), *unknown[node]][:MOST_REASONS] for node in unknown}


def _reason(signal: Mapping[str, Any], labels: Mapping[str, str], value: float) -> Reason:
    gpu = labels.get("gpu") or labels.get("pci") or labels.get("uuid") or ""
    of_gpu = f"GPU {gpu}: " if gpu else ""
    event = labels.get("xid") or labels.get("event")
    if not event:
        return Reason(signal["state"], signal["code"], gpu, of_gpu + signal["texts"].get(f"{value:g}", signal["text"]))
    actions = signal["actions"].get(event, {})
    action = actions.get(labels.get("class", ""), actions.get("", ""))
    name = f"XID {event}" if "xid" in labels else event
    return Reason(signal["state"], f"xid_{event}" if "xid" in labels else event, gpu, f"{of_gpu}{name}: {action}".rstrip(": "))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """They would take the login along to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Store:
    """Answers instant queries; its login and certificates are files, as Alloy has them. Calling it raises StoreError."""

    def __init__(self, environment: Mapping[str, str], prefix: str = "") -> None:
        self._url = environment["GPU_FLEET_METRICS_QUERY_URL"] + "/api/v1/query"
        self._environment, self._prefix = environment, prefix

    def __call__(self, query: str) -> Samples:
        data = urllib.parse.urlencode({"query": query}).encode()
        try:
            request = urllib.request.Request(self._url, data=data, headers=self._headers())  # noqa: S310 - of the stack file
            opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=self._tls()))
            with opener.open(request, timeout=ANSWER_S) as response:
                answer = json.load(response)
            # Of Thanos: a part of the stores did not answer, and what they know of is missing.
            if answer.get("warnings"):
                raise StoreError(f"the store answered only in part: {answer['warnings'][0]}")
            return [(dict(one["metric"]), float(one["value"][1])) for one in answer["data"]["result"]]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(f"the store does not answer: {error}") from None

    def _headers(self) -> dict[str, str]:
        given = json.loads(self._environment.get("GPU_FLEET_METRICS_HEADERS") or "{}")
        headers = {name: values[0] for name, values in given.items()}
        if self._environment.get("GPU_FLEET_METRICS_TENANT"):
            headers["X-Scope-OrgID"] = self._environment["GPU_FLEET_METRICS_TENANT"]
        user = self._environment.get("GPU_FLEET_METRICS_USERNAME")
        if user:
            login = f"{user}:{self._text('GPU_FLEET_METRICS_PASSWORD_FILE')}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        token = self._text("GPU_FLEET_METRICS_BEARER_TOKEN_FILE")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._file("GPU_FLEET_METRICS_CA_FILE"))
        certificate = self._file("GPU_FLEET_METRICS_CERTIFICATE_FILE")
        if certificate:
            context.load_cert_chain(certificate, self._file("GPU_FLEET_METRICS_CLIENT_KEY_FILE"))
        return context

    def _file(self, variable: str) -> str | None:
        path = self._environment.get(variable)
        return self._prefix + path if path else None

    def _text(self, variable: str) -> str:
        path = self._file(variable)
        return Path(path).read_text().strip() if path else ""


def summary(reasons: Sequence[Reason], longest: int) -> str:
    """The texts of the gravest reasons."""
    state = state_of(reasons)
    text = "; ".join(dict.fromkeys(reason.text for reason in reasons if reason.state == state))
    return text if len(text) <= longest else text[: longest - 1] + "…"
