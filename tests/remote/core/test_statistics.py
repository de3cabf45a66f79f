"""The statistics that an engine counts itself, read at the start and at the stop of a capture."""

from __future__ import annotations

import asyncio
import math

import pytest
from serving import serving

from stepprof.remote.core.statistics import SGLANG, VLLM, Reading, Sample, between, metrics_of, served
from stepprof.remote.http.client import Client

TEXT = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 30.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 12.0
vllm:generation_tokens_total{engine="0",model_name="a \\"b\\" {c}"} 1e+03
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total_that_is_none 7
python_gc_objects_collected_total{generation="0"} 5.0
vllm:num_preemptions_total{engine="0"} nan
"""


class TestServed:
    def test_the_cores_of_an_engine_are_added_up(self):
        with serving({"GET /metrics": TEXT}) as server:
            sample = asyncio.run(served(Client(server.url), VLLM))
        assert sample == Sample({"prompt_tokens": 42.0, "generated_tokens": 1000.0}, idle=False)

    def test_of_the_ranks_of_an_engine_the_first_one_counts(self):
        lines = "".join(
            f'sglang:num_retracted_requests_total{{tp_rank="{tp}",pp_rank="0",dp_rank="{dp}"}} 3.0\n'
            for tp in (0, 1)
            for dp in (0, 1)
        )
        with serving({"GET /metrics": lines}) as server:
            sample = asyncio.run(served(Client(server.url), SGLANG))
        assert sample == Sample({"preemptions": 6.0})

    @pytest.mark.parametrize("answer", [404, 500, "", "<html>", "\xff" * 99])
    def test_a_server_without_metrics(self, answer):
        with serving({"GET /metrics": answer}) as server:
            assert asyncio.run(served(Client(server.url), VLLM)) is None


class TestReading:
    def test_late_metrics_are_left_out(self):
        async def slow():
            await asyncio.sleep(0.05)
            return Sample({"requests": 1})

        async def work():
            reading = Reading(slow(), "e")
            assert reading.now() is None
            later = Reading(slow(), "e")
            await asyncio.sleep(0.3)
            return later.now()

        assert asyncio.run(work()) == Sample({"requests": 1})

    def test_failed_metrics_do_not_fail_the_capture(self):
        async def broken():
            raise RuntimeError("no metrics")

        async def work():
            reading = Reading(broken(), "e")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return reading.now()

        assert asyncio.run(work()) is None


class TestBetween:
    def test_differences(self):
        before = Sample({"requests": 5, "request_seconds": 1.25, "token_gaps": 2}, idle=True, limit=8)
        after = Sample({"requests": 7, "request_seconds": 1.5, "preemptions": 1}, idle=True, limit=8)
        assert between(before, after) == {
            "requests": 2,
            "request_seconds": 0.25,
            "preemptions": 1,
            "idle": True,
            "max_sequences": 8,
        }

    def test_a_restarted_engine_has_no_difference(self):
        assert between(Sample({"requests": 5}), Sample({"requests": 2})) is None

    @pytest.mark.parametrize(
        ("before", "after"), [(0.0, math.inf), (math.inf, math.inf), (0.0, math.nan), (-1e308, 1e308)]
    )
    def test_values_that_are_not_finite_are_left_out(self, before, after):
        """Values that are not finite, such as `1e999`, are left out, because the JSON of a manifest cannot
        contain them.
        """
        more = between(
            Sample({"requests": before, "preemptions": 1}), Sample({"requests": after, "preemptions": 2})
        )
        assert more == {"preemptions": 1}

    def test_one_sample_is_not_enough(self):
        assert between(None, Sample({"requests": 2})) is None
        assert between(Sample({"requests": 2}), None) is None

    def test_the_first_name_that_the_engine_has_counts(self):
        found = metrics_of(
            VLLM,
            [("vllm:time_per_output_token_seconds_count", 3), ("vllm:inter_token_latency_seconds_count", 4)],
        )
        assert found == Sample({"token_gaps": 4})
        assert metrics_of(VLLM, [("x", 1.0)]) is None
