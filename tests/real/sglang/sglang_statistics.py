"""Record windows of an engine that counts, and return what SGLang itself returns about their
requests.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from driven import begin
from sglang_scenarios import generate

import stepprof

COUNTED = ("prompt_tokens", "completion_tokens", "num_retractions")


def counted(engine: Any, folder: Path, steps: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Generate this number of tokens for the prompts of each step. Return the sums of SGLang's own
    counts of the requests.
    """
    begin(folder, engine_stop_timeout_seconds=150, rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(engine, role="rollout")
    found = {}
    for step, (tokens, prompts) in steps.items():
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with stepprof.profile_step(step, role="rollout"):
            answers = engine.generate(["abc"] * prompts, asked)
        generate(engine, 2)  # this request is not in the window
        found[step] = [sum(answer["meta_info"][name] for answer in answers) for name in COUNTED]
    stepprof.shutdown()
    return found


HISTOGRAMS = ("sglang:time_to_first_token_seconds", "sglang:request_time_per_output_token_seconds")


def observed() -> list[tuple[int, float]]:
    """Return the number and the sum of SGLang's observations of each time."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=os.environ["PROMETHEUS_MULTIPROC_DIR"])
    values: dict[str, float] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return [(int(values.get(f"{name}_count", 0)), values.get(f"{name}_sum", 0.0)) for name in HISTOGRAMS]


async def marked(engine: Any, name: str, tokens: int, stream: bool) -> dict[str, Any]:
    """Generate for a bound sample, and mark its request. Return SGLang's own data of the request."""
    asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with stepprof.bind(sample=name), stepprof.region("generate"):
        answer = await engine.async_generate("abc", asked, stream=stream)
        if stream:
            async for last in answer:
                answer = last
        stepprof.mark_request(answer)
    return {"stream": stream, **answer["meta_info"]}


async def all_marked(engine: Any, lengths: dict[str, int]) -> list[dict[str, Any]]:
    """Generate for several samples concurrently, every second one as a stream."""
    return await asyncio.gather(
        *(
            marked(engine, name, tokens, bool(number % 2))
            for number, (name, tokens) in enumerate(lengths.items())
        )
    )


def sampled(engine: Any, folder: Path, lengths: dict[str, int]) -> tuple[list[Any], list[Any], list[Any]]:
    """Generate bound samples in step 2. Return SGLang's observations before and after it, and its
    data of each sample.
    """
    begin(folder, engine_stop_timeout_seconds=150, rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(engine, role="rollout")
    before = observed()
    with stepprof.profile_step(2, role="rollout"):
        answers = engine.loop.run_until_complete(all_marked(engine, lengths))
    after = observed()
    stepprof.shutdown()
    return before, after, answers
