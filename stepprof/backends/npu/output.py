"""Read what torch_npu prints during a call: its errors are reported nowhere else.

It prints to the user's `sys.stdout`. During a call a substitute replaces that stream. It passes on
the output of other threads, and of this thread unless it is torch_npu's.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(
    r"^(?:\[[^\]]*\] )?\[(?P<level>ERROR|WARNING|INFO)\] (?:\[\d+\] )?(?:\S+\.py: )?(?P<text>.*)$"
)
_CALL_FAILED = re.compile(r"Call \w+ failed|Incorrect schedule")
_WARNING = "Warning: "


@dataclass(slots=True)
class PrintedLines:
    """The lines that torch_npu printed."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Return whether the line is torch_npu's."""
        found = _LINE.match(line)
        if found is None and not _CALL_FAILED.search(line):
            if line.startswith(_WARNING):
                self.warnings.append(line[len(_WARNING) :])
            return line.startswith(_WARNING)
        text = line if found is None else found["text"]
        level = "ERROR" if found is None or _CALL_FAILED.search(text) else found["level"]
        {"ERROR": self.errors, "WARNING": self.warnings, "INFO": self.notes}[level].append(text)
        return True


@contextlib.contextmanager
def capture_output() -> Iterator[PrintedLines]:
    """Collect what torch_npu prints on this thread while the block runs."""
    heard = PrintedLines()
    stream = sys.stdout
    if stream is None:  # a process without stdout
        yield heard
        return
    between = _Between(stream, heard)
    sys.stdout = between
    try:
        yield heard
    finally:
        between.end()
        if sys.stdout is between:  # other code may have replaced it meanwhile
            sys.stdout = stream


class _Between:
    """A substitute for a stream. Code that keeps it beyond the block writes to the stream itself."""

    def __init__(self, stream: Any, heard: PrintedLines) -> None:
        self._stream = stream
        self._heard = heard
        self._thread = threading.get_ident()
        self._rest = ""
        self._over = False

    def write(self, text: str) -> int:
        """Pass it on, unless it is torch_npu's."""
        if self._over or threading.get_ident() != self._thread or not isinstance(text, str):
            return int(self._stream.write(text) or 0)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if not self._heard.take(line):
                self._stream.write(f"{line}\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def end(self) -> None:
        """Pass everything on from now on."""
        self._over = True
        rest, self._rest = self._rest, ""
        if rest and not self._heard.take(rest):
            self._stream.write(rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
