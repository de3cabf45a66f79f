"""Provide a backend, as another package would, that a test controls: slow, bound to a thread, or
failing at any of its calls.

It checks the promises of the backend contract: the order of the calls, one call at a time, and an
unused file name.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

import stepprof
from stepprof.backends.base import Backend
from stepprof.errors import BackendError
from stepprof.instrument.context import cell
from stepprof.run.model import Artifact

METADATA = "Metadata-Version: 2.1\nName: stepprof-faulty\nVersion: 1.0\n"
ENTRY_POINTS = "[stepprof.backends]\nfaulty = faulty:FaultyBackend\n"


@dataclass
class Control:
    """The instructions for the backend, and the calls that it received."""

    thread_bound: bool = False
    unavailable: str | None = None
    size: int = 0
    raising: dict[str, deque] = field(default_factory=lambda: defaultdict(deque))
    calls: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    captures: list = field(default_factory=list)
    annotations: list = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    reached: dict[str, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))
    released: dict[str, threading.Event] = field(default_factory=dict)

    def fail(self, call: str, *errors: BaseException) -> None:
        """Let the next calls raise these errors."""
        self.raising[call].extend(errors or [BackendError(f"{call} failed")])

    def hold(self, call: str) -> None:
        """Make the next call wait until it is released."""
        self.released[call] = threading.Event()
        self.reached.pop(call, None)

    def release(self, call: str) -> None:
        self.released.pop(call).set()


control = Control()


class FaultyBackend(Backend):
    name = "faulty"

    def __init__(self, options) -> None:
        self.options = options
        self.state = "idle"
        self.thread = 0
        self._one_at_a_time = threading.Lock()

    @property
    def thread_bound(self) -> bool:
        return control.thread_bound

    @contextmanager
    def _call(self, call: str, *states: str):
        if not self._one_at_a_time.acquire(blocking=False):
            control.violations.append(f"{call} beside another call")
            yield
            return
        try:
            control.calls.append(call)
            if self.state not in states:
                control.violations.append(f"{call} while {self.state}")
            control.reached[call].set()
            if call in control.released:
                control.released[call].wait(20)
            if control.raising[call]:
                raise control.raising[call].popleft()
            yield
        finally:
            self._one_at_a_time.release()

    def probe(self):
        if isinstance(control.unavailable, Exception):
            raise control.unavailable
        return control.unavailable

    def arm(self) -> None:
        with self._call("arm", "idle"):
            self.state = "armed"

    def start(self, capture) -> None:
        with self._call("start", "armed"):
            self.state, self.thread = "recording", threading.get_ident()
            control.captures.append(capture)

    def stop(self, capture, annotations):
        with self._call("stop", "recording"):
            if capture is not control.captures[-1]:
                control.violations.append("stop of another capture")
            if control.thread_bound and self.thread != threading.get_ident():
                control.violations.append("stop on another thread")
            self.state = "idle"
            control.annotations.append(list(annotations))
            raising = control.raising["export"]
            error = raising.popleft() if raising else None
        return lambda: self._export(capture, error)

    def _export(self, capture, error):
        if error is not None:
            raise error
        path = f"{capture.stem}.json"
        data = json.dumps(capture.metadata).encode()
        with (capture.folder / path).open("xb") as file:
            file.write(data)
        return (Artifact(path=path, kind="faulty", bytes=len(data)),)

    def abort(self) -> None:
        control.calls.append("abort")
        self.state = "idle"
        if control.raising["abort"]:
            raise control.raising["abort"].popleft()

    @contextmanager
    def _mark(self, name):
        control.marks.append(name)
        if control.raising["mark"]:
            raise control.raising["mark"].popleft()
        yield

    def mark(self, name):
        return self._mark(name)

    def bytes_so_far(self):
        if control.raising["bytes_so_far"]:
            raise control.raising["bytes_so_far"].popleft()
        return control.size

    def export_mode(self):
        if control.raising["export_mode"]:
            raise control.raising["export_mode"].popleft()
        return "inline"


def install(folder: Path) -> None:
    """Write the metadata of a package that provides the backend."""
    info = folder / "stepprof_faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


def reset() -> Control:
    """Reset the instructions and the recorded calls."""
    control.__init__()
    return control


@pytest.fixture
def faulty(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Control:
    """Install the backend `faulty`, and return its control."""
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.syspath_prepend(folder)
    return reset()


@pytest.fixture
def start(tmp_path: Path):
    """Return a function that starts a session with the backend `faulty`; it ends with the test."""

    def start(rank=None, world_size=None, run_id="run", **config):
        defaults = {"backend": "faulty", "output_dir": str(tmp_path / "runs"), "min_free_memory": "none"}
        return stepprof.init({**defaults, **config}, rank=rank, world_size=world_size, run_id=run_id)

    yield start
    stepprof.shutdown()
    assert control.violations == []


@pytest.fixture
def log():
    """Return the list of logged lines."""
    with structlog.testing.capture_logs() as lines:
        yield lines
    structlog.reset_defaults()


def windows(session, step=None) -> list[dict]:
    """Return the windows in the manifests of a run, in the order of their starts."""
    found = []
    pattern = "step-*" if step is None else f"step-{step:06d}"
    for path in session.path.glob(f"{pattern}/manifest/*.json"):
        content = json.loads(path.read_text())
        found += [{"step": content["step"], "version": content["version"], **w} for w in content["windows"]]
    return sorted(found, key=lambda window: window["start_unix_ns"])


def outcomes(session, step=None) -> list[tuple]:
    """Return (step, role, status) of each window, in the order of their starts."""
    return [(w["step"], w["role"], w["status"]) for w in windows(session, step)]


def ended(session) -> list[dict]:
    """End the session, and return the windows in its manifests."""
    stepprof.shutdown()
    assert cell.session is None
    return windows(session)


def transitions(lines) -> list[tuple[str, str]]:
    """Return (from, to) of each logged transition."""
    return [(line["from"], line["to"]) for line in lines if line["event"] == "state.changed"]
