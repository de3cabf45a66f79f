"""Mark requests that an engine has answered, with the times in its answer: ``mark_request``. vLLM
returns these times with its statistics log on, SGLang from 0.5.22 on with ``enable_metrics``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from stepprof.instrument.context import cell

FIRST_OUTPUT_VERSION = "0.5.21"
"""The version of SGLang whose answers state the time to the first output, of 50 tokens if it is not streamed. Older
versions state none.
"""


def mark_request(answer: object, /) -> None:
    """Record the time to the first token, and per token, of a request that an engine has answered.

    Call it under ``bind(sample=…)``: the report states these times for the sample. An answer without them records
    nothing, and so does one with several sequences (``n > 1``), whose times vLLM does not state one by one.

    Args:
        answer: the last ``RequestOutput`` of vLLM, or the dictionary of SGLang; a list of them: each of these.

    >>> mark_request({"meta_info": {"first_token_latency": 0.1, "e2e_latency": 0.9, "completion_tokens": 9}})
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return
    for each in answer if isinstance(answer, list | tuple) else (answer,):
        if stated := _of_sglang(each) if isinstance(each, Mapping) else stated_by_vllm(each):
            recorder.instant("request", "mark", stated)


def stated_by_vllm(answer: Any) -> dict[str, object]:
    """Return the times in the last ``RequestOutput`` of a request, as attributes of a mark; {} if there are none."""
    times = getattr(answer, "metrics", None)
    tokens = getattr(times, "num_generation_tokens", 0)
    outputs = getattr(answer, "outputs", None)
    if (
        not tokens
        or not isinstance(outputs, list)
        or len(outputs) != 1
        or getattr(answer, "finished", False) is not True
    ):
        return {}
    first, last = getattr(times, "first_token_ts", None), getattr(times, "last_token_ts", None)
    return _known(tokens, getattr(times, "first_token_latency", None), _between(first, last))


def _of_sglang(answer: Mapping[Any, Any]) -> dict[str, object]:
    """Return the times in an answer of SGLang."""
    stated = answer.get("meta_info")
    if not isinstance(stated, Mapping) or "e2e_latency" not in stated:  # it is not finished
        return {}
    late = getattr(sys.modules.get("sglang"), "__version__", None) == FIRST_OUTPUT_VERSION
    first = None if late else stated.get("first_token_latency")
    return _known(stated.get("completion_tokens"), first, _between(first, stated["e2e_latency"]))


def _known(tokens: object, first_token: object, decode: object) -> dict[str, object]:
    found = {"generated_tokens": tokens, "first_token_seconds": first_token, "decode_seconds": decode}
    return {name: value for name, value in found.items() if value is not None}


def _between(start: object, end: object) -> float | None:
    return end - start if isinstance(start, float) and isinstance(end, float) else None
