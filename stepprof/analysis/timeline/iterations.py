"""Read the forward steps of an engine, which vLLM and SGLang write as annotations, with their batch
sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.columns import CounterColumns, Interned, SliceColumns
from stepprof.analysis.timeline.model import Flags, Indices, Times
from stepprof.analysis.timeline.tracks import Rows

BATCH_SIZE = "batch size"
_TOKENS = r"(?:\((?:sq)?(\d+)[^)]*\))?"
_VLLM = re.compile(rf"execute_(?:\d+_)?(?:context_(\d+){_TOKENS})?_?(?:generation_(\d+){_TOKENS})?")
"""As vLLM 0.16 to 0.33 write it: the tokens alone, or followed by lengths of attention."""
_VLLM_BEFORE = re.compile(r"execute_new_(\d+)_cached_(\d+)")
"""As vLLM 0.12 and 0.13 write it: requests that are new to the engine, and others."""
_SGLANG = re.compile(r"step\[(?:(\w+) )?[^\]]*?\bbs=(\d+)(?: toks=(\d+))?[^\]]*\]")
_STAGES = {
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DECODE": "decode",
    "VERIFY": "decode",
    "MIXED": "mixed",
}
PAUSE_NS = 20_000_000
"""A shorter gap between two steps belongs to the scheduler. A longer one is a pause if it is also
longer than PAUSE_STEPS median steps.
"""
PAUSE_STEPS = 5
_ROW = 500


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """What an engine's annotation says of one forward step. A number is None where it is not stated."""

    stage: str
    """``prefill``: the step worked on prompts; ``decode``: it generated tokens; ``mixed``: both; ``other``: neither, or not stated."""
    sequences: int
    """The requests that it worked on."""
    prefill_tokens: int | None
    """The tokens of prompts that it worked on."""
    decode_tokens: int | None
    """The tokens that it worked on for sequences that already had an output token."""
    surplus: int = 0
    """How many of `decode_tokens` exceed one per sequence: recomputed after a preemption, or speculated."""


def forward_step(name: str) -> ForwardStep | None:
    """Return what the name of a forward step says; None for other names.

    >>> forward_step("execute_context_1(7)_generation_3(3)")
    ForwardStep(stage='mixed', sequences=4, prefill_tokens=7, decode_tokens=3, surplus=0)
    >>> forward_step("step[DECODE bs=5]").decode_tokens, forward_step("aten::add")
    (5, None)
    """
    match = _VLLM.fullmatch(name)
    if match is not None and (match[1] or match[3]):
        prompts, running = int(match[1] or 0), int(match[3] or 0)
        prompt_tokens, tokens = (
            int(match[at] or 0) if match[at] or not count else None
            for at, count in ((2, prompts), (4, running))
        )
        stage = "mixed" if prompts and running else "prefill" if prompts else "decode" if running else "other"
        return ForwardStep(stage, prompts + running, prompt_tokens, tokens, max((tokens or 0) - running, 0))
    match = _VLLM_BEFORE.fullmatch(name)
    if match is not None:  # a prompt may be computed in several steps, and is new in the first one only
        return ForwardStep("other", int(match[1]) + int(match[2]), None, None)
    match = _SGLANG.fullmatch(name)
    if match is None:
        return None
    sequences, mode = int(match[2]), match[1]
    stage = _STAGES.get(mode, "other")
    if mode == "DECODE":
        return ForwardStep(stage, sequences, 0, sequences)
    if mode == "EXTEND" and match[3]:
        return ForwardStep(stage, sequences, int(match[3]), 0)
    return ForwardStep(stage, sequences, None, None)


def batch_size(name: str) -> int | None:
    """Return how many requests a forward step of that name worked on; None for other names.

    >>> batch_size("execute_context_1(7)_generation_3(3)"), batch_size("step[DECODE bs=5]"), batch_size("aten::add")
    (4, 5, None)
    """
    step = forward_step(name)
    return None if step is None else step.sequences


def lasting(start: Times, end: Times) -> Times:
    """Return the end of each forward step: the start of the next one, or, before a pause, shortly
    after its own end.

    Args:
        start: of each, in order.
        end: of each.
    """
    until = np.maximum.accumulate(end) + PAUSE_NS
    goes_on = ~_pauses(start, end)
    until[:-1][goes_on] = start[1:][goes_on]
    return until


def occupied(start: Times, end: Times) -> Times:
    """Return how long each forward step occupied its engine: until the next one begins or, before a pause and at
    the end, until its own end.

    Args:
        start: of each, in order.
        end: of each.
    """
    until = np.maximum.accumulate(end)
    goes_on = ~_pauses(start, end)
    until[:-1][goes_on] = start[1:][goes_on]
    return np.maximum(until - start, 0)


def _pauses(start: Times, end: Times) -> Flags:
    """Return whether a pause follows each forward step but the last one."""
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    return gap > max(PAUSE_NS, PAUSE_STEPS * float(np.median(end - start)))


class Iterations:
    """Collects the forward steps of a trace. `finish` adds a track of them for each process, and a
    counter.
    """

    def __init__(self, names: Interned[str], categories: Interned[str], rows: Rows) -> None:
        self._names, self._categories, self._rows = names, categories, rows
        self._sizes = np.zeros(0, dtype=np.float64)
        self._found: list[tuple[Indices, Indices, Times, Times]] = []
        self.held = 0
        """The most bytes of memory that they take, including the slices and values made of them."""

    def take(self, name: Indices, track: Indices, start: Times, duration: Times) -> None:
        """Collect forward steps among complete events."""
        known = len(self._sizes)
        if len(self._names) > known:
            new = [batch_size(text) for text in self._names.since(known)]
            sizes = [np.nan if size is None else float(size) for size in new]
            self._sizes = np.concatenate((self._sizes, np.array(sizes, dtype=np.float64)))
        here = np.flatnonzero(~np.isnan(self._sizes[name]))
        if len(here):
            self.held += _ROW * len(here)
            self._found.append((name[here], track[here], start[here], duration[here]))

    def finish(self, slices: SliceColumns, counters: CounterColumns) -> None:
        """Add the collected steps. A device's copies of the annotations are ignored if the process
        has its own.
        """
        if not self._found:
            return
        name, track, start, duration = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        keys = list(self._rows.keys)
        kind = np.array([key[0] == "thread" for key in keys])
        if kind[track].any():
            own = kind[track]
            name, track, start, duration = name[own], track[own], start[own], duration[own]
        pids = [key[1] for key in keys]
        processes: Interned[int | str] = Interned()
        process = np.array([processes[pids[number]] for number in track.tolist()], dtype=np.int32)
        category = self._categories["iteration"]
        for pid, number in processes.items():
            of = np.flatnonzero(process == number)
            of = of[np.argsort(start[of], kind="stable")]
            row = self._rows.keys["iterations", pid, "iterations"]
            constant = np.full(len(of), row, dtype=np.int32)
            slices.add(
                start[of], duration[of], name[of], np.full(len(of), category, dtype=np.int32), constant
            )
            self._count(start[of], start[of] + duration[of], self._sizes[name[of]], pid, counters)

    def _count(
        self,
        start: Times,
        end: Times,
        size: npt.NDArray[np.float64],
        pid: int | str,
        counters: CounterColumns,
    ) -> None:
        """Add each step's batch size at its start, and 0 at the start of a pause and after the last
        step.
        """
        latest = np.maximum.accumulate(end)
        pause = _pauses(start, end)
        zeros = np.concatenate((latest[:-1][pause], latest[-1:]))
        times = np.concatenate((start, zeros))
        values = np.concatenate((size, np.zeros(len(zeros))))
        order = np.argsort(times, kind="stable")
        track = self._rows.keys["counter", pid, BATCH_SIZE]
        counters.add(times[order], values[order], np.full(len(order), track, dtype=np.int32))
