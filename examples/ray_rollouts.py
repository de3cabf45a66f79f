"""The rollout engines of ray_grpo_vllm.py: each is an actor that answers prompts, and loads new weights on request.

They do not use stepprof, except that vLLM is built with `engine_args`; SGLang needs nothing. The engine is the
actor's attribute `engine`, which `stepprof.attach(actor, find="engine")` names.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ROLLOUTS", "Sample", "SglangRollout", "VllmRollout"]

MAX_BATCH = 128  # sequences that the engine processes at a time


@dataclass(frozen=True)
class Sample:
    """One answer to one prompt, and the log-probability with which the engine sampled each of its tokens."""

    prompt: list[int]
    response: list[int]
    log_probs: list[float]
    advantage: float = 0.0


class VllmRollout:
    """vLLM, in this actor's process and its children."""

    def __init__(self, model: str, context: int, traces: str) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from stepprof.remote.vllm import engine_args

        arguments = AsyncEngineArgs(
            model=model,
            dtype="float32",
            max_model_len=context,
            max_num_seqs=MAX_BATCH,
            kv_cache_memory_bytes=64 * 2**20,
            gpu_memory_utilization=0.1,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **engine_args(traces),
        )
        self.engine = AsyncLLM.from_engine_args(arguments)

    async def generate(self, prompts: Sequence[list[int]], size: int, tokens: int) -> list[list[Sample]]:
        """Return a group of samples for each prompt, all prompts at a time."""
        return await asyncio.gather(*(self._group(prompt, size, tokens) for prompt in prompts))

    async def _group(self, prompt: list[int], size: int, tokens: int) -> list[Sample]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            n=size,
            max_tokens=tokens,
            logprobs=0,  # of the sampled token only
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        samples = []
        async for output in self.engine.generate({"prompt_token_ids": prompt}, parameters, uuid.uuid4().hex):
            for answer in output.outputs:
                drawn = list(answer.token_ids)
                log_probs = [at[token].logprob for at, token in zip(answer.logprobs, drawn, strict=True)]
                samples.append(Sample(prompt, drawn, log_probs))
        return samples

    async def load_weights(self, path: str) -> None:
        """Load the weights of a checkpoint, and drop the caches of the old ones."""
        await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
        await self.engine.reset_prefix_cache()

    async def close(self) -> None:
        self.engine.shutdown()


class SglangRollout:
    """SGLang, in this actor's process and its children."""

    def __init__(self, model: str, context: int, traces: str) -> None:
        import sglang

        self.engine = sglang.Engine(
            model_path=model,
            dtype="float32",
            context_length=context,
            max_running_requests=MAX_BATCH,
            max_total_tokens=MAX_BATCH * context,
            mem_fraction_static=0.5,
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            grammar_backend="none",
            disable_cuda_graph=True,
            skip_tokenizer_init=True,
            sleep_on_idle=True,  # else an idle engine polls without a pause, and every poll is recorded
            log_level="error",
        )

    async def generate(self, prompts: Sequence[list[int]], size: int, tokens: int) -> list[list[Sample]]:
        """Return a group of samples for each prompt, all prompts at a time."""
        return await asyncio.gather(*(self._group(prompt, size, tokens) for prompt in prompts))

    async def _group(self, prompt: list[int], size: int, tokens: int) -> list[Sample]:
        parameters = {"n": size, "max_new_tokens": tokens}
        answers = await self.engine.async_generate(
            input_ids=prompt, sampling_params=parameters, return_logprob=True
        )
        pairs = [answer["meta_info"]["output_token_logprobs"] for answer in answers]
        return [
            Sample(prompt, [token for _, token, _ in drawn], [log_prob for log_prob, _, _ in drawn])
            for drawn in pairs
        ]

    async def load_weights(self, path: str) -> None:
        """Load the weights of a checkpoint, and drop the caches of the old ones."""
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(model_path=path, flush_cache=True)
        done, message, *_ = await self.engine.tokenizer_manager.update_weights_from_disk(request, None)
        if not done:
            raise RuntimeError(message)

    async def close(self) -> None:
        self.engine.shutdown()


ROLLOUTS = {"vllm": VllmRollout, "sglang": SglangRollout}
