"""The thread that takes the samples of all recorded windows of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stepprof.recording.evidence.sampler_thread import SamplerThread


@pytest.fixture
def sampler() -> Iterator[SamplerThread]:
    thread = SamplerThread()
    yield thread
    thread.close(30)


class TestSamplerThread:
    def test_calls_until_the_end(self, sampler) -> None:
        """One thread calls the function repeatedly, and no more after `end`."""
        seen, twice = [], threading.Event()

        def sample() -> bool:
            seen.append(threading.get_ident())
            if len(seen) == 2:
                twice.set()
            return True

        sampler.begin(sample)
        assert twice.wait(30)
        sampler.end(sample)
        other = threading.Event()
        sampler.begin(lambda: other.set() or False)
        assert other.wait(30)  # the call that ran has ended
        count = len(seen)
        third = threading.Event()
        sampler.begin(lambda: third.set() or False)
        assert third.wait(30)
        assert len(seen) == count
        assert len(set(seen)) == 1

    def test_the_end_of_an_earlier_one(self, sampler) -> None:
        """Ending an earlier function does not end the one that was begun after it."""
        called = threading.Event()

        def earlier() -> bool:
            return True

        sampler.begin(earlier)
        sampler.begin(lambda: called.set() or False)
        sampler.end(earlier)
        assert called.wait(30)

    def test_a_failed_sampler_does_not_stop_the_next(self, sampler, log) -> None:
        """If a function raises an error, this is logged, and the next function is called."""
        called = threading.Event()

        def fails() -> bool:
            called.set()
            raise ValueError("no frame")

        sampler.begin(fails)
        assert called.wait(30)
        again = threading.Event()
        sampler.begin(lambda: again.set() or False)
        assert again.wait(30)
        assert "ValueError('no frame')" in {
            line.get("reason") for line in log if line["event"] == "evidence.failed"
        }

    def test_close(self) -> None:
        """`close` ends the thread while it waits for the next window, and does
        nothing if it was never started.
        """
        sampler = SamplerThread()
        sampler.close(30)
        sampler, before = SamplerThread(), {*threading.enumerate()}
        sampler.begin(lambda: False)
        [thread] = {*threading.enumerate()} - before
        sampler.close(30)
        assert not thread.is_alive()
