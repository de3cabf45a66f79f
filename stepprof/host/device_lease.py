"""One recorder per device at a time, across the processes of a host.

Ascend requires it: processes that share a device record one after another, each from start to stop.
A lease is a kernel lock (`flock`) on a file of the device, so it always ends with its holder. The
file names the holder, for the message of a process that finds it taken.

Each process that uses a device holds a shared lock on a second file while it lives. A process that
is the device's only user may keep the lease while it is only armed.
"""

from __future__ import annotations

import json
import os
import stat
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

from stepprof.errors import BackendError, Busy
from stepprof.host import real_time
from stepprof.host.plain_json import parse_json
from stepprof.interrupts import ignored, ours
from stepprof.redaction.messages import quoted

_LOOK_SECONDS = 0.02
_TRIES = 50


def lease_folder(configured: Path | None = None) -> Path:
    """Return the folder of leases, made if necessary. It belongs to this user, and is the same for all
    the user's processes on this host.

    Raises:
        BackendError: it cannot be made, or belongs to another user.
    """
    path = configured or Path(f"/tmp/stepprof-{os.getuid()}")  # noqa: S108 - made with mode 0700, and refused unless it is this user's
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat() if configured is None else path.stat()
    except ours(OSError) as error:
        raise BackendError(
            f"the folder of device leases, {path}, cannot be made: {error.strerror or error}; name another one: lease_dir"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or (configured is None and status.st_uid != os.getuid()):
        raise BackendError(
            f"the folder of device leases, {path}, is not this user's own; name another one: lease_dir"
        )
    return path


def physical_device(index: int, environ: Mapping[str, str]) -> int:
    """Return the number of a device on its host.

    ASCEND_RT_VISIBLE_DEVICES maps device 0 of a process to another one.

    >>> physical_device(1, {"ASCEND_RT_VISIBLE_DEVICES": "4,6"})
    6
    """
    visible = environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    try:
        return [int(part) for part in visible.split(",") if part.strip()][index]
    except ours(ValueError, IndexError):
        return index


class DeviceLease:
    """The lease on one device. Not thread-safe.

    Args:
        device: its name, such as ``npu-3``.
        folder: the folder of leases that all processes share; see `lease_folder`.
    """

    def __init__(self, device: str, folder: Path) -> None:
        self.device = device
        self._path = folder / f"{device}.lease"
        self._users_path = folder / f"{device}.users"
        self._lock: int | None = None
        self._users: int | None = None
        _leases.add(self)

    @property
    def held(self) -> bool:
        """Return whether this process holds the lease."""
        return self._lock is not None

    def take(self, holder: str, wait_seconds: float = 0.0) -> None:
        """Acquire the lease; wait for it for at most `wait_seconds`.

        Args:
            holder: a description of the recording, for the message of a process that finds the lease taken.

        Raises:
            Busy: another process has it.
            BackendError: the file of the lease cannot be used.
        """
        if self._lock is None:
            descriptor = self._open(self._path)
            try:
                self._wait(descriptor, wait_seconds)
            except BaseException:
                os.close(descriptor)
                raise
            self._lock = descriptor
        self.describe(holder)

    def describe(self, holder: str) -> None:
        """Update the description of the recording under the held lease."""
        if self._lock is None:
            return
        text = json.dumps({"pid": os.getpid(), "holder": holder, "since": real_time.time()})
        with ignored(OSError):  # a full disk: the lock is held nevertheless
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, text.encode(), 0)

    def release(self) -> None:
        """Release the lease; do nothing if it is not held."""
        import fcntl

        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            with ignored(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have the same descriptor open
            with ignored(OSError):
                os.close(descriptor)

    def is_shared(self) -> bool:
        """Return whether other processes record this device, too, or may do so.

        From the first call on, this process is counted as a user of the device.
        """
        import fcntl

        try:
            users = self._users = self._open(self._users_path) if self._users is None else self._users
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        except ours(OSError, BackendError):
            return True
        for _ in range(_TRIES):  # another process may be asking at this moment
            try:
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except ours(OSError):
                time.sleep(0.001)
        return not alone

    def forget(self) -> None:
        """Forget the lease in a forked process: the parent keeps its lock."""
        for descriptor in (self._lock, self._users):
            if descriptor is not None:
                with ignored(OSError):
                    os.close(descriptor)
        self._lock = self._users = None

    def _wait(self, descriptor: int, wait_seconds: float) -> None:
        import fcntl

        deadline = real_time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if real_time.monotonic() >= deadline:
                    waited = f", also after {wait_seconds:g} s" if wait_seconds else ""
                    raise Busy(
                        f"{self.device} is recorded by {self._holder(descriptor)}{waited}; only one process records a device at a time"
                    ) from None
            except ours(OSError) as error:
                raise BackendError(
                    f"{self._path} cannot be locked: {error.strerror or error}; name a folder on a local disk: lease_dir"
                ) from error
            time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - real_time.monotonic())))

    def _holder(self, descriptor: int) -> str:
        try:
            reported = parse_json(os.pread(descriptor, 4096, 0))
            return quoted(
                f"process {reported['pid']} ({reported['holder']}, for {max(0.0, real_time.time() - reported['since']):.1f} s)"
            )
        except ours(OSError, ValueError, KeyError, TypeError):
            return "another process"

    @staticmethod
    def _open(path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except ours(OSError) as error:
            raise BackendError(
                f"the device lease {path} cannot be opened: {error.strerror or error}; name another folder: lease_dir"
            ) from error


_leases: weakref.WeakSet[DeviceLease] = weakref.WeakSet()


def _forget_all() -> None:
    for lease in tuple(_leases):
        lease.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
