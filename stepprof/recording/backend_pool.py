"""The backends of this process: each is made and probed once, and shared by the policies that have the same options."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.backends import make_backend
from stepprof.errors import BackendError
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.manifest_writer import describe_error
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from stepprof.backends.base import Backend
    from stepprof.config.config import Policy


class BackendPool:
    """The backends that policies name.

    Args:
        folder: the run directory.
        unavailable: called once for each backend that cannot record in this process, with the reason.
    """

    def __init__(self, folder: Path, unavailable: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_unavailable = unavailable
        self._probed: dict[object, Backend | str] = {}
        # two threads may ask at once; reentrant, because a signal handler may interrupt
        self._probing = threading.RLock()

    def __iter__(self) -> Iterator[Backend]:
        return (each for each in self._probed.values() if not isinstance(each, str))

    def find(self, policy: Policy) -> Backend:
        """Return the backend of a policy, after its slow imports. Raises BackendError if it cannot record."""
        found = self._find(policy)
        if isinstance(found, str):
            raise BackendError(_cannot(policy, found))
        return found

    def probe(self, policy: Policy) -> str | None:
        """Return why the backend of a policy cannot record in this process; None: it can."""
        found = self._find(policy)
        return found if isinstance(found, str) else None

    def _find(self, policy: Policy) -> Backend | str:
        key = policy.backend, repr([policy.options(name) for name in policy.backend])
        if key not in self._probed:
            with self._probing:
                if key not in self._probed:
                    self._probed[key] = untraced(partial(self._probe, policy))
        return self._probed[key]

    def _probe(self, policy: Policy) -> Backend | str:
        try:
            backend = make_backend(policy)
            backend.keep_near(self._folder)
            reason = backend.probe()
        except ours(Exception) as error:  # a backend that cannot even be asked is one that cannot record
            reason = describe_error(error)
        if reason is None:
            return backend
        self._log_unavailable(_cannot(policy, reason))
        logger.warning("backend.unavailable", backend="+".join(policy.backend), reason=reason)
        return reason


def _cannot(policy: Policy, reason: str) -> str:
    return f"{'+'.join(policy.backend)} cannot record here: {reason}"
