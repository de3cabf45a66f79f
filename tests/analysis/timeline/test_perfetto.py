"""A timeline as a Perfetto trace has every event, with exact times, on rows where slices nest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec import Raw
from timelines import T0, Timeline, drawn, make_source, sources

from stepprof.analysis.timeline import descriptors, perfetto
from stepprof.analysis.timeline.arguments import Shortened
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Alignment, Origin, Track
from stepprof.analysis.timeline.placement import Place


def written(*placed, title="step 2"):
    """Return a timeline of sources, written and read again."""
    data = descriptors.head(title, "how", T0)
    for index, source in enumerate(placed):
        data += b"".join(perfetto.encode(source, Place(index, len(placed))))
    return Timeline(data)


class TestSlices:
    @settings(max_examples=60, deadline=None)
    @given(sources())
    def test_every_slice_is_drawn_with_its_exact_begin_and_end(self, source):
        """Slices that cross, are empty or begin at the same time are all drawn, with exact times."""
        assert written(source).drawn() == drawn(source)

    @settings(max_examples=15, deadline=None)
    @given(sources(), sources())
    def test_concatenated_sources_do_not_mix(self, a, b):
        """Interned names, clocks, rows and flows of one source have no effect on the next one."""
        timeline = written(a, b)
        assert timeline.drawn() == sorted(drawn(a) + drawn(b))
        per_source = [
            len(
                [
                    each
                    for each in timeline.slices
                    if timeline.tracks[each["uuid"]]["parent"] is not None
                    and self.group(timeline, each) == uuid
                ]
            )
            for uuid in (3, 4)
        ]
        assert per_source == [len(a.slices), len(b.slices)]

    @staticmethod
    def group(timeline, each):
        uuid = each["uuid"]
        while timeline.tracks[uuid]["parent"] != 1:
            uuid = timeline.tracks[uuid]["parent"]
        return uuid

    def test_nested_slices_share_a_row(self):
        """Children with their parent's begin or end, an empty child, and a neighbour that begins
        where the last slice ends share one row.
        """
        slices = [(0, 0, 100, "a"), (0, 0, 10, "b"), (0, 90, 10, "c"), (0, 50, 0, "d"), (0, 100, 5, "e")]
        timeline = written(make_source(slices))
        assert {each["name"]: each["depth"] for each in timeline.slices} == {
            "a": 0,
            "b": 1,
            "c": 1,
            "d": 1,
            "e": 0,
        }
        assert len({each["uuid"] for each in timeline.slices}) == 1

    def test_crossing_slices_get_lanes_of_one_row(self):
        """Three concurrent requests are on three adjacent rows with one name, joined by a key."""
        slices = [(0, 0, 10, "r1"), (0, 5, 10, "r2"), (0, 7, 10, "r3"), (0, 11, 3, "r4")]
        timeline = written(make_source(slices, tracks=[Track("async", "requests", ("r",))]))
        rows = {each["name"]: each["uuid"] for each in timeline.slices}
        assert len(set(rows.values())) == 3
        assert rows["r4"] == rows["r1"]
        assert {
            (timeline.tracks[row]["name"], timeline.tracks[row]["lanes_of"]) for row in rows.values()
        } == {("requests", 1)}

    def test_only_crossing_slices_leave_a_thread(self):
        """Only the slice that crosses moves to another row. The other slices of the thread stay."""
        slices = [(0, 0, 10, "outer"), (0, 2, 3, "inner"), (0, 5, 10, "crosses"), (0, 20, 5, "later")]
        timeline = written(make_source(slices))
        rows = {each["name"]: each["uuid"] for each in timeline.slices}
        assert rows["outer"] == rows["inner"] == rows["later"] != rows["crosses"]

    def test_more_rows_than_numbers_of_one_byte(self):
        """Uuids, names and times of 10,000 tracks are encoded with several widths."""
        tracks = [Track("sample", f"s{n}", (f"s{n}",)) for n in range(10_000)]
        source = make_source(
            [(n, n * 1000, 500 + n, f"name {n % 300}") for n in range(10_000)], tracks=tracks
        )
        timeline = written(make_source([(0, 0, 1, "x")]), source)
        assert timeline.drawn() == sorted([*drawn(source), ("thread 0", "x", "cpu_op", T0, 1)])

    def test_more_slices_than_one_block(self, monkeypatch):
        """A slice may begin in one block and end in another."""
        monkeypatch.setattr(perfetto, "_BLOCK", 7)
        source = make_source(
            [(n % 3, n * 10, 25 if n % 2 else 4, f"n{n}", "cpu_op", b'{"note": %d}' % n) for n in range(100)],
            flows=[(n % 3, n * 10 + 1, (n + 3) % 3, n * 10 + 31) for n in range(90)],
        )
        timeline = written(source)
        assert timeline.drawn() == drawn(source)
        assert {(each["name"], each["args"]["note"]) for each in timeline.slices} == {
            (f"n{n}", n) for n in range(100)
        }
        assert len(timeline.flows) == 90

    def test_more_time_and_rows_than_one_number_holds(self):
        """Times decades apart and many rows do not fit into one sort key. They are sorted by their ranks."""
        tracks = [Track("thread", f"t{n}", (str(n),)) for n in range(3)] + [
            Track("thread", "last", ("x",))
        ] * 10
        decades = 6 * 10**17
        slices = [
            (2, 0, 10, "a"),
            (2, 5, 10, "crosses"),
            (12, decades, 10, "b"),
            (12, decades + 2, 3, "inner"),
        ]
        source = make_source(slices, tracks=tracks, flows=[(2, 7, 12, decades + 3)])
        timeline = written(source)
        assert timeline.drawn() == drawn(source)
        ((_, ends),) = timeline.flows.items()
        assert {told["name"] for _, told in ends} == {"crosses", "inner"}

    def test_unrelated_slices_keep_their_row(self):
        """Only slices that touch a crossing slice may move to another row."""
        slices = [
            (0, 0, 10, "a"),
            (0, 5, 10, "crosses"),
            (0, 20, 10, "b"),
            (0, 22, 2, "inner"),
            (0, 40, 9, "c"),
        ]
        timeline = written(make_source(slices))
        rows = {each["name"]: each["uuid"] for each in timeline.slices}
        assert rows["a"] == rows["b"] == rows["inner"] == rows["c"] != rows["crosses"]

    def test_a_source_without_events(self):
        """A source without events is listed with its problem."""
        timeline = written(make_source(findings=["is empty"]))
        assert timeline.slices == []
        assert timeline.instants[0]["args"]["finding 1"] == "is empty"


class TestTheRest:
    @settings(max_examples=20, deadline=None)
    @given(sources())
    def test_instants_and_counters_are_exact(self, source):
        """Times and values are exact for every float."""
        timeline = written(source)
        instants, counters = source.instants, source.counters
        assert sorted(
            (each["name"], each["start"]) for each in timeline.instants if each["args"].get("file") is None
        ) == sorted(
            (source.names[name], time)
            for name, time in zip(instants.name.tolist(), instants.time.tolist(), strict=True)
        )
        assert sorted((time, value) for _, time, value in timeline.counters) == sorted(
            zip(counters.time.tolist(), counters.value.tolist(), strict=True)
        )

    @settings(max_examples=20, deadline=None)
    @given(sources())
    def test_a_flow_joins_the_innermost_slices_at_its_ends(self, source):
        """A flow that has a slice at both ends and runs forward is drawn once. No other flow is drawn."""
        timeline = written(source)
        slices = source.slices
        held = list(
            zip(
                slices.track.tolist(),
                slices.start.tolist(),
                (slices.start + np.maximum(slices.duration, 1)).tolist(),
                strict=True,
            )
        )

        def is_held(track, time):
            return any(on == track and start <= time <= end for on, start, end in held)

        flows = source.flows
        expected = sum(
            is_held(a, start) and is_held(b, end) and start <= end
            for a, start, b, end in zip(
                flows.start_track.tolist(),
                flows.start.tolist(),
                flows.end_track.tolist(),
                flows.end.tolist(),
                strict=True,
            )
        )
        assert len(timeline.flows) == expected
        for ends in timeline.flows.values():
            assert [number for number, _ in sorted(ends, key=lambda each: each[0])] == [47, 48]
            first, last = (told for _, told in sorted(ends, key=lambda each: each[0]))
            assert first["start"] <= last["start"]

    def test_the_innermost_is_joined(self):
        """A flow joins the innermost slice, and neither its caller nor a slice that has ended."""
        source = make_source(
            [(0, 0, 100, "outer"), (0, 10, 10, "gone"), (0, 30, 10, "inner"), (1, 50, 10, "kernel")],
            flows=[(0, 35, 1, 50), (0, 25, 1, 55)],
        )
        timeline = written(source)
        joined = {frozenset(told["name"] for _, told in ends) for ends in timeline.flows.values()}
        assert joined == {frozenset({"inner", "kernel"}), frozenset({"outer", "kernel"})}

    def test_a_flow_finds_a_slice_on_a_lane(self):
        """A flow also finds a slice that was moved to a lane."""
        source = make_source([(0, 0, 10, "a"), (0, 5, 10, "b"), (1, 20, 5, "c")], flows=[(0, 12, 1, 21)])
        ((_, ends),) = written(source).flows.items()
        assert {told["name"] for _, told in ends} == {"b", "c"}


class TestNames:
    def test_rows_are_in_display_order(self):
        """Iterations and counters are above the threads; streams and samples are below. The longest
        sample comes last.
        """
        tracks = [
            Track("sample", "short", ("short",)),
            Track("thread", "main", ("1", "1"), 5),
            Track("counter", "batch size", ("b",)),
            Track("sample", "long", ("long",)),
            Track("stream", "stream 7", ("0", "7"), 1),
            Track("iterations", "iterations", ("i",)),
            Track("thread", "backward", ("1", "2"), 2),
        ]
        slices = [
            (0, 0, 10, "x"),
            (1, 0, 10, "x"),
            (3, 0, 99, "x"),
            (4, 0, 10, "x"),
            (5, 0, 10, "x"),
            (6, 0, 10, "x"),
        ]
        timeline = written(make_source(slices, counters=[(2, 0, 1.0)], tracks=tracks))
        group, samples = (
            next(uuid for uuid, track in timeline.tracks.items() if track["name"] == name)
            for name in ("actor rank 3 · node-1", "samples")
        )

        def order(parent):
            rows = [each for each in timeline.tracks.values() if each["parent"] == parent]
            return [each["name"] for each in sorted(rows, key=lambda each: each["order"])]

        assert order(group) == ["iterations", "batch size", "backward", "main", "stream 7", "samples"]
        assert order(samples) == ["short", "long"]
        assert all(timeline.tracks[uuid]["ordered"] for uuid in (1, group, samples))

    def test_clock_and_findings_are_in_the_timeline(self):
        """The timeline states the file and process of each source, its clock method, and the
        clock's error.
        """
        source = make_source(
            [(0, 0, 1, "x")],
            alignment=Alignment("ping-pong", -1_500_000_000, 120_000),
            findings=["breaks off"],
        )
        timeline = written(source)
        about = timeline.instants[0]
        assert timeline.path(about["uuid"]) == ("step 2", "sources")
        assert about["args"] == {
            "file": "actor/rank-3.trace.json.gz",
            "host": "node-1",
            "pid": 77,
            "clock": "ping-pong, its clock is 1.500000 s behind, ±0.120 ms",
            "clock offset ns": -1_500_000_000,
            "clock error ns": 120_000,
            "finding 1": "breaks off",
        }
        assert timeline.tracks[1]["description"] == "how"

    def test_a_row_without_events_is_left_out(self):
        """A thread whose events were all filtered out has no row."""
        tracks = [Track("thread", "busy", ("1",)), Track("thread", "idle", ("2",))]
        timeline = written(make_source([(0, 0, 1, "x")], tracks=tracks))
        assert "idle" not in {track["name"] for track in timeline.tracks.values()}

    def test_invalid_unicode_in_a_name_is_replaced(self):
        """A question mark replaces a lone surrogate in a name."""
        timeline = written(make_source([(0, 0, 1, "a\ud800b")], origin=Origin("trace", "x\ud800.json")))
        assert timeline.slices[0]["name"] == "a?b"


class TestArguments:
    def of(self, *raws, category="cpu_op"):
        source = make_source([(0, number * 10, 5, "x", category, raw) for number, raw in enumerate(raws)])
        return [each["args"] for each in written(source).slices]

    def test_the_profilers_own_numbers_are_left_out(self):
        """The profiler's own numbers are omitted. Shapes are kept, also if an operator has several."""
        shaped = b'{"External id": %d,"Record function id": 0, "Concrete Inputs": [""], "Input Dims": [[%d, 4], []], "Ev Idx": %d}'
        bare = b'{"External id": %d, "Ev Idx": 7}'
        assert self.of(shaped % (1, 8, 1), bare % 2, shaped % (3, 8, 3), shaped % (4, 16, 4), bare % 5) == [
            {"Concrete Inputs": '[""]', "Input Dims": "[[8,4],[]]"},
            {},
            {"Concrete Inputs": '[""]', "Input Dims": "[[8,4],[]]"},
            {"Concrete Inputs": '[""]', "Input Dims": "[[16,4],[]]"},
            {},
        ]

    @pytest.mark.parametrize("category", ["cpu_op", "kernel", "cuda_runtime", "user_annotation"])
    def test_shortened_arguments_are_written_like_full_ones(self, category):
        """Arguments that were shortened while reading give the same output as complete ones."""
        raws = [
            b'{"External id": %d, "queued": 0, "stream": %d, "correlation": %d, "grid": [%d, 1]}' % numbers
            for numbers in ((1, 7, 1, 4), (2, 7, 2, 4), (3, 8, 3, 4), (4, 7, 4, 5), (5, 7, 5, 4))
        ]
        raws += [
            b'{"note": 1, "External id": 6, "correlation": 6}',
            b'{"note": 2, "External id": 7, "correlation": 7}',
            b'{"stream": 7, "correlation":8.5}',
            b'{"stream": 7, "correlation":8.25}',
            b'{"stream": 7}',
            b'{"Concrete Inputs": [1], "Ev Idx": 9, "stack": "a"}',
            b'{"Concrete Inputs": [1], "Ev Idx": 10, "stack": "b"}',
            b'{"Concrete Inputs": [2], "Ev Idx": 11\n    }',
            b'{"Concrete Inputs": [1], "Ev Idx": 12}',
            b"",
        ]
        kept = Shortened()([Event("X", cat=category, args=Raw(raw)) for raw in raws])
        assert self.of(*kept, category=category) == self.of(*raws, category=category)
        if category == "kernel":
            assert kept[0] is kept[1] is kept[4]

    @pytest.mark.parametrize(
        "value",
        [True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, 1.5, "text", "", [1, {"a": None}], None, {"b": [2]}],
    )
    def test_values_keep_their_type(self, value):
        """Numbers stay numbers if the format can hold them. Other values become strings."""
        (args,) = self.of(json.dumps({"v": value}).encode(), category="user_annotation")
        kept = (
            isinstance(value, str | bool | float)
            or (isinstance(value, int) and abs(value) < 2**63)
            or value == -(2**63)
        )
        assert args == {"v": value if kept else json.dumps(value, separators=(",", ":"))}

    def test_a_value_of_a_megabyte_is_cut(self):
        """A viewer cannot show a value of a megabyte, so it is cut after 64 KiB."""
        (args,) = self.of(json.dumps({"v": "x" * (1 << 20)}).encode(), category="user_annotation")
        assert len(args["v"]) == (1 << 16) + 1

    @pytest.mark.parametrize("raw", [b"[1]", b"3", b"{broken", b'{"a": "\xff"}'])
    def test_arguments_that_are_not_an_object(self, raw):
        """Arguments that are not an object are shown as one argument, `arguments`."""
        (args,) = self.of(raw, category="user_annotation")
        assert list(args) == ["arguments"]

    @settings(max_examples=20, deadline=None)
    @given(sources())
    def test_every_argument_arrives(self, source):
        """Each argument of each slice is written, also if other slices have arguments of the same
        shape or digits.
        """
        slices = source.slices

        def told(raw):
            return sorted(key for key in json.loads(raw or b"{}") if key != "External id")

        expected = sorted(
            (start, source.names[name], told(raw))
            for start, name, raw in zip(slices.start.tolist(), slices.name.tolist(), slices.args, strict=True)
        )
        seen = sorted((each["start"], each["name"], sorted(each["args"])) for each in written(source).slices)
        assert seen == expected
