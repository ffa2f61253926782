"""A real browser for tests: one headless Chromium, driven over its debugging protocol."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import wait_until
from websockets.sync.client import ClientConnection, connect

#: The names that distributions give it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)

#: Seconds that one answer may take.
_PATIENCE = 60


class Chromium:
    """One tab. ``problems`` are what its console had to say of the page: errors, and what
    the Content-Security-Policy refused.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Show ``url`` and wait until it has loaded."""
        self.problems.clear()
        self._loaded = False
        self.ask("Page.navigate", url=url)
        while not self._loaded:
            self._read()

    def look(self, *, width: int, height: int, dark: bool) -> None:
        """Look at pages, the open one included, in a window of that size and colour scheme."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < height,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, script: str) -> Any:
        """The value of a script in the page, which the page's own policy does not bind."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, as a PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(_PATIENCE))
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"])
            case "Runtime.exceptionThrown" | "Page.javascriptDialogOpening":
                self.problems.append(json.dumps(message["params"]))
        return message


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser for as long as the block runs; its profile goes with it."""
    assert EXECUTABLE is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(EXECUTABLE, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
                *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # Two lines once it listens: the port, and the path of its endpoint.
            announcement = Path(profile) / "DevToolsActivePort"
            port, path = wait_until(lambda: _lines(announcement), seconds=_PATIENCE)
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
                yield Chromium(socket)
        finally:
            process.terminate()
            process.wait()


def _lines(path: Path) -> list[str] | None:
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if len(lines) == 2 else None
