"""Wait for torch.distributed after `init`: it provides the rank, and shows whether all ranks record into one run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.run.job_store import JobStore

if TYPE_CHECKING:
    from stepprof.recording.selector import Selector


class Joining:
    """Compares this session's run with that of the other ranks, once.

    Args:
        store: the store of the torch.distributed job.
        run_id: the run of this process.
        selector: receives the rank.
    """

    def __init__(self, store: JobStore, run_id: str, selector: Selector) -> None:
        self._store = store
        self._run_id = run_id
        self._selector = selector
        self._is_done = False

    def look(self) -> None:
        """Compare as soon as torch.distributed is up. A separate thread queries the store: the caller has other work."""
        if not self._is_done and self._store.is_up():
            self._is_done = True
            self._selector.look_for_rank()
            threading.Thread(target=self._compare, name="stepprof joining", daemon=True).start()

    def _compare(self) -> None:
        settled = self._store.agree(self._run_id)
        if settled not in (None, self._run_id) and self._store.is_first_to_complain():
            identity = self._selector.identity
            logger.warning(
                "run.divided",
                rank=identity.rank,
                world_size=identity.world_size,
                run_id=self._run_id,
                other_run_id=settled,
                reason="the ranks of this torch.distributed job record into several runs, which no report reads as one; "
                "give all of them one name with stepprof.init(..., run_id=...) or STEPPROF_RUN_ID, or call stepprof.init after torch.distributed is initialised",
            )
