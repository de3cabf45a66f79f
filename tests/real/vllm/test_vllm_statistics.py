"""Compare the report's figures of tokens and preemptions with the values that the real vLLM counts and
returns.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driven import begin, read_entries
from holding import reported
from vllm_driven import Trace

import stepprof

if TYPE_CHECKING:
    from vllm_driven import Live

EVERYTHING = {"engine": {"max_iterations": "none"}}


@pytest.fixture(scope="module")
def cramped(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return an engine whose memory holds 384 tokens, of three sequences at full length."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm_driven import Live

        from stepprof.remote.vllm import engine_args

        folder = tmp_path_factory.mktemp("traces")
        memory = {"block_size": 32, "num_gpu_blocks_override": 12, "enable_prefix_caching": False}
        engine = Live(model, **memory, **engine_args(folder))
    yield engine
    engine.close()


async def returned(engine: Any, name: str, tokens: int) -> tuple[int, int]:
    """Generate this number of tokens for one prompt. Return the number of the prompt's tokens and
    of the generated ones, as vLLM returns them.
    """
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    last = None
    async for output in engine.generate("abc", asked, name):
        last = output
    assert last is not None
    return len(last.prompt_token_ids), len(last.outputs[0].token_ids)


async def marked(engine: Any, name: str, tokens: int) -> tuple[int, float, float]:
    """Generate for a bound sample, and mark its request. Return its tokens, and vLLM's times of the
    request.
    """
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    last = None
    with stepprof.bind(sample=name), stepprof.region("generate"):
        async for output in engine.generate("abc", asked, name):
            last = output
            stepprof.mark_request(output)  # marks only the last output
    assert last is not None
    times = last.metrics
    return times.num_generation_tokens, times.first_token_latency, times.last_token_ts - times.first_token_ts


async def all_marked(engine: Any, lengths: dict[str, int]) -> dict[str, tuple[int, float, float]]:
    """Generate for several samples concurrently, and return the results of each."""
    each = await asyncio.gather(*(marked(engine, name, tokens) for name, tokens in lengths.items()))
    return dict(zip(lengths, each, strict=True))


async def all_of(engine: Any, name: str, lengths: list[int]) -> tuple[int, int]:
    """Return the sums over several concurrent prompts."""
    each = await asyncio.gather(
        *(returned(engine, f"{name}-{n}", tokens) for n, tokens in enumerate(lengths))
    )
    return sum(prompt for prompt, _ in each), sum(generated for _, generated in each)


def preemptions(engine: Any) -> int:
    """Return vLLM's own count of preemptions."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    (metric,) = [each for each in get_metrics_snapshot() if each.name == "vllm:num_preemptions"]
    return int(metric.value)


def observed(name: str) -> tuple[int, float]:
    """Return the number and the sum of vLLM's observations of a time."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    (metric,) = [each for each in get_metrics_snapshot() if each.name == name]
    return metric.count, metric.sum


def test_times_of_bound_samples_are_the_engines_own(
    cramped: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of ten samples have to wait. The report has the times of each sample, and their means are
    those of vLLM's histograms.
    """
    names = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
    begin(tmp_path, rollout=EVERYTHING)
    stepprof.attach(cramped.engine, role="rollout")
    lengths = {f"s{number}": tokens for number, tokens in enumerate((1, 2, 5, 9, 20, 30, 5, 5, 40, 3))}
    before = [observed(name) for name in names]
    with stepprof.profile_step(2, role="rollout"):
        truth = cramped.run(all_marked(cramped.engine, lengths))
    after = [observed(name) for name in names]
    stepprof.shutdown()
    report = reported(tmp_path / "run", capsys)
    (row,) = [row for row in report["rollout"] if row["samples"]]
    for spread, (count, seconds), (counted, total), left_out in zip(
        (row["first_token"], row["per_token"]), before, after, (0, 1), strict=True
    ):
        # for a request of one token, vLLM counts 0 s between tokens
        assert spread["count"] == counted - count - left_out == 10 - left_out
        assert spread["mean"] * spread["count"] == pytest.approx(total - seconds, abs=1e-6)
    (work,) = report["engines"]
    assert row["first_token"]["mean"] == pytest.approx(work["first_token"], abs=1e-6)
    assert {sample["sample"]: sample["generated_tokens"] for sample in row["samples"]} == lengths
    for sample in row["samples"]:
        tokens, first, decode = truth[sample["sample"]]
        assert sample["first_token"] == pytest.approx(first, abs=1e-6)
        per_token = None if tokens == 1 else pytest.approx(decode / (tokens - 1), abs=1e-6)
        assert sample["per_token"] == per_token


def test_tokens_and_preemptions_are_the_engines_own(
    cramped: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The requests of step 2 do not fit into the memory, those of step 3 do. Requests outside the
    windows are not counted.
    """
    begin(tmp_path, rollout=EVERYTHING)
    stepprof.attach(cramped.engine, role="rollout")
    truth: dict[int, tuple[int, int, int]] = {}
    for step, lengths in ((1, [5]), (2, [100] * 8), (3, [20, 30, 40]), (4, [5])):
        before = preemptions(cramped.engine)
        with stepprof.profile_step(step, role="rollout"):
            tokens = cramped.run(all_of(cramped.engine, f"step-{step}", lengths))
        truth[step] = (*tokens, preemptions(cramped.engine) - before)
        cramped.generate(3, prompts=2)
    stepprof.shutdown()
    assert truth[2][2] > 0
    assert truth[3][2] == 0
    for step, requests in ((2, 8), (3, 3)):
        (entry,) = read_entries(tmp_path, step)
        assert entry["statistics"]["idle"] is True
        (work,) = reported(tmp_path / "run", capsys, step)["engines"]
        assert (work["prompt_tokens"], work["generated_tokens"], work["preemptions"]) == truth[step]
        assert (work["requests"], work["limit"], work["cached_tokens"]) == (requests, 8, 0)
        forward = Trace.named(tmp_path, entry["artifacts"][0], step).forward
        stages = work["stages"]
        assert sum(stage["iterations"] for stage in stages) == len(forward)
        assert sum(stage["prefill_tokens"] for stage in stages) == sum(tokens for tokens, _ in forward)
        assert sum(stage["decode_tokens"] for stage in stages) == sum(tokens for _, tokens in forward)
        assert work["generated_tokens_per_second"] == pytest.approx(truth[step][1] / work["seconds"])
        assert 0 < work["per_token"] < work["per_request"]
        assert 0 < work["first_token"] < work["per_request"]
    (work,) = reported(tmp_path / "run", capsys, 2)["engines"]
    scheduled = sum(
        sum(step) for step in Trace.named(tmp_path, read_entries(tmp_path)[0]["artifacts"][0]).forward
    )
    assert work["recomputed_tokens"] == scheduled - truth[2][0] - (truth[2][1] - 8) > 0
    assert reported(tmp_path / "run", capsys, 3)["engines"][0]["recomputed_tokens"] == 0


def test_a_capped_capture_has_the_counts_of_the_whole_window(
    cramped: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace has 4 forward steps, and the engine counted all tokens. The report computes the
    rate for the window.
    """
    begin(tmp_path, rollout={"engine": {"max_iterations": 4}})
    stepprof.attach(cramped.engine, role="rollout")
    with stepprof.profile_step(2, role="rollout"):
        tokens = cramped.run(all_of(cramped.engine, "capped", [12, 12]))
    stepprof.shutdown()
    (work,) = reported(tmp_path / "run", capsys)["engines"]
    assert (work["prompt_tokens"], work["generated_tokens"]) == tokens
    assert (work["whole"], work["basis"]) == (False, "window")
    assert sum(stage["iterations"] for stage in work["stages"]) == 4
