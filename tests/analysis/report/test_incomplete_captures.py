"""Captures that cover only a part of their windows: which ones, and how many seconds they cover."""

from __future__ import annotations

import pytest
from digested import MS, T0, engine_entry, spans, trace, window

from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.incomplete_captures import shortfalls_of
from stepprof.analysis.report.processes import gather


def short(*windows, sources=(), engines=()):
    """Return for each incomplete capture: label, status, the limit that capped it, reason, recorded
    seconds and seconds of the window.
    """
    processes = gather([digest(each) for each in sources], windows)
    return [
        (each.label, each.status, each.capped_by, each.reason, each.recorded, each.window)
        for each in shortfalls_of(processes, engines)
    ]


def actor(end=100, start=0):
    """Return the spans of rank 0 with a window of role actor."""
    return spans(0, ("window", "actor", start, end - start, "actor"))


class TestWindows:
    def test_a_complete_capture_is_not_listed(self):
        mm = ("thread", "cpu_op", "mm", 0, 5)
        assert short(window(), sources=[actor(), trace(0, mm)]) == []

    def test_a_capped_one_ends_before_its_window(self):
        """The manifest has the end of the capture, and the spans have the end of the window."""
        capped = window(end=40, capped_by="max_seconds")
        assert short(capped, sources=[actor()]) == [
            ("actor rank 0", "complete", "max_seconds", None, 0.04, 0.1)
        ]

    def test_the_regions_after_its_end(self):
        """They are known from spans. Those before the end of the capture and after the window are left out."""
        made = spans(
            0,
            ("window", "actor", 0, 100, "actor"),
            ("region", "forward", 0, 50, "actor"),
            ("region", "save", 60, 30, "actor"),
            ("region", "write", 65, 20, "actor"),
            ("window", "eval", 100, 50, "eval"),
            ("region", "generate", 100, 50, "eval"),
        )
        capped = window(end=40, capped_by="max_seconds")
        (found,) = shortfalls_of(gather([digest(made)], [capped]), ())
        assert found.regions == {"save": 0.03, "forward": 0.01}

    def test_without_spans_the_windows_length_is_not_known(self):
        assert short(window(end=40, capped_by="max_seconds")) == [
            ("actor rank 0", "complete", "max_seconds", None, 0.04, None)
        ]

    def test_the_window_meant_is_the_nearest_of_its_role(self):
        """Rank 0 entered the role twice, and its second capture was capped."""
        twice = spans(0, ("window", "actor", 0, 30, "actor"), ("window", "actor", 50, 50, "actor"))
        capped = window(start=51, end=70, capped_by="max_bytes")
        assert [each[-1] for each in short(capped, sources=[twice])] == [0.05]

    @pytest.mark.parametrize(
        ("status", "reason", "recorded"),
        [
            ("partial", "nsys: no report", 0.1),
            ("failed", "no device", None),
            ("skipped", "another profiler is running", None),
            ("lost", "export: killed", None),
        ],
    )
    def test_other_outcomes_are_listed_with_their_reason(self, status, reason, recorded):
        """Only a capture that left a file has recorded seconds."""
        lost = window(status=status, error=reason)
        assert short(lost, sources=[actor()]) == [("actor rank 0", status, None, reason, recorded, 0.1)]

    def test_a_joined_window_is_not_listed(self):
        assert short(window(status="joined", artifacts=[])) == []

    def test_a_backend_that_records_nothing_has_no_captures(self):
        assert short(window(backend="null", artifacts=[])) == []

    def test_a_file_that_could_not_be_read_to_its_end(self):
        """The events of a file are not ordered by time, so the part of the window that a damaged
        file covers is unknown.
        """
        damaged = trace(0, ("thread", "cpu_op", "mm", 0, 30), whole=False)
        assert short(window(), sources=[actor(), damaged]) == [
            ("actor rank 0", "damaged", None, None, None, 0.1)
        ]

    def test_a_file_of_which_nothing_could_be_read(self):
        """It has no event: "only a part" was not read either."""
        assert short(window(), sources=[actor(), trace(0, whole=False)]) == [
            ("actor rank 0", "unreadable", None, None, None, 0.1)
        ]

    def test_another_windows_file_does_not_cover_this_one(self):
        damaged = trace(0, ("thread", "cpu_op", "mm", 0, 30), role="ref", whole=False)
        assert [each[:2] for each in short(window(), window(role="ref"), sources=[damaged])] == [
            ("rank 0", "damaged")
        ]

    def test_a_window_that_is_still_recorded(self):
        """A window that is still recorded is listed as `recording`, without seconds."""
        going_on = {**window(), "status": "recording", "end_unix_ns": None}
        assert short(going_on) == [("actor rank 0", "recording", None, None, None, None)]


class TestEngines:
    def test_outcomes(self):
        engines = [
            engine_entry(0),
            engine_entry(1, status="failed", error="it does not answer", artifacts=[]),
            engine_entry(2, capped_by="max_seconds", start_unix_ns=T0, end_unix_ns=T0 + 40 * MS),
        ]
        assert short(engines=engines) == [
            ("rollout/1", "failed", None, "it does not answer", None, None),
            ("rollout/2", "complete", "max_seconds", None, 0.04, None),
        ]

    @pytest.mark.parametrize("status", ["failed", "lost"])
    def test_an_engine_without_files_covers_nothing(self, status):
        """The times of the engine's start and stop do not show what it recorded."""
        entry = engine_entry(
            status=status, error="export: gone", artifacts=[], start_unix_ns=T0, end_unix_ns=T0 + 40 * MS
        )
        assert short(engines=[entry]) == [("rollout/0", status, None, "export: gone", None, None)]

    def test_entries_of_ranks_are_left_to_their_own_windows(self):
        assert short(engines=[engine_entry(kind="rank", artifacts=[])]) == []
