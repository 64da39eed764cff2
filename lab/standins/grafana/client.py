"""Requests to Grafana's HTTP API, as the official plugin makes them: its login, its retries, its wording of a refusal."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from lab.standins.plugin import Failure
from lab.standins.properties import Properties

TIMEOUT_S = 60
RETRIES, RETRY_WAIT_S, RETRY_STATUS_CODES = 3, 1, ("429", "5xx")


class Refused(Failure):
    """Grafana answered with an error."""

    def __init__(self, method: str, path: str, status: int, answer: str) -> None:
        super().__init__(f"[{method} {path}][{status}] {answer}")
        self.status = status


class Grafana:
    """One Grafana. `configure` comes before everything else; its values are the plugin's configuration."""

    def __init__(self) -> None:
        self._config: Properties = {}
        self._context: ssl.SSLContext | None = None
        # Grafana stores its objects in one database and all alerting in one document: two changes at a time refuse each other.
        self._changing = threading.Lock()

    def configure(self, config: Properties) -> None:
        self._config = config
        if self.url.startswith("https:"):
            self._context = _trust(config)

    @property
    def url(self) -> str:
        return str(self._config.get("url", "")).rstrip("/")

    def organisation(self, inputs: Properties) -> str:
        return str(inputs.get("orgId") or self._config.get("orgId") or 1)

    def get(self, path: str, organisation: str, **query: str) -> Any:
        return self._request("GET", path + (f"?{urlencode(query)}" if query else ""), organisation, None, {})

    def find(self, path: str, organisation: str) -> Any:
        """None when there is no such thing."""
        try:
            return self.get(path, organisation)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def change(
        self, method: str, path: str, organisation: str, body: Any = None, *, editable: bool = False, missing_ok: bool = False
    ) -> Any:
        """`editable`: people may change it in Grafana's pages. `missing_ok`: that it is not there is no error."""
        with self._changing:
            try:
                return self._request(method, path, organisation, body, {"X-Disable-Provenance": "true"} if editable else {})
            except Refused as refused:
                if missing_ok and refused.status == 404:
                    return None
                raise

    def _request(self, method: str, path: str, organisation: str, body: Any, headers: dict[str, str]) -> Any:
        if not self.url:
            raise Failure("the grafana provider has no url: set grafana:url, or the provider's url, or GRAFANA_URL")
        request = urllib.request.Request(  # noqa: S310 - the person's own Grafana
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "X-Grafana-Org-Id": organisation,
                **self._login(),
                **self._config.get("httpHeaders", {}),
                **headers,
            },
        )
        left = self._config.get("retries", RETRIES)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if not left or not self._is_passing(error.code):
                    raise Refused(method, path, error.code, error.read().decode(errors="replace")) from None
            except OSError as error:
                cause = getattr(error, "reason", error)
                raise Failure(f"[{method} {path}] Grafana does not answer at {self.url}: {cause}") from None
            left -= 1
            time.sleep(self._config.get("retryWait", RETRY_WAIT_S))

    def _is_passing(self, status: int) -> bool:
        codes = self._config.get("retryStatusCodes", RETRY_STATUS_CODES)
        return str(status) in codes or f"{status // 100}xx" in codes

    def _login(self) -> dict[str, str]:
        auth = str(self._config.get("auth", ""))
        if not auth or auth == "anonymous":
            return {}
        if ":" in auth:
            return {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()}
        return {"Authorization": f"Bearer {auth}"}


def _trust(config: Properties) -> ssl.SSLContext:
    authority = config.get("caCert")
    is_text = bool(authority) and authority.lstrip().startswith("-----BEGIN")
    context = ssl.create_default_context(
        cafile=None if is_text or not authority else str(Path(authority).expanduser()), cadata=authority if is_text else None
    )
    if config.get("insecureSkipVerify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def quoted(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
