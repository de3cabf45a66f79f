"""Drive a real Chromium by its DevTools protocol over two pipes. It needs no library and no port,
and loads only from 127.0.0.1 or from files.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Chromium:
    """One page of a browser. `messages` contains its console output and all uncaught exceptions.
    `answered` contains the addresses that answered a request.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, answers: int) -> None:
        self._process, self._to, self._answers = process, to, answers
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.messages: list[str] = []
        self.answered: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol to the page and return its result. Raise RuntimeError
        with the error of the browser.
        """
        return self._call(method, parameters)

    def goto(self, url: str) -> None:
        """Load a page."""
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise RuntimeError(f"{url}: {failed}")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited. Raise RuntimeError
        if the expression throws.
        """
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """Evaluate a script until it is true and return the value. Raise TimeoutError with the
        console output.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.evaluate(script)
            if value:
                return value
            time.sleep(0.1)
        raise TimeoutError(f"{script}: still not true; console: {self.messages}")

    def screenshot(self, path: Path, *, width: int = 1400, height: int = 900) -> None:
        """Save the page as a PNG of the given size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError(f"the browser ended with {self._process.wait(10)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                texts = [str(each.get("value", each.get("description"))) for each in parameters["args"]]
                self.messages.append(f"{parameters['type']}: {' '.join(texts)}")
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.messages.append(f"exception: {details.get('exception', {}).get('description', details)}")
            case "Log.entryAdded":
                entry = parameters["entry"]
                self.messages.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
            case "Network.responseReceived":
                self.answered.append(parameters["response"]["url"])


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Chromium]:
    """Yield a browser with a temporary profile. Raise FileNotFoundError if none is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise FileNotFoundError("chromium: not installed (Debian: apt-get install chromium)")
    ours, theirs = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="stepprof-chromium-", ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", *flags]
        # the browser reads on descriptor 3 and writes on 4; the shell redirects the pipes there
        redirect = f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        process = subprocess.Popen(
            ["bash", "-c", redirect, *command],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(ours[0])
        os.close(theirs[1])
        try:
            yield Chromium(process, ours[1], theirs[0])
        finally:
            os.close(ours[1])
            os.close(theirs[0])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
