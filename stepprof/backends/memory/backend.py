"""Record CUDA's allocator: its history runs from the start of a window to its end, and a snapshot
at the end shows which code allocated what, and when.

Arming switches nothing on. It checks that no other code keeps a history, and loads torch's unwinder
if stacks have C++ frames. The snapshot is taken at the stop, before the history is switched off and
discarded; the export job writes it. The file is torch's own format: the viewer at
pytorch.org/memory_viz opens it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from stepprof.backends.base import Backend, Export, ExportCall, ExportError, Incomplete
from stepprof.backends.memory.api import MemoryApi, history
from stepprof.config.options.memory import MemoryOptions
from stepprof.errors import BackendError
from stepprof.formats.memory_peaks import device_peaks, entries_of
from stepprof.formatting import install
from stepprof.host import real_time
from stepprof.host.atomic_files import publish
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.model import Annotation, Artifact, Capture

KIND = "memory-snapshot"
SUFFIX = ".memory.pickle"
SUMMARY_KIND = "memory-summary"
SUMMARY_SUFFIX = ".memory.json"
PROTOCOL = 4

_numbers = itertools.count(1)


class MemoryBackend(Backend):
    """Records the allocations of CUDA's caching allocator, of every thread and device of the process.

    >>> MemoryBackend(MemoryOptions(max_entries=1000)).name
    'memory'
    """

    name = "memory"
    marks = False
    """Regions are in the spans; the history has none."""
    _is_warm: ClassVar[bool] = False

    def __init__(self, options: MemoryOptions | None = None) -> None:
        self._options = options or MemoryOptions()
        self._api: MemoryApi | None = None
        self._recording = False

    def probe(self) -> str | None:
        """Return why there is no allocator to record here."""
        if self._api is None:
            try:
                self._api = MemoryApi()
            except ImportError as error:
                return f"torch cannot be imported ({error}); {install('torch')}"
            except ours(RuntimeError, OSError) as error:
                return f"torch cannot be imported: {error}"
        return self._api.obstacle()

    def arm(self) -> None:
        """Check that no history runs, and load torch's unwinder if needed: once, because it is slow."""
        api = self._ready()
        history.check(api)
        if self._options.stacks == "all" and api.is_in_use and not MemoryBackend._is_warm:
            history.begin(self, api, dataclasses.replace(self._options, max_entries=1))
            history.end(self, api)
            MemoryBackend._is_warm = True

    def start(self, capture: Capture) -> None:
        """Switch the history on."""
        api = self._ready()
        if self._recording:
            raise BackendError("the memory backend is recording already")
        if not api.is_in_use:
            raise BackendError(
                "this process has not used CUDA yet, so there is no allocator to record "
                "(asking for one would take device memory); record a later step, or call torch.cuda.init() first"
            )
        try:
            history.begin(self, api, self._options)
        except ours(RuntimeError) as error:
            if isinstance(error, BackendError):
                raise
            raise BackendError(f"CUDA's allocation history did not start: {error}") from error
        self._recording = True

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """Take the snapshot, then switch the history off. Return the export that writes it."""
        api = self._api
        if api is None or not self._recording:
            raise BackendError("there is no allocation history to stop")
        try:
            lost = not api.is_recording() and _reports_history(api)
            snapshot, stats = api.snapshot(), api.stats()
        except ours(Exception) as error:
            raise BackendError(f"no snapshot of CUDA's allocator: {type(error).__name__}: {error}") from error
        finally:
            self.abort()
        problem = (
            "other code switched the allocation history off inside this window, and its contents are lost; the snapshot holds what was allocated at its end"
            if lost
            else None
        )
        options = self._options
        about = {"max_entries": options.max_entries, "context": options.context, "devices": stats}
        return SnapshotFile(snapshot, capture, about, problem)

    def abort(self) -> None:
        """Switch the history off, if it is ours."""
        if not self._recording or self._api is None:
            return
        self._recording = False
        try:
            history.end(self, self._api)
        except ours(Exception) as error:  # the state must be left, whatever torch raises
            logger.warning("memory.history_left_on", reason=repr(error))

    def export_mode(self) -> str:
        """Return ``thread``: a process that uses CUDA is not forked. Writing releases the
        interpreter's lock for each block of the file.
        """
        return "thread"

    def _ready(self) -> MemoryApi:
        reason = self.probe()
        if reason is not None or self._api is None:
            raise BackendError(reason or "CUDA's allocator cannot be recorded here")
        return self._api


class SnapshotFile(Export):
    """Writes one snapshot as torch does, with its description under the key ``stepprof``, and a small JSON file of the peaks."""

    def __init__(
        self,
        snapshot: dict[str, Any],
        capture: Capture,
        about: dict[str, Any],
        problem: str | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._folder = capture.folder
        self._metadata = dict(capture.metadata)
        self._about = about
        self._problem = problem
        self._final = capture.folder / f"{capture.stem}{SUFFIX}"
        self._summary = capture.folder / f"{capture.stem}{SUMMARY_SUFFIX}"
        number = f"{os.getpid()}-{next(_numbers)}"
        self._hidden = tuple(
            path.with_name(f".{path.name}.{number}") for path in (self._final, self._summary)
        )

    def __call__(self) -> tuple[Artifact, ...]:
        """Write both files. Raises ExportError; Incomplete if part of the history is missing."""
        try:
            artifacts = (self._write_snapshot(), self._write_summary())
        except ours(OSError) as error:
            raise ExportError(
                f"the snapshot cannot be written to {self._final.parent}: {error.strerror or error}"
            ) from error
        finally:
            self.discard()
        if self._problem is not None:
            raise Incomplete(self._problem, artifacts)
        return artifacts

    def discard(self) -> None:
        """Remove the files of an interrupted export."""
        for path in self._hidden:
            path.unlink(missing_ok=True)

    def _write_snapshot(self) -> Artifact:
        with self._hidden[0].open("xb") as file:
            of_it = plain({**self._metadata, "context": self._about["context"]})
            pickle.dump({**self._snapshot, "stepprof": of_it}, file, protocol=PROTOCOL)
        return self._published(0, self._final, KIND, events=entries_of(self._snapshot))

    def _write_summary(self) -> Artifact:
        history_of = {
            peak.device: {
                "history_entries": peak.entries,
                "history_peak_bytes": peak.peak_bytes,
                "history_peak_unix_us": peak.peak_unix_us,
            }
            for peak in device_peaks(self._snapshot)
        }
        devices = [{**stats, **history_of.get(stats["device"], {})} for stats in self._about["devices"]]
        content = {
            "stepprof": self._metadata,
            "written_unix_ns": real_time.time_ns(),
            **self._about,
            "devices": devices,
        }
        self._hidden[1].write_text(json.dumps(content, indent=1, default=str))
        return self._published(1, self._summary, SUMMARY_KIND)

    def _published(self, which: int, final: Path, kind: str, events: int | None = None) -> Artifact:
        size = self._hidden[which].stat().st_size
        path = publish(self._hidden[which], final)
        return Artifact(path.relative_to(self._folder).as_posix(), kind, size, events)


def plain(value: Any) -> Any:
    """Return a value as plain values only, for readers that accept nothing else."""
    return json.loads(json.dumps(value, default=str))


def _reports_history(api: MemoryApi) -> bool:
    return hasattr(api.torch._C, "_cuda_isHistoryEnabled")
