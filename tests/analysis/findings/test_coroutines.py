"""Findings about coroutines that a thread waits for: the last of many, and many that run one after
another. Times are in milliseconds.
"""

from __future__ import annotations

import numpy as np
import pytest
from digested import MS, T0, source

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Origin
from stepprof.run.evidence import AwaitedCalls, CaptureUse, Evidence, Frame, HeldTasks, StackStretch


def found(*calls, call="self._selector.poll", held=(), awaited=()):
    """Return the tail and serial findings of a step of 1 s whose thread runs an event loop. Calls
    are (name, start, length, coroutine).
    """
    made = source(
        Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100),
        ("thread", "window", "rollout", 0, 1000, "rollout"),
        *((("async", "tasks"), "region", name, start, length, "rollout") for name, start, length, _ in calls),
    )
    made.slices.task = np.array([-1, *(task for *_, task in calls)], np.int32)
    at = (7, 2, "rollout")
    stack = StackStretch(*at, T0, T0 + 1000 * MS, 40, (Frame("select", "selectors.py", 1),), call, None, None)
    evidence = Evidence(0, "h", 100, stretches=(stack,), held=held, awaited=awaited, captures=(CaptureUse(*at, T0, T0 + 1000 * MS, None, None, 0),))  # fmt: skip
    report = combine([digest(made)], step=2, run_id="r", evidence=[evidence])
    return [each for each in report.findings if each.topic in ("tail", "serial")]


def test_the_last_of_many():
    """One of eight samples lasts 600 ms longer than the others. The call inside it is not a sample."""
    calls = [("sample", 0, 300, number) for number in range(7)]
    (tail,) = found(*calls, ("sample", 0, 900, 7), ("generate", 10, 880, 7))
    assert (tail.topic, tail.region, tail.process) == ("tail", "sample", "rollout rank 0")
    assert (round(tail.seconds, 3), round(tail.saves, 3)) == (0.6, 0.6)
    assert (
        tail.text
        == "rollout rank 0 waited 600 ms for the last of 8 concurrent calls of `sample` (in role rollout)"
    )
    assert tail.why == "the longest call took 900 ms, the median 300 ms"


def test_calls_that_follow_each_other_do_not_overlap():
    """A semaphore admits eight coroutines of 100 ms one at a time."""
    (serial,) = found(*(("tool", 100 * number, 100, number) for number in range(8)))
    assert (serial.topic, serial.region) == ("serial", "tool")
    assert (round(serial.seconds, 3), round(serial.saves, 3)) == (0.8, 0.7)
    assert "in 8 coroutines" in serial.why


@pytest.mark.parametrize(
    "calls",
    [
        [("sample", 0, 300 + 10 * number, number) for number in range(8)],
        [("sample", 0, 300, 0), ("sample", 0, 300, 1), ("sample", 0, 900, 2)],
        [("tool", 100 * number, 110, number) for number in range(8)],
    ],
    ids=["as long as the others", "few", "two at the same time"],
)
def test_concurrent_calls_without_a_finding(calls):
    assert found(*calls) == []


def test_a_thread_that_works_does_not_wait():
    """The thread computes while the last sample is open. This work may belong to the sample, so
    there is no finding.
    """
    calls = [("sample", 0, 300, number) for number in range(7)]
    assert found(*calls, ("sample", 0, 900, 7), call="torch.mm") == []


def held(*samples):
    """Return (topic, milliseconds, text, reason) of the findings of 16 concurrent calls. Samples
    are (start, end, waiting, passed, others).
    """
    lines = tuple(HeldTasks(7, 2, "rollout", T0 + start * MS, T0 + end * MS, "call", *rest) for start, end, *rest in samples)  # fmt: skip
    calls = [("tool", 0, 50 * (number + 1), number) for number in range(16)]
    return [
        (each.topic, round(1e3 * each.seconds), each.text, each.why) for each in found(*calls, held=lines)
    ]


def test_a_semaphore_inside_of_the_region():
    """At most one coroutine at a time was past the semaphore, so the calls were serial."""
    ((topic, length, text, why),) = held((0, 400, 12, 1, 1), (400, 750, 4, 0, 1))
    assert (topic, length) == ("serial", 750)
    assert text == (
        "rollout rank 0 waited 750 ms in `tool` (in role rollout) while a lock or semaphore in `call`"
        " let through at most one coroutine at a time"
    )
    assert why == "8.3 coroutines waited for it on average, and at most one was past it"


@pytest.mark.parametrize(
    "sample", [(0, 750, 13, 2, 1), (0, 750, 2, 1, 14)], ids=["two have passed", "most do something else"]
)
def test_a_semaphore_that_does_not_make_them_serial(sample):
    assert held(sample) == []


def awaited(calls=8, start=100, end=900, busy=0.8, **more):
    """Return the findings of a region of 900 ms whose coroutine awaited calls without regions."""
    line = AwaitedCalls(
        7, 2, "rollout", T0 + start * MS, T0 + end * MS, "judge", "score_all", calls, busy, 0.15
    )
    return found(("score", 50, 900, 0), awaited=(line,), **more)


class TestAwaitedCalls:
    def test_calls_without_a_region(self):
        """Calls in a region of their coroutine are found by their coroutines."""
        (serial,) = awaited()
        assert (serial.topic, serial.region, round(serial.seconds, 3)) == ("serial", "score", 0.8)
        assert round(serial.saves, 3) == 0.65
        assert (
            serial.text
            == "rollout rank 0 awaited at least 8 calls of `judge` in `score` (in role rollout) one after the other: 800 ms"
        )
        assert serial.why == "`score_all` awaited them; the longest took 150 ms"

    def test_calls_with_a_region_are_counted_by_it(self):
        """A region states the number of calls: there is no second finding."""
        line = AwaitedCalls(7, 2, "rollout", T0, T0 + 800 * MS, "judge", "score_all", 8, 0.8, 0.1)
        calls = [("rewards", 0, 800, 0), *(("ask", 100 * at, 100, 0) for at in range(8))]
        texts = [each.text for each in found(*calls, awaited=(line,))]
        assert len(texts) == 1
        assert "made 8 calls of `ask`" in texts[0]

    @pytest.mark.parametrize(
        "more",
        [{"calls": 3}, {"busy": 0.4}, {"call": "torch.mm"}],
        ids=["few", "mostly other work", "computes"],
    )
    def test_calls_that_are_no_finding(self, more):
        """Few calls, calls in a coroutine that mostly does something else, and computation are left out."""
        assert awaited(**more) == []


def on_the_path(*calls):
    """Return (region, milliseconds) of the path of a step of 1 s whose thread runs an event loop. Calls are as above."""
    made = source(
        Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100),
        ("thread", "window", "step", 0, 1000, None),
        *((("async", "tasks"), "region", name, start, length, None) for name, start, length, _ in calls),
    )
    made.slices.task = np.array([-1, *(task for *_, task in calls)], np.int32)
    report = combine([digest(made)], step=2, run_id="r")
    return [("/".join(each.region or ()), round(1e3 * each.seconds)) for each in report.path]


class TestRegionsOfAwaitedCoroutines:
    """Regions of coroutines that the thread awaits one after the other are regions of the thread."""

    def test_calls_inside_a_region_of_their_coroutine(self):
        """The calls are found, although they are inside another region of their coroutine."""
        calls = [("rewards", 0, 800, 0), *(("ask", 100 * at, 100, 0) for at in range(8))]
        assert on_the_path(*calls) == [("rewards/ask", 800), ("", 200)]
        (serial,) = found(*calls)
        assert (serial.topic, serial.region, round(serial.saves, 3)) == ("serial", "ask", 0.7)
        assert "made 8 calls of `ask` (in `rewards`, role rollout) one after the other" in serial.text

    def test_coroutines_one_after_the_other(self):
        """Each call has a coroutine of its own, and the region around them awaits it."""
        calls = [("rewards", 0, 400, 0), *(("ask", 100 * at, 100, 1 + at) for at in range(4))]
        assert on_the_path(*calls) == [("rewards/ask", 400), ("", 600)]

    def test_concurrent_coroutines(self):
        """Calls at the same time are no region of the thread; the region around all of them is."""
        calls = [("rewards", 0, 500, 0), *(("ask", at, 400 - at, 1 + at) for at in range(4))]
        assert on_the_path(*calls) == [("rewards", 500), ("", 500)]
        crossing = [("tool", 0, 300, 0), ("sample", 200, 300, 1)]
        assert on_the_path(*crossing) == [("", 1000)]

    def test_many_concurrent_coroutines(self):
        """The thread does not follow any of hundreds of calls that begin and end at different times."""
        calls = [("ask", at, 400, at) for at in range(300)]
        assert on_the_path(*calls) == [("", 1000)]
