"""A headless Chromium that reaches no network, driven over its DevTools protocol on the loopback device."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any

from websockets.sync.client import connect

__all__ = ["Page", "chromium", "open_page"]

SECONDS = 60
"""For one answer; a start on a busy machine takes 10."""

_FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
)


class Page:
    """One tab.

    Attributes:
        requests: addresses of everything that the page asked for, itself included.
        complaints: errors and warnings of the console, of the content security policy, and exceptions.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._last = 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come meanwhile are noted."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params, **session}))
        while True:
            message = self._receive()
            if message.get("id") == self._last:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Loads a page at a width in CSS pixels, as a phone does below 700."""
        phone = width < 700
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.command("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as plain data."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """The whole page as a PNG file."""
        answer = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv(timeout=SECONDS))
        params = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
        return message


@contextmanager
def chromium(binary: str, folder: Path) -> Iterator[str]:
    """A browser with a profile of its own; gives the address of its DevTools."""
    flags = [*_FLAGS, f"--user-data-dir={folder}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # root has none
    with subprocess.Popen([binary, *flags], stderr=subprocess.PIPE) as browser:
        assert browser.stderr is not None
        try:
            address = _address(browser.stderr)
            drain = Thread(target=browser.stderr.read, daemon=True)  # or the browser would wait for a reader some day
            drain.start()
            yield address
        finally:
            browser.terminate()
            browser.wait()
        drain.join()


def _address(stderr: IO[bytes]) -> str:
    said = b""
    for line in stderr:
        said += line
        if b"DevTools listening on " in line:
            return line.decode().split("DevTools listening on ", 1)[1].strip()
    raise AssertionError(f"Chromium ended before it listened: {said.decode(errors='replace')}")


@contextmanager
def open_page(address: str) -> Iterator[Page]:
    """A tab of a running browser."""
    with connect(address, max_size=None, open_timeout=SECONDS) as socket:
        yield Page(socket)
