"""Evaluate a stop of SGLang: which files to wait for, whether the capture ended at its limit, and why there is no file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.remote.artifacts import is_whole
from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.loop import in_thread
from stepprof.remote.sglang.files import Brought, find

if TYPE_CHECKING:
    from stepprof.remote.sglang.request import Facts, Request
    from stepprof.run.model import Artifact

UNANSWERED_SECONDS = 120.0
"""Time limit for the files of 0.4.6, which does not answer a stop."""

STAGES_SECONDS = 20.0
"""Time limit for the files of the later stages of a pipeline: SGLang waits only for the first one."""

LOOK_SECONDS = 0.25

STOPPED_BY_OTHERS = "another client stopped it before the window ended"


def outcome(brought: Brought, recorded: bool | None, request: Request, folder: Path) -> Stopped:
    """Return the result of a stop; ``recorded`` is its answer. Blocks.

    Raises:
        EngineFailure: there is no file.
    """
    if not brought.artifacts and not brought.problems:
        raise EngineFailure(_nothing(recorded, request, folder), "ok")
    ended_itself = not recorded and _reached_bound(brought.artifacts, request)
    others = [] if recorded or ended_itself else [STOPPED_BY_OTHERS]
    return Stopped(
        tuple(brought.artifacts),
        capped_by="engine" if ended_itself else None,
        partial="; ".join([*others, *brought.problems]) or None,
    )


def _reached_bound(artifacts: Sequence[Artifact], request: Request) -> bool:
    """Return whether a capture ended at its limit; else another driver stopped it. The traces of
    old engines name no forward steps: the limit is assumed.
    """
    counts = [artifact.forward_steps for artifact in artifacts]
    if request.bound is None:
        return False
    recorded = sum(counts) if request.cut else max(counts, default=0)
    return not recorded or recorded >= request.bound


def _nothing(recorded: bool | None, request: Request, folder: Path) -> str:
    if find(folder):
        return f"the traces in {folder} belong to another user than the engine"
    if recorded:
        return (
            f"the stop has returned, and there is no trace in {folder}: the engine sees another folder under that name; name one that "
            "both see: attach(…, trace_dir=…)"
        )
    if request.by_stage:
        return "the engine ran no forward step while the window was open: there is no stage to record"
    return "the engine says that it was not recording, and left no trace: another client stopped it, or it was restarted"


async def wait_for_files(folder: Path, facts: Facts, request: Request) -> None:
    """Wait for files that SGLang writes after the answer to its stop."""
    if not facts.answers and request.writes_traces:
        await _until_whole(folder, facts, UNANSWERED_SECONDS)
    elif facts.ranks > facts.tp:
        await _until_whole(folder, facts, STAGES_SECONDS)


async def _until_whole(folder: Path, facts: Facts, seconds: float) -> None:
    waited = 0.0
    while waited < seconds:
        found = await in_thread(find, folder, facts.users)
        whole = [await in_thread(is_whole, each.path, facts.users) for each in found]
        if len(found) >= facts.workers and all(whole):
            return
        await asyncio.sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS


RIGHT_SINCE = (0, 5, 22)


def credible(counted: Mapping[str, Any] | None, facts: Facts | None) -> Mapping[str, Any] | None:
    """Return an engine's counts, without the sum of the times to the first token if it may be wrong.

    Before 0.5.22, the time of a request that is not streamed ends with its first output: after 50
    tokens, or with its end.

    It is right in newer versions, and if each later token was counted with a time of its own: then all requests were
    streamed token by token.
    """
    if counted is None or (facts is not None and facts.is_since(RIGHT_SINCE)):
        return counted
    gaps, tokens, first = (counted.get(key) for key in ("token_gaps", "generated_tokens", "first_tokens"))
    if None not in (gaps, tokens, first) and gaps == tokens - first:  # type: ignore[operator]
        return counted
    return {key: value for key, value in counted.items() if key != "first_token_seconds"}
