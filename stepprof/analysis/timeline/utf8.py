"""Convert the text of a trace file to valid UTF-8: invalid bytes are replaced by U+FFFD, and
counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST = 4
"""The most bytes of a character."""
_ESCAPED = re.compile("[\udc80-\udcff]")


@dataclass(slots=True)
class Utf8:
    """Makes blocks of bytes valid UTF-8, without cutting a character in two."""

    replaced: int = 0
    """Bytes so far that were not UTF-8."""

    def blocks(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the blocks of `source`, each with whole characters."""
        begun = b""
        for block in source:
            if not begun and block.isascii():
                yield block
                continue
            text = begun + block
            end = len(text) - _unfinished(text[-_LONGEST:])
            begun = text[end:]
            yield self.valid(text[:end])
        if begun:
            yield self.valid(begun)

    def finding(self) -> list[str]:
        """Return a finding that states how many bytes were replaced; none if none were."""
        if not self.replaced:
            return []
        several = self.replaced > 1
        return [f"{self.replaced} byte{'s are' if several else ' is'} not UTF-8: replaced by U+FFFD"]

    def text(self, value: bytes) -> str:
        """Return a complete text as valid UTF-8."""
        try:
            return value.decode()
        except UnicodeDecodeError:
            replaced, count = _ESCAPED.subn("\ufffd", value.decode(errors="surrogateescape"))
            self.replaced += count
            return replaced

    def valid(self, text: bytes) -> bytes:
        """Return a text that starts and ends with whole characters as valid UTF-8."""
        return text if text.isascii() else self.text(text).encode()


def _unfinished(end: bytes) -> int:
    """Return the number of bytes at the end of a text that start a character, which the next block
    may complete.
    """
    for count in range(1, min(len(end), _LONGEST - 1) + 1):
        first = end[-count]
        if first >= 0xC0:
            needed = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return count if count < needed else 0
        if first < 0x80:
            return 0
    return 0
