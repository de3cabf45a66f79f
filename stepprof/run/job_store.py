"""The key-value store of an initialised torch.distributed job: where its ranks agree on their run.

The first rank that asks proposes its run, the others get the answer. Each asks once, in one round trip to the store's server. That is no collective: no rank waits for another one. The question
is asked on a thread of its own, so that a server that does not answer delays `init` by a bounded time and never hangs the job.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from stepprof.log import logger
from stepprof.run.names import is_plain_name

__all__ = ["JobStore"]

ANSWER_SECONDS = 10.0
"""How long an answer of the store is waited for."""


class JobStore:
    """The store as the ranks of one run see it.

    Args:
        number: how many runs this process has opened, this one included: a job that ends its run and begins another one agrees anew.
    """

    def __init__(self, number: int) -> None:
        self._key = f"stepprof/run/{number}"

    @staticmethod
    def is_up() -> bool:
        """Whether torch.distributed is initialised, with more than one rank."""
        distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
        # another thread may be in the middle of importing it
        initialized = getattr(distributed, "is_initialized", None)
        if initialized is None or not distributed.is_available() or not initialized():
            return False
        return bool(distributed.get_world_size() > 1)

    def agree(self, run_id: str) -> str | None:
        """Return the run of the job: this one, unless another rank came first; None where the store does not answer, or answers with no plain name."""
        answer: str | None = _bounded(lambda store: store.compare_set(self._key, "", run_id).decode())
        if answer is None or is_plain_name(answer):
            return answer
        logger.warning(
            "store.unreachable", reason=f"the run of the other ranks is no plain name: {answer[:200]!r}"
        )
        return None

    def is_first_to_complain(self) -> bool:
        """Whether no other rank has logged that the ranks do not agree."""
        return _bounded(lambda store: int(store.add(f"{self._key}/complaints", 1))) in (1, None)


def _bounded(ask: Callable[[Any], Any]) -> Any:
    """What the store answers, or None; the reason is logged."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            store = sys.modules["torch"].distributed.distributed_c10d._get_default_store()
            answers.put((ask(store), None))
        except Exception as error:  # noqa: BLE001 - another torch, or a store that has lost its server: the rank has a run of its own then
            answers.put((None, f"{type(error).__name__}: {error}"))

    threading.Thread(target=work, name="stepprof store", daemon=True).start()
    try:
        answer, problem = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        answer, problem = None, f"no answer within {ANSWER_SECONDS:g} s"
    if problem is not None:
        logger.warning("store.unreachable", reason=problem)
    return answer
