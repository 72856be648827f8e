"""A headless Chromium, driven through two pipes by its own protocol: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.patience import wait_for
from tests.services.process import ServiceError, ending_with_parent

_NAMES = ("chromium", "chromium-browser", "google-chrome")

#: Seconds that a page may take for what a test waits for.
_PATIENCE = 30


class Browser:
    """The browser, with one page open.

    Attributes:
        said: errors, warnings and refusals of the page, since it was opened.
    """

    def __init__(self, folder: Path) -> None:
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            raise ServiceError(f"none of {', '.join(_NAMES)} is installed; make services")
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--user-data-dir={folder}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        # It reads from 3 and writes to 4.
        moved = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ending_with_parent(["bash", "-c", moved, "browser", program, *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs_in, theirs_out],
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._number, self._session = 0, ""
        self.said: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def stop(self) -> None:
        """End it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)
        self._in.close()
        self._out.close()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise ServiceError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            if not byte:
                raise ServiceError("the browser has ended")
            parts += byte
        message: dict[str, Any] = json.loads(parts)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] != "verbose":
            self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(params["args"]))

    def open(self, url: str, width: int, height: int = 900) -> None:
        """Go to a page, in a window of that size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.navigate", url="about:blank")
        self.said.clear()
        self._call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in told:
            raise ServiceError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        # A page that is only beginning has no body.
        tried = f"(() => {{ try {{ return !!({condition}) }} catch {{ return false }} }})()"
        if not wait_for(lambda: self.ask(tried), _PATIENCE):
            text = self.ask("document.body.innerText")
            raise AssertionError(f"{condition}: never; the page says: {text}; {self.said}")

    def shot(self, file: Path) -> None:
        """Keep a picture of the whole page."""
        height = self.ask("document.documentElement.scrollHeight")
        width = self.ask("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        told = self._call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        file.write_bytes(base64.b64decode(told["data"]))
