"""Waiting for pipes, with and without `select.poll`."""

from __future__ import annotations

import os
import select

import pytest

from stepprof.host.readable import readable


@pytest.fixture(params=["poll", "without poll"])
def pipe(request, monkeypatch):
    """Return the ends of a pipe; eventlet removes `poll` from the module."""
    if request.param != "poll":
        monkeypatch.delattr(select, "poll")
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


class TestReadable:
    def test_a_pipe_with_data(self, pipe):
        """A pipe that has data is returned, and an empty one is not."""
        reading, writing = pipe
        assert readable([reading], 0.0) == set()
        os.write(writing, b".")
        assert readable([reading], None) == {reading}

    def test_a_pipe_at_its_end(self, pipe):
        """A pipe whose other end is closed can be read."""
        reading, writing = pipe
        os.close(writing)
        assert readable([reading], 5.0) == {reading}
