"""Hosts whose clocks only the collectives relate: real ranks with gloo, and traces whose NCCL
kernels carry numbers.
"""

from __future__ import annotations

import gzip
import json
import shutil

import msgspec
import pytest
from digested import MS
from digested import source as digested_source
from gloojob import record, shift
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import ended_writer, make_run, write_spans
from runs import record as record_window
from timelines import sources

from stepprof.analysis.report.analyse import analyse, placed
from stepprof.analysis.report.clock_placement import moved
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.cli.main import main

HOUR = 3600 * 10**9
T0 = 1_700_000_000_000_000_000


class TestMoved:
    @settings(max_examples=50, deadline=None)
    @given(sources(), st.integers(-(10**13), 10**13))
    def test_every_time_of_a_digest(self, source, offset):
        """Moving a digest gives the same result as moving the source and then making its digest."""
        there = Alignment("collectives", offset, 3)
        made = moved(digest(source), offset, there)
        for columns, key in (
            (source.slices, "start"),
            (source.instants, "time"),
            (source.counters, "time"),
            (source.flows, "start"),
            (source.flows, "end"),
        ):
            setattr(columns, key, getattr(columns, key) - offset)
        source.alignment = there
        assert made == digest(source)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, torch_server):
    """Return the recordings of two real ranks."""
    folder = tmp_path_factory.mktemp("recorded")
    record(folder, server=torch_server)
    return folder


@pytest.fixture
def job(recorded, tmp_path):
    """Return copies of the recorded runs; the clock of the second one is five hours ahead."""
    runs = [
        shutil.copytree(recorded / f"node-{rank}" / "r", tmp_path / f"node-{rank}" / "r") for rank in (0, 1)
    ]
    shift(runs[1], 5 * HOUR)
    return runs


def edit(run, change):
    """Change the events of the run's trace."""
    (file,) = run.glob("step-*/actor/*.trace.json.gz")
    content = json.loads(gzip.decompress(file.read_bytes()))
    change(content)
    file.write_bytes(gzip.compress(json.dumps(content).encode()))


def placed_by(runs, **options):
    """Return the method and offset of the second rank's sources, equal in the report and the
    timeline, and the problems.
    """
    found = find(runs, output_dir=runs[0].parent, **options)
    report = analyse(found, workers=1)
    before = placed(found, workers=1)
    there = {(each.alignment, each.offset_ns) for each in report.sources if each.host == "node-1"}
    merged = {
        (each.alignment.method, each.alignment.offset_ns)
        for each in before.inputs
        if each.origin.host == "node-1"
    }
    assert there == merged
    (placing,) = there
    return *placing, [problem.problem for problem in report.problems]


@pytest.mark.torch
class TestGloo:
    def test_clocks_hours_apart_are_placed_by_collectives(self, job):
        """Both ranks are on one clock within the stated error, and the step is not hours long."""
        found = find(job, output_dir=job[0].parent)
        report = analyse(found, workers=1)
        assert report.problems == []
        assert report.seconds < 60
        assert 0 < report.clock_error_ns < 10**9
        for source in report.sources:
            assert source.alignment == ("reference" if source.host == "node-0" else "collectives")
            assert abs(source.offset_ns - 5 * HOUR * (source.host == "node-1")) <= source.error_ns

    def test_a_merge_uses_the_same_offsets(self, job, tmp_path, capsys):
        """The timeline uses the offsets of the report, also if only one rank is merged."""
        output = tmp_path / "timeline.pftrace"
        for option in ([], ["--ranks", "1"]):
            assert main(["merge", *map(str, job), "--output", str(output), "--json", *option]) == 0
            reported = json.loads(capsys.readouterr().out)
            there = [each for each in reported["sources"] if each["alignment"] == "collectives"]
            assert len(there) == 2
            for source in there:
                assert abs(source["offset_ns"] - 5 * HOUR) <= source["error_ns"]

    def test_a_rank_that_is_missing(self, job):
        """One rank has no events, so its collectives cannot be matched."""
        edit(job[1], lambda content: content.update(traceEvents=[]))
        method, _, problems = placed_by(job)
        assert method == "unmeasured"
        assert any("never compared" in problem for problem in problems)

    @pytest.mark.parametrize("which", [0, -1])
    def test_a_call_that_is_missing(self, job, which):
        """One rank has recorded one call less. Calls without numbers cannot be matched then."""

        def without_one(content):
            calls = [each for each in content["traceEvents"] if each.get("name", "").startswith("gloo:")]
            calls.sort(key=lambda each: each["ts"])
            content["traceEvents"].remove(calls[which])

        edit(job[0], without_one)
        assert placed_by(job)[0] == "unmeasured"

    def test_a_call_that_was_begun_before_the_capture(self, job):
        """A collective that began before the capture is in both traces. It would shift all others
        by one, so the traces are not matched.
        """

        def another(content):
            calls = [
                each for each in content["traceEvents"] if each.get("name", "").startswith("gloo:all_reduce")
            ]
            first = min(calls, key=lambda each: each["ts"])
            content["traceEvents"].append({**first, "ts": first["ts"] - 9_000, "dur": 8})

        for run in job:
            edit(run, another)
        assert placed_by(job)[0] == "unmeasured"

    def test_a_call_that_the_window_s_end_cuts(self, job):
        """The annotation of the last call ends after the window, so its end is not used. The other
        calls place the host.
        """
        for run in job:
            (trace,) = run.glob("step-*/actor/*.trace.json.gz")
            content = json.loads(gzip.decompress(trace.read_bytes()))
            last = max(
                (each for each in content["traceEvents"] if each.get("name", "").startswith("gloo:")),
                key=lambda each: each["ts"],
            )
            for file in run.glob("step-*/manifest/*.json"):
                reported = json.loads(file.read_text())
                end = content["baseTimeNanoseconds"] + int(1000 * (last["ts"] + last["dur"] / 2))
                reported["windows"][0]["end_unix_ns"] = end
                file.write_text(json.dumps(reported))
        found = find(job, output_dir=job[0].parent)
        for source in analyse(found, workers=1).sources:
            assert source.alignment == ("reference" if source.host == "node-0" else "collectives")
            assert abs(source.offset_ns - 5 * HOUR * (source.host == "node-1")) <= source.error_ns

    def test_with_a_second_group_clocks_stay_unmeasured(self, job):
        """With a second process group, the group of a call is unknown, and the host is not placed."""

        def group(content):
            config = content["distributedInfo"]["pg_config"]
            config.append({**config[0], "pg_name": "1"})

        edit(job[0], group)
        assert placed_by(job)[0] == "unmeasured"

    def test_calls_of_another_thread_are_left_out(self, job):
        """The window is on another thread than the calls, so the calls do not belong to it."""
        for run in job:
            for file in run.glob("step-*/manifest/*.json"):
                content = json.loads(file.read_text())
                content["windows"][0]["thread"] += 1
                file.write_text(json.dumps(content))
        assert placed_by(job)[0] == "unmeasured"

    def test_a_capture_that_is_not_complete(self, job):
        """The first calls may be missing in a partial capture, so the host is not placed."""
        for file in job[0].glob("step-*/manifest/*.json"):
            content = json.loads(file.read_text())
            content["windows"][0]["status"] = "partial"
            file.write_text(json.dumps(content))
        assert placed_by(job)[0] == "unmeasured"

    def test_a_clock_that_was_set(self, job):
        """If no offset fits the collectives, no host is placed, and a finding says so."""

        def later(content):
            events = [each for each in content["traceEvents"] if "ts" in each]
            middle = sorted(each["ts"] for each in events if each["name"].startswith("gloo:"))[4]
            for each in events:
                each["ts"] += 60e6 * (each["ts"] >= middle)

        edit(job[1], later)
        for file in job[1].glob("step-*/manifest/*.json"):
            content = json.loads(file.read_text())
            content["windows"][0]["end_unix_ns"] += 60 * 10**9
            file.write_text(json.dumps(content))
        method, _, problems = placed_by(job)
        assert method == "unmeasured"
        assert any("a clock was set" in problem for problem in problems)

    def test_a_compared_clock_stays_as_compared(self, job):
        """A host whose clock was compared keeps the offset of the comparison."""
        for file in job[0].glob("step-*/manifest/*.json"):
            content = json.loads(file.read_text())
            content["clocks"].append(
                {"host": "node-1", "offset_ns": 5 * HOUR + 7, "error_ns": 50, "method": "ping-pong"}
            )
            file.write_text(json.dumps(content))
        assert placed_by(job)[:2] == ("ping-pong", 5 * HOUR + 7)


def kernels(numbers, ahead_ns, *, ranks="[0, 1]"):
    """Return a trace with a 0.5 ms all-reduce of NCCL every 10 ms, on a clock that is `ahead_ns` ahead."""
    args = {
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": ranks,
        "Group size": 2,
    }
    events = [
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 7,
            "ts": 10_000 * number, "dur": 500, "args": {**args, "Seq": number, "device": 0, "stream": 7},
        }
        for number in numbers
    ]  # fmt: skip
    return gzip.compress(json.dumps({"baseTimeNanoseconds": T0 + ahead_ns, "traceEvents": events}).encode())


class TestNumbered:
    def test_traces_of_other_tools(self, tmp_path):
        """Traces of another tool are placed in the same way if their calls have numbers."""
        for rank in (0, 1):
            name = f"node-{rank}_7.{rank}.pt.trace.json"
            content = json.loads(gzip.decompress(kernels(range(30), rank * HOUR)))
            (tmp_path / name).write_text(json.dumps({"distributedInfo": {"rank": rank}, **content}))
        report = analyse(find([tmp_path], output_dir=tmp_path), workers=1)
        placed = {each.host: each for each in report.sources}
        assert placed["node-0"].alignment == "reference"
        assert placed["node-1"].alignment == "collectives"
        assert abs(placed["node-1"].offset_ns - HOUR) <= placed["node-1"].error_ns < 2_000_000

    @pytest.mark.parametrize("several", [False, True])
    def test_captures_of_different_lengths(self, tmp_path, several):
        """Calls with numbers place a host even if its ranks recorded different parts of them. Ranks
        of different roles are different jobs.
        """
        runs = []
        for rank, numbers in enumerate((range(5, 30), range(8, 40))):
            run = make_run(tmp_path / f"node-{rank}")
            host, role = f"node-{rank}", "critic" if several and rank else "actor"
            writer = {**ended_writer(), "host": host, "pid": 7, "boot_id": host}
            record_window(
                run, rank=rank, role=role, host=host, writer=writer, data=kernels(numbers, rank * HOUR),
                start_unix_ns=T0 + rank * HOUR, end_unix_ns=T0 + rank * HOUR + 10**9,
            )  # fmt: skip
            write_spans(run, rank, host=host, boot_id=host)
            runs.append(run.path)
        report = analyse(find(runs, output_dir=tmp_path), workers=1)
        there = [each for each in report.sources if each.host == "node-1"]
        assert len(there) == 2
        for each in there:
            assert each.alignment == ("unmeasured" if several else "collectives")
            if not several:
                assert abs(each.offset_ns - HOUR) <= each.error_ns < 2_000_000


SPANS = Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100)
CLOCK = Alignment("collectives", 7 * MS, 10)


def at(later: int):
    """Return a source whose times are `later` milliseconds later."""
    return digested_source(
        SPANS,
        ("thread", "window", "actor", 10 + later, 50, "actor"),
        ("thread", "region", "load", 20 + later, 30, "actor"),
        (("sample", "3"), "region", "generate", 25 + later, 5, "actor"),
        (("thread", "other"), "region", "reward", 22 + later, 6, "actor"),
        counters=[("memory allocated GPU 0", 30 + later, 5.0), ("memory allocated GPU 0", 40 + later, 2.0)],
    )


def test_every_time_is_moved():
    there = moved(digest(at(0)), 7 * MS, CLOCK)
    assert there == msgspec.structs.replace(digest(at(-7)), alignment=CLOCK)
    assert there.nest is not None
    assert len(there.nest.concurrent) > 0
