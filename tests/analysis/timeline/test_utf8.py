"""Text is read as UTF-8: invalid bytes are replaced and counted, wherever the blocks end."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stepprof.analysis.timeline.utf8 import Utf8

BYTES = st.lists(st.text(max_size=6).map(str.encode) | st.binary(max_size=3), max_size=12).map(b"".join)


class TestUtf8:
    @given(BYTES, st.integers(1, 9))
    @example(b"\xe6\x9d\xb1"[:2], 1)
    @example("東京🙂".encode(), 2)
    @example(b"\xf0\x9f" + "é".encode(), 3)
    def test_blocks(self, data, size):
        """Blocks of any size give the same text as the whole file: U+FFFD replaces each invalid byte."""
        utf8 = Utf8()
        pieces = list(utf8.blocks(data[at : at + size] for at in range(0, len(data), size)))
        escaped = data.decode(errors="surrogateescape")
        wrong = sum("\udc80" <= each <= "\udcff" for each in escaped)
        expected = "".join("\ufffd" if "\udc80" <= each <= "\udcff" else each for each in escaped)
        assert b"".join(pieces).decode() == expected
        assert utf8.replaced == wrong
        assert all(piece.decode() is not None for piece in pieces)

    def test_finding(self):
        """There is a finding only after a byte was replaced."""
        utf8 = Utf8()
        assert utf8.text("é".encode()) == "é"
        assert utf8.finding() == []
        assert utf8.text(b"\xff\xfe") == "\ufffd\ufffd"
        assert utf8.finding() == ["2 bytes are not UTF-8: replaced by U+FFFD"]
