"""The events of a trace become a source: what each phase and category turns into."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepprof.analysis.timeline.columns import FlowColumns
from stepprof.analysis.timeline.iterations import BATCH_SIZE, batch_size
from stepprof.analysis.timeline.kineto import read
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.raw import TraceStream

BASE = 1_790_857_026_000_000_000
ORIGIN = Origin("trace", "t.json")
REFERENCE = Alignment("reference")


@pytest.fixture
def load(tmp_path):
    def load(*events, args=True, alignment=REFERENCE, base_ns=None, **header):
        path = tmp_path / "t.json"
        content = {"baseTimeNanoseconds": BASE, **header, "traceEvents": list(events)}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return read(TraceStream(path), ORIGIN, alignment, args=args, base_ns=base_ns)

    return load


def complete(name="op", ts=1.0, dur=2.0, cat="cpu_op", pid=7, tid=8, **more):
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def meta(what, /, pid=7, tid=0, **args):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def rows(source):
    """Return (track, name, category, start after the base, duration) of each slice."""
    slices = source.slices
    return [
        (source.tracks[t].name, source.names[n], source.categories[c], int(s) - BASE, int(d))
        for t, n, c, s, d in zip(
            slices.track, slices.name, slices.category, slices.start, slices.duration, strict=True
        )
    ]


def series(source):
    """Return the (time after the base, value) pairs of each counter."""
    found = {}
    for track, time, value in zip(
        source.counters.track, source.counters.time, source.counters.value, strict=True
    ):
        found.setdefault(source.tracks[track].name, []).append((int(time) - BASE, float(value)))
    return found


class TestSlices:
    def test_times_are_moved_to_the_common_clock(self, load):
        """The common time is the file's base plus the event's time, minus the offset of its host."""
        source = load(complete(ts=4447104522337.108, dur=0.001), alignment=Alignment("ping-pong", 5_000, 10))
        assert source.slices.start.tolist() == [BASE + 4447104522337108 - 5_000]
        assert source.slices.duration.tolist() == [1]
        assert source.alignment.error_ns == 10

    def test_arguments(self, load):
        """Arguments are kept as in the file, or, with `args=False`, not at all."""
        events = [complete(args={"a": [1, "ü"]}), complete()]
        assert [raw and json.loads(raw) for raw in load(*events).slices.args] == [{"a": [1, "ü"]}, None]
        assert load(*events, args=False).slices.args is None

    def test_threads_are_named(self, load):
        source = load(
            complete(tid=8),
            complete(tid=9),
            complete(pid="Spans", tid="PyTorch Profiler"),
            meta("thread_name", tid=8, name="main"),
        )
        assert [track.name for track in source.tracks] == ["main", "thread 9", "PyTorch Profiler"]
        assert {track.kind for track in source.tracks} == {"thread"}

    def test_threads_of_several_processes_are_distinguished(self, load):
        """In a file that SGLang merged, the process id begins with the rank. Threads are
        distinguished by process.
        """
        source = load(
            *(complete(pid=f"[TP0{n}] 7", tid=8) for n in range(2)),
            meta("process_name", pid="[TP01] 7", name="python"),
        )
        assert [track.name for track in source.tracks] == [
            "process [TP00] 7: thread 8",
            "python [TP01] 7: thread 8",
        ]

    def test_metadata_without_a_name_changes_nothing(self, load):
        """Metadata that names neither a process nor a thread, or with an empty name, changes nothing."""
        source = load(
            complete(),
            meta("process_name", name=5),
            meta("thread_uptime", tid=8, name="x"),
            meta("clock_sync", name="x"),
        )
        assert [track.name for track in source.tracks] == ["thread 8"]

    def test_order(self, load):
        """Tracks are ordered by the sort index of the process, then by that of the thread."""
        source = load(
            complete(pid=1, tid=1),
            complete(pid=2, tid=5),
            complete(pid=2, tid=4),
            meta("process_sort_index", pid=1, sort_index=9),
            meta("process_sort_index", pid=2, sort_index=3),
            meta("thread_sort_index", pid=2, tid=4, sort_index=8),
            meta("thread_sort_index", pid=2, tid=5, sort_index=7),
        )
        ordered = sorted(source.tracks, key=lambda track: track.order)
        assert [track.key for track in ordered] == [
            ("thread", "2", "5"),
            ("thread", "2", "4"),
            ("thread", "1", "1"),
        ]

    def test_the_main_thread_is_named_and_above_the_profilers_rows(self, load):
        source = load(
            complete(pid="Spans", tid="PyTorch Profiler"),
            complete(pid="", tid=""),
            complete(pid="[TP00] 7", tid=7),
            complete(pid=70, tid=71),
            complete(pid=70, tid=70),
            meta("thread_name", pid=70, tid=70, name="thread 70 (python)"),
            meta("process_sort_index", pid="Spans", sort_index=-1),
            meta("process_sort_index", pid=70, sort_index=1),
        )
        ordered = sorted(source.tracks, key=lambda track: track.order)
        assert [track.name.rpartition(": ")[2] for track in ordered] == [
            "thread 7", "main thread 70 (python)", "thread 71", "PyTorch Profiler", "profiler",
        ]  # fmt: skip

    def test_length_below_zero(self, load):
        source = load(complete(dur=-3))
        assert source.slices.duration.tolist() == [0]
        assert source.findings == ["1 events end before they start: they are shown without a length"]

    def test_no_length(self, load):
        """A complete event without `dur`, or with one that is no number, is counted."""
        without = {key: value for key, value in complete("b").items() if key != "dur"}
        others = [complete("c", dur=dur) for dur in (None, float("nan"), float("inf"))]
        source = load(complete("a", dur=3), without, *others)
        assert [name for _, name, *_ in rows(source)] == ["a", "b", "c", "c", "c"]
        assert source.slices.duration.tolist() == [3000, 0, 0, 0, 0]
        assert source.findings[-1] == (
            "4 events have no `dur` that is a number: they are shown without a length"
        )

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("dur", ["NaN", "inf", "soon"])
    def test_a_length_in_words(self, load, dur):
        """It is no number either."""
        source = load(complete("a", dur="3"), complete("b", dur=dur), complete("c", dur="5"))
        assert source.slices.duration.tolist() == [3000, 0, 5000]
        assert source.findings == ["1 times are invalid: such an event is ignored, or has no length"]

    def test_invalid_times_are_ignored(self, load):
        source = load(complete("a"), complete("b", ts="soon"), complete("c", ts=1e300), complete("d"))
        assert [name for _, name, *_ in rows(source)] == ["a", "d"]
        assert source.findings == ["2 times are invalid: such an event is ignored, or has no length"]

    def test_unknown_phases(self, load):
        source = load(complete(), {"ph": "?", "ts": 1}, {"ph": "?", "ts": 2})
        assert source.findings == ["events of unknown phases ignored: 2 of phase '?'"]

    def test_an_end_far_behind_in_the_file_and_before_in_time(self, load, monkeypatch):
        """An end before its begin in time ends nothing, in however many batches a file is read. No
        slice has a negative length.
        """
        monkeypatch.setattr("stepprof.analysis.timeline.raw.BLOCK", 200)
        between = [complete(ts=20.0 + number) for number in range(50)]
        begun, ended = (
            {"ph": phase, "name": "f", "pid": 7, "tid": 8, "ts": ts}
            for phase, ts in (("B", 10.0), ("E", 5.0))
        )
        source = load(begun, *between, ended)
        assert source.slices.duration.min() >= 0
        assert "1 ends without a beginning ignored" in source.findings

    def test_begin_and_end(self, load):
        """Begin and end events of a thread nest. A slice without an end lasts until the last time."""
        events = [
            ("B", "a", 1),
            ("B", "b", 2),
            ("E", "", 3),
            ("E", "", 4),
            ("E", "", 5),
            ("B", "c", 6),
            ("i", "", 6.5),
            ("B", "d", 7),
        ]
        source = load(*({"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": 1} for ph, name, ts in events))
        assert sorted((name, start, duration) for _, name, _, start, duration in rows(source)) == [
            ("a", 1000, 3000),
            ("b", 2000, 1000),
            ("c", 6000, 1000),
            ("d", 7000, 0),
        ]
        assert source.findings == [
            "2 events have no end: they are shown up to the last known time",
            "1 ends without a beginning ignored",
        ]


class TestDevices:
    def test_streams(self, load):
        """The work of a device is on its streams. Annotations over kernels do not nest and have
        their own track.
        """
        source = load(
            complete("k", cat="kernel", pid=0, tid=7),
            complete("copy", cat="gpu_memcpy", pid=0, tid=7, ts=5),
            complete("set", cat="gpu_memset", pid=0, tid=20),
            complete("region", cat="gpu_user_annotation", pid=0, tid=7),
            complete("launch", cat="cuda_runtime", pid=99, tid=1),
            meta("process_labels", pid=0, labels="GPU 0"),
            meta("thread_name", pid=0, tid=7, name="stream 7 7"),
        )
        kinds = {
            name: source.tracks[track].kind
            for track, name in zip(
                source.slices.track.tolist(), ["k", "copy", "set", "region", "launch"], strict=True
            )
        }
        assert kinds == {
            "k": "stream",
            "copy": "stream",
            "set": "stream",
            "region": "async",
            "launch": "thread",
        }
        assert [track for track, *_ in rows(source)] == [
            "GPU 0 stream 7",
            "GPU 0 stream 7",
            "GPU 0 stream 20",
            "GPU 0 stream 7 annotations",
            "thread 1",
        ]

    def test_devices_of_several_ranks(self, load):
        """A merged file has separate streams for the device of each rank."""
        source = load(
            *(complete("k", cat="kernel", pid=f"[TP0{n}] 0", tid=7) for n in range(2)),
            meta("process_labels", pid="[TP01] 0", labels="GPU 0"),
        )
        assert [track.name for track in source.tracks] == ["GPU [TP00] 0 stream 7", "[TP01] GPU 0 stream 7"]

    def test_host_events_at_a_streams_numbers_are_not_its_work(self, load):
        """A host event with a stream's numbers is on a separate track and not work of the stream."""
        source = load(
            complete("k", cat="kernel", pid=0, tid=7), complete("wait", cat="cuda_sync", pid=0, tid=7)
        )
        assert {(track.kind, track.name) for track in source.tracks} == {
            ("stream", "GPU 0 stream 7"),
            ("async", "GPU 0 stream 7 other"),
        }

    def test_flows_end_at_streams(self, load):
        """A flow ends on the stream track of its kernel."""
        source = load(
            complete("k", cat="kernel", pid=0, tid=7, ts=10),
            complete("launch", cat="cuda_runtime", pid=99, tid=1),
            {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 99, "tid": 1, "ts": 1},
            {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 10, "bp": "e"},
        )
        flows = source.flows
        assert (flows.start - BASE).tolist() == [1000]
        assert (flows.end - BASE).tolist() == [10_000]
        assert source.tracks[flows.start_track[0]].name == "thread 1"
        assert source.tracks[flows.end_track[0]] == source.tracks[source.slices.track[0]]

    def test_a_thread_and_a_stream_with_the_same_numbers(self, load):
        """Category and metadata distinguish a thread from a stream. In a container, process 7 may
        use GPU 7, and its thread 7 stream 7.
        """
        at = {"pid": 7, "tid": 7}
        arrow = {"id": 5, "cat": "ac2g", "name": "ac2g", **at}
        source = load(
            meta("process_labels", pid=7, labels="GPU 7"),
            meta("process_labels", pid=7, labels="CPU"),
            meta("thread_name", pid=7, tid=7, name="stream 7 "),
            meta("thread_name", pid=7, tid=7, name="thread 7 (python3)"),
            complete("mm", ts=0, dur=20, **at),
            complete("launch", cat="cuda_runtime", ts=1, **at),
            complete("k", cat="kernel", ts=10, dur=5, **at),
            complete("wait", cat="cuda_sync", ts=11, dur=3, **at),
            complete("sync", cat="cuda_runtime", ts=12, **at),
            {"ph": "s", "ts": 1, **arrow},
            {"ph": "f", "ts": 10, "bp": "e", **arrow},
            {"ph": "s", "ts": 1, **arrow, "id": 6},
            {"ph": "f", "ts": 12, "bp": "e", **arrow, "id": 6},
        )
        assert {name: (track, source.tracks[t].kind) for t, (track, name, *_) in zip(source.slices.track, rows(source), strict=True)} == {
            "mm": ("main thread 7 (python3)", "thread"),
            "launch": ("main thread 7 (python3)", "thread"),
            "sync": ("main thread 7 (python3)", "thread"),
            "k": ("GPU 7 stream 7", "stream"),
            "wait": ("GPU 7 stream 7 other", "async"),
        }  # fmt: skip
        flows = source.flows
        ends = [(source.tracks[a].kind, source.tracks[b].kind, int(e) - BASE) for a, b, e in zip(flows.start_track, flows.end_track, flows.end, strict=True)]  # fmt: skip
        assert sorted(ends) == [("thread", "stream", 10_000), ("thread", "thread", 12_000)]

    def test_npu(self, load):
        """torch_npu's device events have no category, its times are Unix times as strings, and its
        file has no base.
        """
        stamp = "1795304130234711.483"
        source = load(
            meta("process_name", pid=5, name="Ascend Hardware"),
            meta("process_name", pid=6, name="Python"),
            meta("process_name", pid=4, name="Overlap Analysis"),
            meta("thread_name", pid=5, tid=3, name="Stream 3"),
            {
                "ph": "X",
                "name": "MatMul",
                "pid": 5,
                "tid": 3,
                "ts": stamp,
                "dur": 4.5,
                "args": {"Task Type": "AI_CORE"},
            },
            *(
                {"ph": "X", "name": name, "pid": 5, "tid": 3, "ts": stamp, "dur": 1}
                for name in ("NOTIFY_WAIT_SQE", "EVENT_RECORD", "MEMCPY_ASYNC")
            ),
            complete("aten::mm", pid=6, ts=stamp),
            {"ph": "X", "name": "Computing", "pid": 4, "tid": 0, "ts": stamp, "dur": "4.5"},
            baseTimeNanoseconds=None,
        )
        assert source.findings == []
        assert set(source.slices.start.tolist()) == {1795304130234711483}
        told = {
            name: (source.tracks[track].kind, category)
            for track, (_, name, category, *_) in zip(source.slices.track, rows(source), strict=True)
        }
        assert told == {
            "MatMul": ("stream", "kernel"),
            "NOTIFY_WAIT_SQE": ("stream", "overhead"),
            "EVENT_RECORD": ("stream", "overhead"),
            "MEMCPY_ASYNC": ("stream", "gpu_memcpy"),
            "aten::mm": ("thread", "cpu_op"),
            "Computing": ("async", "overlap analysis"),
        }


class TestAsync:
    def test_pairs(self, load):
        """Begin and end events are paired by category, id and process, also if others are between them."""

        def half(ph, name, ts, local, pid=1, **more):
            return {
                "ph": ph,
                "cat": "stepprof",
                "name": name,
                "pid": pid,
                "tid": 1,
                "id2": {"local": local},
                "ts": ts,
                **more,
            }

        source = load(
            half("b", "a", 1, "0x1", args={"kind": "region"}),
            half("b", "b", 2, "0x2"),
            half("b", "other", 2, "0x1", pid=2),
            half("n", "moment", 2.5, "0x1"),
            half("e", "a", 3, "0x1"),
            half("e", "b", 5, "0x2"),
            half("e", "other", 9, "0x1", pid=2),
        )
        assert sorted((name, start, duration) for _, name, _, start, duration in rows(source)) == [
            ("a", 1000, 2000),
            ("b", 2000, 3000),
            ("other", 2000, 7000),
        ]
        assert {source.tracks[track].kind for track in source.slices.track} == {"async"}
        assert (source.instants.time - BASE).tolist() == [2500]
        assert source.slices.args[0] == b'{"kind": "region"}'
        assert {source.tracks[track].name.split(": ")[-1] for track in source.slices.track} == {"regions"}

    def test_global_and_missing_ids_are_accepted(self, load):
        """An id may be global or missing. Step events of an asynchronous slice are ignored."""

        def half(ph, name, ts, pid=1, **more):
            return {"ph": ph, "cat": "c", "name": name, "pid": pid, "ts": ts, **more}

        source = load(
            half("b", "global", 1, id2={"global": "0x1"}),
            half("e", "global", 2, pid=2, id2={"global": "0x1"}),
            half("S", "old", 3, id=5),
            half("T", "old", 4, id=5),
            half("F", "old", 5, id=5),
            half("b", "none", 6, id2=[1]),
            half("e", "none", 7, id2=[1]),
        )
        assert sorted((name, start, duration) for _, name, _, start, duration in rows(source)) == [
            ("global", 1000, 1000),
            ("none", 6000, 1000),
            ("old", 3000, 2000),
        ]
        assert source.findings == []

    @pytest.mark.parametrize("category", ["stepprof", "stepprof.attributes"])
    def test_samples(self, load, category):
        """A region that is bound to a sample is on the sample's track too. Attributes are on the
        track of regions.
        """
        source = load(
            {
                "ph": "b",
                "cat": category,
                "name": "generate",
                "pid": 1,
                "tid": 1,
                "id": 3,
                "ts": 1,
                "args": {"sample": "s1"},
            },
            {"ph": "e", "cat": category, "name": "generate", "pid": 1, "tid": 1, "id": 3, "ts": 4},
            {
                "ph": "b",
                "cat": category,
                "name": "odd",
                "pid": 1,
                "tid": 1,
                "id": 4,
                "ts": 1,
                "args": {"sample": {"no": 1}},
            },
            {"ph": "e", "cat": category, "name": "odd", "pid": 1, "tid": 1, "id": 4, "ts": 4},
        )
        assert [
            (source.tracks[track].kind, name)
            for track, (_, name, *_) in zip(source.slices.track, rows(source), strict=True)
        ] == [
            ("async", "generate"),
            ("sample", "generate"),
            ("async", "odd"),
        ]
        assert source.tracks[source.slices.track[0]].name.endswith("regions")
        assert source.tracks[source.slices.track[1]].key == ("s1",)


class TestValues:
    def test_counters(self, load):
        source = load(
            {"ph": "C", "name": "q", "pid": 1, "ts": 1, "args": {"value": 17}},
            {"ph": "C", "name": "q", "pid": 1, "ts": 2, "args": {"value": 18.5}},
            {"ph": "C", "name": "io", "pid": 1, "ts": 3, "args": {"read": 1, "write": 2, "what": "x"}},
            {"ph": "C", "name": "bad", "pid": 1, "ts": 3, "args": [1]},
            {"ph": "C", "name": "none", "pid": 1, "ts": 3},
        )
        assert series(source) == {
            "q": [(1000, 17.0), (2000, 18.5)],
            "io read": [(3000, 1.0)],
            "io write": [(3000, 2.0)],
        }
        assert source.findings == ["2 counters or allocations without a number ignored"]

    def test_memory(self, load):
        """Each allocation event gives the memory allocated so far on its device."""

        def allocation(ts, kind, number, total, reserved):
            args = {
                "Total Reserved": reserved,
                "Total Allocated": total,
                "Bytes": 5,
                "Addr": 1,
                "Device Id": number,
                "Device Type": kind,
            }
            return {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 7,
                "tid": 8,
                "ts": ts,
                "args": args,
            }

        source = load(
            allocation(1, 1, 0, 100, 200),
            allocation(2, 0, -1, 50, 0),
            allocation(3, 1, 0, 80, 200),
            {"ph": "i", "name": "mark", "pid": 7, "tid": 8, "ts": 4},
        )
        assert series(source) == {
            "memory allocated GPU 0": [(1000, 100.0), (3000, 80.0)],
            "memory reserved GPU 0": [(1000, 200.0), (3000, 200.0)],
            "memory allocated CPU": [(2000, 50.0)],
        }
        assert [source.names[name] for name in source.instants.name] == ["mark"]


class TestIterations:
    @pytest.mark.parametrize(
        ("name", "size"),
        [
            ("execute_context_1(7)_generation_3(3)", 4),
            ("execute_context_0(0)_generation_2(2)", 2),
            ("step[DECODE bs=1]", 1),
            ("step[EXTEND bs=2 toks=11]", 2),
            ("execute_context_1(888_788544)_generation_0(0)", 1),
            ("execute_32_context_1(sq32sk1025)_generation_2(sq2sk90)", 3),
            ("execute_32_context_0_generation_32", 32),
            ("execute_5_context_1(sq3sk3sqsq9sqsk9)_generation_2(sq2sk90sqsq2sqsk90)", 3),
            ("execute_new_1_cached_3", 4),
            ("execute_", None),
            ("execute_model", None),
            ("step", None),
        ],
    )
    def test_names(self, name, size):
        assert batch_size(name) == size

    def test_track_and_counter(self, load):
        """Forward steps of an engine are on a separate track too. Their batch size is a counter: 0
        in a pause and after the last step.
        """
        steps = [
            ("execute_context_2(9)_generation_0(0)", 0, 10),
            ("execute_context_0(0)_generation_2(2)", 12_000, 10),
            ("execute_context_0(0)_generation_1(1)", 60_000, 10),
        ]
        source = load(
            *(complete(name, ts, dur, "user_annotation") for name, ts, dur in reversed(steps)),
            complete(ts=1, dur=1),
        )
        kinds = [source.tracks[track].kind for track in source.slices.track]
        assert kinds == ["thread"] * 4 + ["iterations"] * 3
        assert series(source) == {
            BATCH_SIZE: [(0, 2.0), (12_000_000, 2.0), (12_010_000, 0.0), (60_000_000, 1.0), (60_010_000, 0.0)]
        }

    def test_device_copies_do_not_count_twice(self, load):
        source = load(
            complete("step[DECODE bs=3]", 1, 5, "user_annotation"),
            complete("step[DECODE bs=3]", 2, 5, "gpu_user_annotation", pid=0, tid=7),
            complete("k", 2, 5, "kernel", pid=0, tid=7),
        )
        assert series(source) == {BATCH_SIZE: [(1000, 3.0), (6000, 0.0)]}

    def test_each_process_of_a_merged_file(self, load):
        source = load(
            *(complete("step[DECODE bs=3]", 1, 5, "user_annotation", pid=f"[TP0{n}] 9") for n in range(2))
        )
        assert sorted(track.name for track in source.tracks if track.kind == "counter") == [
            "process [TP00] 9: batch size",
            "process [TP01] 9: batch size",
        ]


class TestAnchor:
    def test_refused_by_name(self, load):
        """A trace without a time base is refused: none of its events are read."""
        source = load(complete(ts=5), baseTimeNanoseconds=None)
        assert len(source.slices) == 0
        assert source.tracks == []
        assert "refused" in source.findings[0]
        assert '--assume-offset "t.json=SECONDS"' in source.findings[0]

    def test_assumed(self, load):
        source = load(
            complete(ts=5), baseTimeNanoseconds=None, base_ns=BASE, alignment=Alignment("unmeasured", 0, None)
        )
        assert source.slices.start.tolist() == [BASE + 5000]
        assert source.alignment == Alignment("assumed", 0, None)

    @pytest.mark.parametrize("base", [True, "now", -5, 2**70, None])
    def test_unix_times(self, load, base):
        """Unix times need no base."""
        source = load(complete(ts=1795304130234711), baseTimeNanoseconds=base)
        assert source.slices.start.tolist() == [1795304130234711000]

    def test_nothing_to_place(self, load):
        assert load(baseTimeNanoseconds=None).findings == []

    def test_metadata(self, load):
        """The metadata of the file is kept, except for large values."""
        source = load(complete(), distributedInfo={"rank": 3}, huge=list(range(10_000)))
        assert source.metadata == {"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": 3}}


class TestFlows:
    def test_chains_and_shared_ids(self, load):
        """An id may be used again and have intermediate steps. In another category, or another rank
        of a merged file, it is a different flow.
        """

        def end(ph, ts, number=1, cat="a", pid=1):
            return {"ph": ph, "id": number, "cat": cat, "name": cat, "pid": pid, "tid": 1, "ts": ts}

        source = load(
            *(
                end(*each)
                for each in [("s", 1), ("t", 2), ("f", 3), ("s", 4), ("f", 5), ("s", 6, 1, "b"), ("f", 7, 2)]
            ),
            *(end(ph, ts, pid=f"[TP0{rank}] 1") for rank in range(2) for ph, ts in (("s", 1), ("f", 9))),
        )
        arrows = sorted(
            zip((source.flows.start - BASE).tolist(), (source.flows.end - BASE).tolist(), strict=True)
        )
        assert arrows == [(1000, 2000), (1000, 9000), (1000, 9000), (2000, 3000), (4000, 5000)]
        assert source.metadata["unpaired_flows"] == 2

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 2)), max_size=40))
    def test_flows_match_a_naive_implementation(self, ends):
        """Each step or end of a flow is joined to the latest earlier begin or step with its id."""
        columns = FlowColumns()
        times = np.array([time for time, _, _ in ends], dtype=np.int64)
        columns.add(
            times,
            [0] * len(ends),
            [arrow for _, arrow, _ in ends],
            [0] * len(ends),
            [phase for *_, phase in ends],
        )
        flows = columns.built(0, lambda place, *_: place)
        expected, left = [], {}
        for time, arrow, phase in sorted(ends, key=lambda end: (end[1], end[0], end[2])):
            if phase != FlowColumns.BEGIN and arrow in left:
                expected.append((left[arrow], time))
            if phase != FlowColumns.END:
                left[arrow] = time
        assert sorted(zip(flows.start.tolist(), flows.end.tolist(), strict=True)) == sorted(expected)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
ANYTHING = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(
    ["[memory]", "step[DECODE bs=3]", "process_name", "thread_sort_index", "process_labels", "op"]
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXBEbneiICMstfTNq") | ANYTHING},
    optional={
        "name": NAMES | ANYTHING,
        "cat": st.sampled_from(["kernel", "gpu_user_annotation", "stepprof", "cpu_op"]) | ANYTHING,
        "pid": st.integers(0, 2) | ANYTHING,
        "tid": st.integers(0, 2) | ANYTHING,
        "ts": st.integers(0, 100) | ANYTHING,
        "dur": st.integers(0, 100) | ANYTHING,
        "id": st.integers(0, 2) | ANYTHING,
        "id2": st.fixed_dictionaries({"local": st.sampled_from(["0x1", "0x2"])}) | ANYTHING,
        "args": st.dictionaries(
            st.sampled_from(["name", "sort_index", "labels", "sample", "value", "Total Allocated"]),
            ANYTHING,
            max_size=3,
        )
        | ANYTHING,
        "bp": ANYTHING,
        "s": ANYTHING,
    },
)


class TestWhateverComes:
    @settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(EVENTS, max_size=25), st.booleans(), ANYTHING)
    def test_every_source_is_consistent(self, load, events, args, base):
        """For any content of the file, the columns of the source are consistent, and no length is negative."""
        source = load(*events, args=args, baseTimeNanoseconds=base, base_ns=BASE)
        slices, instants, counters, flows = source.slices, source.instants, source.counters, source.flows
        columns = (
            (len(slices), slices.track, slices.duration, slices.name, slices.category),
            (len(instants), instants.track, instants.name, instants.category),
            (len(counters), counters.track, counters.value),
            (len(flows), flows.start_track, flows.end_track, flows.end, flows.category),
        )
        for length, track, *others in columns:
            assert {length} == {len(column) for column in (track, *others)}
            assert not length or 0 <= track.min() <= track.max() < len(source.tracks)
        for held in (slices, instants):
            assert not len(held) or held.name.max() < len(source.names)
            assert not len(held) or held.category.max() < len(source.categories)
            assert held.args is None if not args else len(held.args) == len(held)
        assert not len(slices) or slices.duration.min() >= 0
        assert {source.tracks[track].kind for track in counters.track} <= {"counter"}
        assert sorted(track.order for track in source.tracks) == list(range(len(source.tracks)))


def test_origin_is_kept(load):
    source = load(complete())
    assert replace(source.origin, role="x").role == "x"
    assert source.origin is ORIGIN
