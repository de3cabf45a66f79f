"""The way of a recorded window through the modules, from the `with` statement to the profiler, as `sys.setprofile` sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from module_graph import finished, imports

import stepprof
from stepprof import profile_step
from stepprof.backends.null import NullBackend

PATH = (
    "instrument.step",
    "recording.session",
    "recording.local_target",
    "recording.capture_controller",
    "state_machine",
    "backends.null",
)
"""The modules of the frames on the stack when the profiler starts: one frame each."""
MOST_CALLS = {"first": 360, "armed": 190}
"""Python functions that run from the entry to the start of the profiler, of any library; arming takes half of them."""


def ours(frame: FrameType | None) -> Iterator[str]:
    """Yield the modules of the package that have a frame on the stack, the innermost first."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("stepprof."):
            yield name
        frame = frame.f_back


class Calls:
    """What is called on this thread while the block runs."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        """Caller and callee, where both are modules of the package."""
        self.until_start = 0
        """How many Python functions were called before the profiler started."""
        self.path: list[str] = []

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        self.until_start += not self.path
        names = list(ours(frame))
        if frame.f_globals.get("__name__") == (names or [None])[0] and len(names) > 1:
            self.made.append((names[1], names[0]))
        if frame.f_code is NullBackend.start.__code__:
            self.path = [name.removeprefix("stepprof.") for name in reversed(names)]


@pytest.fixture(params=["first", "armed"])
def calls(request, tmp_path) -> Iterator[Calls]:
    """The calls of a window that is recorded: the first step of all, or one for which the step before has armed."""
    stepprof.init({"backend": "null", "steps": "2", "output_dir": str(tmp_path)})
    if request.param == "armed":
        with profile_step(1, role="actor"):
            pass
    window = profile_step(2, role="actor")
    seen = Calls()
    with seen:
        window.__enter__()
    yield seen
    window.__exit__(None, None, None)
    stepprof.shutdown()


class TestEntry:
    def test_each_module_has_one_frame(self, calls, request) -> None:
        """The block calls the session, that the local target, and that the profiler, as an act of the state machine."""
        assert tuple(calls.path) == PATH
        assert calls.until_start <= MOST_CALLS[request.node.callspec.params["calls"]]

    def test_no_call_climbs(self, calls) -> None:
        """No module calls one above it: one that imports it, directly or through others."""
        graph = imports()
        below = {module: set(finished(graph, module, set())) - {module} for module in graph}
        assert ("stepprof.instrument.step", "stepprof.recording.session") in calls.made
        assert [call for call in calls.made if call[0] in below[call[1]]] == []
