"""The background thread, which does the work for which training should not wait."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from stepprof.recording.background_worker import Background


@pytest.fixture
def background():
    """Return a function that makes a background thread and stops it at the end of the test."""
    made = []

    def make(*chores):
        made.append(Background(*chores))
        return made[-1]

    yield make
    for one in made:
        one.stop(5)


class TestBackground:
    def test_posted_work_is_done_in_order_on_its_thread(self, background) -> None:
        """Posted work is done once, in order, on the thread `stepprof`."""
        one = background()
        one.start()
        done, names = threading.Event(), []
        for number in range(3):
            one.post(lambda number=number: names.append((number, threading.current_thread().name)))
        one.post(done.set)
        assert done.wait(5)
        assert names == [(number, "stepprof") for number in range(3)]

    def test_chores_are_done_each_round(self, background) -> None:
        """While there is something to watch, the periodic tasks run several times a second."""
        rounds = []
        one = background(lambda: rounds.append(time.monotonic()))
        one.start()
        one.watch(True)
        deadline = time.monotonic() + 5
        while len(rounds) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert rounds[3] - rounds[1] < 0.9
        one.watch(False)

    def test_the_thread_can_be_woken_early(self, background) -> None:
        """`wake` starts the next round before its time."""
        done = threading.Event()
        one = background(done.set)
        one.start()
        one.wake()
        assert done.wait(0.9)

    def test_watch_takes_effect_before_the_wake(self, background, monkeypatch) -> None:
        """`watch` takes effect before it wakes the thread. Otherwise the next round, and a
        cap, would be one second late.
        """
        one, seen = background(), []
        monkeypatch.setattr(one, "wake", lambda: seen.append(one._watchful))
        one.watch(True)
        one.watch(True)
        assert seen == [True]

    def test_a_failure_is_logged_and_the_next_work_runs(self, background, log) -> None:
        """If work or a periodic task fails, this is logged, and the others still run."""
        done = []

        def fails():
            raise OSError("no")

        one = background(fails, lambda: done.append("chore"))
        one.post(fails)
        one.post(lambda: done.append("work"))
        assert one.round()
        assert done == ["work", "chore"]
        assert [line["reason"] for line in log] == ["OSError('no')"] * 2

    def test_a_second_round_waits_for_its_timeout(self, background) -> None:
        """A round waits for another one at most its timeout, and then returns False."""
        started, released = threading.Event(), threading.Event()

        def slow():
            started.set()
            released.wait(10)

        one = background(slow)
        thread = threading.Thread(target=one.round)
        thread.start()
        started.wait(5)
        assert not one.round(0.05)
        released.set()
        thread.join()
        assert one.round(5)

    def test_stop_runs_the_remaining_work(self, background) -> None:
        """`stop` does the posted work. Work that is posted later is done at once, on the caller's thread."""
        done = []
        one = background()
        one.start()
        one.post(lambda: done.append("posted"))
        one.stop(5)
        one.post(lambda: done.append("late"))
        assert done == ["posted", "late"]

    def test_the_thread_can_stop_itself(self, background) -> None:
        """Work on the background thread may stop that thread, which does not wait for itself."""
        one = background()
        one.start()
        ended = threading.Event()

        def end():
            one.stop(0.05)
            ended.set()

        one.post(end)
        assert ended.wait(5)

    def test_work_that_posts_work_after_the_end_is_done(self, background) -> None:
        """After the stop, work that posts more work does it on the same thread.
        The periodic tasks do not run.
        """
        done = []
        one = background(lambda: done.append("chore"))
        one.start()
        one.stop(5)
        done.clear()
        thread = threading.Thread(
            target=one.post, args=(lambda: one.post(lambda: done.append("posted")),), daemon=True
        )
        thread.start()
        thread.join(5)
        assert done == ["posted"]


def test_work_is_in_the_hands_of_no_thread_between_two_rounds() -> None:
    """A round does all work that was posted before it, even if the background
    thread waits for its own round.
    """
    background, done = Background(), []
    background.start()
    try:
        for number in range(50):
            with background._round:  # another round runs
                background.post(partial(done.append, number))
                time.sleep(0.002)  # the thread has woken and waits for the round
            background.round()
            assert number in done
    finally:
        background.stop(5)
