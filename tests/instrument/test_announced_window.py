"""Windows that another process announces: their regions here, and their spans."""

from __future__ import annotations

import pytest
from spanning import spans_of

import stepprof
from stepprof.instrument.announced_window import AnnouncedWindows


@pytest.fixture
def session(start):
    return start(backend="null", steps="2")


class TestHeardWindows:
    def test_regions_belong_to_the_innermost_announced_window(self, session) -> None:
        """Regions have the step and role of the innermost announced window. An announcement
        with an older number is ignored.
        """
        windows_there = AnnouncedWindows()
        for number, windows in ((1, [(1, None)]), (3, [(1, None), (1, "actor")]), (2, []), (4, [(1, None)])):
            windows_there.follow(number, windows, (), session)
            with stepprof.region("r"):
                pass
        windows_there.follow(5, [], (), session)
        assert stepprof.current_step() is None
        roles = [(s["step"], s["role"]) for s in spans_of(session, kind="region")]
        assert roles == [(1, None), (1, "actor"), (1, "actor"), (1, None)]

    def test_an_announced_window_selects_nothing(self, session) -> None:
        """An announced window is not recorded, even if its step is selected here."""
        windows_there = AnnouncedWindows()
        windows_there.follow(1, [(2, None)], (), session)
        windows_there.end_all(session)
        assert not (session.path / "step-000002").exists()
        assert [(s["step"], s["kind"]) for s in spans_of(session)] == [(2, "window")]

    def test_own_windows_replace_announced_ones(self, session) -> None:
        """If this process enters a window itself, the announced one is dropped, and later
        announcements of it are ignored.
        """
        windows_there = AnnouncedWindows()
        windows_there.follow(1, [(1, "actor")], (), session)
        assert windows_there.drop((1, "actor"))
        windows_there.follow(2, [(1, "actor")], {(1, "actor")}, session)
        assert not windows_there.drop((1, "actor"))
        assert stepprof.current_step() is None
        assert spans_of(session) == []
