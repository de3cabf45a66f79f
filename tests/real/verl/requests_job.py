"""Run verl's server on vLLM's stream, and verl's client, in one process. Only Ray and the core of
the engine are stand-ins.

``python requests_job.py FOLDER`` writes the results to ``FOLDER/seen.json``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

from verl.workers.config import RolloutConfig
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.metrics.stats import RequestStateStats

import stepprof
from stepprof.integrations import verl_requests
from stepprof.integrations.activation import attach, deactivate_all
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans

PAUSE = 0.05
"""Seconds before each of the four tokens."""
STATED = RequestStateStats(
    num_generation_tokens=4, first_token_latency=0.5, first_token_ts=7.0, last_token_ts=9.0
)
"""The statistics that vLLM keeps of a request with `disable_log_stats=False`."""


class Engine(AsyncLLM):
    """vLLM's engine without its core. It returns one token after another."""

    log_requests = False

    def __init__(self, metrics=None):
        self.metrics = metrics
        self.aborted = []

    def __del__(self):
        pass

    async def add_request(self, request_id, prompt, params, **_):
        collected = RequestOutputCollector(params.output_kind, request_id)
        self.running = asyncio.ensure_future(self.make_tokens(collected))
        return collected

    async def make_tokens(self, collected):
        for count in range(1, 5):
            await asyncio.sleep(PAUSE)
            sequence = CompletionOutput(0, "", [7] * count, None, None, "length" if count == 4 else None)
            collected.put(RequestOutput("a", None, [1], [None], [sequence], count == 4, metrics=self.metrics))

    async def abort(self, request_id, internal=False):
        self.aborted.append(request_id)


def server_of(engine):
    """Return verl's server with an engine, without its own process."""
    server = object.__new__(vLLMHttpServer)
    vars(server).update(
        engine=engine, config=RolloutConfig(name="vllm", max_model_len=64, prompt_length=8, response_length=8),
        model_config=SimpleNamespace(lora_rank=0, lora={}, processor=None),
        global_steps=3, replica_rank=0, _disaggregation_role="null", _submission_paused=False, _admitting=0,
    )  # fmt: skip
    return server


class Client(LLMServerClient):
    """verl's client of one server. Its replies are pickled, as Ray does."""

    def __init__(self, server):
        rollout = SimpleNamespace(name="vllm", full_determinism=False)
        super().__init__(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
        self.there = server
        self.handle = SimpleNamespace(generate=SimpleNamespace(remote=self.call))

    async def call(self, **kwargs):
        return pickle.loads(pickle.dumps(await self.there.generate(**kwargs)))

    async def _acquire_server(self, request_id, **_):
        return "0", self.handle

    def _release_server(self, server_id, request_id=None):
        pass


def ask(engine=None, sample="plain", **sampling):
    """Return verl's reply to one request of a sample."""
    client = Client(server_of(engine or Engine()))
    with stepprof.profile_step(2), stepprof.bind(sample=sample):
        return asyncio.run(client.generate("a", prompt_ids=[1], sampling_params=sampling))


def serve(**kwargs):
    """Return the reply of a server in the form in which it leaves its process."""
    return asyncio.run(server_of(Engine()).generate([1], {}, "a", **kwargs))


async def cancel(engine):
    """Cancel a request after two tokens. Return whether the caller's task was cancelled."""
    asked = asyncio.ensure_future(server_of(engine).generate([1], {}, "a"))
    await asyncio.sleep(2.5 * PAUSE)
    asked.cancel()
    await asyncio.wait({asked})
    return asked.cancelled()


def main(folder: Path) -> None:
    """Send requests without and with stepprof, and write what the requests returned."""
    plain = vars(ask())
    attached = [attach(adapter) for adapter in verl_requests.ADAPTERS]
    stepprof.init({"steps": "9", "backend": "null", "output_dir": str(folder / "runs")})
    measured = vars(ask(sample="measured"))
    ask(Engine(STATED), sample="stated")
    scored = ask(sample="scored", prompt_logprobs=0)
    reply = serve()
    prefilled = serve(kv_transfer_params={"do_remote_decode": True})
    engine = Engine()
    cancelled = asyncio.run(cancel(engine))
    methods = vLLMHttpServer.generate, LLMServerClient.generate
    kinds = [inspect.iscoroutinefunction(each) for each in methods]
    parameters = list(inspect.signature(vLLMHttpServer.generate).parameters)
    verl_requests.Times.receive = lambda *_: 1 / 0
    failed = vars(ask(sample="failed"))
    stepprof.shutdown()
    deactivate_all()
    (run,) = list_runs(folder / "runs")
    seen = {
        "attached": attached, "plain": plain, "measured": measured, "failed": failed, "scored": sorted(vars(scored)),
        "sent": sorted(vars(reply)), "sent_fields": reply.model_dump(), "prefilled": sorted(vars(prefilled)),
        "cancelled": cancelled, "aborted": engine.aborted, "coroutines": kinds, "parameters": parameters,
        "marks": [each["attrs"] for each in read_spans(run, step=2) if each["kind"] == "mark"],
    }  # fmt: skip
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
