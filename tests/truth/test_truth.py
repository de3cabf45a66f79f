"""Random steps whose truth is known: each figure, cause and sentence of the report is compared with it.

`TRUTH_STEPS` and `TRUTH_SEED` in the environment make it more steps, or others: `nox -s truth` does both.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

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
"""Into which the steps are divided, for several processes."""


def compared(shape: Shape) -> list[str]:
    """What the report of a step says that is not so."""
    truth = simulate(shape)
    if not any(process.windows_in_manifest(truth) for process in truth.processes):
        return []  # nothing is recorded of the step: there is nothing to report
    with tempfile.TemporaryDirectory() as folder:
        run = write(truth, Path(folder))
        if shape.again != "no":  # the last one is read
            truth = simulate_again(truth)
            write(truth, Path(folder))
        report = analyse(find([run], output_dir=Path(folder)), workers=1)
    return differences(truth, report)


@pytest.mark.slow
@pytest.mark.timeout(0)  # as many steps as are asked for
@pytest.mark.parametrize("part", range(PARTS))
def test_a_report_says_what_is_true(part: int) -> None:
    """Each figure and sentence of the report of a random step agrees with the truth, or is absent."""

    @seed(SEED + part)
    @settings(
        max_examples=-(-STEPS // PARTS),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.builds(draw_shape, st.randoms(use_true_random=False)))
    def check(shape: Shape) -> None:
        found = compared(shape)
        assert not found, "\n".join([repr(shape), *found])

    check()
