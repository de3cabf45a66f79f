"""Export a capture after torch's stop: write its JSON, rewrite it in one pass, and name the
artifact. Runs in a forked child or in place.

Kineto does not report write errors and mangles some folder names. So the file is checked, not the
result of the call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

from stepprof.backends.base import Export, ExportError
from stepprof.formats.kineto_writer import TraceFileError, finish
from stepprof.host.atomic_files import publish
from stepprof.interrupts import ignored, ours
from stepprof.run.model import Annotation, Artifact, Capture

KIND = "torch-trace"
SUFFIX = ".trace.json.gz"

_numbers = itertools.count(1)


class TorchExport(Export):
    """Writes one captured session: torch's JSON to a hidden file next to the artifact, one pass
    over it, a link under the final name.

    Peak disk: the JSON (1.3 kB per op) and the artifact (a tenth to a fifteenth of it). Peak memory beyond the session's own 3.9 kB per op: some tens of MB. Temporary files
    are removed however it ends; `discard` does it for a child that was killed.
    """

    def __init__(
        self, session: Any, capture: Capture, annotations: tuple[Annotation, ...], *, marks: bool
    ) -> None:
        self._session = session
        self._capture = capture
        self._annotations = annotations
        self._marks = marks
        self._pid = os.getpid()  # the process that recorded: the export may run in another
        self._final = capture.folder / f"{capture.stem}{SUFFIX}"
        # the stem is claimed by this process, so these names are too
        hidden = f".{self._final.name}.{self._pid}-{next(_numbers)}"
        self._raw = self._final.with_name(f"{hidden}.json")
        self._packed = self._final.with_name(f"{hidden}.gz")

    def __call__(self) -> tuple[Artifact, ...]:
        """Write the artifact. Raises ExportError."""
        try:
            return self._write()
        except ours(OSError) as error:
            raise ExportError(
                f"the trace cannot be written to {self._final.parent}: {error.strerror or error}"
            ) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the files of an interrupted export."""
        for path in (self._raw, self._raw.with_name(f"{self._raw.name}.tmp"), self._packed):
            with ignored(OSError):
                path.unlink()

    def _write(self) -> tuple[Artifact, ...]:
        self._raw.touch(exist_ok=False)  # Kineto does not report write errors: this shows the reason
        with _plain_path(self._raw) as path:
            self._session.export_chrome_trace(path)
        relative = self._final.relative_to(self._capture.folder)
        try:
            done = finish(
                self._raw,
                self._packed,
                name=f"{self._capture.folder.name}/{relative.as_posix()}",
                pid=self._pid,
                metadata=self._capture.metadata,
                annotations=self._annotations,
                marks=self._marks,
            )
        except TraceFileError as error:
            raise ExportError(
                f"torch wrote no trace to {self._final.parent}: {error}{self._space()}"
            ) from error
        self._raw.unlink()
        final = publish(self._packed, self._final)
        path = final.relative_to(self._capture.folder).as_posix()
        artifact = Artifact(path=path, kind=KIND, bytes=done.bytes, events=done.events)
        if done.problem is not None:
            raise ExportError(f"{done.problem}{self._space()}; it is kept unchanged", (artifact,))
        return (artifact,)

    def _space(self) -> str:
        usage = os.statvfs(self._final.parent)
        free = usage.f_bavail * usage.f_frsize
        return f" (no space left on the disk: {free} bytes)" if free < 1 << 20 else ""


@contextlib.contextmanager
def _plain_path(path: Path) -> Any:
    """Return a name for `path` that Kineto does not mangle: it turns backslashes into slashes and
    drops line breaks, so such a folder is addressed by its descriptor.
    """
    text = str(path)
    if text.isprintable() and "\\" not in text and '"' not in text:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
