"""The calls of a recorded window, from the `with` statement to the profiler's start,
as `sys.setprofile` sees them.
"""

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
"""The modules with a frame on the stack when the profiler starts, one frame each."""
MOST_CALLS = {"first": 360, "armed": 210}
"""The largest number of Python functions, of any library, from the enter to the profiler's
start. Arming takes half of them.
"""


def ours(frame: FrameType | None) -> Iterator[str]:
    """Yield the modules of the package that have a frame on the stack, the innermost first."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("stepprof."):
            yield name
        frame = frame.f_back


class Calls:
    """The calls on this thread inside a block."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        """Caller and callee, if both are modules of the package."""
        self.until_start = 0
        """The number of Python functions that were called before the profiler started."""
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
    """Yield the calls of a recorded window: of the first step, or of one that
    was armed in the step before.
    """
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
        """The calls from the window to the profiler have one frame for each module
        in the path, and few others.
        """
        assert tuple(calls.path) == PATH
        assert calls.until_start <= MOST_CALLS[request.node.callspec.params["calls"]]

    def test_no_call_climbs(self, calls) -> None:
        """No module calls a module that imports it, directly or through others."""
        graph = imports()
        below = {module: set(finished(graph, module, set())) - {module} for module in graph}
        assert ("stepprof.instrument.step", "stepprof.recording.session") in calls.made
        assert [call for call in calls.made if call[0] in below[call[1]]] == []
