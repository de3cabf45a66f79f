"""Combine the sources of hand-made steps into reports, and read the judgements in them."""

from __future__ import annotations

from digested import MS, T0

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.run.evidence import CaptureUse, Evidence, Frame, StackStretch

AT = (7, 2, None)


def report(*sources, **more):
    """Return the report of step 2 of run `r`."""
    return combine([digest(each) for each in sources], step=2, run_id="r", **more)


def found(made, topic):
    """Return (process, region, seconds, gain) of each finding of a topic, in order."""
    return [
        (
            each.process,
            each.region,
            round(each.seconds, 3),
            None if each.saves is None else round(each.saves, 3),
        )
        for each in made.findings
        if each.topic == topic and each.start is not None
    ]


def topics(made):
    """Return the topics of the findings that have a place, in order."""
    return [each.topic for each in made.findings if each.start is not None]


def slack(made):
    """Return the slack in seconds, by process and role. Each pair has one row."""
    rows = {(each.process, each.role): round(each.seconds, 3) for each in made.slack}
    assert len(rows) == len(made.slack)
    return rows


def path(made):
    """Return (process, start, end, kind, role) of each part of the path, in seconds."""
    return [
        (each.process, round(each.start, 3), round(each.start + each.seconds, 3), each.kind, each.role)
        for each in made.path
    ]


def stacks(rank, *stretches):
    """Return the evidence of a process: stacks (start, length, call, share of CPU time), in milliseconds.

    The share None stands for CPU time that is not known.
    """
    return Evidence(
        rank,
        "h",
        100 + rank if isinstance(rank, int) else 99,
        stretches=tuple(
            StackStretch(
                *AT,
                T0 + round(start * MS),
                T0 + round((start + length) * MS),
                max(2, round(length / 25)),
                (Frame("main", "train.py", 5, own=True),),
                call,
                None if share is None else share * length / 1e3,
                None if share is None else 0.0,
            )
            for start, length, call, share in stretches
        ),
        captures=(CaptureUse(*AT, T0, T0 + 10_000 * MS, None, None, 0),),
    )
