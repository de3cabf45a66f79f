"""Windows and regions as NVTX ranges, with the real nvtx and a test tool that logs its calls."""

from __future__ import annotations

import pytest
from nsys.tools import build, closed, read_log

from stepprof.backends.nsys.ranges import BEYOND, MAX_NAMES, NvtxRanges, colour

ACTOR = "0xff76b7b2"

INIT = """
import asyncio, json, os, sys, threading, time
import stepprof
from stepprof.instrument.context import cell

def begin(**more):
    return stepprof.init({"output_dir": "runs", "steps": "2, 4", "backend": "nsys", "spans": False, **more}, rank=0, world_size=1)

def domain():
    with open(os.environ["NVTX_LOG"]) as file:
        return [json.loads(line) for line in file]
"""

MARKER = """
import contextlib
from stepprof.backends.null import NullBackend

entered, left = [], []

class Marker(NullBackend):
    name = "marker"

    @contextlib.contextmanager
    def mark(self, name):
        entered.append(name)
        try:
            yield
        finally:
            left.append(name)
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def noted(tools, tmp_path, run_script):
    """Return a function that runs a script, with the tool attached from the start or not, and returns the
    tool's log.
    """

    def noted(script, *, attached=True, **env):
        log = tmp_path / "nvtx.jsonl"
        variables = {"NVTX_LOG": str(log), "LIBRARY": tools.injection}
        if attached:
            variables["NVTX_INJECTION64_PATH"] = tools.injection
        run_script(INIT + script, env={**variables, **env}).check()
        return read_log(log)

    return noted


class TestRanges:
    def test_windows_and_regions_of_every_kind(self, noted):
        """Regions are pushed and popped on their thread. Coroutines, generators and windows are ranges of
        the process. A role has its category and colour.
        """
        script = """
session = begin()

@stepprof.region("decorated")
def decorated():
    with stepprof.region("inner"):
        pass

@stepprof.region("generator")
def generator():
    yield 1
    yield 2

@stepprof.region("coroutine")
async def coroutine(number):
    await asyncio.sleep(0)
    with stepprof.region("within"):
        await asyncio.sleep(0.001 * (number % 7))
        if number % 100 == 0:
            raise KeyError(number)

async def many():
    return await asyncio.gather(*(coroutine(n) for n in range(2000)), return_exceptions=True)

def failing():
    try:
        with stepprof.region("failing"):
            with stepprof.region("deep"):
                raise ValueError
    except ValueError:
        pass

for step in range(1, 6):
    with stepprof.profile_step(step):
        with stepprof.profile_step(step, role="rollout"):
            first, second = generator(), generator()
            next(first); next(second)  # interleaved, as no stack could hold them
            list(first); list(second)
            asyncio.run(many())
        with stepprof.profile_step(step, role="actor"):
            decorated()
            failing()
            threads = [threading.Thread(target=lambda: [decorated() for _ in range(50)]) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
stepprof.shutdown()
"""
        found = closed(noted(script))
        assert found.pushed == {"decorated": 402, "inner": 402, "failing": 2, "deep": 2}
        windows = {"step 2 step": 1, "step 2 rollout": 1, "step 2 actor": 1}
        windows |= {name.replace("2", "4"): 1 for name in windows}
        assert found.started == {"generator": 4, "coroutine": 4000, "within": 4000, **windows}
        assert len(found.threads["inner"]) > 4
        assert found.category("step 2 rollout") == found.category("coroutine") == "rollout"
        assert found.category("step 2 step") == "step"
        assert found.first("step 2 actor")["color"] == found.first("deep")["color"] == colour("actor")
        assert found.first("step 4 actor")["payload"] == 4

    def test_ends_in_the_middle(self, noted):
        """When the capture ends, open ranges of the same thread are closed. Another thread closes its own
        ranges later.
        """
        script = """
session = begin()
entered, leave = threading.Event(), threading.Event()

def elsewhere():
    with stepprof.region("outer"):
        with stepprof.region("long"):
            entered.set()
            leave.wait(10)
        with stepprof.region("after"):
            pass

thread = threading.Thread(target=elsewhere)
window = stepprof.profile_step(2, role="actor").start()
thread.start()
entered.wait(10)
held = stepprof.region("held")
held.__enter__()
window.stop()
before = [event["op"] for event in domain()]
held.__exit__(None, None, None)
leave.set()
thread.join()
after = [event["op"] for event in domain()]
assert before.count("push") == 3 and before.count("pop") == 1, before  # "held" alone
assert after[len(before):] == ["pop", "pop"], after
lane = None
with stepprof.profile_step(4):
    async def left_open():
        async with stepprof.region("lane"):
            await asyncio.sleep(0)
    lane = left_open()
    lane.send(None)
assert domain()[-1]["op"] == "end"
lane.close()
stepprof.shutdown()
"""
        found = closed(noted(script))
        assert found.pushed == {"outer": 1, "long": 1, "held": 1}
        assert found.started["lane"] == 1

    def test_an_exception_out_of_the_window_and_of_the_process(self, noted):
        """If the body raises or the process exits inside a region, every range is closed. The exception is
        the caller's own.
        """
        script = """
begin()
try:
    with stepprof.profile_step(2, role="actor"):
        with stepprof.region("a"), stepprof.region("b"):
            raise KeyError("mine")
except KeyError as error:
    assert error.args == ("mine",)
stepprof.profile_step(4).start()
stepprof.region("never left").__enter__()
sys.exit(0)
"""
        found = closed(noted(script))
        assert found.pushed == {"a": 1, "b": 1, "never left": 1}
        assert set(found.started) == {"step 2 actor", "step 4 step"}

    def test_a_tool_attached_late(self, noted):
        """stepprof imports nvtx only before the first selected window. A tool that is attached by then
        gets the ranges, also of earlier decorated functions.
        """
        script = """
@stepprof.region("decorated")
def decorated():
    pass

begin()
with stepprof.profile_step(0):
    decorated()
assert "nvtx" not in sys.modules
os.environ["NVTX_INJECTION64_PATH"] = os.environ["LIBRARY"]
for step in range(1, 3):
    with stepprof.profile_step(step):
        decorated()
stepprof.shutdown()
"""
        found = closed(noted(script, attached=False))
        assert found.pushed == {"decorated": 1}
        assert found.started == {"step 2 step": 1}

    def test_nsys_next_to_another_backend(self, noted, tmp_path):
        """Both backends get the begin and the end of each region. Only nsys gets ranges of windows and
        coroutines.
        """
        info = tmp_path / "marker-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: marker\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[stepprof.backends]\nmarker = marker:Marker\n[stepprof.backends.together]\nmarker = marker:Marker\n"
        )
        (tmp_path / "marker.py").write_text(MARKER)
        script = """
import marker
begin(backend=["nsys", "marker"])
entered, leave = threading.Event(), threading.Event()

def elsewhere():
    with stepprof.region("long"):
        entered.set()
        leave.wait(10)

@stepprof.region("coroutine")
async def coroutine():
    with stepprof.region("within"):
        await asyncio.sleep(0)

thread = threading.Thread(target=elsewhere)
with stepprof.profile_step(2):
    with stepprof.profile_step(2, role="actor"), stepprof.region("plain"):
        asyncio.run(coroutine())
    thread.start()
    entered.wait(10)
leave.set()
thread.join()
stepprof.shutdown()
assert sorted(marker.entered) == sorted(marker.left) == ["long", "plain"], (marker.entered, marker.left)
"""
        found = closed(noted(script))
        assert found.pushed == {"long": 1, "plain": 1}
        assert found.started == {"step 2 step": 1, "step 2 actor": 1, "coroutine": 1, "within": 1}

    def test_names_are_bounded(self, noted):
        """A tool keeps every name for ever, so regions beyond the limit share one name."""
        script = f"""
begin()
with stepprof.profile_step(2):
    for n in range({MAX_NAMES + 500}):
        with stepprof.region(f"sample {{n}}"):
            pass
stepprof.shutdown()
"""
        found = closed(noted(script))
        assert found.pushed[BEYOND] == 500
        assert sum(event["op"] == "string" for event in found.events) <= MAX_NAMES + 2

    def test_without_a_tool_no_range_is_made(self, noted):
        """Without a tool no range is made, no name is registered, and no object is made for a region."""
        script = """
session = begin()
with stepprof.profile_step(2):
    backend = session.local.capturer.capture.backend
    assert backend.mark("a") is None and backend.mark_lane("a") is None
    assert session.local.capturer.capture.marks == {}
stepprof.shutdown()
"""
        assert noted(script, attached=False) == []


class TestColours:
    def test_a_role_keeps_its_colour(self):
        """The colour depends on the role's name only, and is opaque. The whole step is grey."""
        assert (hex(colour("actor")), hex(colour(None))) == (ACTOR, "0xff7f7f7f")
        assert len({colour(role) for role in ("actor", "rollout", "ref", "critic", "reward")}) > 2

    def test_without_the_package_the_message_names_it(self, monkeypatch):
        """Without the package nvtx, the reason names the extra to install."""
        monkeypatch.setitem(__import__("sys").modules, "nvtx", None)
        assert 'the extra "nsys"' in (NvtxRanges().missing() or "")
        assert not NvtxRanges().look()
