"""Threads that open windows concurrently: their roles and regions are not nested in each other."""

from __future__ import annotations

import numpy as np
import pytest
from digested import MS, T0, source

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Origin
from stepprof.run.evidence import CaptureUse, Evidence, Frame, RegionCpu, StackStretch

ORIGIN = Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100)
MAIN, OTHER = ("thread", "7"), ("thread", "8")


def rows(*slices):
    """Return the region tree and the path, in milliseconds."""
    made = combine([digest(source(ORIGIN, *slices))], step=2, run_id="r")
    tree = {}
    names = []
    for row in made.tree:
        names.append((*(names[row.parent] if row.parent is not None else ()), row.name))
        tree["/".join(names[-1])] = round(1e3 * row.seconds)
    return tree, [
        (each.role, each.region[-1] if each.region else None, round(1e3 * each.seconds)) for each in made.path
    ]


def test_a_role_next_to_another_one():
    """The reference model runs on a thread while the main thread scores. Each role has only its own
    region.
    """
    tree, path = rows(
        (MAIN, "window", "step", 0, 200, None),
        (OTHER, "window", "ref", 5, 120, "ref"),
        (OTHER, "region", "logprob", 6, 118, "ref"),
        (MAIN, "window", "reward", 10, 70, "reward"),
        (MAIN, "region", "score", 11, 68, "reward"),
        (MAIN, "window", "actor", 130, 60, "actor"),
    )
    assert tree["step/reward/score"] == 68
    assert tree["other threads/ref/logprob"] == 118
    assert ("reward", "score", 68) in path
    assert all(region != "logprob" for _, region, _ in path)


def test_a_role_that_the_main_thread_waits_for():
    """A window on a worker thread belongs to the step that its driver opened, because the driver
    waits for it.
    """
    tree, path = rows(
        (MAIN, "window", "step", 0, 200, None),
        (OTHER, "window", "rollout", 10, 100, "rollout"),
        (OTHER, "region", "generate", 20, 80, "rollout"),
        (MAIN, "window", "actor", 120, 60, "actor"),
    )
    assert tree["step/rollout/generate"] == 80
    assert tree["step/actor"] == 60
    assert ("rollout", "generate", 80) in path


@pytest.mark.parametrize("sleeper", [7, 8])
def test_the_stacks_are_of_the_thread_that_is_followed(sleeper):
    """A thread's sleep is a finding only for the role on that thread, regardless of which thread
    opened the capture.
    """
    at = (2, None, T0, T0 + 200 * MS)
    made = combine(
        [
            digest(
                source(
                    ORIGIN,
                    (OTHER, "window", "rollout", 0, 100, "rollout"),
                    (OTHER, "region", "generate", 0, 100, "rollout"),
                    (MAIN, "window", "actor", 1, 199, "actor"),
                    (MAIN, "region", "update", 1, 199, "actor"),
                )
            )
        ],
        step=2,
        run_id="r",
        evidence=[
            Evidence(
                0,
                "h",
                100,
                stretches=(
                    StackStretch(
                        sleeper,
                        2,
                        None,
                        T0 + 100 * MS,
                        T0 + 200 * MS,
                        4,
                        (Frame("f", "job.py", 5),),
                        "time.sleep",
                        None,
                        None,
                    ),
                ),
                regions=(RegionCpu(8, *at, "generate", 0.0), RegionCpu(7, *at, "update", 0.2)),
                captures=(CaptureUse(8, *at, None, None, 0),),
            )
        ],
    )
    found = [(each.topic, each.region) for each in made.findings if each.start is not None]
    assert found == ([("poll", "update")] if sleeper == 7 else [])


def test_coroutines_that_go_on_after_the_window():
    """A coroutine of the next rollout ends after the step, which does not wait for it. Neither the
    step's length nor its path includes it.
    """
    tasks = ("async", "tasks")
    made = source(
        ORIGIN,
        (tasks, "window", "step", 0, 100, None),
        (tasks, "window", "actor", 10, 90, "actor"),
        (tasks, "region", "update", 10, 90, "actor"),
        (tasks, "region", "agent", 20, 150, None),
        (tasks, "region", "turn", 20, 70, None),
        (tasks, "region", "score", 30, 20, None),
    )
    made.slices.task = np.array([0, 0, 0, 1, 1, 2], np.int32)
    report = combine([digest(made)], step=2, run_id="r")
    assert report.seconds == 0.1
    path = [(each.role, "/".join(each.region) or None, round(1e3 * each.seconds)) for each in report.path]
    assert path == [
        (None, None, 10),
        ("actor", "update", 20),
        (None, "update/score", 20),
        ("actor", "update", 50),
    ]
    assert {each.region: round(1e3 * each.seconds) for each in report.regions}["agent"] == 80
