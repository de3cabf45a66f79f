"""Measure one real engine in its own process: ``python -m benchmarks.engine_child vllm|sglang
ROUNDS``.

Bare start and stop calls of the engine alternate with a recorded window of stepprof around the same
generation. Generations with an attached engine alternate with those without. So other load of the
machine affects both.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import stepprof

TESTS = Path(__file__).parent.parent / "tests" / "real"
PROMPTS = [f"{number} + {number} = " for number in range(8)]
TOKENS = 48

Samples = dict[str, list[float]]


def _session(folder: Path, steps: int) -> None:
    stepprof.init(
        {
            "output_dir": str(folder / "runs"),
            "steps": f"1-{steps}",
            "backend": "null",
            "engine_start_timeout_seconds": 60,
            "roles": {"rollout": {"ranks": "all", "engine": {"max_iterations": "none"}}},
        },
        rank=0,
        world_size=1,
    )


async def _alternate(
    rounds: int,
    engine: object,
    generate: Callable[[], Awaitable[object]],
    bare: Callable[[int], Awaitable[object]],
    window: Callable[[int], Awaitable[object]],
) -> Samples:
    """Return the seconds of each variant, measured alternately; the first round warms up and is dropped."""
    found: Samples = {"detached": [], "attached": [], "bare": [], "stepprof": []}

    async def timed(name: str, act: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        await act()
        found[name].append(time.perf_counter() - began)

    for number in range(1, rounds + 2):
        await timed("detached", generate)
        await timed("bare", partial(bare, number))
        attached = stepprof.attach(engine)
        await timed("attached", generate)
        await timed("stepprof", partial(window, number))
        stepprof.detach(attached)
        await asyncio.sleep(0.2)
    return {name: samples[1:] for name, samples in found.items()}


async def _vllm(rounds: int, folder: Path) -> Samples:
    sys.path.insert(0, str(TESTS / "vllm"))
    os.environ.update(
        VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1"
    )  # fmt: skip
    import vllm_tiny
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from stepprof.remote.vllm import engine_args

    given = vllm_tiny.arguments(vllm_tiny.model(folder / "model"), **engine_args(folder / "traces"))
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**given))
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    count = iter(range(10**9))

    async def one(prompt: str) -> None:
        async for _ in engine.generate(prompt, sampling, request_id=f"r{next(count)}"):
            pass

    async def generate() -> None:
        await asyncio.gather(*map(one, PROMPTS))

    async def bare(step: int) -> None:
        await engine.start_profile()
        await generate()
        await engine.stop_profile()

    async def window(step: int) -> None:
        async with stepprof.profile_step(step, role="rollout"):
            await generate()

    _session(folder, rounds + 1)
    try:
        return await _alternate(rounds, engine, generate, bare, window)
    finally:
        stepprof.shutdown(10)
        engine.shutdown()


def _sglang(rounds: int, folder: Path) -> Samples:
    sys.path.insert(0, str(TESTS / "sglang"))
    import sglang_tiny
    from sglang import Engine

    engine = Engine(
        model_path=sglang_tiny.make_model(folder / "model"), sleep_on_idle=True, **sglang_tiny.ENGINE
    )
    sampling = {"max_new_tokens": TOKENS, "ignore_eos": True}

    def generate() -> None:
        engine.generate(PROMPTS, [sampling] * len(PROMPTS))

    def bare(step: int) -> None:
        engine.start_profile(
            output_dir=str(folder / f"bare-{step}"), activities=["CPU"], with_stack=False, record_shapes=False
        )
        generate()
        engine.stop_profile()

    def window(step: int) -> None:
        with stepprof.profile_step(step, role="rollout"):
            generate()

    def later(act: Callable[..., Any]) -> Callable[..., Awaitable[object]]:
        """Run on a thread: the engine's own calls run an event loop, which is impossible inside
        another one.
        """
        return lambda *given: asyncio.get_running_loop().run_in_executor(None, act, *given)

    _session(folder, rounds + 1)
    try:
        return asyncio.run(_alternate(rounds, engine, later(generate), later(bare), later(window)))
    finally:
        stepprof.shutdown(10)
        engine.shutdown()


def main() -> None:
    """Print the seconds of each variant as JSON."""
    kind, rounds = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        found = asyncio.run(_vllm(rounds, folder)) if kind == "vllm" else _sglang(rounds, folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
