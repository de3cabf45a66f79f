"""The key-value store of an initialised torch.distributed job, where its ranks agree on their run.

The first rank proposes its run, and the others get the answer. Each rank asks once, in one round
trip, without waiting for other ranks. A separate thread asks, so a server that does not answer
delays `init` by a bounded time.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.names import is_plain_name

ANSWER_SECONDS = 10.0
"""Maximum seconds to wait for an answer of the store."""


class JobStore:
    """The store, as the ranks of one run use it.

    Args:
        number: number of runs that this process has opened, including this one: a job that begins another run agrees again.
    """

    def __init__(self, number: int) -> None:
        self._key = f"stepprof/run/{number}"

    @staticmethod
    def is_up() -> bool:
        """Return whether torch.distributed is initialised, with more than one rank."""
        distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
        # another thread may be importing it
        initialized = getattr(distributed, "is_initialized", None)
        if initialized is None or not distributed.is_available() or not initialized():
            return False
        return bool(distributed.get_world_size() > 1)

    def agree(self, run_id: str) -> str | None:
        """Return the run of the job: this one, unless another rank was first. None: no valid answer."""
        answer: str | None = _bounded(lambda store: store.compare_set(self._key, "", run_id).decode())
        if answer is None or is_plain_name(answer):
            return answer
        logger.warning(
            "store.unreachable", reason=f"the run of the other ranks is not a plain name: {answer[:200]!r}"
        )
        return None

    def is_first_to_complain(self) -> bool:
        """Return whether no other rank has logged the disagreement of the ranks."""
        return _bounded(lambda store: int(store.add(f"{self._key}/complaints", 1))) in (1, None)


def _bounded(ask: Callable[[Any], Any]) -> Any:
    """Return the answer of the store, or None; the reason is logged."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            store = sys.modules["torch"].distributed.distributed_c10d._get_default_store()
            answers.put((ask(store), None))
        except ours(
            Exception
        ) as error:  # another torch, or a store without its server: then the rank gets its own run
            answers.put((None, f"{type(error).__name__}: {error}"))

    threading.Thread(target=work, name="stepprof store", daemon=True).start()
    try:
        answer, problem = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        answer, problem = None, f"no answer within {ANSWER_SECONDS:g} s"
    if problem is not None:
        logger.warning("store.unreachable", reason=problem)
    return answer
