"""Read the events of a trace file, typed, in batches. No file is ever in memory as a whole, and a
damaged file is read as far as it is intact.

Chrome's JSON traces are read, compressed or not: an object with ``traceEvents`` (its other keys are
the header, at any place in the file), or a bare array of events, closed or not.

A batch ends where the text before it decodes as an array. A border inside an event or a string
never does, so no event is cut in two.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepprof.analysis.timeline.event import Event, EventDecoder, loosely
from stepprof.analysis.timeline.event_lines import AFTER, LineReader
from stepprof.analysis.timeline.header import ending, has_events, is_nested, keys_behind, table
from stepprof.analysis.timeline.inflate import BLOCK, Limits, blocks, is_compressed, last_bytes
from stepprof.analysis.timeline.salvage import BORDER, DECODE_ERRORS, borders, salvage
from stepprof.analysis.timeline.utf8 import Utf8
from stepprof.formats.kineto_text import sound_head

__all__ = ["Event", "TraceStream", "read_header"]

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_HEAD_LIMIT = 64 << 20
_PEEK = 1 << 16
_PEEK_LIMIT = 8 << 20
_LOOKED_BACK = 256
_LAST_KEYS = 1 << 20
_NESTED = 64
"""The most keys called traceEvents before the one at the top level."""
_PADDING = b" \t\r\n\0"
"""What may follow the last brace: some file systems fill the end of a file with zeros."""


def read_header(path: Path, *, behind: bool = False) -> tuple[dict[str, object], list[str]]:
    """Read the part of a file before its events, and its problems; a fast look at many files.

    Args:
        path: the file.
        behind: whether to read the keys behind the events of a file that has none before them.
    """
    stream = TraceStream(path)
    stream.head()
    return stream.header or (stream.keys_behind() if behind else {}), stream.findings


@dataclass(slots=True)
class TraceStream:
    """A file as batches of events, each of about half a MB of text. The header is complete after
    the last batch.

    Args:
        path: the file.
        limits: limits for reading it.
        lines: whether to yield `EventLines` where Kineto wrote the events of a compressed file.
            Their arguments are not checked.
    """

    path: Path
    limits: Limits | None = None
    lines: bool = False
    header: dict[str, object] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    inflated_bytes: int = 0
    """Uncompressed bytes so far."""
    whole: bool = True
    """Whether all of its events were read."""
    _is_table: bool = False
    """Whether keys may follow the events, and a brace must follow them."""
    _damaged: int = 0
    _repaired: int = 0
    _utf8: Utf8 = field(default_factory=Utf8)
    _decode: EventDecoder = field(default_factory=EventDecoder)
    _lines: LineReader | None = None

    def __iter__(self) -> Iterator[Sequence[Event]]:
        """Yield the batches; callable once."""
        if self.lines and is_compressed(self.path):
            self._lines = LineReader(self._decode)
        yield from self._batches(self.limits or Limits())
        if self._damaged:
            self.whole = False
            self.findings.append(f"{self._damaged} damaged event{'s' * (self._damaged > 1)} ignored")
        if self._repaired:
            several = self._repaired > 1
            self.findings.append(
                f"{self._repaired} event{'s were' if several else ' was'} repaired: unescaped names, control characters, infinite numbers, or fields of the wrong type"
            )
        if self._decode.halves:
            self.findings.append("some strings contain half of a surrogate pair: replaced by U+FFFD")
        self.findings += self._utf8.finding()

    def head(self) -> None:
        """Read only the part of the header before the events."""
        self._head(Utf8().blocks(blocks(self.path, _PEEK_LIMIT, self.findings, _PEEK)))

    def keys_behind(self) -> dict[str, object]:
        """Return the keys behind the events; call it after `head`."""
        return keys_behind(last_bytes(self.path, _LAST_KEYS)) if self._is_table else {}

    def _batches(self, limits: Limits) -> Iterator[Sequence[Event]]:
        batch = min(BLOCK, limits.event_bytes)
        yield from self._decoded(self._utf8.blocks(self._counted(limits.inflated_bytes, batch)), limits)

    def _decoded(self, source: Iterator[bytes], limits: Limits) -> Iterator[Sequence[Event]]:
        batch = min(BLOCK, limits.event_bytes)
        text = self._head(source)
        if text is None:
            self.whole = False
            return
        held, size, wanted, passing = [text], len(text), batch, False
        for block in source:
            held.append(block)
            size += len(block)
            if size < wanted and not passing:
                continue
            if not passing:
                rest, batches = self._quickly(held)
                if batches:
                    yield from batches
                    held, size, wanted = [rest], len(rest), batch
                    continue
            text = b"".join(held)
            if passing:
                border = BORDER.search(text)
                text = text[border.end() :] if border else text[-_LOOKED_BACK:]
                held, size, passing = [text], len(text), border is None
                if passing:
                    continue
            rest, events, ended = self._take(text)
            if events:
                yield events
            text, taken = rest, len(rest) < len(text)
            wanted = batch if taken else 2 * len(text)
            if not taken and not ended and len(text) > limits.event_bytes:
                ended = self._has_ended(text)
                passing = not ended
                self._damaged += passing
            if ended:
                yield from self._end(text + self._rest(source, limits.event_bytes))
                return
            held, size = [text], len(text)
        yield from self._end(b"".join(held))

    def _quickly(self, held: list[bytes]) -> tuple[bytes, list[Sequence[Event]]]:
        """Decode up to the last border; return no batches if that fails.

        Only the last piece is searched for the border, so the text is copied once.
        """
        last = held[-1]
        cut = next(borders(last), None)
        if cut is None:
            return b"", []
        border = BORDER.match(last, cut)
        try:
            batches = self._decoded_at_once(
                b"".join((b"[\n  ", *held[:-1], memoryview(last)[: cut + 1], AFTER))
            )
        except DECODE_ERRORS:
            return b"", []
        return last[border.end() :] if border else b"", [batch for batch in batches if batch]

    def _decoded_at_once(self, text: bytes) -> Sequence[Sequence[Event]]:
        by_lines = self._lines and self._lines(text)
        return by_lines or (self._decode(text),)

    def _has_ended(self, text: bytes) -> bool:
        """Return whether the array of events ends in a text that is too long for one event."""
        try:
            self._decode(b"[" + text)
        except DECODE_ERRORS as error:
            return _TRAILING.search(str(error)) is not None
        return True

    def _rest(self, source: Iterator[bytes], limit: int) -> bytes:
        """Return the text after the events, if it is not longer than a header may be."""
        rest = b""
        for block in source:
            rest += block
            if len(rest) > limit:
                self.findings.append(f"more than {limit} bytes follow its events: ignored")
                return b""
        return rest

    def _counted(self, limit: int, block: int) -> Iterator[bytes]:
        problems: list[str] = []
        for text in blocks(self.path, limit, problems, block):
            self.inflated_bytes += len(text)
            yield text
        self.findings += problems
        self.whole &= not problems

    def _head(self, source: Iterator[bytes]) -> bytes | None:
        """Return the text after the bracket that opens the events, and fill the header with the
        text before it.
        """
        head, searched, tried = b"", 0, 0
        for block in source:
            head = (head + block).removeprefix(codecs.BOM_UTF8)
            start = head[:64].lstrip()
            if start[:1] == b"[":
                return head[head.index(b"[") + 1 :]
            if start and start[:1] != b"{":
                self.findings.append("is not a trace: it begins neither with { nor with [")
                return None
            for opening in _EVENTS.finditer(head, searched):
                tried += 1
                if tried > _NESTED:
                    break
                if self._understand(head[: opening.start()]):
                    self._is_table = True
                    return head[opening.end() :]
            searched = max(0, len(head) - _LOOKED_BACK)
            if len(head) > _HEAD_LIMIT or tried > _NESTED:
                break
        if not head.strip():
            self.findings += [] if self.findings else ["is empty"]
        else:
            self.findings.append(f"has no traceEvents in its first {len(head)} bytes")
        return None

    def _understand(self, head: bytes) -> bool:
        """Parse the text before the events; return False if it is not the top level."""
        for sound in (bytes, sound_head):
            try:
                self.header.update(table(sound(head) + b'"":0}'))
            except DECODE_ERRORS:
                continue
            if sound is sound_head:
                self._leave_out("before")
            return True
        if is_nested(head):
            return False
        base = _BASE.search(head)
        if base is not None:
            self.header["baseTimeNanoseconds"] = int(base[1])
        self._leave_out("before")
        return True

    def _leave_out(self, where: str) -> None:
        self.findings.append(f"its metadata {where} its events is not JSON and was ignored")

    def _take(self, text: bytes) -> tuple[bytes, list[Event], bool]:
        """Decode up to the last border. Return the remaining text, the events, and whether the
        array ends within it.
        """
        for cut in borders(text):
            border = BORDER.match(text, cut)
            after = text[border.end() :] if border else b""
            try:
                return after, self._decode(b"".join((b"[", memoryview(text)[: cut + 1], b"]"))), False
            except DECODE_ERRORS as error:
                message = str(error)
            if _TRAILING.search(message) is not None:  # the array has ended, and other keys follow
                return text, [], True
            if "truncated" not in message:
                saved = salvage(text[: cut + 1], self._decode, loosely, more=True)
                self._damaged += saved.damaged
                self._repaired += saved.repaired
                return (saved.rest + b"," + after if saved.rest else after), saved.events, False
        return text, [], False

    def _end(self, text: bytes) -> Iterator[list[Event]]:
        """Read the rest at the end of the file: the last events, and the keys after them."""
        text = text.strip(_PADDING)
        cut = next(borders(text), None)
        if cut is not None and cut > len(text) // 2:  # the many events are decoded once, and the few twice
            rest, events, _ = self._take(text)
            if events:
                yield events
            text = rest
        try:
            yield self._decode(b"[" + text)
            self._close(b"")
            return
        except DECODE_ERRORS as error:
            trailing = _TRAILING.search(str(error))
        if trailing is not None:
            end: int | None = int(trailing[1]) - 2
            yield self._decode(b"[" + text[:end])
        else:
            end = ending(text)
            saved = salvage(
                text[:end].strip(b"], \r\n\t") if end is None else text[: end - 1], self._decode, loosely
            )
            yield saved.events
            self._damaged += saved.damaged
            self._repaired += saved.repaired
            is_complete = not saved.last_damaged and text.rstrip(b", \r\n\t").endswith(b"}")
            if end is None and (self._is_table or not is_complete):  # a bare array may lack its bracket
                self.whole = False
                self._damaged -= saved.last_damaged
                self.findings.append(
                    f"breaks off after {self.inflated_bytes} bytes: the events before that are used"
                )
        if end is not None:
            self._close(text[end:].strip())

    def _close(self, rest: bytes) -> None:
        """Parse the text after the events."""
        if not rest:
            if self._is_table:
                self.findings.append("is truncated after its events")
            return
        try:
            self.header.update(table(b'{"":0' + rest))
        except DECODE_ERRORS:
            if _EVENTS.search(rest):
                self.whole = False
                self.findings.append("holds a second trace after the first one, which is not read: split it")
            else:
                self._leave_out("after")
            return
        if _EVENTS.search(rest) and has_events(b'{"":0' + rest):
            self.whole = False
            self.findings.append("has the key traceEvents twice: only the events of the first one are read")
