"""Regions in the traces of the real torch.profiler: on the stack of their thread if they nest, otherwise as
separate intervals.
"""

from __future__ import annotations

import gzip
import json

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

BEGIN = """
    import asyncio, contextlib, gc, threading, time
    import torch
    import stepprof
    from stepprof import bind, counter, mark, profile_step, region

    session = stepprof.init(
        {"output_dir": "runs", "steps": "2, 3", "min_free_memory": "none", "export": "inline"},
        rank=0, world_size=1, run_id="run",
    )
"""

END = """
    stepprof.shutdown()
    assert stepprof.state().recorded_steps == (2, 3), stepprof.state().last_error
"""

MIXED = """
    @region("coroutine", tool="search")
    async def coroutine(number):
        with bind(sample=number):
            await asyncio.sleep(0.001 * (number % 3))
            compute()
            with region("block in a coroutine"):
                await asyncio.sleep(0.001)

    @region("generator")
    def generator():
        for _ in range(3):
            compute()
            yield

    @contextlib.contextmanager
    def managed():
        with region("managed"):
            yield

    @region("compute")
    def compute():
        with region("inner", batch=4, loss=torch.ones(1)):
            return torch.ones(64).add_(1).sum()

    def thread():
        with region("in a thread"):
            for _ in range(20):
                compute()

    async def rollout():
        await asyncio.gather(*(coroutine(number) for number in range(10)))

    def step():
        with managed():
            compute()
        first, second = generator(), generator()
        for _ in zip(first, second):
            compute()
        other = threading.Thread(target=thread)
        other.start()
        asyncio.run(rollout())
        other.join()
        mark("weights_synced", version=3)
        counter("queue_length", 17)
        failing = region("failing")
        with contextlib.suppress(ValueError), failing:
            raise ValueError

    for number in (1, 2, 3, 4):
        with profile_step(number), profile_step(number, role="actor"):
            step()
"""

OPEN_AT_THE_END = """
    def hold(many, inside, go_on):
        with contextlib.ExitStack() as stack:
            for number in range(many):
                stack.enter_context(region(f"held {number}"))
            inside.set()
            go_on.wait(20)

    inside, go_on = threading.Event(), threading.Event()
    worker = threading.Thread(target=hold, args=(500, inside, go_on))
    with profile_step(2):
        worker.start()
        inside.wait(20)
        torch.ones(100).add_(1)
    gc.collect()
    junk = [bytearray(1000 * (k % 50)) for k in range(3000)]
    with profile_step(3):
        go_on.set()
        worker.join()
        around = region("around the end").__enter__()
        torch.ones(100).add_(1)
    gc.collect()
    junk = [bytearray(1000 * (k % 50)) for k in range(3000)]
    around.__exit__(None, None, None)
    del around
"""


def trace(tmp_path, step=2):
    [path] = (tmp_path / "runs" / "run" / f"step-{step:06d}").glob("*/rank-0.trace.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def identity(event) -> str:
    """Return the key that connects the end of an interval to its begin."""
    return json.dumps(event.get("id", event.get("id2")))


def assert_stacks_nest(events) -> int:
    """Check that the complete events of each thread are nested or disjoint; return how many were checked."""
    lanes: dict = {}
    for event in events:
        if event.get("ph") == "X" and event.get("dur") is not None and isinstance(event["tid"], int):
            lanes.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], -event["dur"], event["name"])
            )
    for lane in lanes.values():
        stack: list = []
        for begin, negative, name in sorted(lane):
            end = begin - negative
            while stack and stack[-1][0] <= begin + 0.001:
                stack.pop()
            assert not stack or end <= stack[-1][0] + 0.002, (name, stack[-1])
            stack.append((end, name))
    return sum(map(len, lanes.values()))


class TestTraces:
    def test_only_synchronous_regions_are_on_the_stack(self, warm, tmp_path) -> None:
        """Synchronous regions are annotations of their thread. Coroutines and generators are separate
        intervals with their real length, and no stack is broken.
        """
        warm.run(BEGIN + MIXED + END, timeout=110).check()
        events = trace(tmp_path)
        assert assert_stacks_nest(events) > 100
        ranges: dict = {}
        for event in events:
            if event.get("cat") == "user_annotation":
                ranges.setdefault(event["name"], []).append(event)
        assert {"managed", "compute", "inner", "in a thread", "failing"} <= set(ranges)
        assert not {"coroutine", "generator", "block in a coroutine"} & set(ranges)
        begins: dict = {}
        ends = {identity(event): event for event in events if event.get("ph") == "e"}
        for event in events:
            if event.get("ph") == "b":
                begins.setdefault(event["name"], []).append(event)
        assert len(begins["coroutine"]) == len(begins["block in a coroutine"]) == 10
        assert len(begins["generator"]) == 2
        for event in begins["block in a coroutine"]:
            assert ends[identity(event)]["ts"] - event["ts"] >= 900
        coroutines = {event["args"]["sample"]: event["args"] for event in begins["block in a coroutine"]}
        assert set(coroutines) == set(range(10))
        assert all((args["step"], args["role"]) == (2, "actor") for args in coroutines.values())
        assert {event["args"]["tool"] for event in begins["coroutine"]} == {"search"}
        inner = begins["inner"][0]["args"]
        assert (inner["batch"], inner["loss"]) == (4, "<Tensor>")
        assert {event["name"] for event in begins["step"] + begins["actor"]} == {"step", "actor"}
        [synced] = [event for event in events if event["name"] == "weights_synced"]
        assert (synced["ph"], synced["args"]["version"]) == ("i", 3)
        [queue] = [event for event in events if event["name"] == "queue_length"]
        assert (queue["ph"], queue["args"]) == ("C", {"value": 17})

    def test_regions_that_outlive_their_capture(self, warm, tmp_path) -> None:
        """Regions of another thread end in the next capture, and one region ends after the last capture.
        Both traces are valid, and the process does not crash.
        """
        warm.run(BEGIN + OPEN_AT_THE_END + END, timeout=110).check()
        for step, name in ((2, "held 0"), (3, "around the end")):
            events = trace(tmp_path, step)
            assert_stacks_nest(events)
            found = [event for event in events if event["name"] == name]
            assert len(found) == 1
            assert found[0]["cat"] == "user_annotation"
