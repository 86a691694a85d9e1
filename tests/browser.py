"""A headless Chromium that is spoken to over two pipes (the DevTools protocol): no port, no driver, no internet."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Everything takes a few tenths of a second; a busy machine may take long.
TIMEOUT_S = 120.0
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
    "--disable-sync --disable-background-networking --disable-component-update --disable-breakpad "
    "--disable-crash-reporter --force-color-profile=srgb --hide-scrollbars --remote-debugging-pipe"
).split()
#: Chromium reads file 3 and writes file 4, whatever else is open there in this process.
_LAUNCH = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(reads, 3), os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the program of a browser of this machine; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One browser with one page.

    Parameters
    ----------
    program : str
    profile : Path
        Where it keeps what it keeps.

    Attributes
    ----------
    errors : list of str
        Exceptions of the page's scripts, and what it wrote to the console as errors.
    requested : list of str
        Every address that the page asked for.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.errors: list[str] = []
        self.requested: list[str] = []
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        self._unread = b""
        self._number = 0
        self._session = ""
        command = [sys.executable, "-c", _LAUNCH, str(their_in), str(their_out), program, *_FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(their_in, their_out),
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, address: str, width: int = 1200, height: int = 900, *, phone: bool = False) -> None:
        """Open an address in a window of so many pixels, and wait until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        failed = self._call("Page.navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        self.wait_until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str, share_x: float = 0.5, share_y: float = 0.5) -> None:
        """Click an element with the mouse, at a point of it in shares of its width and height."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, selector, share_x, share_y)

    def move_to(self, selector: str, share_x: float = 0.5, share_y: float = 0.5) -> None:
        """Move the mouse over an element, to a point of it in shares of its width and height."""
        self._mouse("mouseMoved", selector, share_x, share_y)

    def _mouse(self, kind: str, selector: str, share_x: float, share_y: float) -> None:
        found = f"document.querySelector({json.dumps(selector)})"
        # An element that is in the window stays where it is, so that a click lands where the mouse was moved to.
        x, y = self.value(
            f"(() => {{ const e = {found}; let r = e.getBoundingClientRect();"
            f"if (r.top < 0 || r.bottom > innerHeight) {{ e.scrollIntoView({{ block: 'center' }});"
            "r = e.getBoundingClientRect(); }"
            f"return [r.x + r.width * {share_x}, r.y + r.height * {share_y}]; }})()"
        )
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def press(self, key: str) -> None:
        """Press a key: ``Tab``, ``Enter``, ``Escape``, or one of the arrows."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code[key], **text)

    def write(self, selector: str, text: str) -> None:
        """Write into a field, in place of what it has."""
        self.value(f"{{ const f = document.querySelector({json.dumps(selector)}); f.focus(); f.select(); }}")
        self._call("Input.insertText", text=text)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark`` colours."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def wait_until(self, expression: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until an expression is true."""
        until_s = time.monotonic() + timeout_s
        while not self.value(expression):
            assert time.monotonic() < until_s, f"not within {timeout_s:g} s: {expression}"

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page, as PNG."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def forget(self) -> None:
        """Leave the page, and with it what it wrote and asked for."""
        self.open("about:blank")
        self.errors.clear()
        self.requested.clear()

    def close(self) -> None:
        """End it, with all of its processes."""
        os.close(self._out)
        os.close(self._in)
        try:
            # It ends when nobody speaks to it any more.
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait(TIMEOUT_S)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next(until_s)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _next(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until_s - time.monotonic()))
            assert ready, f"the browser has been silent for {TIMEOUT_S:g} s"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        return json.loads(text)

    def _note(self, news: dict[str, Any]) -> None:
        found = news.get("params", {})
        match news.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(found["exceptionDetails"]))
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.errors.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requested.append(found["request"]["url"])
