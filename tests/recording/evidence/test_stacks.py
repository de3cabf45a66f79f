"""The cost of a sample in Python instructions, because its time varies on a busy machine."""

from __future__ import annotations

import threading
import time

import pytest
from counting import instructions_of

from stepprof.recording.evidence.sampler_thread import SamplerThread
from stepprof.recording.evidence.stacks import MOST_BUSY, MOST_TOTALS, StackSampler


class TestPrice:
    @staticmethod
    def instructions() -> int:
        """Return how many bytecode instructions a sample takes."""
        sampler = StackSampler(
            {threading.get_ident(): threading.get_native_id()}, lambda: (2, None), SamplerThread()
        )
        sampler._sample()
        counted = instructions_of(sampler._sample)
        for total in sampler.totals.values():
            total.times.close()
        return counted

    def test_idle_threads(self, threads) -> None:
        """A sample executes as many instructions with 200 idle threads as with 4."""
        threads.idle(4)
        time.sleep(0.2)
        few = self.instructions()
        threads.idle(196)
        time.sleep(0.2)
        assert self.instructions() == pytest.approx(few, rel=0.05)

    def test_busy_threads(self, threads) -> None:
        """A sample executes as many instructions with 100 busy threads as with the most that it follows."""
        threads.busy(MOST_BUSY)
        time.sleep(0.2)
        few = self.instructions()
        threads.busy(100 - MOST_BUSY)
        time.sleep(0.2)
        assert self.instructions() == pytest.approx(few, rel=0.2)


class TestReturn:
    @pytest.mark.parametrize("regions", [False, True])
    def test_a_thread_that_is_sampled_again(self, threads, regions) -> None:
        """A thread that was busy, then idle, and is busy again or has regions gets CPU time again."""
        sampler = StackSampler(
            {threading.get_ident(): threading.get_native_id()}, lambda: (2, None), SamplerThread()
        )
        on = threading.Event()

        def work() -> None:
            while not threads.over.is_set():
                on.wait(30)
                sum(range(1_000_000))

        [native] = threads.start(1, work)
        thread = threads.started[-1]
        for _ in range(2):
            on.set()
            time.sleep(0.05)
            sampler._sample()
            on.clear()
            time.sleep(0.1)
            sampler._sample()
            assert sampler.totals[native].times._file is None
        if regions:
            sampler._threads[thread.ident] = native
        on.set()
        begin = sampler.totals[native].end_ns
        time.sleep(0.1)
        sampler._sample()
        time.sleep(0.3)
        sampler._sample()
        sampler._leave(sampler.totals[native])
        assert (
            sum(each.cpu_ns for each in sampler.stretches if each.thread == native and each.start_ns >= begin)
            > 0
        )
        on.set()


class TestBounds:
    def test_many_short_threads_stay_within_the_limits(self, threads) -> None:
        """With many short threads, the number of totals is limited, and only a few
        files of ended threads stay open.
        """
        sampler = StackSampler(
            {threading.get_ident(): threading.get_native_id()}, lambda: (2, None), SamplerThread()
        )
        for _ in range(MOST_TOTALS // MOST_BUSY + 4):
            threads.over.clear()
            threads.busy(MOST_BUSY)
            time.sleep(0.02)
            sampler._sample()
            threads.over.set()
            for thread in threads.started:
                thread.join(30)
            threads.started.clear()
            sampler._sample()
        assert MOST_TOTALS // 2 < len(sampler.totals) <= MOST_TOTALS
        still_open = [total for total in sampler.totals.values() if total.times._file is not None]
        assert len(still_open) <= MOST_BUSY + 1
        for total in still_open:
            total.times.close()
