"""One step, recorded twice in different ways: the comparison finds no change.

`TRUTH_STEPS` and `TRUTH_SEED` in the environment select the number of steps and the seed.
"""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
from pathlib import Path

import pytest

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.compare import compare
from stepprof.analysis.report.schema import Change, Report
from stepprof.analysis.timeline.find import find
from truth.drawing import draw_shape
from truth.model import Shape, Truth
from truth.simulate import simulate
from truth.writing import write

STEPS = int(os.environ.get("TRUTH_STEPS", "100"))
SEED = int(os.environ.get("TRUTH_SEED", "0"))
FATES = ("lost", "truncated", "killed", "unselected", "absent")
"""What may happen to a capture without a change of the step itself."""
SAME = 0.02
"""Share by which the figures of one step may differ: the traces of some collectives are blurred."""
BLUR = 0.002
"""Seconds by which they may differ too."""


def shapes(seed: int) -> tuple[Shape, Shape]:
    """Return a step that is recorded whole, and the same one where captures are missing or incomplete, spans may be
    missing, and clocks may not have been compared.
    """
    drawn = random.Random(f"like {seed}")
    whole = dataclasses.replace(
        draw_shape(drawn), profiler="none", again="no", fates=(), spans=True, ranks=drawn.randint(1, 8)
    )
    fates = {drawn.randrange(whole.ranks): drawn.choice(FATES) for _ in range(drawn.choice((1, 1, 2)))}
    compared = drawn.choice((whole.compared, "none"))
    spans = drawn.random() < 0.6
    return whole, dataclasses.replace(
        whole, fates=tuple(sorted(fates.items())), compared=compared, spans=spans, outer=whole.outer and spans
    )


def report_of(truth: Truth) -> Report | None:
    """Return the report of a step; None: nothing is recorded."""
    if not any(process.windows_in_manifest(truth) for process in truth.processes):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return analyse(find([write(truth, Path(folder))], output_dir=Path(folder)), workers=1)


def lengths(truth: Truth, without: set[int | str]) -> list[list[int]]:
    """Return the length of each window of the processes that were recorded whole."""
    return [
        [window.end - window.start for window in process.windows]
        for process in truth.processes
        if process.rank not in without
    ]


def changed(seed: int) -> list[Change]:
    """Return the changes that the comparison of the two recordings states."""
    whole, other = shapes(seed)
    truths = simulate(whole), simulate(other)
    without: set[int | str] = {rank for rank, _ in other.fates}
    reports = [report_of(truth) for truth in truths]
    if reports[0] is None or reports[1] is None or lengths(truths[0], without) != lengths(truths[1], without):
        return []
    return [
        each
        for each in compare(reports[0], reports[1]).changes
        if abs(each.b - each.a) > SAME * max(each.a, each.b) + BLUR
    ]


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of steps is configurable
def test_another_recording_of_one_step_is_no_change() -> None:
    """Captures and spans that are missing in one of the two make no part longer or shorter."""
    for seed in range(SEED, SEED + STEPS):
        assert not changed(seed), (seed, shapes(seed)[1])
