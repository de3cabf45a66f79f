"""The capture of one engine as a state machine, tested without an engine."""

from __future__ import annotations

import asyncio
import re

import pytest

from stepprof.errors import StateError
from stepprof.remote.core.engine_capture import CAPTURE_STATES, CAPTURE_TRANSITIONS, Recording

WAYS = {
    "preparing": (),
    "starting": ("send_start",),
    "recording": ("send_start", "start_answered"),
    "stopping": ("send_start", "start_answered", "send_stop"),
    "aborting": ("send_start", "start_failed"),
    "finished": ("finish",),
}
"""The triggers that lead to each state."""
TRIGGERS = [each["trigger"] for each in CAPTURE_TRANSITIONS]


def in_state(state: str) -> Recording:
    """Return a capture in this state. It has no entry, because no trigger reads it."""
    recording = Recording(None, lambda: None, 2)  # type: ignore[arg-type]
    for trigger in WAYS[state]:
        getattr(recording, trigger)()
    assert recording.state == state
    return recording


def destinations(trigger: str, state: str) -> list[str]:
    """Return the states that a trigger leads to, according to the table."""
    return [
        each["dest"]
        for each in CAPTURE_TRANSITIONS
        if each["trigger"] == trigger
        and state in (each["source"] if isinstance(each["source"], list) else [each["source"]])
    ]


class TestRecording:
    @pytest.mark.parametrize("state", CAPTURE_STATES)
    @pytest.mark.parametrize("trigger", TRIGGERS)
    def test_every_trigger_in_every_state(self, state, trigger) -> None:
        """An illegal trigger raises StateError, which names the state, and changes nothing."""

        async def check() -> None:
            recording, expected = in_state(state), destinations(trigger, state)
            if expected:
                getattr(recording, trigger)()
                assert [recording.state] == expected
                return
            with pytest.raises(
                StateError, match=re.escape(f"capture of step 2: cannot {trigger} while {state}")
            ):
                getattr(recording, trigger)()
            assert recording.state == state

        asyncio.run(check())

    @pytest.mark.parametrize("state", CAPTURE_STATES)
    def test_each_state_has_its_pending_stop_joins_and_gates(self, state) -> None:
        """Each state defines whether a stop is pending, whether windows may join, and which gates are
        open.
        """

        async def check() -> tuple[bool, ...]:
            recording = in_state(state)
            return (
                recording.sent,
                recording.answered,
                recording.running,
                recording.started.is_open,
                recording.finished.is_open,
            )

        expected = {
            "preparing": (False, False, False, False, False),
            "starting": (True, False, False, False, False),
            "recording": (True, True, True, False, False),
            "stopping": (True, True, True, False, False),
            "aborting": (True, False, False, True, False),
            "finished": (False, False, False, True, True),
        }
        assert asyncio.run(check()) == expected[state]

    @pytest.mark.parametrize(
        ("state", "what"),
        [("starting", "its start"), ("aborting", "the stop that must follow"), ("stopping", "its stop")],
    )
    def test_the_pending_call_is_named(self, state, what) -> None:
        """Each state in which a call is unanswered has a name for that call, for the manifest."""

        async def check() -> str:
            return in_state(state).unanswered

        assert what in asyncio.run(check())

    def test_the_last_window_ends_it(self) -> None:
        """The capture ends when its last window of the same step leaves. Windows of other steps do not
        keep it open.
        """

        async def check() -> list[bool]:
            recording = in_state("recording")
            recording.join(2, None, lambda: None)  # type: ignore[arg-type]
            recording.join(3, None, lambda: None)  # type: ignore[arg-type]
            ended = []
            for _ in range(2):
                recording.leave()
                ended.append(recording.stop.is_set())
            return ended

        assert asyncio.run(check()) == [False, True]
