"""Which inputs are found in runs, steps, folders and files, and how they are loaded."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil

import pytest
from runs import TRACE, ended_writer, make_run, record, record_engine, tell_engines, write_spans
from timelines import Timeline

from stepprof.analysis.timeline.clocks import describe, never_compared, worst_error
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.merge import merge
from stepprof.analysis.timeline.model import Alignment
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError

BASE = 1_790_857_026_000_000_000


def trace(name="op", host=None, ts=1.0, **header):
    content = {
        "baseTimeNanoseconds": BASE,
        **header,
        "traceEvents": [{"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1}],
    }
    return json.dumps(content if host is None else {"host_name": host, **content}).encode()


def labels(found):
    return [each.origin.label for each in found.inputs]


class TestRuns:
    def test_newest_run_and_last_step(self, tmp_path):
        """Without arguments, the last step of the newest run is found: each rank and engine, and
        the spans of each process.
        """
        run = make_run(tmp_path)
        record(run, step=1)
        record(run, rank=0)
        record(run, role="critic", rank=1)
        tell_engines(run, record_engine(run, 0, files=("rank-0", "rank-1")))
        write_spans(run, 0)
        found = find(output_dir=tmp_path)
        assert (found.run_id, found.step, found.folder) == ("r", 2, run.path / "step-000002")
        assert sorted(labels(found)) == [
            "actor rank 0",
            "critic rank 1",
            "rank 0",
            "rollout/0 worker 0",
            "rollout/0 worker 1",
        ]
        assert [each.status for each in found.inputs] == ["complete"] * 4 + [None]
        assert found.findings == []
        assert pickle.loads(pickle.dumps(found.inputs)) == found.inputs

    @pytest.mark.parametrize("how", ["id", "path", "step folder"])
    def test_ways_to_name_it(self, tmp_path, how):
        run = make_run(tmp_path)
        record(run)
        path = {"id": "r", "path": run.path, "step folder": run.path / "step-000002"}[how]
        assert labels(find([path], output_dir=tmp_path)) == ["actor rank 0"]

    def test_captures_without_a_usable_file_are_reported(self, tmp_path):
        """A capture without a trace, a missing file, one of another kind, and a damaged fragment
        are reported. The rest is found.
        """
        run = make_run(tmp_path)
        record(run)
        record(run, rank=1, data=b"", status="failed", error="no space")
        claim = record(run, rank=2)
        (claim.folder / f"{claim.stem}.trace.json.gz").unlink()
        other = {"path": "actor/rank-3.nsys-rep", "kind": "nsys", "bytes": 1, "events": None}
        record(run, rank=3, data=b"", artifacts=[other])
        snapshot = {
            "path": "actor/rank-4.snapshot.pickle",
            "kind": "torch-memory",
            "bytes": 9,
            "events": None,
        }
        claim = record(run, rank=4, data=b"", artifacts=[snapshot])
        (claim.folder / "rank-4.snapshot.pickle").write_bytes(b"cos\nabort\n(tR.")
        (run.path / "step-000002" / "manifest" / "zzz.json").write_text("{")
        found = find([run.path], output_dir=tmp_path)
        assert labels(found) == ["actor rank 0"]
        told = dict(found.findings)
        assert "a memory snapshot, which has no timeline" in told["actor rank 4"]
        assert told["actor rank 1"] == "failed: no space"
        assert "cannot be read: No such file" in told["actor rank 2"]
        assert "not part of the timeline" in told["actor rank 3"]
        assert "damaged" in told["zzz.json"]

    def test_absent_ranks(self, tmp_path):
        run = make_run(tmp_path, config={"ranks": "all"})
        record(run, rank=0)
        found = find([run.path], output_dir=tmp_path)
        assert any("no window of rank 1" in problem for _, problem in found.findings)

    def test_capture_of_an_earlier_step(self, tmp_path):
        """A window that joined a capture of an earlier step uses the trace of that capture."""
        run = make_run(tmp_path)
        record(run, step=1)
        record(run, step=2, data=b"", status="joined", capture={"step": 1, "stem": "actor/rank-0"})
        record(run, step=2, rank=1, data=b"", status="joined", capture={"step": 1, "stem": "../../rank-0"})
        record(run, step=2, rank=2, data=b"", status="joined", capture={"step": 2, "stem": "actor/rank-0"})
        found = find([run.path], output_dir=tmp_path)
        assert [each.origin.path for each in found.inputs] == ["step-000001/actor/rank-0.trace.json.gz"]

    def test_a_capture_over_several_steps_is_cut_to_the_step(self, tmp_path):
        """The windows of each step give its begin and end in the capture, in the step that opened
        it and in those that joined.
        """
        run = make_run(tmp_path)
        second, start = 10**9, 1_700_000_000 * 10**9
        events = [
            {"ph": "X", "cat": "cpu_op", "name": f"op {at}", "pid": 1, "tid": 1, "ts": at * 1e6, "dur": 5e5}
            for at in range(6)
        ]
        text = json.dumps({"baseTimeNanoseconds": start, "traceEvents": events}).encode()
        for step, at in ((2, 0), (3, 2), (4, 4)):
            begin = start + at * second
            window = {"start_unix_ns": begin, "end_unix_ns": begin + second // 2, "stall_seconds": 0.0}
            capture = {"step": 2, "stem": "actor/rank-0"}
            joined = {} if step == 2 else {"status": "joined", "capture": capture}
            record(run, step=step, data=gzip.compress(text) if step == 2 else b"", **window, **joined)
        for step, names in ((2, ["op 0"]), (3, ["op 2"]), (4, ["op 4"])):
            found = find([run.path], output_dir=tmp_path, step=step)
            made = merge(found.inputs, tmp_path / "t", workers=1)
            assert [each["name"] for each in Timeline((tmp_path / "t").read_bytes()).slices] == names
            assert "several steps" in made.findings[0][1]
            whole = merge(found.inputs, tmp_path / "w", filters=Filters(from_ns=start), workers=1)
            assert [part.slices for part in whole.parts] == [6]
            assert whole.findings == []

    def test_a_capture_of_one_step_is_not_cut(self, tmp_path):
        run = make_run(tmp_path)
        record(run)
        record(run, step=3)
        assert [each.within for each in find([run.path], output_dir=tmp_path, step=2).inputs] == [None]

    def test_several_directories_of_one_run(self, tmp_path):
        """The parts of a run were copied from nodes without a shared disk. They are one step with
        each rank once, on one clock.
        """
        hosts = []
        for rank, folder in enumerate(("node-a", "node-b")):
            run = make_run(tmp_path / folder)
            writer = {**ended_writer(), "host": folder, "boot_id": folder}
            clocks = [{"host": "node-b", "offset_ns": 7_000, "error_ns": 5, "method": "ping-pong"}]
            record(run, rank=rank, host=folder, writer=writer, data=gzip.compress(trace()))
            if rank == 0:
                tell_engines(run, writer=writer, clocks=clocks)
            hosts.append(run.path)
        shutil.copytree(hosts[0], tmp_path / "again" / "r")
        found = find(hosts, output_dir=tmp_path)
        assert [(each.origin.rank, each.origin.host) for each in found.inputs] == [
            (0, "node-a"),
            (1, "node-b"),
        ]
        assert [each.alignment for each in found.inputs] == [
            Alignment("reference", 0, 0),
            Alignment("ping-pong", 7_000, 5),
        ]
        alignments = [each.alignment for each in found.inputs]
        assert worst_error(alignments) == 5
        assert "error at most" in describe(alignments)
        first, second = (load(each, args=False).slices.start[0] for each in found.inputs)
        assert first - second == 7_000

    def test_a_node_that_did_not_take_part(self, tmp_path):
        """A directory of the run that does not have this step adds nothing."""
        first, second = (make_run(tmp_path / folder) for folder in "ab")
        record(first)
        record(second, step=1, rank=1)
        assert labels(find([second.path, first.path], output_dir=tmp_path)) == ["actor rank 0"]

    def test_a_trace_from_a_host_of_the_run(self, tmp_path):
        """A trace of another tool from a host of the run is placed with the clock of that host."""
        run = make_run(tmp_path / "runs")
        clocks = [{"host": "far", "offset_ns": 9, "error_ns": 1, "method": "ping-pong"}]
        tell_engines(run, record_engine(run, 0), writer={**ended_writer(), "host": "near"}, clocks=clocks)
        for name in ("near", "far", "other"):
            (tmp_path / f"{name}.json").write_bytes(trace(host=name))
        files = [tmp_path / f"{name}.json" for name in ("near", "far", "other")]
        found = find([run.path, *files], output_dir=tmp_path)
        placed = {each.origin.path: each.alignment for each in found.inputs}
        assert placed["near.json"].error_ns == 0
        assert placed["far.json"] == Alignment("ping-pong", 9, 1)
        assert placed["other.json"].method == "unmeasured"

    def test_a_run_given_twice_is_read_once(self, tmp_path):
        """A run or file that is given twice, also through a link, is read once, under the first name."""
        run = make_run(tmp_path / "runs")
        record(run)
        link = tmp_path / "link"
        link.symlink_to(run.path)
        found = find([link, run.path, run.path], output_dir=tmp_path)
        assert labels(found) == ["actor rank 0"]
        assert found.folder == link / "step-000002"
        file = run.path / "step-000002" / "actor" / "rank-0.trace.json.gz"
        (tmp_path / "one.json.gz").symlink_to(file)
        assert len(find([file, tmp_path / "one.json.gz"], output_dir=tmp_path).inputs) == 1

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b'{"cut',
            b"\0" * 99,
            b"\x1f\x8b\x08" + b"\xff" * 99,
            b'{"schemaVersion": 1, "deviceProperties": [], "a": "' + b"a" * 100_000,
        ],
        ids=["empty", "cut", "zeros", "gzip", "long"],
    )
    def test_a_damaged_file_of_a_rank(self, tmp_path, content):
        """It is read as a damaged trace, because its name has the form of a trace's. An empty configuration is not."""
        (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
        (tmp_path / "rank1.json").write_bytes(content)
        (tmp_path / "rank1_settings.json").write_bytes(b"")
        found = find([tmp_path], output_dir=tmp_path)
        assert [each.origin.path for each in found.inputs] == ["rank0.json", "rank1.json"]
        assert found.findings[0] == (
            str(tmp_path),
            "JSON files that are not traces ignored: rank1_settings.json",
        )

    @pytest.mark.parametrize("name", ["rank1_metrics.json", "metrics/rank1.json"])
    @pytest.mark.parametrize("values", [9, 50_000])
    def test_intact_json_of_a_rank(self, tmp_path, name, values):
        """It is no damaged trace, however long it is and whatever its name."""
        (tmp_path / "metrics").mkdir()
        (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
        (tmp_path / name).write_text(json.dumps({"loss": [0.5] * values}))
        found = find([tmp_path], output_dir=tmp_path)
        assert [each.origin.path for each in found.inputs] == ["rank0.json"]
        assert (str(tmp_path), f"JSON files that are not traces ignored: {name}") in found.findings

    def test_two_runs_are_refused(self, tmp_path):
        for name in ("r", "s"):
            record(make_run(tmp_path, run_id=name))
        with pytest.raises(ConfigError, match="a timeline covers one run"):
            find(["r", "s"], output_dir=tmp_path)

    @pytest.mark.parametrize(
        ("path", "step", "message"),
        [
            ("nope", None, 'run "nope"'),
            ("r", 3, "step 3: not recorded in .*; did you mean 2"),
            ("r/step-000002", 3, "step 3: .* is step 2"),
            ("empty", None, "neither a run|no run, no step"),
        ],
    )
    def test_refused(self, tmp_path, path, step, message, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        record(make_run(tmp_path))
        with pytest.raises(ConfigError, match=message):
            find([path], output_dir=tmp_path, step=step)

    def test_no_step(self, tmp_path):
        run = make_run(tmp_path)
        with pytest.raises(ConfigError, match="no step is recorded"):
            find([run.path], output_dir=tmp_path)


class TestFilters:
    @pytest.fixture
    def run(self, tmp_path):
        run = make_run(tmp_path)
        for rank in range(3):
            record(run, rank=rank)
            write_spans(run, rank)
        record(run, role="critic")
        tell_engines(run, record_engine(run, 0))
        return run

    def test_roles(self, tmp_path, run):
        found = find([run.path], output_dir=tmp_path, roles=["critic", "rollout"])
        assert sorted(labels(found)) == ["critic rank 0", "rank 0", "rank 1", "rank 2", "rollout/0 worker 0"]
        assert {each.roles for each in found.inputs if each.origin.kind == "spans"} == {("critic", "rollout")}

    def test_unknown_role(self, tmp_path, run):
        with pytest.raises(ConfigError, match='did you mean "critic"'):
            find([run.path], output_dir=tmp_path, roles=["critik"])
        with pytest.raises(ConfigError, match="there are: actor, critic, rollout"):
            find([run.path], output_dir=tmp_path, roles=["zzz"])

    def test_ranks(self, tmp_path, run):
        found = find([run.path], output_dir=tmp_path, ranks=Ranks.parse("1-2"))
        assert sorted(labels(found)) == [
            "actor rank 1",
            "actor rank 2",
            "rank 1",
            "rank 2",
            "rollout/0 worker 0",
        ]


class TestFiles:
    def test_folder_of_another_tool(self, tmp_path):
        """The names and heads of traces give rank and host. JSON files that are not traces are
        counted and ignored.
        """
        (tmp_path / "sub").mkdir()
        files = {
            "node-1_4711.1795304130234711483.pt.trace.json": trace(),
            "sub/rank3.17.pt.trace.json.gz": gzip.compress(trace(host="node-1")),
            "sub/1690-TP-1-DP-0.trace.json.gz": gzip.compress(trace(host="node-2")),
            "sub/plain.json": trace(distributedInfo={"rank": 5}),
            "sub/ours.json": trace(
                stepprof={"role": "actor", "rank": 2, "host": "node-1", "pid": 9, "occurrence": 2}
            ),
            "sub/engine.json": trace(stepprof={"role": "rollout", "rank": 1, "replica": 4}),
            "config.json": b"{}",
            "weights.json": b'{"a": 1}',
            "broken.trace.json": b"",
            "notes.txt": b"",
        }
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        found = find([tmp_path], output_dir=tmp_path / "none")
        told = {
            each.origin.path: (each.origin.kind, each.origin.rank, each.origin.host, each.alignment.method)
            for each in found.inputs
        }
        assert told == {
            "node-1_4711.1795304130234711483.pt.trace.json": ("trace", None, "node-1", "reference"),
            "sub/rank3.17.pt.trace.json.gz": ("trace", 3, "node-1", "reference"),
            "sub/1690-TP-1-DP-0.trace.json.gz": ("trace", 1, "node-2", "unmeasured"),
            "sub/plain.json": ("trace", 5, None, "unmeasured"),
            "sub/ours.json": ("rank", 2, "node-1", "reference"),
            "sub/engine.json": ("engine", 1, None, "unmeasured"),
            "broken.trace.json": ("trace", None, None, "unmeasured"),
        }
        assert found.findings == [(str(tmp_path), "JSON files that are not traces ignored: weights.json")]
        assert found.folder == tmp_path
        assert found.step is None

    @pytest.mark.parametrize(
        "content",
        [
            b"[[1795895040543975, 17], [1, 2]]",
            b'[{"prompt": "a"}]',
            b'["a", ' + b"1, " * 50_000 + b"1]",
            b'{"kernels": [' + b"1, " * 50_000 + b"1]}",
        ],
        ids=["memory", "prompts", "long list", "long object"],
    )
    @pytest.mark.parametrize("name", ["trace_summary.json", "memory_timeline.json"])
    def test_json_next_to_traces(self, tmp_path, name, content):
        """It is no damaged trace, whatever its name; a folder has only real ones."""
        (tmp_path / "a.json").write_bytes(trace())
        (tmp_path / name).write_bytes(content)
        found = find([tmp_path], output_dir=tmp_path / "none")
        assert [each.origin.path for each in found.inputs] == ["a.json"]
        assert found.findings == [(str(tmp_path), f"JSON files that are not traces ignored: {name}")]

    def test_an_array_without_a_head(self, tmp_path):
        """Its events, or its emptiness, show that it is a trace; so may a cut one be."""
        for name, content in (("a", b'[{"name": "x", "ph": "X"}]'), ("b", b"[ ]"), ("c", b'[{"na')):
            (tmp_path / f"{name}_trace.json").write_bytes(content)
        found = find([tmp_path], output_dir=tmp_path / "none")
        assert labels(found) == ["a_trace.json", "b_trace.json", "c_trace.json"]

    def test_ranks_of_torch_npu(self, tmp_path):
        """The name of its description of a recording states the rank; that of a process alone states none."""
        for name, info in (("a", "profiler_info_3.json"), ("b", "profiler_info.json")):
            folder = tmp_path / f"{name}_7_2025_ascend_pt"
            (folder / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
            (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_bytes(trace())
            (folder / info).write_text("{}")
        found = find([tmp_path], output_dir=tmp_path / "none")
        assert [(each.origin.rank, each.origin.host) for each in found.inputs] == [(3, None), (None, None)]
        assert labels(found)[0] == "rank 3"

    def test_a_merged_trace_next_to_its_parts(self, tmp_path):
        """SGLang writes both into one folder: the parts are read once, and the merged one where it is alone or named."""
        merged = tmp_path / "merged-169.5.trace.json"
        for name in ("169.5-TP-0.trace.json", "169.5-TP-1.trace.json", merged.name):
            (tmp_path / name).write_bytes(trace())
        found = find([tmp_path], output_dir=tmp_path / "none")
        assert [each.origin.path for each in found.inputs] == [
            "169.5-TP-0.trace.json",
            "169.5-TP-1.trace.json",
        ]
        said = f"files that have other traces of the folder once more left out: {merged.name}"
        assert found.findings == [(str(tmp_path), said)]
        assert len(find([merged], output_dir=tmp_path / "none").inputs) == 1
        for part in tmp_path.glob("169*"):
            part.unlink()
        assert len(find([tmp_path], output_dir=tmp_path / "none").inputs) == 1

    def test_single_file(self, tmp_path):
        """A single file defines the clock itself."""
        (tmp_path / "a.json").write_bytes(trace(host="x"))
        found = find([tmp_path / "a.json"], output_dir=tmp_path)
        assert [(each.origin.label, each.alignment) for each in found.inputs] == [
            ("a.json", Alignment("reference", 0, 0))
        ]

    def test_files_of_one_name(self, tmp_path):
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "t.json").write_bytes(trace())
        found = find([tmp_path / "a" / "t.json", tmp_path / "b" / "t.json"], output_dir=tmp_path)
        assert len(set(labels(found))) == 2

    def test_a_path_without_traces_is_an_error(self, tmp_path):
        """It names the files that look like traces."""
        with pytest.raises(ConfigError, match="no run, no step and no trace"):
            find([tmp_path], output_dir=tmp_path / "none")
        (tmp_path / "a.trace.json").write_text("version https://git-lfs.github.com/spec/v1")
        with pytest.raises(ConfigError, match=r"not traces ignored: a\.trace\.json"):
            find([tmp_path], output_dir=tmp_path / "none")


class TestLoad:
    def found(self, tmp_path, **files):
        for name, data in files.items():
            (tmp_path / f"{name}.json").write_bytes(data)
        return find([tmp_path / f"{name}.json" for name in files], output_dir=tmp_path).inputs

    def test_an_unmeasured_clock_is_reported(self, tmp_path):
        sources = [
            load(each, args=False)
            for each in self.found(tmp_path, a=trace(host="x"), b=trace(host="x"), c=trace(host="y"))
        ]
        told = [never_compared(source.origin, source.alignment) for source in sources]
        assert [bool(findings) for findings in told] == [False, False, True]
        assert "its clock on its host y was never compared" in told[2][0]

    def test_assumed(self, tmp_path):
        """An offset for a name is added to the times of its source. The offset for all is the time
        base of sources without one.
        """
        bare = json.dumps([{"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1}]).encode()
        anchored, first, second = self.found(tmp_path, a=trace(host="x"), b=bare, c=bare)
        assume = {"*": BASE, "c.json": BASE + 1_000, "x": 2_000}
        sources = [load(each, args=False, assume=assume) for each in (anchored, first, second)]
        assert [int(source.slices.start[0]) - BASE for source in sources] == [3_000, 5_000, 6_000]
        assert {source.alignment.method for source in sources} == {"assumed"}
        assert not any(source.findings for source in sources)
        assert len(load(first, args=False).slices) == 0

    def test_events_at_impossible_times_are_omitted(self, tmp_path):
        """An event at a time that a flipped bit moved years away is omitted and reported. The other
        events stay.
        """

        def event(ph, ts, **more):
            return {"ph": ph, "name": "n", "cat": "c", "pid": 1, "tid": 1, "ts": ts, **more}

        events = [
            *(event("X", n, dur=1, args={"n": n}) for n in range(9)),
            event("X", 5e12, dur=1),
            event("X", 5, dur=9e12),
            {"ph": "X", "name": "without a time", "pid": 1, "tid": 1, "dur": 1},
            event("i", 3, args={"n": 3}),
            event("i", -5e12),
            event("C", 4, args={"value": 1}),
            event("C", 4e12, args={"value": 1}),
            event("s", 1, id=1),
            event("f", 2, id=1),
            event("s", 3, id=2),
            event("f", 5e12, id=2),
        ]
        (only,) = self.found(
            tmp_path, a=json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": events}).encode()
        )
        for args in (False, True):
            source = load(only, args=args)
            assert (source.slices.start - BASE).tolist() == [n * 1000 for n in range(9)]
            assert (source.instants.time - BASE).tolist() == [3000]
            assert (source.counters.time - BASE).tolist() == [4000]
            assert (source.flows.end - BASE).tolist() == [2000]
            assert source.findings == [
                "1 times are invalid: such an event is ignored, or has no length",
                "4 events lie more than a day from the others or last longer than a day: they are omitted",
            ]
        assert [json.loads(raw) for raw in source.slices.args] == [{"n": n} for n in range(9)]

    def test_file_that_is_gone(self, tmp_path):
        (only,) = self.found(tmp_path, a=trace())
        (tmp_path / "a.json").unlink()
        source = load(only, args=True)
        assert len(source.slices) == 0
        assert "cannot be read: No such file or directory" in source.findings

    def test_trace_without_an_anchor_in_a_run(self, tmp_path):
        run = make_run(tmp_path)
        record(run, data=gzip.compress(TRACE.replace(b"baseTime", b"noTime")))
        (only,) = find([run.path], output_dir=tmp_path).inputs
        source = load(only, args=False)
        assert len(source.slices) == 0
        assert '--assume-offset "step-000002/actor/rank-0.trace.json.gz=SECONDS"' in source.findings[0]
