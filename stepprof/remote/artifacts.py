"""Turn a file that an engine wrote into an artifact of the run.

A call that returned is no proof of a trace. So each file is checked, its head gets the step, role, replica and rank, and it is moved below the step's folder.
Files are gzip or plain JSON of torch, merged files on one line, or a bare list of events (Ascend). All are streamed: a trace of any size needs a few blocks of
memory.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from stepprof.formats.chrome_events import encoded
from stepprof.formats.kineto_text import EVENT, new_compressor, sound_head, whole_lines, with_sound_names
from stepprof.host.atomic_files import publish, temporary
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_files import open_engine_file
from stepprof.run.model import Artifact

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow

__all__ = ["KIND", "SUFFIX", "adopt", "blocks", "damages", "is_whole", "opened"]

KIND = "trace"
SUFFIX = ".trace.json.gz"

MOST_BYTES = 64 << 30
"""Maximum uncompressed bytes of one trace: a compressed file of some megabytes can expand without limit."""

_BLOCK = 1 << 22
_HEAD_LIMIT = 1 << 24
_TAIL = 1 << 16
_LINE = 1 << 8
_LISTS = 32
"""Maximum number of lists after the events."""
_PARSED = 1 << 20  # json.loads lets no other thread run: a file that may delay training is not parsed
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
# after the events, nothing but plain values and flat tables
_ENDING = re.compile(
    rb'\]\s*(?:,\s*"\w+"\s*:\s*(?:"(?:[^"\\\n]|\\.)*"|-?[\d.]+|\[[^\[\]]*\]|\{[^{}]*\}|true|false|null)\s*)*\}\s*\Z'
)
_LIST_ENDING = re.compile(rb"\]\s*\Z")
# every part has a limit, here and below: a malicious engine could make this process search without
# end while training waits
_TS = rb'[^{}]{0,1000}?"ts"\s{0,9}:\s{0,9}"?(\d{1,16})(?:\.(\d+)|(?!\d))'
_RECORD_END = re.compile(rb'"Record Window End"' + _TS)
_WHOLE = re.compile(rb'"cat"\s{0,9}:\s{0,9}"Trace"' + _TS)
_FORWARD_STEP = re.compile(rb'"user_annotation",\s*"name"\s*:\s*"(?:step\[|execute_)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?!\d)')
_TRACE_NAME = re.compile(
    rb'"traceName"\s{0,9}:\s{0,9}"[^\n]{0,4096}?"(?=\s{0,99}(?:\}|,\s{0,99}"\w{1,99}"\s{0,9}:|\Z))'
)


class _DamagedError(Exception):
    """What is wrong with a file, to complete a sentence."""


@dataclass(slots=True)
class _Rewriting:
    """A pass over a trace: it takes the engine's bytes, and yields ours."""

    path: str
    stated: bytes
    events: int = 0
    total: int = 0
    base_ns: int = 0
    """The reference of the file's times."""
    began_ns: int | None = None
    """When the recording began."""
    ended_ns: int | None = None
    """When the recording ended."""
    forward_steps: int = 0
    last_line: bytes = b""

    def run(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the new text. Raises _DamagedError as soon as damage is seen, at the end at the latest."""
        small = bytearray()
        for block in self._rewritten(source):
            self.total += len(block)
            if len(small) <= _PARSED:
                small += block[: _PARSED + 1 - len(small)]
            yield block
        if self.total <= _PARSED:
            self._parse(bytes(small))
        if self.events == 0:
            raise _DamagedError("holds no events")

    def _rewritten(self, source: Iterator[bytes]) -> Iterator[bytes]:
        head, rest, is_list = self._head(source)
        if is_list:
            yield b"{" + self.stated + b',\n"traceEvents": ' + head
        else:
            sound = sound_head(head)
            self._find_base(sound)
            brace = sound.index(b"{") + 1
            bare = sound[brace:].strip() == b""
            yield sound[:brace] + b"\n" + self.stated + b"," + (b"\n" if bare else b"") + sound[brace:]
        held = b""
        for lines in whole_lines(rest):
            block = with_sound_names(lines)
            self.events += block.count(EVENT)
            self._count_steps(block)
            if len(block) < _TAIL:  # the end must be checked in one piece
                held += block
                continue
            yield held
            held = block
        cut = max(0, len(held) - _TAIL)
        name = b'"traceName": ' + encoded(self.path)
        tail = _TRACE_NAME.sub(lambda _: name, held[cut:])
        self._find_base(tail)
        self._find_ends(tail)
        if self.total + len(held) > _PARSED and not _is_whole(tail, _LIST_ENDING if is_list else _ENDING):
            raise _DamagedError(f"breaks off after {self.total + len(held)} bytes")
        yield held[:cut] + tail + (b"}" if is_list else b"")

    def _head(self, source: Iterator[bytes]) -> tuple[bytes, Iterator[bytes], bool]:
        """Return the text before the events, the rest from their key on, and whether the file is only a list of events."""
        head = b""
        for block in source:
            head += block
            first = head.lstrip()[:1]
            if first == b"[":
                return b"", itertools.chain([head], source), True
            if first not in (b"{", b""):
                raise _DamagedError("is not a trace: it begins neither with { nor with [")
            opening = _OPENING.search(head)
            if opening is not None:
                at = opening.start()
                return head[:at], itertools.chain([head[at:]], source), False
            if len(head) > _HEAD_LIMIT:
                break
        if not head:
            raise _DamagedError("is empty")
        raise _DamagedError(f"has no traceEvents in its {len(head)} bytes")

    def _count_steps(self, lines: bytes) -> None:
        """Count forward steps; the keys of one may be split between two blocks."""
        self.forward_steps += len(_FORWARD_STEP.findall(self.last_line + lines))
        self.last_line = lines[lines.rfind(b"\n", 0, -1) + 1 :][-_LINE:]

    def _find_base(self, text: bytes) -> None:
        base = _BASE.search(text)
        if base is not None:
            self.base_ns = int(base[1])

    def _find_ends(self, tail: bytes) -> None:
        """Find when the recording began and ended; torch writes both as the last of its events."""
        self.began_ns, self.ended_ns = self._time(_WHOLE.search(tail)), self._time(_RECORD_END.search(tail))

    def _time(self, found: re.Match[bytes] | None) -> int | None:
        if found is None:
            return None
        return self.base_ns + int(found[1]) * 1000 + int((found[2] or b"0")[:3].ljust(3, b"0"))

    def _parse(self, text: bytes) -> None:
        try:
            content = json.loads(text)
        except ours(ValueError, RecursionError) as error:
            raise _DamagedError(f"is not complete JSON: {error}") from error
        events = content.get("traceEvents")
        self.events = len(events) if isinstance(events, list) else 0


def _is_whole(tail: bytes, ending: re.Pattern[bytes]) -> bool:
    """Return whether one of the last lists in a text is followed by the end of a trace."""
    at = len(tail)
    for _ in range(_LISTS):
        at = tail.rfind(b"]", 0, at)
        if at < 0:
            return False
        if ending.match(tail, at):
            return True
    return False


def adopt(
    source: Path,
    window: EngineWindow,
    name: str,
    *,
    users: frozenset[int] | None = None,
    **facts: object,
) -> Artifact:
    """Check, stamp and compress an engine's trace, and move it to its place in the run. Blocks: call it through `in_thread`.

    Args:
        source: the Chrome trace that the engine wrote, as JSON or gzip of it; removed on success.
        window: the window of the trace; its metadata becomes the trace's first top-level key, ``stepprof``.
        name: the file's name in the engine's folder, without the suffix: ``rank-0``.
        users: the users that may own ``source``. None: any user.
        facts: further statements of the trace about itself, such as ``rank=0``.

    Raises:
        EngineFailure: the file is missing, a link, another user's, empty, damaged, without events or too large; it stays where it is. No message shows its content.
    """
    final = window.output / f"{name}{SUFFIX}"
    hidden = temporary(final)
    relative = final.relative_to(window.folder).as_posix()
    stated = b'"stepprof": ' + encoded({**window.metadata, **facts})
    rewriting = _Rewriting(f"{window.folder.name}/{relative}", stated)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with opened(source, users) as stream, hidden.open("xb") as target:
            compressor = new_compressor()
            for block in rewriting.run(blocks(stream)):
                target.write(compressor.compress(block))
            target.write(compressor.flush())
            size = target.tell()
        written_ns = source.stat().st_mtime_ns
        placed = publish(hidden, final)
    except FileNotFoundError as error:
        gone = str(error.filename) if error.filename else str(source)
        raise EngineFailure(
            f"the engine's stop has returned, but {gone} does not exist: see the engine's own log"
        ) from error
    except damages() as error:
        raise EngineFailure(f"the engine's trace {source} {_what(error)}; it is kept unchanged") from error
    except ours(OSError) as error:
        raise EngineFailure(
            f"the engine's trace {source} cannot be moved to {final}: {error.strerror or error}"
        ) from error
    finally:
        with ignored(OSError):
            hidden.unlink(missing_ok=True)
    try:
        source.unlink()
    except ours(OSError) as error:
        logger.info("engine.copy_kept", path=str(source), reason=str(error))
    path = placed.relative_to(window.folder).as_posix()
    return Artifact(
        path,
        KIND,
        size,
        rewriting.events,
        rewriting.ended_ns,
        written_ns,
        rewriting.began_ns,
        rewriting.forward_steps,
    )


def is_whole(source: Path, users: frozenset[int] | None = None) -> bool:
    """Return whether a file of one of these users is a whole trace: engines do not always report that they have written it.
    Blocks, as `adopt` does.
    """
    with contextlib.suppress(OSError, *damages()), opened(source, users) as stream:
        for _ in _Rewriting(source.name, b'"stepprof": {}').run(blocks(stream)):
            pass
        return True
    return False


@contextlib.contextmanager
def opened(source: Path, users: frozenset[int] | None = None) -> Iterator[IO[bytes]]:
    """Yield the uncompressed bytes of an engine's file; its name does not show the compression.
    Raises OSError as `open_engine_file` does.
    """
    with open_engine_file(source, users) as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield file
            return
        with _decompressing(file) as stream:
            yield stream


def _decompressing(file: IO[bytes]) -> IO[bytes]:
    try:
        from isal import igzip
    except ImportError:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    return cast("IO[bytes]", igzip.IGzipFile(fileobj=file))  # type: ignore[no-untyped-call]


def blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of an engine's file, block by block. Raises one of `damages()` if it is larger than any engine writes."""
    read = 0
    while block := stream.read(_BLOCK):
        read += len(block)
        if read > MOST_BYTES:
            raise _DamagedError(f"is larger than {MOST_BYTES >> 30} GiB")
        yield block


def damages() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged file may raise."""
    errors: tuple[Any, ...] = (_DamagedError, EOFError, gzip.BadGzipFile, zlib.error)
    with contextlib.suppress(ImportError):
        from isal import igzip, isal_zlib

        errors += (igzip.BadGzipFile, isal_zlib.error)
    return errors


damages()  # imports isal here, not on a thread inside a profile of the user (see stepprof.untraced)


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, _DamagedError) else f"is damaged: {error}"
