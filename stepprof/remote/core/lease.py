"""The lease of an actor: the process that drives it, and whether that process is alive.

An actor may outlive its driver, for example if the driver is killed. On one machine the system
knows whether the driver is alive. On another node Ray does: the lease carries an object that the
driver owns, and Ray raises `OwnerDiedError` for it once the driver or its node is dead. A driver
that is slow or stopped keeps its actors.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.manifest_writer import describe_error

LOOK_SECONDS = 2.0
"""Interval at which an actor checks its driver: one small file of /proc on the same machine."""

ASK_SECONDS = 2.0
"""How long an actor waits for Ray's answer about its driver."""

ASK_EVERY = 5
"""Ray is asked only at every fifth check, and only while something is recorded."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The driver of an actor: ``owner`` is its `writer_identity`, ``proof`` a list with a Ray
    object that it owns, if there is one.
    """

    owner: Mapping[str, object]
    proof: list[Any] = field(default_factory=list, compare=False)

    @property
    def here(self) -> bool | None:
        """Return whether the driver is alive; None: the system of this machine does not know."""
        return is_alive(self.owner)

    @property
    def is_over(self) -> bool:
        """Return whether the driver has certainly ended. Blocks for at most `ASK_SECONDS` if Ray has to be asked."""
        here = self.here
        return self._is_over_for_ray() if here is None else not here

    def _is_over_for_ray(self) -> bool:
        ray = sys.modules.get("ray")
        if not self.proof or ray is None or not ray.is_initialized():
            return False
        try:
            ray.get(self.proof[0], timeout=ASK_SECONDS)
        except ray.exceptions.OwnerDiedError:
            return True
        except ours(Exception) as error:  # a stopped driver, a slow network: nothing is known
            logger.debug("lease.unknown", reason=describe_error(error))
        return False

    def __str__(self) -> str:
        return f"pid {self.owner.get('pid')} on {self.owner.get('host')}"


_proofs: dict[str, list[Any]] = {}


def new_lease() -> Lease:
    """Return the lease of actors that this process drives. Without a connection to Ray it has no proof."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return Lease(writer_identity())
    job = ray.get_runtime_context().get_job_id()
    if job not in _proofs:
        _proofs.clear()  # of an earlier job: this process has connected again
        _proofs[job] = [ray.put(None)]
    return Lease(writer_identity(), _proofs[job])


class Watch:
    """Watches the leases of this process, on one thread while there are any."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[Lease, Callable[[], bool], Callable[[], object]]] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looks = 0

    def add(self, key: str, lease: Lease, is_open: Callable[[], bool], end: Callable[[], object]) -> None:
        """Watch a lease.

        Args:
            key: identifies it for `remove`; an earlier lease with this key is replaced.
            lease: the lease whose driver is checked.
            is_open: whether anything is recorded under it.
            end: called once, on a new thread, when the driver has ended.
        """
        with self._changing:
            self._leases[key] = lease, is_open, end
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="stepprof-lease", daemon=True)
                self._thread.start()

    def remove(self, key: str) -> None:
        """Stop watching the lease."""
        with self._changing:
            self._leases.pop(key, None)

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            self._looks += 1
            for key, (lease, is_open, end) in list(self._leases.items()):
                # asking Ray is expensive, and done rarely
                may_ask = lease.here is not None or (self._looks % ASK_EVERY == 0 and is_open())
                if may_ask and lease.is_over and self._take(key):
                    threading.Thread(target=end, name="stepprof-inside", daemon=True).start()
            with self._changing:
                if not self._leases:
                    self._thread = None
                    return

    def _take(self, key: str) -> bool:
        with self._changing:
            return self._leases.pop(key, None) is not None


watch = Watch()
