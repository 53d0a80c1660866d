"""Drives a headless Chromium: opens a page, clicks, and takes pictures.

We speak the DevTools protocol through two pipes: JSON objects that end with a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from gshard_nmt.errors import UserError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 60
"""The longest time that the browser may need for an answer."""


def find_browser() -> str:
    """Returns the path of Chromium or Chrome.

    Raises:
      UserError: there is none.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise UserError(
        f"There is no browser in PATH: looked for {', '.join(NAMES)}. Install Chromium, for example with "
        "apt-get install chromium, and try again."
    )


class Browser:
    """A browser with one page. Use it in a `with` statement.

    Attributes:
      errors: errors of scripts, and what the page has written to the console as an error or a warning.
      requests: addresses that the page has loaded, without data: addresses.
    """

    def __init__(self, program: str) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self._profile = tempfile.TemporaryDirectory(prefix="look-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # As root, Chromium starts only without its sandbox. We open only our own file.
        rights = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu", *rights]
        command += [f"--user-data-dir={self._profile.name}", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-dev-shm-usage", "about:blank"]
        # The browser reads from the descriptor 3 and writes to 4.
        pipes = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)

    def __enter__(self) -> "Browser":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        # Helpers of the browser may still write into its profile.
        shutil.rmtree(self._profile.name, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, width: int, height: int, dark: bool) -> None:
        """Opens a page anew in a window of a size, in light or dark colors."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.absolute().as_uri())
        deadline = time.monotonic() + _SECONDS
        loaded = "document.readyState === 'complete' && location.protocol === 'file:'"
        while not self.value(loaded):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} was not loaded within {_SECONDS} s")
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page, which JSON must be able to hold."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def move_to(self, selector: str, click: bool = False) -> None:
        """Moves the mouse to the middle of an element, and clicks if wanted."""
        name = json.dumps(selector)
        self.value(f"document.querySelector({name}).scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(({{left, top, width, height}}) => ({{x: left + width / 2, y: top + height / 2}}))"
            f"(document.querySelector({name}).getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **box)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                button = {"button": "left", "clickCount": 1}
                self.call("Input.dispatchMouseEvent", type=kind, **box, **button)

    def press(self, key: str) -> None:
        """Presses a key, such as "ArrowRight", in the focused element."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, file: Path, whole_page: bool = True) -> None:
        """Writes a PNG of the page."""
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(result["data"]))

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise TimeoutError(f"the browser did not answer within {_SECONDS} s")
            content = os.read(self._in, 1 << 20)
            if not content:
                raise RuntimeError("the browser has ended; start it by hand to see why")
            self._buffer += content
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        """Records an event of the page."""
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", str(details)))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                address = parameters["request"]["url"]
                if not address.startswith("data:"):
                    self.requests.append(address)
