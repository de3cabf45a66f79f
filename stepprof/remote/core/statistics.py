"""Read an engine's own counters (Prometheus metrics) at the start and at the stop of a capture.

No call waits for it: the request runs concurrently with the engine's start or stop, and an answer
that is later than theirs is not used. A figure that an engine does not count is omitted.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.http.client import Client
from stepprof.remote.loop import drop_result

SECONDS = 5.0
"""Time limit of a request for metrics; nothing waits for it."""
_LINE = re.compile(rb"^((?:vllm|sglang):\w+)(?:\{([^\n]*)\})? ([0-9.eE+-]+)\s*$", re.MULTILINE)
_RANK = re.compile(rb'(?:tp|pp)_rank="(\d+)"')


@dataclass(frozen=True, slots=True)
class Metrics:
    """The names of the metrics of one kind of engine."""

    counters: Mapping[str, tuple[str, ...]]
    """The metrics of each figure; the first one that the engine has is used."""
    pending: tuple[str, ...] = ()
    """Metrics of unfinished requests. All are zero when the engine is idle."""


VLLM = Metrics(
    {
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "cached_tokens": ("vllm:prompt_tokens_cached_total",),
        "generated_tokens": ("vllm:generation_tokens_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        "drafted_tokens": (
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:diffusion_num_canvas_positions_total",
        ),
        "first_tokens": ("vllm:time_to_first_token_seconds_count",),
        "first_token_seconds": ("vllm:time_to_first_token_seconds_sum",),
        "token_gaps": (
            "vllm:inter_token_latency_seconds_count",
            "vllm:time_per_output_token_seconds_count",
        ),
        "token_gap_seconds": (
            "vllm:inter_token_latency_seconds_sum",
            "vllm:time_per_output_token_seconds_sum",
        ),
        "requests": ("vllm:e2e_request_latency_seconds_count",),
        "request_seconds": ("vllm:e2e_request_latency_seconds_sum",),
    },
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
)

SGLANG = Metrics(
    {
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "cached_tokens": ("sglang:cached_tokens_total",),
        "generated_tokens": ("sglang:generation_tokens_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "first_tokens": ("sglang:time_to_first_token_seconds_count",),
        "first_token_seconds": ("sglang:time_to_first_token_seconds_sum",),
        "token_gaps": ("sglang:inter_token_latency_seconds_count",),
        "token_gap_seconds": ("sglang:inter_token_latency_seconds_sum",),
        "requests": ("sglang:e2e_request_latency_seconds_count",),
        "request_seconds": ("sglang:e2e_request_latency_seconds_sum",),
    }
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of an engine at one time."""

    counts: Mapping[str, float]
    idle: bool | None = None
    """Whether the engine had no request; None: unknown."""
    limit: int | None = None
    """Maximum number of sequences that the engine works on at a time; None: unknown."""


def metrics_of(metrics: Metrics, found: Iterable[tuple[str, float]]) -> Sample | None:
    """Return a sample of metrics, by names and values; None: the engine has none of them. Values of
    one name, which differ in their labels, are added up.
    """
    values: dict[str, float] = {}
    for name, value in found:
        values[name] = values.get(name, 0.0) + value
    counts = {
        figure: next(values[name] for name in names if name in values)
        for figure, names in metrics.counters.items()
        if any(name in values for name in names)
    }
    if not counts:
        return None
    pending = [values.get(name) for name in metrics.pending]
    idle = None if not pending or None in pending else not any(pending)
    return Sample(counts, idle)


async def served(client: Client, metrics: Metrics) -> Sample | None:
    """Return a server's counters (``GET /metrics``); None: it has none."""
    reply = await client.request("GET", "/metrics", timeout=SECONDS)
    return metrics_of(metrics, _lines(reply.body)) if reply.ok else None


def _lines(text: bytes) -> Iterable[tuple[str, float]]:
    """Yield names and values of Prometheus' text format. Of the ranks of one engine, the first one counts."""
    for match in _LINE.finditer(text):
        if all(int(rank) == 0 for rank in _RANK.findall(match[2] or b"")):
            try:
                yield match[1].decode(), float(match[3])
            except ours(ValueError):
                continue


class Reading:
    """A reading that runs next to a call to the engine."""

    def __init__(self, read: Awaitable[Sample | None], name: str) -> None:
        self._name = name
        self._task = asyncio.ensure_future(self._guarded(read))

    async def _guarded(self, read: Awaitable[Sample | None]) -> Sample | None:
        try:
            return await read
        except ours(Exception) as error:  # a figure of the report must not harm a capture
            logger.debug("engine.query_failed", name=self._name, reason=str(error))
            return None

    def now(self) -> Sample | None:
        """Return the sample if it has arrived; otherwise it is never used."""
        if self._task.done() and not self._task.cancelled():
            return self._task.result()
        self._task.add_done_callback(drop_result)
        return None


def between(before: Sample | None, after: Sample | None) -> dict[str, Any] | None:
    """Return what an engine counted between two samples, for the manifest; None: unknown.

    A count that has become smaller is omitted: the engine was restarted. A new one was zero before.
    Only finite numbers are taken, because JSON has no others.
    """
    if before is None or after is None:
        return None
    found: dict[str, Any] = {
        name: round(more, 6)
        for name, count in after.counts.items()
        if 0 <= (more := count - before.counts.get(name, 0.0)) < math.inf
    }
    if before.idle is not None and after.idle is not None:
        found["idle"] = before.idle and after.idle
    if after.limit is not None:
        found["max_sequences"] = after.limit
    return found or None
