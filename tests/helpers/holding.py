"""Run a proxy before an engine's server that delays single requests, and read the report of a run
with an engine.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stepprof.cli.main import main

PATIENCE_SECONDS = 100.0


@contextmanager
def holding(url: str, seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the URL of a proxy before `url`. It passes on a request for a path after that path's
    delay.
    """

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(seconds.get(self.path, 0))
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            request = urllib.request.Request(url + self.path, body or None, headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
                    status, content = reply.status, reply.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


@contextmanager
def working_on(act: Callable[[], object]) -> Iterator[None]:
    """Call a function repeatedly on another thread during the block, as the steps that follow a
    window.
    """
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def reported(run: Path, capsys: Any, step: int = 2) -> dict[str, Any]:
    """Return the report of a step."""
    with suppress(SystemExit):
        capsys.readouterr()
    assert main(["report", str(run), "--step", str(step), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def check_only_step(run: Path, capsys: Any, step: int = 2) -> None:
    """Assert that `ls` shows only this step of a run, that `check` finds no problem, and that no
    other step has a folder.
    """
    capsys.readouterr()
    assert main(["check", str(run)]) == 0
    capsys.readouterr()
    assert main(["ls", str(run), "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)["steps"]] == [step]
    assert [path.name for path in run.glob("step-*")] == [f"step-{step:06d}"]


def check_late(
    entry: Mapping[str, Any], report: Mapping[str, Any], begins_ns: list[int], held: float
) -> None:
    """Assert that a capture whose stop was delayed is complete and says so, and that the report is
    limited to its window.

    Args:
        entry: the entry of the engine in the manifest.
        report: the report of the step.
        begins_ns: when each forward step in the file began, since the epoch.
        held: the delay of the stop in seconds.
    """
    within = [begin for begin in begins_ns if entry["start_unix_ns"] <= begin < entry["end_unix_ns"]]
    assert 0 < len(within) < len(begins_ns)
    assert (entry["status"], entry["error"]) == ("complete", None)
    assert entry["overrun_seconds"] > held / 2
    assert entry["stop_seconds"] > held
    (rollout,) = report["rollout"]
    assert rollout["iterations"] == len(within)
    assert rollout["seconds"] < (entry["end_unix_ns"] - entry["start_unix_ns"]) / 1e9 + held / 2
    left = len(begins_ns) - len(within)
    assert any(
        f"{left} of its {len(begins_ns)} forward steps" in each["problem"] for each in report["problems"]
    )
    (cost,) = report["stops"]
    assert cost["iterations"] == len(begins_ns)
