"""A campaign of faults: random jobs with engines that are late, hang, raise, die, restart or are
taken by another driver.

`FAULTS_RUNS` and `FAULTS_SEED` in the environment select the number of runs and the seed; `nox -s
faults` sets both.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings

from faults.checking import problems
from faults.draw import plans
from faults.plan import Plan

RUNS = int(os.environ.get("FAULTS_RUNS", "60"))
SEED = int(os.environ.get("FAULTS_SEED", "0"))
ENOUGH = 100
"""From this number of runs on, each of the four outcomes must occur."""


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of runs is configurable
@pytest.mark.parametrize("coroutine", [False, True], ids=["threads", "coroutines"])
def test_the_invariants_hold_with_faulty_engines(coroutine: bool) -> None:
    """No wait exceeds its bound, and `complete` is true. Each file is in a manifest, no engine is
    left recording, and the job runs as without stepprof.
    """
    seen: Counter[str] = Counter()

    @seed(SEED + coroutine)
    @settings(
        max_examples=-(-RUNS // 2),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(plans())
    def check(plan: Plan) -> None:
        found = problems(dataclasses.replace(plan, coroutine=coroutine), seen)
        assert not found, "\n".join(found)

    check()
    assert RUNS < ENOUGH or {"complete", "joined", "partial", "failed"} <= set(seen)
