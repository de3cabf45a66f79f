"""The work of engines, from their forward steps and their own statistics."""

from __future__ import annotations

import pytest
from digested import MS, T0, engine, engine_entry, manifest

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.engine_work import STAGES
from stepprof.analysis.report.engines import statistics_of
from stepprof.analysis.report.schema import Rollout, SampleSeconds
from stepprof.analysis.report.text_rows import sample_rows, stage_rows, token_rows

STEPS = ((0, 30, 2), (30, 10, 3), (40, 10, 2), (50, 10, 3))
VLLM = [
    "execute_context_2(60)_generation_0(0)",
    "execute_context_1(20)_generation_2(2)",
    "execute_context_0(0)_generation_2(2)",
    "execute_context_0(0)_generation_3(43)",
]
COUNTED = {
    "prompt_tokens": 80,
    "cached_tokens": 0,
    "generated_tokens": 10,
    "first_tokens": 3,
    "first_token_seconds": 0.09,
    "token_gaps": 7,
    "token_gap_seconds": 0.07,
    "requests": 3,
    "request_seconds": 0.18,
    "preemptions": 1,
    "idle": True,
    "max_sequences": 4,
}


def report(*sources, engines=()):
    return combine(
        [digest(each) for each in sources], step=2, run_id="r", manifests=[manifest(engines=engines)]
    )


def vllm(**statistics):
    entry = engine_entry(
        kind="vllm",
        start_unix_ns=T0,
        end_unix_ns=T0 + 100 * MS,
        statistics={**COUNTED, **statistics},
    )
    (work,) = report(engine(0, *STEPS, names=VLLM), engines=[entry]).engines
    return work


class TestStages:
    def test_stages_of_vllm(self):
        work = vllm()
        assert [(each.stage, each.iterations, each.seconds, each.prefill_tokens, each.decode_tokens) for each in work.stages] == [
            ("prefill", 1, 0.03, 60, 0),
            ("decode", 2, 0.02, 0, 45),
            ("mixed", 1, 0.01, 20, 2),
        ]  # fmt: skip

    def test_stages_of_sglang(self):
        """SGLang does not state the tokens of a mixed step or of an unnamed stage. They are
        unknown, not zero.
        """
        names = ["step[EXTEND bs=2 toks=60]", "step[MIXED bs=3]", "step[DECODE bs=2]", "step[bs=3]"]
        (work,) = report(engine(0, *STEPS, names=names)).engines
        assert [each.stage for each in work.stages] == list(STAGES)
        assert [(each.prefill_tokens, each.decode_tokens) for each in work.stages] == [
            (60, 0),
            (0, 2),
            (None, None),
            (None, None),
        ]

    def test_a_pause_does_not_count_for_a_stage(self):
        (work,) = report(engine(0, (0, 10, 4), (10, 10, 4), (500, 10, 4))).engines
        assert [(each.stage, each.seconds) for each in work.stages] == [("decode", 0.03)]
        assert work.seconds == 0.51

    def test_steps_without_a_request_do_not_count(self):
        names = ["execute_context_0(0)_generation_2(2)", "execute_context_0(0)_generation_0(0)"]
        (work,) = report(engine(0, (0, 10, 2), (10, 10, 0), names=names)).engines
        assert [each.iterations for each in work.stages] == [1]

    def test_workers_of_one_scheduler_count_once_and_schedulers_are_added_up(self):
        (work,) = report(
            engine(0, (0, 50, 4), (50, 50, 4), group=0),
            engine(0, (0, 50, 4), (50, 50, 4), group=0, rank=1),
            engine(0, (0, 50, 8), group=1),
        ).engines
        assert [(each.iterations, each.decode_tokens) for each in work.stages] == [(3, 16)]
        assert work.label == "rollout/0"


class TestStatistics:
    def test_the_engines_own_counts(self):
        work = vllm()
        assert (work.basis, work.seconds) == ("generation", 0.06)
        assert (work.prompt_tokens, work.generated_tokens, work.requests, work.preemptions) == (80, 10, 3, 1)
        assert work.prompt_tokens_per_second == pytest.approx(80 / 0.06)
        assert work.generated_tokens_per_second == pytest.approx(10 / 0.06)
        assert (work.first_token, work.per_token, work.per_request) == pytest.approx((0.03, 0.01, 0.06))
        assert (work.limit, work.peak_batch) == (4, 3)

    def test_recomputed_tokens_are_forward_step_tokens_minus_new_ones(self):
        """The forward steps have 127 tokens. 80 are of prompts and 7 were generated after the first
        ones, so 40 were computed again.
        """
        assert vllm().recomputed_tokens == 40

    @pytest.mark.parametrize(
        ("change", "tokens"),
        [
            ({"preemptions": 0}, 0),
            ({"idle": False}, None),
            ({"drafted_tokens": 5}, None),
            ({"prompt_tokens": 200}, None),
            ({"cached_tokens": 20}, 60),
        ],
    )
    def test_tokens_are_called_recomputed_only_if_the_counts_show_it(self, change, tokens):
        assert vllm(**change).recomputed_tokens == tokens

    def test_sglang_computes_again_as_a_prompt(self):
        names = [
            "step[EXTEND bs=2 toks=60]",
            "step[DECODE bs=3]",
            "step[DECODE bs=2]",
            "step[EXTEND bs=1 toks=50]",
        ]
        entry = engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=COUNTED)
        (work,) = report(engine(0, *STEPS, names=names), engines=[entry]).engines
        assert work.recomputed_tokens == 30

    def test_a_capture_that_was_capped_has_rates_of_the_window(self):
        """The engine kept generating after the cap, for an unknown time. The rates use the length
        of the window.
        """
        entry = engine_entry(
            kind="vllm", start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=COUNTED, capped_by="engine"
        )
        (work,) = report(engine(0, *STEPS, names=VLLM), engines=[entry]).engines
        assert (work.whole, work.basis, work.seconds) == (False, "window", 0.1)
        assert work.generated_tokens_per_second == pytest.approx(100)
        assert work.recomputed_tokens is None

    def test_statistics_are_shown_without_forward_steps(self):
        """The engine's files are missing: they are on another host, or belong to another profiler."""
        entry = engine_entry(
            artifacts=[], start_unix_ns=T0, end_unix_ns=T0 + 100 * MS, statistics=COUNTED, kind="vllm"
        )
        (work,) = report(engines=[entry]).engines
        assert (work.label, work.stages, work.generated_tokens) == ("rollout/0", [], 10)
        assert (work.peak_batch, work.basis) == (None, "window")

    def test_unknown_figures_are_left_out(self):
        (work,) = report(engine(0, *STEPS, names=VLLM), engines=[engine_entry()]).engines
        assert work.generated_tokens is None
        assert work.limit is None
        assert work.recomputed_tokens is None

    def test_two_entries_of_one_engine_are_not_mixed(self):
        entry = engine_entry(statistics=COUNTED)
        assert list(statistics_of([entry])) == ["rollout/0"]
        assert statistics_of([entry, entry]) == {}

    def test_damaged_statistics_are_reported(self):
        for wrong in ([1], {"requests": "3"}, {"requests": -1}, {"requests": float("nan")}):
            assert engine_entry(damaged=True, statistics=wrong).get("statistics") is None


class TestRows:
    def test_rows_of_tokens(self):
        headers, (row,) = token_rows([vllm()])
        assert dict(zip(headers, row, strict=True)) == {
            "engine": "rollout/0",
            "prompt tokens": "80",
            "prompt/s": "1,333",
            "generated": "10",
            "generated/s": "167",
            "recomputed": "40",
            "preemptions": "1",
            "batch of limit": "mean 2, peak 3 of 4",
            "first token": "30.0 ms",
            "per token": "10.0 ms",
        }

    def test_rows_of_stages(self):
        headers, (row,) = stage_rows([vllm()])
        assert headers == ["engine", "prefill", "decode", "mixed"]
        assert row[1:] == [
            "30.0 ms, 1 step, 60 tokens",
            "20.0 ms, 2 steps, 45 tokens",
            "10.0 ms, 1 step, 22 tokens",
        ]

    def test_nothing_is_known(self):
        assert token_rows(report(engine(0, *STEPS)).engines)[1] == []
        assert stage_rows([])[1] == []


class TestSamples:
    def test_a_row(self):
        times, first = SampleSeconds(1200, 1, 2, 3, 4), SampleSeconds(9, 1, 1, 1, 1)
        tokens = SampleSeconds(9, 1500.4, 1500, 1600, 1700)
        row = Rollout(
            "samples of rank 0",
            0,
            1.0,
            1,
            1,
            0,
            0,
            [],
            sample_seconds=times,
            first_token=first,
            generated_tokens=tokens,
        )
        assert sample_rows([row])[1] == [
            ["samples of rank 0", "sample", "1,200", "1.00 s", "2.00 s", "3.00 s", "4.00 s"],
            ["samples of rank 0", "first token", "9", *["1.00 s"] * 4],
            ["samples of rank 0", "tokens", "9", "1,500", "1,500", "1,600", "1,700"],
        ]
