"""A headless Chromium of this machine, driven over its own DevTools protocol: no driver, no download, no port.

Protocol: chromedevtools.github.io/devtools-protocol. With --remote-debugging-pipe it is spoken on file descriptors 3 and 4,
one JSON object after the other, each ended by a NUL byte.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

from gpu_fleet.toolchain import system
from gpu_fleet.toolchain.progress import Progress

FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses its sandbox to root, and pages here come from loopback only
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SETTLED_S = 300
TRIES = 5  # a page whose own files were cut off: Chromium does that when a network of the machine comes or goes
CUT_OFF = "net::ERR_NETWORK_CHANGED"


class BrowserError(Exception):
    """A text for people: what the browser, or the page in it, did not do."""


def find() -> str:
    """Raises ToolchainError when there is none and it cannot be installed by us."""
    system.require(["chromium"], Progress())
    found = system.program("chromium")
    assert found, "system.require would have raised"
    return found


class Browser:
    """One browser with one page. `requests` and `complaints` are what the page asked for and what its scripts complained of."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        # Popen cannot place a pipe on descriptors 3 and 4; a shell can.
        pipes = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1'
        command = [find(), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["sh", "-c", pipes, "sh", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._unread = b""
        self._last_id = 0
        self._session: str | None = None
        self._cut_off = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def log_in(self, user: str, password: str) -> None:
        """Basic authentication on every request from now on."""
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {pair}"})

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Returns when the page is there; of a dashboard, when every panel is drawn or has said why not."""
        settled = "document.querySelector('main') ? document.body.dataset.state : 'settled'"
        for _ in range(TRIES):
            self._cut_off = False
            self.requests.clear()
            self.complaints.clear()
            self.run("window.isLeft = true")
            self._call("Page.navigate", url=url)
            self.wait_for(f"!window.isLeft && document.readyState === 'complete' && ({settled})", "settled")
            if not self._cut_off:
                return
        raise BrowserError(f"{url}: its files were cut off {TRIES} times, as the networks of this machine keep changing")

    def wait_for(self, expression: str, value: Any) -> None:
        """Raises BrowserError when `expression` does not come to `value`; returns early when the page itself was cut off."""
        deadline = time.monotonic() + SETTLED_S
        while (found := self.run(expression)) != value and not self._cut_off:
            if time.monotonic() > deadline or found == "failed":
                said = "; ".join([str(found), self.run("document.body?.innerText ?? ''")[:500], *self.complaints])
                raise BrowserError(f"{expression} did not come to {value!r}: {said}")
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited; its value as JSON. Raises BrowserError with what it throws."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """A PNG of what the window shows."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise BrowserError(f"{find()} ended with {self._process.wait()}") from None
        while (answer := self._next()).get("id") != self._last_id:
            self._note(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        assert self._process.stdout
        while b"\0" not in self._unread:
            piece = self._process.stdout.read(1 << 16)
            if not piece:
                raise BrowserError(f"{find()} ended with {self._process.wait()}; start it by hand to see why")
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event.get("method") == "Network.loadingFailed":
            self._cut_off |= parameters["errorText"] == CUT_OFF and parameters["type"] in ("Document", "Script", "Stylesheet")
        elif event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
