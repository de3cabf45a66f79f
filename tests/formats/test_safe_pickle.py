"""Pickles are read as plain values: no code in them runs, and none of them makes its reader use
much memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import struct
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.formats import safe_pickle
from stepprof.formats.safe_pickle import PickleRefused, read_pickle

PAIRS = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=400)
    | st.floats(allow_nan=False)
    | PAIRS
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


class Evil:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("echo hacked",)


class TestPlainValues:
    @given(VALUES, st.sampled_from([2, 3, 4, 5]))
    @settings(max_examples=200, deadline=None)
    def test_plain_values_round_trip(self, value: object, protocol: int) -> None:
        """The values equal those of the standard library, for every protocol with binary instructions."""
        assert read_pickle(pickle.dumps(value, protocol)) == value

    def test_shared_and_many(self) -> None:
        """A memo with more than 256 entries, long strings and long lists are read."""
        shared = [{"filename": f"f{i}.py", "line": i} for i in range(700)]
        value = {"a": shared, "b": shared[::-1], "long": "x" * 70_000, "numbers": list(range(5000))}
        for protocol in (2, 4, 5):
            assert read_pickle(pickle.dumps(value, protocol)) == value
        assert gc.isenabled()

    def test_a_list_may_contain_itself(self) -> None:
        """A list that contains itself is read as such."""
        value: list[object] = []
        value.append(value)
        made = read_pickle(pickle.dumps(value))
        assert made[0] is made


class TestHostile:
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    @pytest.mark.parametrize(
        "value", [Evil(), {"segments": [Evil()]}, print, OrderedDict(a=1), {1, 2}, range(3), b"bytes"]
    )
    def test_code_is_refused_and_not_run(
        self, value: object, protocol: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The pickle is refused, and no code runs."""
        with pytest.raises(PickleRefused):
            read_pickle(pickle.dumps(value, protocol))
        assert capfd.readouterr().out == ""

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"cos\nsystem\n(S'true'\ntR.", "instruction GLOBAL at byte 0: it would run code"),
            (b"\x80\x04\x82\x01.", "instruction EXT1 at byte 2: it would run code"),
            (b"\x80\x04Pid\n.", "instruction PERSID at byte 2: it would run code"),
            (b"\x80\x04X\x02\x00\x00\x00hi\x93.", "instruction STACK_GLOBAL at byte 9: it would run code"),
            (b"\x80\x04I1\n.", "instruction 0x49 at byte 2: cut off, or not one that plain values need"),
            (b"\x80\x09N.", "instruction 0x80 at byte 0"),
            (b"", "it is cut off at byte 0"),
            (b"\x80\x04", "it is cut off at byte 2"),
            (b"\x80\x04N", "it is cut off at byte 3"),
            (b"\x80\x04J\x01", "instruction 0x4a at byte 2"),
            (b"\x80\x04\x8c\x05abcd", "instruction 0x8c at byte 2"),
            (b"\x80\x04X\xff\xff\xff\xffabc", "it is cut off in a string at byte 2"),
            (b"\x80\x04X\x01", "it is cut off in a string at byte 2"),
            (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc", "it is cut off in a string at byte 2"),
            (b"\x80\x04.", "damaged: UnpicklingError"),
            (b"\x80\x04a.", "damaged: UnpicklingError"),
            (b"\x80\x04h\x05.", "damaged: UnpicklingError"),
            (b"\x80\x04}(K\x01u.", "damaged: UnpicklingError"),
            (b"\x80\x04}]Ns.", "damaged: TypeError: unhashable"),
            (b"\x80\x04}Na.", "damaged: AttributeError"),
            (b"\x80\x04]\x8c\x01aNs.", "damaged: TypeError"),
            (b"\x80\x04\x8c\x02\xff\xff.", "damaged: UnicodeDecodeError"),
        ],
    )
    def test_damaged_or_other_values_are_refused(self, data: bytes, problem: str) -> None:
        """The pickle is refused with one type of error, which has the place or the cause."""
        with pytest.raises(PickleRefused, match=re.escape(problem)):
            read_pickle(data)

    @pytest.mark.parametrize(
        "data",
        [
            b"\x80\x04Nr\xff\xff\xff\xff.",  # a memo index: the standard library allocates 4 billion entries
            b"\x80\x04N\x85\x85.",  # tuples of tuples at any depth: hashing one ends the process
            b"\x80\x04(K\x01t.",
            b"\x80\x04NN\x86.",
            pickle.dumps({2**70: 1}),  # integers of any length: as keys, any number of them can have one hash
        ],
    )
    def test_too_expensive_pickles_are_refused(self, data: bytes) -> None:
        """Snapshots of torch never contain such instructions."""
        with pytest.raises(PickleRefused, match="not one that plain values need"):
            read_pickle(data)

    @pytest.mark.parametrize("made", [b"}", b"]", b"K\x00K\x00\x86"])
    def test_lists_and_tables_are_counted(self, made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        """One byte of the pickle allocates seventy bytes, so containers are counted and limited."""
        monkeypatch.setattr(safe_pickle, "MAX_CONTAINERS", 100)
        assert len(read_pickle(b"\x80\x04](" + made * 99 + b"e.")) == 99
        with pytest.raises(PickleRefused, match="more than 100 lists and mappings"):
            read_pickle(b"\x80\x04](" + made * 100 + b"e.")

    def test_a_long_program_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number of instructions is limited, and so is the amount of memory that they use."""
        monkeypatch.setattr(safe_pickle, "MAX_INSTRUCTIONS", 100_000)
        assert len(read_pickle(b"\x80\x04](" + b"N" * 90_000 + b"e.")) == 90_000
        with pytest.raises(PickleRefused, match="more than 100000 instructions"):
            read_pickle(b"\x80\x04](" + b"N" * 110_000 + b"e.")
        with pytest.raises(PickleRefused, match="more than 100000 instructions"):
            read_pickle(b"\x80\x04](" + b"X\x01\x00\x00\x00x" * 100_001 + b"e.")

    def test_lists_in_lists_without_an_end(self) -> None:
        """Deeply nested lists are created and freed without a crash."""
        depth = 200_000
        value = read_pickle(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")
        assert len(value) == 1

    @given(st.binary(max_size=200))
    @settings(max_examples=300, deadline=None)
    def test_arbitrary_bytes_are_refused_cleanly(self, data: bytes) -> None:
        """Any bytes return a value or are refused."""
        with contextlib.suppress(PickleRefused):
            read_pickle(b"\x80\x04" + data)

    @given(VALUES, st.integers(0, 400), st.integers(0, 255))
    @settings(max_examples=200, deadline=None)
    def test_a_changed_byte_is_read_or_refused(self, value: object, place: int, byte: int) -> None:
        """A pickle with one changed byte returns a value or is refused."""
        data = bytearray(pickle.dumps({"a": value}))
        data[place % len(data)] = byte
        with contextlib.suppress(PickleRefused):
            read_pickle(bytes(data))
