"""Reports that an engine returns some time after its stop. No window waits for them, the engine is free
meanwhile, and the manifest has the outcome.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from simulated import read_entries

import stepprof
from stepprof.backends.base import ExportError
from stepprof.backends.nsys.reports import ReportLost
from stepprof.remote.base import Stopped
from stepprof.remote.loop import remote_loop
from stepprof.run.manifest import read_step
from stepprof.run.model import Artifact
from stepprof.run.status import read_statuses


class Promise:
    """A pending report that arrives, or fails, on command."""

    def __init__(self, outcome=None):
        self.outcome = outcome if outcome is not None else Stopped([Artifact("rollout/late.bin", "nsys", 3)])
        self.hurried = []
        self._come = asyncio.Event()

    async def wait(self):
        await self._come.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def come(self):
        remote_loop().call(self._come.set)

    def hurry(self, until):
        self.hurried.append(until - time.monotonic())


@pytest.fixture
def recording(start):
    """Return a function that starts a session that records rollouts."""
    return lambda **config: start(
        **{"steps": "2-5", "backend": "null", "roles": {"rollout": {"ranks": "all"}}, **config}
    )


def until(condition, seconds=10.0):
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def entry(session, step=2):
    session.background.round()
    return next(iter(read_entries(session, step)), None)


class TestAwaiting:
    def test_a_report_that_arrives(self, recording, engine):
        """Until the report arrives, the entry on disk is lost, the export is pending, and the next window
        is recorded. Then the entry is complete.
        """
        first = Promise()
        one, session = engine(later=first), recording()
        stepprof.attach(one, role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert until(lambda: stepprof.state().pending_exports == ("rollout/0 of step 2",))
        assert until(lambda: (entry(session).status, entry(session).artifacts) == ("lost", []))
        assert "report had come" in entry(session).error
        assert read_step(session.path, 2)["engines"][0]["status"] == "flushing"
        one.later = None
        with stepprof.profile_step(3, role="rollout"):
            pass
        assert until(lambda: entry(session, 3) is not None and entry(session, 3).status == "complete")
        first.come()
        assert until(lambda: entry(session).status == "complete")
        assert [artifact["path"] for artifact in entry(session).artifacts] == ["rollout/late.bin"]
        assert entry(session).error is None
        assert until(lambda: stepprof.state().pending_exports == ())

    def test_status_shows_pending_reports(self, recording, engine):
        """`stepprof status` shows a pending report until it arrives."""
        promise = Promise()
        one, session = engine(later=promise), recording()
        stepprof.attach(one, role="rollout")

        def pending():
            session.background.round()
            return read_statuses(session.path)[0]["pending_exports"]

        with stepprof.profile_step(2, role="rollout"):
            pass
        assert until(lambda: pending() == ["rollout/0 of step 2"])
        promise.come()
        assert until(lambda: pending() == [])

    @pytest.mark.parametrize(
        ("outcome", "status", "reason"),
        [
            (ReportLost("none came"), "lost", "none came"),
            (ExportError("it stays there"), "failed", "it stays there"),
            (ZeroDivisionError("a plug-in's"), "lost", "ZeroDivisionError: a plug-in's"),
            (Stopped([Artifact("a", "nsys", 3)], partial="half"), "partial", "half"),
        ],
    )
    def test_the_entry_has_the_result_of_a_late_report(self, recording, engine, outcome, status, reason):
        """The entry has the outcome and the reason of the late report; a joined window follows it. The
        engine stays healthy.
        """
        promise = Promise(outcome)
        session = recording()
        stepprof.attach(engine(later=promise), role="rollout")
        with (
            stepprof.profile_step(2, role="rollout"),
            stepprof.profile_step(2, role="rollout"),
        ):
            pass
        assert until(lambda: bool(stepprof.state().pending_exports))
        promise.come()
        assert until(lambda: entry(session).status == status and entry(session).error == reason)
        assert entry(session).health == "ok"
        read = read_step(session.path, 2)["engines"][0]
        assert (read["status"], read["error"]) == (status, reason)  # although this process lives
        joined = "joined" if status == "partial" else status
        assert until(lambda: session.background.round() or read_entries(session)[1].status == joined)

    def test_the_end_of_the_run(self, recording, engine):
        """At the end of the run the pending report gets a deadline. If it does not arrive, the shutdown
        ends in time and the entry is lost.
        """
        promise = Promise()
        session = recording()
        stepprof.attach(engine(later=promise), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert until(lambda: bool(stepprof.state().pending_exports))
        began = time.monotonic()
        stepprof.shutdown(2)
        assert time.monotonic() - began < 10
        assert 0 < promise.hurried[0] < 2
        assert next(iter(read_entries(session))).status == "lost"

    def test_a_detached_engine(self, recording, engine):
        """After a detach the pending report is still taken, and the entry becomes complete."""
        promise = Promise()
        session = recording()
        attached = stepprof.attach(engine(later=promise), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert until(lambda: bool(stepprof.state().pending_exports))
        stepprof.detach(attached)
        assert until(lambda: bool(promise.hurried))
        promise.come()
        assert until(lambda: entry(session).status == "complete")
