"""Reports that an engine in an actor returns some time after its stop, seen from the actor and from the
driver.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from stepprof.backends.base import ExportError
from stepprof.backends.nsys.reports import ReportLost
from stepprof.config.options.engine import EngineOptions
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.ray.inside.messages import Collected
from stepprof.remote.ray.late_files import ActorsLater, PendingReports
from stepprof.run.model import Artifact, Window

WINDOW = EngineWindow(Window(2, "rollout"), 0, Path("/step"), "rollout/replica-0", EngineOptions())
BROUGHT = Stopped([Artifact("rollout/replica-0/engine.nsys-rep", "nsys", 3)])


class Soon:
    """A pending report that arrives, or fails, as soon as it is hurried."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.hurried = asyncio.Event()

    async def wait(self):
        await self.hurried.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def hurry(self, until):
        self.hurried.set()


def collected(owed, seconds=None):
    """Ask the actor until it has a final answer; return the answer."""
    deadline = time.monotonic() + 10
    while (answer := owed.collect(WINDOW, seconds)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


class TestInTheActor:
    @pytest.mark.parametrize(
        ("outcome", "answer"),
        [
            (BROUGHT, Collected(BROUGHT)),
            (ReportLost("none came"), Collected(outcome="lost", error="none came")),
            (ExportError("it stays"), Collected(outcome="failed", error="it stays")),
            (KeyError("x"), Collected(outcome="lost", error="KeyError: 'x'")),
        ],
    )
    def test_the_report_is_returned_once_when_asked(self, outcome, answer):
        """The actor returns nothing until the report is there. Then it returns the report, or the reason
        for its absence, once.
        """
        owed = PendingReports()
        owed.begin(WINDOW, Soon(outcome))
        assert owed.collect(WINDOW, None) is None
        assert collected(owed, 1.0) == answer
        again = owed.collect(WINDOW, None)
        assert again is not None
        assert again.outcome == "lost"
        assert "no pending report" in (again.error or "")


def waited(answers, until=None, bring=None):
    """Return the list of calls that an actor with these answers gets, and a function that waits for it."""
    asked: list[float | None] = []

    async def ask(seconds):
        asked.append(seconds)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def kept(stopped):
        return stopped

    async def run():
        later = ActorsLater(ask, bring or kept)
        if until is not None:
            asyncio.get_running_loop().call_later(0.05, later.hurry, time.monotonic() + until)
        return await later.wait()

    return asked, lambda: asyncio.run(asyncio.wait_for(run(), 10))


class TestInTheDriver:
    def test_a_report_that_arrives(self):
        """The driver asks the actor until the report is there, and then brings its files into the run."""

        async def bring(stopped):
            return Stopped(stopped.artifacts, partial="left on its host")

        asked, run = waited([None, None, Collected(BROUGHT)], bring=bring)
        assert run() == Stopped(BROUGHT.artifacts, partial="left on its host")
        assert asked == [None, None, None]

    def test_a_report_that_never_arrives(self):
        """If the actor reports a failure, the driver raises it with the same outcome and reason."""
        _, run = waited([Collected(outcome="failed", error="it stays")])
        with pytest.raises(ExportError, match="it stays") as caught:
            run()
        assert caught.value.outcome == "failed"

    def test_the_end_is_near(self):
        """At the end of the run the driver passes the remaining time to the actor once. It is shortened,
        so that the answer can arrive in time.
        """
        asked, run = waited([], until=1.0)
        with pytest.raises(ReportLost, match="before the actor returned its report"):
            run()
        reported = [seconds for seconds in asked if seconds is not None]
        assert len(reported) == 1
        assert 0 < reported[0] <= 0.75

    def test_an_actor_that_dies(self):
        """If the actor dies, the failure has the actor's reason."""
        _, run = waited([None, EngineFailure("the actor is dead", "dead")])
        with pytest.raises(EngineFailure, match="is dead"):
            run()
