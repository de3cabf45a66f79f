"""Pickles read as plain values: nothing that they say is run, and nothing that they say makes their reader large."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.plainpickle import MAX_DEPTH, PickleRefused, read_plain

LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


class Evil:
    """Runs something where it is unpickled."""

    def __reduce__(self):
        return os.system, ("echo hacked",)


class TestPlainValues:
    @given(VALUES, st.sampled_from([2, 3, 4, 5]))
    @settings(max_examples=200, deadline=None)
    def test_what_the_standard_library_writes(self, value: object, protocol: int) -> None:
        """Is read as the standard library reads it, in every protocol that has binary instructions."""
        assert read_plain(pickle.dumps(value, protocol)) == value

    def test_shared_and_many(self) -> None:
        """A memo of more than 256 places, long texts, long lists."""
        shared = [{"filename": f"f{i}.py", "line": i} for i in range(700)]
        value = {"a": shared, "b": shared[::-1], "long": "x" * 70_000, "numbers": list(range(5000))}
        assert read_plain(pickle.dumps(value)) == value

    def test_one_that_contains_itself(self) -> None:
        """Is made, and stays what it is."""
        value: list[object] = []
        value.append(value)
        made = read_plain(pickle.dumps(value))
        assert made[0] is made


class TestHostile:
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    @pytest.mark.parametrize(
        "value", [Evil(), {"segments": [Evil()]}, print, OrderedDict(a=1), {1, 2}, range(3), b"bytes"]
    )
    def test_what_would_run_something(
        self, value: object, protocol: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Is refused at the instruction, and nothing has run."""
        with pytest.raises(PickleRefused):
            read_plain(pickle.dumps(value, protocol))
        assert capfd.readouterr().out == ""

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"cos\nsystem\n(S'true'\ntR.", "instruction GLOBAL at byte 0: it would run code"),
            (b"\x80\x04\x82\x01.", "instruction EXT1 at byte 2: it would run code"),
            (b"\x80\x04Pid\n.", "instruction PERSID at byte 2: it would run code"),
            (b"\x80\x04I1\n.", "unknown instruction 0x49 at byte 2: refused"),
            (b"\x80\x09N.", "protocol 9 is not known"),
            (b"", "damaged at byte 0: IndexError"),
            (b"\x80\x04", "damaged at byte 2: IndexError"),
            (b"\x80\x04NN.", "ends at byte 5 in the middle of a value"),
            (b"\x80\x04(N.", "ends at byte 5 in the middle of a value"),
            (b"\x80\x04a.", "damaged at byte 3: IndexError"),
            (b"\x80\x04h\x05.", "damaged at byte 4: KeyError"),
            (b"\x80\x04}(K\x01u.", "damaged at byte 7: ValueError"),
            (b"\x80\x04}]Ns.", "a key is no text but list"),
            (b"\x80\x04}Na.", "something is added to what is no list"),
            (b"\x80\x04]\x8c\x01aNs.", "a key is set in what is no table"),
            (b"\x80\x04X\xff\xff\xff\xffabc", "it is cut off at byte"),
            (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc", "it is cut off at byte"),
            (b"\x80\x04" + b"(" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}"),
        ],
    )
    def test_what_is_damaged_or_not_plain(self, data: bytes, problem: str) -> None:
        """Is refused, whatever it is, with one kind of error that says where."""
        with pytest.raises(PickleRefused, match=problem.replace("(", r"\(")):
            read_plain(data)

    def test_a_place_in_the_memo_takes_no_room(self) -> None:
        """The standard library makes room for four billion places here: 32 GB."""
        assert read_plain(b"\x80\x04Nr\xff\xff\xff\xff.") is None

    def test_a_long_program_ends(self) -> None:
        """The number of instructions is bounded."""
        with pytest.raises(PickleRefused, match="more than 100 instructions"):
            read_plain(pickle.dumps(list(range(500))), max_instructions=100)

    @given(st.binary(max_size=200))
    @settings(max_examples=300, deadline=None)
    def test_anything_at_all(self, data: bytes) -> None:
        """Is a value or a refusal."""
        with contextlib.suppress(PickleRefused):
            read_plain(b"\x80\x04" + data)

    @given(VALUES, st.integers(0, 400), st.integers(0, 255))
    @settings(max_examples=200, deadline=None)
    def test_one_byte_changed(self, value: object, place: int, byte: int) -> None:
        """As above."""
        data = bytearray(pickle.dumps({"a": value}))
        data[place % len(data)] = byte
        with contextlib.suppress(PickleRefused):
            read_plain(bytes(data))
