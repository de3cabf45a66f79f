"""Run one session of torch_npu's profiler, from warm-up to its folder, and check each call.

This module knows what leaves CANN in a clean state. Each warm-up that is only aborted leaks three
threads and a configuration in CANN (torch_npu 2.13). So it is recorded for a moment and ended like
any other session, as torch_npu itself does with a warm-up that nothing follows. A profile that is
dropped without having been stopped stops whichever session exists. So `stopped` is set before each
is released, and in every forked process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stepprof.backends.npu.api import NpuApi
from stepprof.config.options.npu import NpuOptions
from stepprof.errors import BackendError
from stepprof.interrupts import ignored, is_interrupt, ours
from stepprof.log import logger


class NpuSession:
    """A session that is warmed up, is recording, or has ended.

    Args:
        staging: a new folder, in which torch_npu makes its own.

    Raises:
        BackendError: it cannot be prepared; nothing is left behind.
    """

    def __init__(self, api: NpuApi, options: NpuOptions, staging: Path) -> None:
        self._api = api
        self.staging = staging
        self.folder: Path | None = None
        """The folder that torch_npu has made, below `staging`."""
        self.complaints: list[str] = []
        """CANN's messages about failed calls, which torch_npu does not report."""
        self.device = -1
        self._phase: Literal["cold", "warm", "recording", "over"] = "cold"
        self.profile: Any = None
        try:
            staging.mkdir(parents=True)
        except ours(OSError) as error:
            raise BackendError(f"the folder {staging} cannot be made: {error.strerror or error}") from error
        _sessions.add(self)
        try:
            api.cann_complaint()
            self.profile = api.profile(options, staging)
            self.device = api.device()
            self._phase = "warm"
            api.call(self.profile.start)
            self._note_complaint("warm-up")
            self.folder = self._made()
        except BaseException as error:
            self.discard()
            if isinstance(error, BackendError) or is_interrupt(error):
                raise
            raise BackendError(
                f"torch_npu's profiler was not prepared: {type(error).__name__}: {error}"
            ) from error

    def record(self, metadata: Mapping[str, object]) -> None:
        """Begin to record. Raises BackendError; call `discard` then."""
        self._api.cann_complaint()
        self._phase = "recording"
        self._api.call(self.profile.step)
        self._note_complaint("start")
        if not self._api.recording_this_thread():
            raise BackendError(
                "torch_npu's profiler did not start and gave no reason; see CANN's log (~/ascend/log)"
            )
        with contextlib.suppress(BackendError):  # torch_npu omits entries that are too long
            self._api.call(
                self.profile.add_metadata_json, "stepprof", json.dumps(dict(metadata), default=str)
            )

    def finish(self) -> str | None:
        """End the recording. Return what went wrong, if anything did; the folder holds what was recorded either way."""
        problem = None
        self._api.cann_complaint()
        if not self._api.recording_this_thread():
            problem = "another profiler ended this capture and took its events"
        try:
            self._api.call(self.profile.step)
            self._api.call(self.profile.stop)
        except BackendError as error:
            problem = problem or str(error)
            self._end_by_force()
        finally:
            self.release()
        if problem is not None:
            self._note_complaint("stop")
            return problem
        complaint = self._api.cann_complaint()
        return complaint and f"CANN did not end the recording: {complaint}"

    def discard(self) -> None:
        """End it, whatever its state, and remove its folder. Never raises."""
        try:
            if self._phase == "warm" and self.folder is not None and not self._api.recording_this_thread():
                self._api.call(self.profile.step)
                self._phase = "recording"
            if self._phase == "recording":
                self.finish()
            elif self._phase == "warm":
                self._api.call(self.profile.stop)
        except ours(Exception) as error:  # the state must be left, whatever torch_npu raises
            logger.debug("npu.close_failed", reason=str(error))
            self._end_by_force()
        finally:
            self.release()
            shutil.rmtree(self.staging, ignore_errors=True)

    def abandon(self) -> None:
        """Stop CANN without torch_npu, because the recording thread, which torch_npu needs for a stop, has ended."""
        self._end_by_force()
        self.release()
        shutil.rmtree(self.staging, ignore_errors=True)

    def release(self) -> None:
        """Make it harmless to drop the profile."""
        self._phase = "over"
        if self.profile is not None:
            self.profile.stopped = True

    def bytes_so_far(self) -> int:
        """Return the current size of its files."""
        return tree_bytes(self.staging)

    def _made(self) -> Path:
        path = str(getattr(getattr(self.profile, "prof_if", None), "prof_path", "") or "")
        if not path or not Path(path).is_dir():
            raise BackendError(f"torch_npu made no folder in {self.staging}; see CANN's log (~/ascend/log)")
        return Path(path)

    def _note_complaint(self, call: str) -> None:
        complaint = self._api.cann_complaint()
        if complaint:
            self.complaints.append(f"{complaint} (at {call})")

    def _end_by_force(self) -> None:
        """Run the remaining parts of a stop after a call that failed half-way."""
        interface = getattr(self.profile, "prof_if", None)
        for name in ("stop_trace", "finalize_trace"):
            if name == "stop_trace" and not self._api.recording_this_thread():
                continue
            try:
                self._api.call(getattr(interface, name))
            except ours(Exception) as error:  # end as much as possible
                logger.debug("npu.close_failed", call=name, reason=str(error))


def tree_bytes(folder: Path) -> int:
    """Return the size of the files below a folder."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with ignored(OSError):  # it was removed meanwhile
                total += os.lstat(f"{where}/{name}").st_size
    return total


_sessions: weakref.WeakSet[NpuSession] = weakref.WeakSet()


def _release_all() -> None:
    for session in tuple(_sessions):
        session.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
