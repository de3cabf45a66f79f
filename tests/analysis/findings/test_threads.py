"""Waits of the window's thread while other threads work: what the findings say, and what stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digested import MS, T0, source

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Origin
from stepprof.run.evidence import CaptureUse, Evidence, Frame, StackStretch

MAIN = 7
RESULT = (Frame("Condition.wait", "threading.py", 327), Frame("Future.result", "_base.py", 451))
JOIN = (Frame("Thread._wait_for_tstate_lock", "threading.py", 1132),)
POLL = (
    Frame("EpollSelector.select", "selectors.py", 468),
    Frame("BaseEventLoop._run_once", "base_events.py", 1),
)
SEMAPHORE = (Frame("Condition.wait", "threading.py", 327), Frame("Semaphore.acquire", "threading.py", 500))
USER = (Frame("reward", "train.py", 5),)


def stretch(start, end, call, *, thread=MAIN, frames=USER, task=None, pool=True, cpu=0.0):
    times = T0 + start * MS, T0 + end * MS
    return StackStretch(
        thread, 2, None, *times, 3, frames, call, cpu, 0.0, False, task, pool and task is not None
    )


def causes(*stretches, regions=()):
    """Return (topic, text, why) of each finding with a place, in a step that is in `score` from 100
    to 900 ms.
    """
    capture = CaptureUse(MAIN, 2, None, T0, T0 + 1000 * MS, None, None, 0)
    made = combine(
        [
            digest(
                source(
                    Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100),
                    ("thread", "window", "step", 0, 1000, None),
                    ("thread", "region", "score", 100, 800, None),
                    *regions,
                )
            )
        ],
        step=2,
        run_id="r",
        evidence=[Evidence(0, "h", 100, stretches=stretches, captures=(capture,))],
    )
    return [(each.topic, each.text, each.why) for each in made.findings if each.start is not None]


def wait(frames=RESULT):
    return stretch(100, 900, "waiter.acquire", frames=frames)


class TestOtherThreads:
    def test_one_thread_of_a_pool(self) -> None:
        tasks = [stretch(at, at + 400, "time.sleep", thread=8, task="reward") for at in (100, 500)]
        [(topic, text, why)] = causes(wait(), *tasks)
        assert topic == "threads"
        assert text == "rank 0 waited 800 ms in `score` while one pool thread ran `reward` (time.sleep)"
        assert (
            why
            == "1.0 other threads were busy on average, 100% of their time in time.sleep; it waited in waiter.acquire in Condition.wait (threading.py:327)"
        )

    @pytest.mark.parametrize(("call", "topic"), [("time.sleep", "threads"), ("lock.acquire", "lock")])
    def test_the_line_of_the_job_that_waits(self, call, topic) -> None:
        """The reason names the line of the job's own code in which the thread of the window waits."""
        own = replace(wait(JOIN), caller=Frame("main", "train.py", 37, own=True))
        task = stretch(100, 900, call, thread=8, task="fill", pool=False)
        [(found, _, why)] = causes(own, task)
        assert found == topic
        assert why.endswith("; it waited in waiter.acquire in main (train.py:37)"), why

    @pytest.mark.parametrize("frames", [RESULT, JOIN, POLL])
    def test_several_busy_threads_are_one_finding(self, frames) -> None:
        tasks = [stretch(100, 900, "socket.recv", thread=8 + number, task="ask") for number in range(3)]
        [(topic, text, _)] = causes(wait(frames), *tasks)
        assert topic == "threads"
        assert text == "rank 0 waited 800 ms in `score` while 3 pool threads ran `ask` (socket.recv)"

    @pytest.mark.parametrize(("frames", "topic"), [(RESULT, "sleep"), (JOIN, "threads")])
    def test_a_thread_of_no_pool(self, frames, topic) -> None:
        """A thread outside any pool explains a `join`, but not a wait for the result of a pool."""
        task = stretch(100, 900, "time.sleep", thread=8, task="beat", pool=False)
        [(found, text, why)] = causes(wait(frames), task)
        assert found == topic
        assert ("one other thread ran `beat`" in text) == (topic == "threads")
        assert "meanwhile" not in why

    def test_a_thread_that_computes_alone(self) -> None:
        """The window's thread computes and does not wait, so the work of another thread is no finding."""
        assert causes(stretch(100, 900, None), stretch(100, 900, "f", thread=8, task="reward")) == []

    def test_waits_for_unknown_threads_are_not_attributed(self) -> None:
        [(topic, text, _)] = causes(
            wait(), stretch(100, 900, "waiter.acquire", thread=8, frames=RESULT, task="reward")
        )
        assert (topic, text) == (
            "sleep",
            "rank 0 waited 800 ms for another thread or process, a coroutine or a timeout, in `score`",
        )

    @pytest.mark.parametrize(
        ("call", "frames", "label"),
        [("lock.__enter__", USER, "lock.__enter__"), ("waiter.acquire", SEMAPHORE, "Semaphore.acquire")],
    )
    def test_waits_for_a_lock_are_found(self, call, frames, label) -> None:
        """Four threads waited for the lock and one worked. The finding is the lock."""
        held = [
            stretch(100, 900, call, thread=8 + number, frames=frames, task="encode") for number in range(4)
        ]
        working = [stretch(100, 900, "time.sleep", thread=20, task="encode")]
        [(topic, text, why)] = causes(wait(), *held, *working)
        assert topic == "lock"
        assert text == f"rank 0 waited 800 ms in `score` while 4 pool threads waited in {label}, in `encode`"
        assert (
            why
            == "of the sampled threads 4.0 waited there and 1.0 worked, on average; it waited in waiter.acquire in Condition.wait (threading.py:327)"
        )

    def test_more_worked_than_waited_for_a_lock(self) -> None:
        held = stretch(100, 900, "lock.acquire", thread=8, task="encode")
        working = [stretch(100, 900, "f", thread=20 + number, task="encode", cpu=0.8) for number in range(3)]
        assert [topic for topic, *_ in causes(wait(), held, *working)] == ["threads"]

    def test_threads_with_regions(self) -> None:
        """The regions of another thread name what it did. If a pool thread waits for a lock, the
        finding is the lock.
        """
        other = (("thread", "other"), "region", "call", 100, 800, None)
        task = stretch(100, 900, "time.sleep", thread=8, task="call")
        text = "rank 0 waited 800 ms in `score` while another thread was in `call`"
        why = "its stacks show that it waited for another thread; it waited in waiter.acquire in Condition.wait (threading.py:327)"
        assert causes(wait(), task, regions=[other]) == [("threads", text, why)]
        inner = (("thread", "other"), "region", "parse", 101, 798, None)
        [(_, text, _)] = causes(wait(), regions=[other, inner])
        assert text.endswith("while another thread was in `parse`")
        more = [(("thread", str(number)), "region", "call", 100, 800, None) for number in range(2)]
        assert causes(wait(), regions=more) == []
        short = (("thread", "other"), "region", "parse", 101, 300, None)
        [(_, text, _)] = causes(wait(), regions=[other, short])
        assert text.endswith("while another thread was in `call`")
        held = [stretch(100, 900, "waiter.acquire", thread=9, frames=SEMAPHORE, task="call")]
        assert [topic for topic, *_ in causes(wait(), task, *held, regions=[other])] == ["lock"]

    @pytest.mark.parametrize(("call", "kind"), [("lock.acquire", "lock"), ("time.sleep", "sleep")])
    def test_the_thread_waits_itself(self, call, kind) -> None:
        """If the thread itself sleeps or waits for a lock, the reason adds what another thread did
        meanwhile.
        """
        mine = stretch(100, 900, call)
        task = stretch(100, 900, "time.sleep", thread=8, task="write_metrics", pool=False)
        [(topic, _, why)] = causes(mine, task)
        assert topic == kind
        assert why == (
            f"its stacks show {call} in reward (train.py:5);"
            " meanwhile one other thread ran `write_metrics` (time.sleep)"
        )
        [(topic, _, why)] = causes(mine)
        assert why == f"its stacks show {call} in reward (train.py:5)"
