"""Let one process follow a run: it holds a lock on a file, which the kernel releases when it ends or dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stepprof.follow.below import own
from stepprof.log import logger
from stepprof.run.folders import make_folder
from stepprof.run.layout import AFTER

LOCK = "follow.lock"


class Lock:
    """The lock of one run.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Return whether this process holds the lock; try to take it if not.

        A file system without locks does not prevent the work: a second follower there repeats it.

        Raises:
            OSError: the file cannot be made, or is another user's.
        """
        if self._descriptor is not None:
            return True
        make_folder(self._run, self._run / AFTER)
        path = own(self._run, self._run / AFTER / LOCK)
        # not readable by others, who could lock it then
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            logger.warning("follow.failed", reason=f"{path}: cannot be locked: {error.strerror}")
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let another process take the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
