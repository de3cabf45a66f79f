"""Take the recording's own cost out of the step, and say if little else is left."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.wording import seconds_text

__all__ = ["recording"]

TOO_MUCH = 0.5
"""Share of the step from which on nothing else can be judged."""
SHORT = 0.1
"""A step of more seconds is judged although its recording took longer."""


def recording(ledger: Ledger) -> None:
    """Book the time in which the profiler held the path up; say if the step is short next to it."""
    facts = ledger.facts
    those = [segment for segment in facts.path if segment.kind == "recording"]
    inside = Intervals.union([each.start for each in those], [each.end for each in those])
    own = facts.seconds - inside.total / 1e9
    held = {label: each.held.total / 1e9 for label, each in facts.timelines.items()}
    longest = max(held, key=lambda label: held[label], default="")
    if longest and own < SHORT and own < TOO_MUCH * (own + held[longest]):
        ledger.short(
            longest,
            f"the step is too short to be judged: recording it held {longest} up for {seconds_text(held[longest])}, the step itself took {seconds_text(own)}",
            advice="record several steps as one capture (`join_steps = true`), or a longer step",
        )
    ledger.book(inside)
