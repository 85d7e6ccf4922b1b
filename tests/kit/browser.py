"""A headless Chromium, driven by its own protocol over two pipes. Tests without one are skipped."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"


class Page:
    """One page of the browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = send
        self._receive = receive
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.asked: list[str] = []
        """The addresses that it asked for."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("method") == "Network.requestWillBeSent":
                self.asked.append(found["params"]["request"]["url"])
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._receive, 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, timeout_s: float = 30) -> Any:
        """Return the value of an expression once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"{script}: {self.run('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def show(self, url: str, **media: str) -> None:
        """Open an address, for a reader with these preferences."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=url)

    def key(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def names_of(self, role: str) -> list[str]:
        """The names that a screen reader says of all elements of a role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        found = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") == role]
        return [node.get("name", {}).get("value", "") for node in found]

    def picture(self, file: Path) -> None:
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser(folder: Path, size: str = "1200,1000") -> Iterator[Page]:
    """Start a browser with a profile of its own."""
    reads, sends = os.pipe()
    receives, writes = os.pipe()
    command = [str(CHROMIUM), *_FLAGS.split(), f"--user-data-dir={folder}", f"--window-size={size}"]
    launch = f"import os; os.dup2({reads}, 3); os.dup2({writes}, 4); os.execv({command[0]!r}, {command})"
    process = subprocess.Popen(
        [sys.executable, "-c", launch], pass_fds=(reads, writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(reads)
    os.close(writes)
    try:
        yield Page(sends, receives)
    finally:
        process.kill()
        process.wait()
        os.close(sends)
        os.close(receives)
