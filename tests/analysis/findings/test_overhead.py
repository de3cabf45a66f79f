"""The cost of computing preempted sequences again, from forward steps and the engine's own counters."""

from __future__ import annotations

import pytest
from combined import report, stacks, topics
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
    return [each for each in made.findings if each.topic == "preemption" and each.seconds]


class TestPreemption:
    def test_the_excess_over_the_median_decode_step_is_claimed(self):
        """Two steps take 40 and 30 ms instead of 10 ms. Together they cost 50 ms; the finding has
        the place of the longer one.
        """
        (found,) = findings(preemptions=3)
        assert found.text == "rollout/0 worker 0 computed preempted sequences again for 50 ms"
        assert (found.seconds, found.saves) == pytest.approx((0.05, 0.05))
        assert (found.start, found.end) == pytest.approx((0.03, 0.06))
        assert found.why.startswith("it counted 3 preemptions,")

    @pytest.mark.parametrize("statistics", [{"preemptions": 0}, {"drafted_tokens": 50}])
    def test_no_finding_without_a_preemption(self, statistics):
        assert findings(**{"preemptions": 1, **statistics}) == []

    def test_no_finding_for_an_engine_without_counters(self):
        made = report_of(
            engine(0, *AGAIN, names=NAMES),
            spans("driver", ("window", "rollout", 0, 100, "rollout")),
            engines=[engine_entry(kind="vllm", start_unix_ns=T0, end_unix_ns=T0 + 100 * MS)],
        )
        assert "preemption" not in [each.topic for each in made.findings]

    def test_no_finding_without_a_plain_decode_step(self):
        assert findings([NAMES[2]] * 5, preemptions=1) == []


RETRACTED = ["step[EXTEND bs=3 toks=12]", "step[EXTEND bs=1 toks=4]", "step[DECODE bs=4]", "step[EXTEND bs=1 toks=9]", "step[DECODE bs=4]"]  # fmt: skip
"""Names of forward steps as SGLang 0.5.23 gives them (`step_span` in
sglang/srt/utils/profile_utils.py). Four prompts have 16 tokens; one sequence is retracted after 5
generated tokens.
"""


class TestRetraction:
    """SGLang computes a retracted sequence again as a prompt."""

    def made(self, names=RETRACTED, **statistics):
        counted = {"preemptions": 1, "prompt_tokens": 16, "cached_tokens": 0, "idle": True, **statistics}
        steps = ((0, 20, 3), (20, 10, 1), (30, 10, 4), (40, 30, 1), (70, 30, 4))
        return report_of(
            engine(0, *steps, names=names),
            spans("driver", ("window", "rollout", 0, 100, "rollout")),
            engines=[engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=counted)],
        )

    def found(self, *args, **statistics):
        return [each for each in self.made(*args, **statistics).findings if each.topic == "preemption"]

    def test_prompts_after_all_new_ones(self):
        """All new prompts were computed before the first decode step, so the later prompt of 30 ms
        is a retracted sequence.
        """
        (found,) = self.found()
        assert found.text == "rollout/0 worker 0 computed preempted sequences again for 30 ms"
        assert (found.start, found.end, found.saves) == pytest.approx((0.04, 0.07, 0.03))
        assert found.why.startswith("it counted 1 retraction,")

    @pytest.mark.parametrize(
        ("statistics", "again"),
        [
            ({"prompt_tokens": 20}, ", and computed 5 tokens again"),
            ({"cached_tokens": 1}, ""),
            ({"idle": False}, ""),
        ],
        ids=["a new prompt came later", "a cache", "requests of others"],
    )
    def test_a_retraction_of_unknown_time_is_not_claimed(self, statistics, again):
        """The time of the retraction is unknown, so the finding has a count and no seconds."""
        (found,) = self.found(**statistics)
        assert found.seconds is None
        assert found.text == (
            f"rollout/0 took sequences out of its batch 1 time for lack of memory{again}; how long that took is not known"
        )

    def test_no_finding_without_a_retraction(self):
        assert self.found(preemptions=0) == []

    def test_each_scheduler_has_its_own_first_decode_step(self):
        """One scheduler may compute new prompts after the other has begun to generate. Each has its
        own first decode step.
        """
        names = RETRACTED[:3], ["step[EXTEND bs=1 toks=4]", "step[DECODE bs=1]", "step[EXTEND bs=1 toks=6]"]
        steps = ((0, 20, 3), (20, 10, 1), (30, 30, 4)), ((40, 10, 1), (50, 10, 1), (60, 40, 1))

        def seconds(prompts):
            counted = {"preemptions": 1, "prompt_tokens": prompts, "cached_tokens": 0, "idle": True}
            made = report_of(
                *(engine(0, *steps[at], group=at, names=names[at], rank=at) for at in (0, 1)),
                spans("driver", ("window", "rollout", 0, 100, "rollout")),
                engines=[engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=counted)],
            )
            return [each.seconds for each in made.findings if each.topic == "preemption"]

        assert seconds(20) == pytest.approx([0.04])
        assert seconds(26) == [None]


class TestUnfinishedEngines:
    @pytest.mark.parametrize(
        ("engines", "found"),
        [
            ((), ["sleep"]),
            (({"status": "failed", "error": "no answer", "artifacts": []},), []),
            (({"status": "failed", "error": "no answer", "artifacts": [], "role": "reward"},), ["sleep"]),
        ],
    )
    def test_a_driver_that_waits_while_an_engine_is_not_recorded_has_no_finding(self, engines, found):
        """Whether it waited for the engine is not known. An engine of another role does not matter."""
        made = report(
            spans("driver", ("window", "rollout", 0, 5000, "rollout")),
            evidence=[stacks("driver", (0, 5000, "time.sleep", 0.0))],
            manifests=[manifest(engines=[engine_entry(**each) for each in engines])],
        )
        assert topics(made) == found

    @pytest.mark.parametrize(("status", "rest"), [("complete", ["poll"]), ("partial", [])])
    def test_what_follows_a_capture_that_ended_early_may_be_generation(self, status, rest):
        """A driver stays in its window for 4 s after the last forward step that was recorded."""
        made = report(
            engine(0, (0, 500, 4), (500, 500, 4)),
            spans("driver", ("window", "rollout", 0, 5000, "rollout")),
            evidence=[stacks("driver", (0, 5000, "time.sleep", 0.0))],
            manifests=[manifest(engines=[engine_entry(status=status, capped_by=None)])],
        )
        assert topics(made) == rest
