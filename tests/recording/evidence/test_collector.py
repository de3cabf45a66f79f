"""The evidence of recorded windows in real jobs with planted faults. Each job runs in its own process."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest
from ran import Ran

from stepprof.instrument.span_recorder import Recorder
from stepprof.recording.evidence import collector
from stepprof.recording.evidence.stacks import Stretch
from stepprof.run.evidence import Evidence, read_evidence
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs
from stepprof.run.spans import EVIDENCE, read_spans

PRELUDE = """
import contextlib, gc, os, pickle, signal, sys, threading, time
import stepprof
from stepprof import profile_step, region

stepprof.init({"steps": "2", "backend": "null", "evidence": True})
"""

AWAKE = """
import re, threading, time
from pathlib import Path

def awake():
    \"""Return how many samplers wake within 0.3 s.\"""
    def switches():
        samplers = [each for each in threading.enumerate() if each.name == "stepprof-stacks"]
        status = {each: Path(f"/proc/self/task/{each.native_id}/status").read_text() for each in samplers}
        return {each: re.search(r"voluntary_ctxt_switches:.*", text)[0] for each, text in status.items()}
    before = switches()
    time.sleep(0.3)
    return sum(before.get(each) != count for each, count in switches().items())
"""


@pytest.fixture
def evidence(run_script, tmp_path):
    """Return a function that runs the lines of a job, and returns the evidence
    of step 2 of its only process.
    """

    def run(job: str, **more: object) -> Evidence:
        run_script(PRELUDE + job, **more).check()
        return read(tmp_path)

    return run


def read(folder) -> Evidence:
    findings: list = []
    [run] = list_runs(folder / "stepprof-runs")
    [found] = read_evidence(run, 2, findings=findings)
    assert findings == []
    return found


def seconds(items) -> float:
    return sum(each.end_unix_ns - each.start_unix_ns for each in items) / 1e9


class TestStacks:
    def test_a_sleep(self, evidence) -> None:
        """The stretch of a sleep has the call, the function, the file and the line, and little CPU time."""
        found = evidence("""
def prepare_batch():
    time.sleep(0.5)
with profile_step(2, role="actor"):
    prepare_batch()
""")
        asleep = [each for each in found.stretches if each.label == "time.sleep"]
        assert seconds(asleep) == pytest.approx(0.5, abs=0.2)
        assert {(each.step, each.role) for each in asleep} == {(2, "actor")}
        function, file, line, own = asleep[-1].frames[0]
        assert (function, line, own) == ("prepare_batch", 9, True)
        assert file.startswith("script_")
        assert [frame.function for frame in asleep[-1].frames] == ["prepare_batch", "<module>"]
        assert sum(each.cpu_seconds for each in asleep) < 0.25

    def test_a_call_that_holds_the_interpreter(self, evidence) -> None:
        """A call that holds the interpreter's lock cannot be sampled. Its stretch begins when the sample
        was due, and has the CPU time.
        """
        found = evidence("""
large = [list(range(100)) for _ in range(25_000)]
with profile_step(2):
    time.sleep(0.2)
    for _ in range(8):
        pickle.dumps(large)
""")
        pickling = [each for each in found.stretches if each.label == "pickle.dumps"]
        taken = max(each.end_unix_ns for each in found.captures) - min(
            each.start_unix_ns for each in pickling
        )
        assert seconds(pickling) == pytest.approx(taken / 1e9, rel=0.3)
        asleep = [each for each in found.stretches if each.label == "time.sleep"]
        assert sum(each.cpu_seconds for each in pickling) > sum(each.cpu_seconds for each in asleep)

    def test_a_lock(self, evidence) -> None:
        """A thread with a region is sampled, and its stretch names the lock for which it waits."""
        found = evidence("""
class Buffer:
    def __init__(self):
        self._lock = threading.Lock()
    def put(self):
        with self._lock:
            pass
buffer = Buffer()
def worker():
    with region("worker"):
        buffer.put()
with profile_step(2):
    with buffer._lock:
        thread = threading.Thread(target=worker)
        thread.start()
        time.sleep(0.5)
    thread.join()
""")
        main = found.captures[0].thread
        others = [each for each in found.stretches if each.thread != main]
        assert {each.label for each in others} == {"self._lock.__enter__"}
        assert others[0].frames[0].function in {"Buffer.put", "put"}
        assert {each.thread for each in found.threads} == {main, others[0].thread}
        assert seconds(others) == pytest.approx(0.5, abs=0.25)

    def test_a_library_that_calls_back(self, evidence) -> None:
        """A pickler in C calls `copyreg` and the job for each object: the call of the job's own frame is in every stretch."""
        found = evidence("""
import pickle
class Row:
    def __init__(self, number):
        self.number = number
    def __getstate__(self):
        return [self.number] * 3
rows = [Row(number) for number in range(1000)]
def send():
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pickle.dumps(rows)
with profile_step(2):
    send()
""")
        named = [
            each for each in found.stretches
            if "pickle.dumps" in (each.call, *(call.name for call in each.calls))
        ]  # fmt: skip
        assert seconds(named) == pytest.approx(0.5, abs=0.25)
        assert any(each.calls for each in named)

    def test_a_read_of_a_pipe(self, evidence) -> None:
        """The stretch of a thread that waits for a read names `os.read`."""
        found = evidence("""
reading, writing = os.pipe()
with profile_step(2):
    threading.Timer(0.4, os.write, (writing, b"x")).start()
    os.read(reading, 1)
""")
        assert seconds(each for each in found.stretches if each.label == "os.read") == pytest.approx(
            0.4, abs=0.2
        )

    def test_idle_threads_without_regions_are_not_sampled(self, evidence) -> None:
        """An idle thread without regions has no stretch; only the window's thread has one."""
        found = evidence("""
threading.Thread(target=threading.Event().wait, args=(0.3,), daemon=True).start()
with profile_step(2):
    time.sleep(0.2)
""")
        assert {each.thread for each in found.stretches} == {found.captures[0].thread}

    def test_a_pool(self, evidence) -> None:
        """The stretch of a pool's thread names the task while it runs, and has no stretch afterwards."""
        found = evidence("""
from concurrent.futures import ThreadPoolExecutor
def reward(sample):
    time.sleep(0.3)
with ThreadPoolExecutor(4) as pool, profile_step(2):
    pool.submit(reward, 1).result()
    time.sleep(0.3)
""")
        main = found.captures[0].thread
        tasks = [each for each in found.stretches if each.thread != main]
        assert {(each.task, each.pool, each.label) for each in tasks} == {("reward", True, "time.sleep")}
        assert seconds(tasks) == pytest.approx(0.3, abs=0.15)
        assert {each.task for each in found.stretches if each.thread == main} == {None}

    def test_calls_that_a_coroutine_awaits(self, evidence) -> None:
        """The calls of a coroutine are counted without a region in them."""
        found = evidence("""
import asyncio
async def judge(sample):
    await asyncio.sleep(0.25)
async def score():
    for sample in range(5):
        await judge(sample)
with profile_step(2):
    asyncio.run(score())
""")
        [awaited] = found.awaited
        assert (awaited.function, awaited.caller) == ("judge", "score")
        assert 2 <= awaited.calls <= 5
        assert awaited.longest_seconds < awaited.seconds <= seconds([awaited]) + 0.001

    def test_objects_of_a_busy_thread_are_freed_on_that_thread(self, evidence) -> None:
        """The sampler never destroys an object of a busy thread, or the thread object itself."""
        evidence("""
seen = set()
class Local:
    def __init__(self):
        self.ident = threading.get_ident()
    def __del__(self):
        seen.add(self.ident == threading.get_ident())
class Short(threading.Thread):
    def __del__(self):
        seen.add("stepprof" not in threading.current_thread().name)
def call():
    local = Local()
    sum(range(200))
def work():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        call()
gc.disable()
with profile_step(2):
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        threads = [Short(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
assert seen == {True}, seen
""")

    def test_a_frame_at_an_instruction_without_a_line(self) -> None:
        """Such a frame has no line (`f_lineno` is None): its function's first line stands for it."""
        code = collector._frame.__code__
        stretch = Stretch(1, 2, None, ((code, None, 0),), 0, 10, 0.0, 0.0, counted=False)
        span = collector._stack_span(stretch, lambda code, instruction: None)
        [[function, file, line, _]] = span[7]["frames"]
        assert (function, file, line) == ("_frame", "collector.py", code.co_firstlineno)

    def test_a_thread_that_ends(self, evidence) -> None:
        """The stretch of a thread ends with the thread, and a later thread has stretches of its own."""
        found = evidence("""
def short():
    with region("short"):
        time.sleep(0.15)
def other():
    time.sleep(0.3)
with profile_step(2):
    for target in (short, other):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
""")
        main = found.captures[0].thread
        others = [each for each in found.stretches if each.thread != main]
        short = [each for each in others if each.frames[0].function == "short"]
        assert seconds(short) == pytest.approx(0.15, abs=0.1)
        rest = [each for each in others if each.task and each.task.endswith("other")]
        assert not {each.thread for each in short} & {each.thread for each in rest}

    def test_stacks_start_with_the_window(self, evidence, tmp_path) -> None:
        """All evidence begins after the window's begin, even if the recorder is slow before it."""
        found = evidence("""
from stepprof.recording.evidence.collector import Evidence
begin = Evidence.begin
def slow(*arguments):
    begin(*arguments)
    time.sleep(0.3)
    gc.collect()
Evidence.begin = slow
with profile_step(2):
    time.sleep(0.2)
""")
        [run] = list_runs(tmp_path / "stepprof-runs")
        [window] = read_step(run, 2)["windows"]
        for each in (*found.stretches, *found.collections, *found.threads, *found.captures):
            # two anchors of one clock differ by some nanoseconds of rounding
            assert window["start_unix_ns"] - 1000 <= each.start_unix_ns <= each.end_unix_ns
        assert seconds(found.stretches) == pytest.approx(seconds(found.captures), abs=0.05)

    def test_the_time_of_the_recorder(self, evidence) -> None:
        """A wait in stepprof's own code is marked as `recorder`; a wait of the job in a region is not."""
        found = evidence("""
from stepprof.recording import session
enter = session.Session.enter
wait = threading.Event().wait
exec(compile("def slow(*arguments):\\n    wait(0.3)\\n    return enter(*arguments)", session.__file__, "exec"))
@region("load")
def load():
    wait(0.3)
with profile_step(2):
    session.Session.enter = slow
    with profile_step(2, role="actor"):
        load()
""")
        waits = [each for each in found.stretches if "acquire" in each.label or each.label == "wait"]
        mine = seconds(each for each in waits if each.recorder)
        assert (mine, seconds(waits) - mine) == (pytest.approx(0.3, abs=0.15), pytest.approx(0.3, abs=0.15))

    def test_the_roles_of_a_step(self, evidence) -> None:
        """A stretch has the role of the innermost open window."""
        found = evidence("""
with profile_step(2):
    for role in ("rollout", "actor"):
        with profile_step(2, role=role):
            time.sleep(0.3)
""")
        asleep = {
            role: seconds(each for each in found.stretches if each.role == role)
            for role in ("rollout", "actor")
        }
        assert asleep == {"rollout": pytest.approx(0.3, abs=0.15), "actor": pytest.approx(0.3, abs=0.15)}

    def test_objects_of_the_job_are_freed_on_their_own_thread(self, evidence, tmp_path) -> None:
        """The sampler never destroys a local variable of the job, because it holds no
        frame while another thread runs.
        """
        evidence("""
seen = set()
class Local:
    def __del__(self):
        seen.add(threading.get_ident())
def call():
    local = Local()
    sum(range(200))
gc.disable()
with profile_step(2):
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        call()
assert seen == {threading.get_ident()}, seen
""")


class TestGarbage:
    def test_a_large_cycle(self, evidence) -> None:
        """A long collection has its own entry, with the number of freed objects and the thread."""
        found = evidence("""
class Node: pass
gc.disable()
nodes = [Node() for _ in range(300_000)]
for one, other in zip(nodes, nodes[1:] + nodes[:1]):
    one.next = other
with profile_step(2, role="actor"):
    del nodes, one, other
    began = time.perf_counter()
    gc.collect()
    print(time.perf_counter() - began)
""")
        [pause] = [each for each in found.collections if each.collected >= 300_000]
        assert (pause.generation, pause.count, pause.step, pause.role) == (2, 1, 2, "actor")
        assert pause.seconds == pytest.approx((pause.end_unix_ns - pause.start_unix_ns) / 1e9)
        assert pause.thread == found.captures[0].thread
        during = [
            each for each in found.stretches if each.start_unix_ns <= pause.end_unix_ns <= each.end_unix_ns
        ]
        assert "gc.collect" in {each.label for each in during} | {each.call for each in found.stretches}

    def test_many_short_collections_are_merged(self, evidence) -> None:
        """Short collections are merged, and their number and seconds are kept."""
        found = evidence("""
gc.set_threshold(50, 1000, 1000)
def made():
    one = []
    one.append(one)
with profile_step(2):
    for _ in range(50_000):
        made()
""")
        assert sum(each.count for each in found.collections) >= 300
        assert len(found.collections) < 300
        assert sum(each.seconds for each in found.collections) <= seconds(found.collections) + 1e-6

    def test_the_sampler_sleeps_after_the_window(self, evidence) -> None:
        """The sampler and the callback of the garbage collector exist only for a recorded window. After it
        the sampler does not wake, and it ends with the session.
        """
        evidence(
            AWAKE
            + """
def samplers():
    return [thread.name for thread in threading.enumerate()].count("stepprof-stacks")
before = list(gc.callbacks)
with profile_step(1):
    assert (gc.callbacks, samplers()) == (before, 0)
with profile_step(2):
    assert (len(gc.callbacks), samplers()) == (len(before) + 1, 1)
    assert awake() == 1
assert gc.callbacks == before
for _ in range(10):
    if not awake():
        break
else:
    sys.exit("the sampler goes on")
stepprof.shutdown()
assert samplers() == 0
"""
        )

    def test_two_windows_have_one_thread(self, run_script, tmp_path) -> None:
        """The second recorded window uses the sampler thread of the first one."""
        run_script(
            PRELUDE.replace('"2"', '"2,4"')
            + """
def samplers():
    return [thread.native_id for thread in threading.enumerate() if thread.name == "stepprof-stacks"]
seen = []
for step in (1, 2, 3, 4):
    with profile_step(step):
        time.sleep(0.3)
        seen.append(samplers())
assert seen[0] == [] and len(seen[1]) == 1 and seen[1:] == [seen[1]] * 3, seen
"""
        ).check()
        [run] = list_runs(tmp_path / "stepprof-runs")
        for step in (2, 4):
            [found] = read_evidence(run, step)
            asleep = [each for each in found.stretches if each.label == "time.sleep"]
            assert seconds(asleep) == pytest.approx(0.3, abs=0.2)


class TestRegions:
    def test_the_cpu_time_of_a_region(self, evidence) -> None:
        """A region that computes for 0.3 s has 0.3 s of CPU time, and a region that sleeps has none."""
        found = evidence("""
with profile_step(2):
    with region("busy"):
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
    with region("asleep"):
        time.sleep(0.3)
""")
        used = {each.name: each.cpu_seconds for each in found.regions}
        assert used == {"busy": pytest.approx(0.3, abs=0.05), "asleep": pytest.approx(0.0, abs=0.05)}
        assert all(0 <= each.cpu_seconds <= seconds([each]) for each in found.regions)

    def test_cpu_times_are_kept_only_in_recorded_windows(self, run_script, tmp_path) -> None:
        """Regions have CPU time in recorded windows only. Coroutines, generators and regions that end on
        another thread have none.
        """
        run_script(
            PRELUDE
            + """
import asyncio
@region("decorated")
def decorated(): pass
@region("coroutine")
async def coroutine(): await asyncio.sleep(0)
@region("generator")
def generator(): yield
for step in (1, 2, 3):
    with profile_step(step):
        with region("block"): pass
        decorated()
        asyncio.run(coroutine())
        list(generator())
        moved = region("moved")
        moved.__enter__()
        thread = threading.Thread(target=moved.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
"""
        ).check()
        [run] = list_runs(tmp_path / "stepprof-runs")
        with_cpu = {(span["step"], span["name"]) for span in read_spans(run) if "cpu" in span}
        assert with_cpu == {(2, "block"), (2, "decorated")}


class TestThreadsAndProcess:
    def test_the_use_of_the_thread(self, evidence) -> None:
        """The CPU time of the window's thread is 0.3 s; together with the run-queue delay it
        is not longer than the window.
        """
        found = evidence("""
with profile_step(2):
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
""")
        [use] = found.threads
        [capture] = found.captures
        assert use.thread == capture.thread
        assert use.cpu_seconds == pytest.approx(0.3, abs=0.1)
        assert use.cpu_seconds + use.run_queue_seconds <= seconds([use]) + 0.05
        assert use.samples >= 3
        assert use.dropped == 0
        assert sum(each.cpu_seconds for each in found.stretches) == pytest.approx(use.cpu_seconds, abs=0.05)

    def test_bytes_of_storage(self, evidence, tmp_path) -> None:
        """Bytes that the job writes to storage are counted."""
        found = evidence("""
with profile_step(2):
    with open("large", "wb") as file:
        file.write(os.urandom(8 << 20))
        file.flush()
        os.fsync(file.fileno())
""")
        [capture] = found.captures
        assert capture.read_bytes is not None
        assert capture.write_bytes >= 8 << 20


class TestEnds:
    def test_an_exception(self, evidence) -> None:
        """If the body raises an exception, the evidence lasts until then."""
        found = evidence("""
with contextlib.suppress(ValueError), profile_step(2):
    time.sleep(0.3)
    raise ValueError
time.sleep(0.2)
""")
        assert seconds(each for each in found.stretches) == pytest.approx(seconds(found.captures), abs=0.05)
        assert seconds(found.captures) < 0.5

    def test_sigterm(self, run_script, tmp_path) -> None:
        """If SIGTERM kills the job in a window, the evidence until the signal is kept."""
        ran: Ran = run_script(
            PRELUDE
            + """
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage has a handler of its own
with profile_step(2):
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGTERM)).start()
    time.sleep(30)
"""
        )
        assert ran.returncode == -signal.SIGTERM
        found = read(tmp_path)
        assert "time.sleep" in {each.label for each in found.stretches}
        assert seconds(found.captures) < 20

    def test_the_end_of_the_script(self, evidence) -> None:
        """If the script ends in an open window, the evidence is kept."""
        found = evidence("""
profile_step(2).start()
time.sleep(0.3)
""")
        assert seconds(each for each in found.stretches if each.label == "time.sleep") > 0.2

    def test_a_fork(self, evidence) -> None:
        """A forked child has no callback of the garbage collector and fewer open files. The
        parent's evidence continues.
        """
        found = evidence("""
before = len(gc.callbacks)
with profile_step(2):
    time.sleep(0.1)
    open_files = os.listdir("/proc/self/fd")
    child = os.fork()
    if not child:
        for _ in range(3):
            gc.collect()
        fine = len(gc.callbacks) == before and len(os.listdir("/proc/self/fd")) < len(open_files)
        os._exit(0 if fine else 1)
    time.sleep(0.2)
assert os.waitpid(child, 0)[1] == 0
""")
        assert len(found.captures) == 1
        assert seconds(each for each in found.stretches if each.label == "time.sleep") > 0.2

    def test_no_thread_can_be_started(self, run_script, tmp_path) -> None:
        """If the sampler cannot start, the window is complete without evidence,
        and the log gives the reason.
        """
        ran = run_script(
            PRELUDE
            + """
import logging
logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(message)s")
import resource
threads = len(os.listdir("/proc/self/task"))
class Thread(threading.Thread):
    def start(self):
        if self.name == "stepprof-stacks":
            raise RuntimeError("can't start new thread")
        super().start()
threading.Thread = Thread
with profile_step(2):
    with region("a"): pass
assert not gc.callbacks
"""
        ).check()
        assert "can't start new thread" in ran.stderr
        [run] = list_runs(tmp_path / "stepprof-runs")
        assert read_evidence(run, 2) == []
        manifest = next((run / "step-000002" / "manifest").glob("*.json"))
        assert json.loads(manifest.read_text())["windows"][0]["status"] == "complete"

    def test_a_thread_whose_first_sample_came_after_the_end(self) -> None:
        """If the sampler sees a thread only after the window's end, that thread has no line, because its
        duration would be negative.
        """
        lines: list = []
        recorder = Recorder()
        collecting = collector.Evidence(recorder, lambda work: work(), lines.extend)
        start_ns = time.perf_counter_ns()
        collecting.begin(start_ns, 2, "actor")
        end_ns = time.perf_counter_ns()
        noted, over = threading.Event(), threading.Event()

        def join() -> None:
            collecting.note_thread()
            noted.set()
            over.wait(30)

        thread = threading.Thread(target=join)
        thread.start()
        assert noted.wait(30)
        time.sleep(0.2)
        collecting.end(start_ns, end_ns)
        over.set()
        thread.join(30)
        used = [(name, number) for name, kind, start, end, number, *_ in lines if kind == "usage"]
        assert used == [("thread", recorder.thread.id), ("process", recorder.thread.id)]
        assert all(start <= end for _, _, start, end, *_ in lines)


class TestOff:
    @pytest.mark.parametrize("config", [{"evidence": False}, {"spans": False}])
    def test_nothing_is_collected(self, run_script, tmp_path, config) -> None:
        """If evidence or spans are switched off, there is no callback, no sampler, no line
        of evidence and no CPU time.
        """
        run_script(f"""
import gc, threading, stepprof
stepprof.init({{"steps": "2", "backend": "null", "evidence": True, **{config!r}}})
with stepprof.profile_step(2), stepprof.region("a"):
    assert not gc.callbacks
    assert "stepprof-stacks" not in [thread.name for thread in threading.enumerate()]
""").check()
        [run] = list_runs(tmp_path / "stepprof-runs")
        assert read_evidence(run, 2) == []
        spans = read_spans(run, evidence=True)
        assert not [span for span in spans if "cpu" in span or span["kind"] in EVIDENCE]


class TestOneAtMost:
    def test_a_window_that_is_left_open_samples_until_the_next_one(self, run_script) -> None:
        """If a second window begins while the first is open, one sampler and one callback
        serve it, and both end with it.
        """
        done = run_script(
            AWAKE
            + """
import gc
from stepprof.recording.evidence.collector import Evidence
import stepprof

session = stepprof.init({"steps": "2", "backend": "null", "evidence": True})
evidence = session.local.capturer.evidence
first, second = (Evidence(session.recorder, evidence._post, evidence._write) for _ in range(2))
first.begin(time.perf_counter_ns(), 2, None)
second.begin(time.perf_counter_ns(), 2, None)
time.sleep(0.3)
print(awake(), len(gc.callbacks))
first.end(None, time.perf_counter_ns())
second.end(None, time.perf_counter_ns())
time.sleep(0.3)
print(awake(), len(gc.callbacks))
"""
        )
        assert done.check().stdout.split() == ["1", "1", "0", "0"]
