"""Random steps with known truth: each figure, cause and sentence of the report is compared with it.

`TRUTH_STEPS` and `TRUTH_SEED` in the environment select the number of steps and the seed; `nox -s
truth` sets both.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from truth.comparing import differences
from truth.drawing import draw_shape
from truth.model import Shape
from truth.simulate import simulate, simulate_again
from truth.writing import write

STEPS = int(os.environ.get("TRUTH_STEPS", "100"))
SEED = int(os.environ.get("TRUTH_SEED", "0"))
PARTS = 4
"""Number of parts into which the steps are divided, for several processes."""


def compared(shape: Shape) -> list[str]:
    """Return the differences between the report of a step and the truth."""
    truth = simulate(shape)
    if not any(process.windows_in_manifest(truth) for process in truth.processes):
        return []  # nothing is recorded of the step, so there is no report
    with tempfile.TemporaryDirectory() as folder:
        run = write(truth, Path(folder))
        if shape.again != "no":  # the last occurrence is reported
            truth = simulate_again(truth)
            write(truth, Path(folder))
        report = analyse(find([run], output_dir=Path(folder)), workers=1)
    return differences(truth, report)


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of steps is configurable
@pytest.mark.parametrize("part", range(PARTS))
def test_a_report_says_what_is_true(part: int) -> None:
    """Each figure and sentence of the report of a random step agrees with the truth, or is absent."""

    for number in range(SEED + part, SEED + STEPS, PARTS):
        shape = draw_shape(random.Random(number))
        found = compared(shape)
        assert not found, "\n".join([f"the step of seed {number}:", repr(shape), *found])
