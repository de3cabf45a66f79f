"""The cost of computing preempted sequences again, from forward steps and the engine's own count."""

from __future__ import annotations

import pytest
from digested import MS, T0, engine, engine_entry, manifest, spans

from stepprof.analysis.findings.overhead import preemption
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest

assert preemption is not None


def report_of(*sources, engines=()):
    return combine(
        [digest(each) for each in sources], step=2, run_id="r", manifests=[manifest(engines=engines)]
    )


AGAIN = (
    (0, 10, 4),
    (10, 10, 4),
    (20, 40, 4),
    (60, 10, 4),
    (70, 30, 4),
)
NAMES = [f"execute_context_0(0)_generation_4({tokens})" for tokens in (4, 4, 30, 4, 20)]


def findings(names=NAMES, **statistics):
    entry = engine_entry(kind="vllm", start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=statistics)
    made = report_of(
        engine(0, *AGAIN, names=names),
        spans("driver", ("window", "rollout", 0, 100, "rollout")),
        engines=[entry],
    )
    return [each for each in made.findings if each.topic == "preemption"]


class TestPreemption:
    def test_what_its_steps_took_longer_than_the_median_decode_step(self):
        """40 and 30 ms against 10: 50 ms in two stretches, of which the longer one is named."""
        (found,) = findings(preemptions=3)
        assert found.text == "rollout/0 worker 0 computed preempted sequences again for 50 ms"
        assert (found.seconds, found.saves) == pytest.approx((0.05, 0.05))
        assert (found.start, found.end) == pytest.approx((0.03, 0.06))
        assert found.why.startswith("it counted 3 preemptions,")

    @pytest.mark.parametrize("statistics", [{"preemptions": 0}, {"drafted_tokens": 50}])
    def test_without_a_preemption_such_steps_are_something_else(self, statistics):
        assert findings(**{"preemptions": 1, **statistics}) == []

    def test_of_an_engine_that_does_not_count_nothing_is_said(self):
        made = report_of(
            engine(0, *AGAIN, names=NAMES),
            spans("driver", ("window", "rollout", 0, 100, "rollout")),
            engines=[engine_entry(kind="vllm", start_unix_ns=T0, end_unix_ns=T0 + 100 * MS)],
        )
        assert "preemption" not in [each.topic for each in made.findings]

    def test_without_a_plain_decode_step_there_is_nothing_to_compare_with(self):
        assert findings([NAMES[2]] * 5, preemptions=1) == []
