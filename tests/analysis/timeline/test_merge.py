"""Many sources are merged into one timeline: each is included, in order, and damage to one does not
affect the others.
"""

from __future__ import annotations

import gzip
import json
import os

import pytest
from runs import make_run, record
from timelines import Timeline

from stepprof.analysis.timeline import merge as merging
from stepprof.analysis.timeline.extent import role_starts, start_of
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import Input, find
from stepprof.analysis.timeline.merge import merge, places
from stepprof.analysis.timeline.model import Origin
from stepprof.analysis.timeline.parts import estimate, too_large
from stepprof.analysis.timeline.workers import Failed, each_in_worker
from stepprof.errors import ConfigError

BASE = 1_700_000_000_000_000_000  # the time at which the windows of runs.record begin


def kineto(*names, base=BASE, at=0.0, flows=0):
    """Return a file as torch writes it: a slice of 5 µs for each name, 10 µs apart."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 7,
            "tid": 7,
            "ts": at + 10 * number,
            "dur": 5,
            "args": {"External id": number},
        }
        for number, name in enumerate(names)
    ]
    for number in range(flows):
        events += [
            {"ph": "s", "id": number, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 7, "ts": at + 1},
            {
                "ph": "f",
                "id": number,
                "cat": "ac2g",
                "name": "ac2g",
                "pid": 7,
                "tid": 7,
                "ts": at + 11,
                "bp": "e",
            },
        ]
    return gzip.compress(
        json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}).encode()
    )


def spans(run, rank, *rows, host="h", pid=7):
    """Write a span file with rows (name, start in ns since BASE, duration[, attributes])."""
    folder = run.path / "spans"
    folder.mkdir(exist_ok=True)
    head = {
        "kind": "spans",
        "rank": rank,
        "host": host,
        "pid": pid,
        "schema_version": 1,
        "run_id": run.run_id,
    }
    lines = [head] + [
        {
            "name": name,
            "kind": "region",
            "start": BASE + start,
            "dur": length,
            "thread": 7,
            "step": 2,
            "attrs": attrs,
        }
        for name, start, length, attrs in ((*row, {})[:4] for row in rows)
    ]
    (folder / f"rank-{rank}.000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    """Return a run of two ranks and a driver. Rank 1 and the driver have spans."""
    run = make_run(tmp_path, "r")
    record(run, rank=0, data=kineto("a0", "b0", flows=2), stall_seconds=0.0)
    record(run, rank=1, pid=8, data=kineto("a1", "b1", flows=2), stall_seconds=0.0)
    spans(run, "driver", ("rollout", 0, 4000), pid=6)
    spans(run, 1, ("generate", 1000, 3000, {"sample": "s1"}), pid=8)
    return run


def merged(run, tmp_path, **options):
    found = find([run.path], output_dir=tmp_path)
    output = tmp_path / "out" / f"t{len(list(tmp_path.iterdir()))}"
    return merge(found.inputs, output, roles=role_starts(found), **options)


class TestMerge:
    def test_sources_are_in_display_order(self, run, tmp_path):
        """The spans of the driver are first, then those of the ranks, then the captures. Each has the
        content of its file.
        """
        result = merged(run, tmp_path)
        timeline = Timeline(result.path.read_bytes())
        groups = sorted(
            (track["order"], track["name"]) for track in timeline.tracks.values() if track["parent"] == 1
        )
        assert [name for _, name in groups] == [
            "driver · h",
            "rank 1 · h",
            "actor rank 0 · h",
            "actor rank 1 · h",
            "sources",
        ]
        assert [part.label for part in result.parts] == [name for _, name in groups[:-1]]
        assert {
            (timeline.path(each["uuid"])[1], each["name"], each["start"] - BASE, each["end"] - each["start"])
            for each in timeline.slices
        } == {
            ("driver · h", "rollout", 0, 4000),
            ("rank 1 · h", "generate", 1000, 3000),
            ("actor rank 0 · h", "a0", 0, 5000),
            ("actor rank 0 · h", "b0", 10_000, 5000),
            ("actor rank 1 · h", "a1", 0, 5000),
            ("actor rank 1 · h", "b1", 10_000, 5000),
        }
        assert len(timeline.flows) == 4
        assert result.bytes == result.path.stat().st_size

    def test_workers_write_the_same_bytes(self, run, tmp_path):
        """Spawned worker processes write the same bytes as this process."""
        told = []
        here = merged(run, tmp_path, workers=1)
        there = merged(run, tmp_path, workers=2, progress=lambda *each: told.append(each))
        assert there.path.read_bytes() == here.path.read_bytes()
        assert told == [(number, 4) for number in range(1, 5)]

    def test_a_source_from_long_before(self, run, tmp_path):
        """The clock of a source is years behind. Its times are exact too."""
        record(run, role="ref", rank=0, data=kineto("old", base=BASE - 10**17))
        timeline = Timeline(merged(run, tmp_path).path.read_bytes())
        times = {each["name"]: each["start"] for each in timeline.slices}
        assert times["a0"] - times["old"] == 10**17

    def test_only_damaged_files_write_no_timeline(self, tmp_path):
        """If all files are damaged, no timeline is written, and an existing one stays."""
        (tmp_path / "rank0.pt.trace.json").write_bytes(b'{"traceEvents": [no trace')
        found = find([tmp_path], output_dir=tmp_path)
        (tmp_path / "t").write_bytes(b"old")
        with pytest.raises(ConfigError, match=r"nothing could be read of 1 source: "):
            merge(found.inputs, tmp_path / "t")
        assert (tmp_path / "t").read_bytes() == b"old"

    def test_damage_stays_with_its_source(self, run, tmp_path):
        """A truncated capture and a missing one are reported. The complete ones are merged."""
        record(run, role="ref", rank=0, data=kineto("x", "y")[:-30])
        gone = record(run, role="ref", rank=1, pid=8, data=kineto("z"))
        found = find([run.path], output_dir=tmp_path)
        next(gone.folder.glob(f"{gone.stem}*")).unlink()
        result = merge(found.inputs, tmp_path / "t")
        assert {name for name, _ in result.findings} == {"ref rank 0 · h", "ref rank 1 · h"}
        assert {each["name"] for each in Timeline(result.path.read_bytes()).slices} >= {
            "a0",
            "a1",
            "b0",
            "b1",
            "rollout",
        }

    def test_sources_of_one_name_get_suffixes(self, tmp_path):
        """Two data-parallel engines both wrote a file rank0. Suffixes distinguish them."""
        origins = [Origin("engine", f"rollout/{n}/rank0.{n}.json", "rollout", 0, 0, "h") for n in (1, 2)]
        placed = places([Input(origin, ("x",), 1) for origin in origins], {})
        assert [place.suffix for _, place in placed] == [" (rank0.1.json)", " (rank0.2.json)"]

    def test_spans_and_traces_of_one_rank_name_their_content(self):
        """A user looks for a rank, not for a file. The content is named only if a rank has two files."""
        origins = [Origin("spans", f"spans/rank-{n}.000001.jsonl", rank=n, host="h") for n in (0, 1, 2)]
        origins += [
            Origin("rank", f"step-000002/step/rank-{n}.trace.json.gz", rank=n, host="h") for n in (0, 1)
        ]
        origins += [Origin("rank", "elsewhere/other.json", rank=1, host="h")]
        placed = places([Input(origin, ("x",), 1) for origin in origins], {})
        assert [each.origin.label + place.suffix for each, place in placed] == [
            "rank 0 · spans",
            "rank 1 · spans",
            "rank 2",
            "rank 0 · torch",
            "rank 1 · torch (other.json)",
            "rank 1 · torch (rank-1.trace.json.gz)",
        ]

    def test_roles_are_ordered_by_their_start(self):
        """Roles are ordered by their start and not by name. Numbers are ordered as numbers."""
        origins = [Origin("rank", "x", role, rank) for role in ("ref", "actor") for rank in (10, 2)] + [
            Origin("engine", "x", "rollout", None, replica) for replica in (10, 9)
        ]
        origins += [Origin("spans", "x", None, rank) for rank in (10, 9, "driver")] + [
            Origin("trace", f"rank{n}.json") for n in (10, 9)
        ]
        placed = places(
            [Input(origin, ("x",), 1) for origin in origins], {"rollout": 0, "ref": 1, "actor": 2}
        )
        assert [each.origin.label.removesuffix(" worker 0") for each, _ in placed] == [
            "driver", "rank 9", "rank 10", "ref rank 2", "ref rank 10", "actor rank 2", "actor rank 10", "rollout/9", "rollout/10", "rank9.json", "rank10.json",
        ]  # fmt: skip


class TestArguments:
    def test_the_profilers_own_numbers_are_dropped_while_reading(self, tmp_path):
        """Shapes and all other arguments are kept. Operators of equal shapes have equal arguments."""
        shaped = '{"External id": %d,"Record function id": 0, "Concrete Inputs": [""], "Input Dims": [[%d, 4]], "Ev Idx": %d}'
        raws = {
            "a": shaped % (1, 8, 1),
            "b": shaped % (2, 16, 2),
            "c": shaped % (3, 8, 3),
            "bare": '{"External id": 4, "Ev Idx": 4}',
            "bare too": '{"External id": 5, "Ev Idx": 5}',
            "other": '{"External id": 6, "Ev Idx": 6, "note": {"deep": [1]}}',
            "odd": '{"Concrete Inputs": [], "External id": 7}',
        }
        events = ",".join(
            f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 7, "tid": 7, "ts": {10 * number}, "dur": 5, "args": {raw}}}'
            for number, (name, raw) in enumerate(raws.items())
        )
        file = tmp_path / "x.pt.trace.json"
        file.write_text(f'{{"baseTimeNanoseconds": {BASE}, "traceEvents": [{events}]}}')
        merge(find([file], output_dir=tmp_path).inputs, tmp_path / "t")
        assert {each["name"]: each["args"] for each in Timeline((tmp_path / "t").read_bytes()).slices} == {
            "a": {"Concrete Inputs": '[""]', "Input Dims": "[[8,4]]"},
            "b": {"Concrete Inputs": '[""]', "Input Dims": "[[16,4]]"},
            "c": {"Concrete Inputs": '[""]', "Input Dims": "[[8,4]]"},
            "bare": {},
            "bare too": {},
            "other": {"note": '{"deep":[1]}'},
            "odd": {"Concrete Inputs": "[]"},
        }


class TestOutput:
    def test_nothing_to_merge(self, tmp_path):
        with pytest.raises(ConfigError, match="nothing to merge"):
            merge([], tmp_path / "t")

    @pytest.mark.skipif(
        os.name == "nt", reason="a folder of that name cannot be replaced there, with other words"
    )
    def test_an_output_that_cannot_be_written(self, run, tmp_path):
        """The error names the output, and no temporary file is left."""
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").write_text("x")
        found = find([run.path], output_dir=tmp_path)
        with pytest.raises(ConfigError, match=r"taken.*--output"):
            merge(found.inputs, tmp_path / "taken")
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".merge")]

    def test_an_interrupted_merge_keeps_the_old_timeline(self, run, tmp_path, monkeypatch):
        """After an interrupt the old timeline is unchanged, and no partial file is left."""
        old = tmp_path / "t.pftrace"
        old.write_bytes(b"old")

        def interrupted(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            merge(find([run.path], output_dir=tmp_path).inputs, old, workers=1, progress=interrupted)
        assert old.read_bytes() == b"old"
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".merge")]

    def test_a_partly_written_source_is_left_out(self, run, tmp_path, monkeypatch):
        """A source that is written only in part would damage the other sources, so it is removed."""
        write_part = merging.write_part

        def fails_half_way(wanted, place, job, file):
            part = write_part(wanted, place, job, file)
            if wanted.origin.rank == 0:
                file.seek(-3, os.SEEK_END)
                file.truncate()
                raise MemoryError("no more")
            return part

        monkeypatch.setattr(merging, "write_part", fails_half_way)
        result = merged(run, tmp_path, workers=1)
        assert {each["name"] for each in Timeline(result.path.read_bytes()).slices} == {
            "a1",
            "b1",
            "rollout",
            "generate",
        }
        assert result.findings == [
            (
                "actor rank 0",
                "not in the timeline: memory ran out while it was read; the file itself may be intact",
            )
        ]


class TestFilters:
    def seen(self, run, tmp_path, **filters):
        result = merged(run, tmp_path, filters=Filters(**filters))
        return {each["name"] for each in Timeline(result.path.read_bytes()).slices}

    def test_short_slices(self, run, tmp_path):
        """A slice that is exactly as long as the limit is kept."""
        assert self.seen(run, tmp_path, min_ns=4000) == {"a0", "b0", "a1", "b1", "rollout"}
        assert self.seen(run, tmp_path, min_ns=4001) == {"a0", "b0", "a1", "b1"}

    def test_operators_of_the_host(self, run, tmp_path):
        """Without operators, spans, kernels and annotations are kept."""
        assert self.seen(run, tmp_path, cpu_ops=False) == {"rollout", "generate"}

    def test_a_range_of_time(self, run, tmp_path):
        """A slice that is partly in the range is kept whole."""
        assert self.seen(run, tmp_path, from_ns=BASE + 4500, to_ns=BASE + 9999) == {"a0", "a1"}
        assert self.seen(run, tmp_path, from_ns=BASE + 10_000) == {"b0", "b1"}
        with pytest.raises(ConfigError, match="nothing is left of 4 sources"):
            self.seen(run, tmp_path, to_ns=BASE - 1)

    def test_flows_go_with_their_slices(self, run, tmp_path):
        """A flow to an omitted slice is omitted too."""
        result = merged(run, tmp_path, filters=Filters(to_ns=BASE + 9000))
        assert Timeline(result.path.read_bytes()).flows == {}

    def test_the_begin_of_a_step(self, run, tmp_path):
        """A step begins with its first window or, without a manifest, with its first event."""
        assert start_of(find([run.path], output_dir=tmp_path)) == BASE
        (tmp_path / "x.pt.trace.json.gz").write_bytes(kineto("x", at=3.5))
        (tmp_path / "y.pt.trace.json.gz").write_bytes(kineto("y", at=2.25))
        files = [tmp_path / "x.pt.trace.json.gz", tmp_path / "y.pt.trace.json.gz"]
        assert start_of(find(files, output_dir=tmp_path)) == BASE + 2250

    def test_from_and_to_need_a_time(self, tmp_path):
        (tmp_path / "x.pt.trace.json").write_bytes(b"")
        with pytest.raises(ConfigError, match="--from and --to"):
            start_of(find([tmp_path / "x.pt.trace.json"], output_dir=tmp_path))


class TestSizes:
    def test_compressed_files_count_uncompressed(self):
        inputs = [
            Input(Origin("trace", "a"), ("a.json.gz",), 1000),
            Input(Origin("trace", "b"), ("b.json",), 11_000),
        ]
        assert estimate(inputs[:1]) == estimate(inputs[1:]) == 1870

    def test_a_timeline_too_large_for_a_browser_is_warned_about(self):
        """The warning names an option that makes the timeline smaller."""
        assert too_large(1 << 30) is None
        assert "--ranks" in too_large((1 << 30) + 1)


def square(number, folder=None):
    if number == 13:
        raise ValueError("thirteen")
    if number == 99:
        os._exit(9)
    return number * number


class TestWorkers:
    def test_results_are_in_order(self):
        assert each_in_worker(square, [(n,) for n in range(5)], sizes=[5, 1, 4, 2, 3], workers=2) == [
            0,
            1,
            4,
            9,
            16,
        ]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_an_error_stays_with_its_task(self, workers):
        assert each_in_worker(square, [(2,), (13,), (3,)], sizes=[1, 1, 1], workers=workers) == [
            4,
            Failed("ValueError: thirteen"),
            9,
        ]

    def test_a_dead_worker_fails_only_its_own_task(self):
        """The other tasks of the dead worker are done again."""
        told = []
        results = each_in_worker(
            square,
            [(2,), (99,), (3,), (4,)],
            sizes=[1, 9, 1, 1],
            workers=2,
            progress=lambda *each: told.append(each),
        )
        assert results == [
            4,
            Failed(
                "the process that read it ended with exit status 9; the file itself may be intact",
                unread=True,
            ),
            9,
            16,
        ]
        assert told == [(n, 4) for n in range(1, 5)]

    def test_no_worker_starts_without_sources(self):
        assert each_in_worker(square, [], sizes=[]) == []
