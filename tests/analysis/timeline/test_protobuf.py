"""The wire format of Perfetto's packets, and the buffers for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import fields

from stepprof.analysis.timeline.protobuf import (
    Extras,
    bytes_field,
    double_field,
    scatter,
    varint,
    varint_field,
    varints,
)


@given(st.integers(0, 2**64 - 1))
def test_varints_round_trip(value):
    assert list(fields(b"\x08" + varint(value))) == [(1, value)]


def test_negative_numbers_are_encoded_modulo_2_to_the_64():
    assert list(fields(varint_field(1, -1))) == [(1, 2**64 - 1)]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_columns_of_varints_round_trip(values):
    """All varints of a column are padded to the width of the largest."""
    rows = varints(np.array(values))
    assert [next(fields(b"\x08" + row.tobytes())) for row in rows] == [(1, value) for value in values]


def test_fields():
    data = bytes_field(3, "é") + double_field(5, 1.0) + bytes_field(200, b"")
    assert list(fields(data)) == [
        (3, "é".encode()),
        (5, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        (200, b""),
    ]


def test_a_row_that_does_not_fit_is_refused():
    """The error is raised before anything is written outside the buffer."""
    for at in (-1, 2):
        with pytest.raises(IndexError):
            scatter(np.zeros(3, np.uint8), np.array([at]), np.zeros((1, 2), np.uint8))


@settings(max_examples=100)
@given(st.data())
def test_extras_follow_their_records(data):
    """The result equals that of building each record separately."""
    count = data.draw(st.integers(1, 12))
    table = [b"", *data.draw(st.lists(st.binary(max_size=5), max_size=4))]
    codes = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=count, max_size=count))
    owners = sorted(data.draw(st.lists(st.integers(0, count - 1), max_size=10)))
    rows = np.arange(len(owners) * 3, dtype=np.uint8).reshape(-1, 3)
    extras = Extras(count)
    extras.add_texts(np.array(codes), table)
    extras.add_rows(np.array(owners, np.int64), rows)
    expected = [
        table[code] + b"".join(rows[n].tobytes() for n, owner in enumerate(owners) if owner == record)
        for record, code in enumerate(codes)
    ]
    assert extras.lengths.tolist() == [len(each) for each in expected]
    buffer = np.zeros(int(extras.lengths.sum()), np.uint8)
    extras.write(buffer, np.cumsum(extras.lengths) - extras.lengths)
    assert buffer.tobytes() == b"".join(expected)
