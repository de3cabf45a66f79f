"""The way from the files of a run to the report, in this process and in worker processes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import signal

import pytest
import runs
from counting import instructions_of
from runs import ended_writer, make_run, record, record_engine, region, tell_engines, write_spans

import stepprof
from stepprof.analysis.report.analyse import analyse, digest_input, job_of, tasks_of
from stepprof.analysis.report.schema import Job
from stepprof.analysis.timeline.find import Found, Input, find
from stepprof.analysis.timeline.model import Origin
from stepprof.run.runs import list_runs

BASE = 1_700_000_000_000_000_000


def kineto(*events, base=BASE):
    """Return a trace as torch writes it. Events are (category, name, start, duration) in ms."""
    return gzip.compress(
        json.dumps(
            {
                "schemaVersion": 1,
                "baseTimeNanoseconds": base,
                "traceEvents": [
                    {
                        "ph": "X",
                        "cat": cat,
                        "name": name,
                        "pid": 7,
                        "tid": 7,
                        "ts": start * 1000,
                        "dur": took * 1000,
                        "args": {},
                    }
                    for cat, name, start, took in events
                ],
            }
        ).encode()
    )


@pytest.fixture
def run(tmp_path):
    """Return a run with two ranks, an engine and the spans of rank 0. The trace of rank 1 is damaged."""
    run = make_run(tmp_path, "r")
    record(run, rank=0, data=kineto(("cpu_op", "aten::mm", 100, 50), ("cpu_op", "aten::mm", 200, 30)))
    record(run, rank=1, pid=8, data=b"no trace at all")
    entry = record_engine(
        run,
        data=kineto(
            ("user_annotation", "step[DECODE bs=4]", 0, 40), ("user_annotation", "step[DECODE bs=1]", 40, 60)
        ),
        host="h",
    )
    tell_engines(run, entry)
    write_spans(
        run,
        0,
        {"name": "actor", "kind": "window", "start": BASE, "dur": 1_500_000_000, "step": 2, "role": "actor"},
        region("update", 0.5),
    )
    return run


def test_a_run(run, tmp_path):
    calls = []
    report = analyse(find([], output_dir=tmp_path), workers=1, progress=lambda *done: calls.append(done))
    assert (report.run_id, report.step, report.seconds) == ("r", 2, 1.5)
    assert [(time.role, time.seconds) for time in report.roles] == [("actor", 1.5)]
    assert [(time.region, time.seconds) for time in report.regions] == [("update", 0.5)]
    assert [(op.name, op.calls, op.self_seconds) for op in report.ops] == [("aten::mm", 2, 0.08)]
    (engine,) = report.rollout
    assert (engine.peak_batch, engine.below_half, engine.iterations) == (4, 0.6, 2)
    assert any(finding.source and "rank-1" in finding.source for finding in report.problems)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {each.label: each.status for each in report.sources}["actor rank 0"] == "complete"


def test_workers_find_the_same(run, tmp_path):
    found = find([], output_dir=tmp_path)
    assert analyse(found, workers=2) == analyse(found, workers=1)


class Fatal(Input):
    """An input whose unpickling kills the worker process."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_a_worker_that_dies_costs_its_source_alone(run, tmp_path):
    found = find([], output_dir=tmp_path)
    rank0 = next(number for number, each in enumerate(found.inputs) if each.origin.label == "actor rank 0")
    found.inputs[rank0] = Fatal(
        **{field.name: getattr(found.inputs[rank0], field.name) for field in dataclasses.fields(Input)}
    )
    report = analyse(found, workers=2)
    (finding,) = [each for each in report.problems if each.unread]
    assert finding.source == found.inputs[rank0].origin.path
    assert [engine.peak_batch for engine in report.rollout] == [4]
    assert report.ops == []


def test_the_bounds_of_a_step_are_the_windows_of_the_process(run, tmp_path):
    record(run, role="ref", rank=0, start_unix_ns=BASE - 5, end_unix_ns=BASE + 5)
    record(run, role="reward", rank=3, pid=9, end_unix_ns=None)
    tasks = tasks_of(find([], output_dir=tmp_path))
    bounds = {(each.origin.kind, each.origin.role, each.origin.rank): bounds for each, bounds, _ in tasks}
    assert bounds["rank", "actor", 0] == bounds["rank", "ref", 0] == (BASE - 5, BASE + 1_500_000_000)
    assert bounds["rank", "actor", 1] == (BASE, BASE + 1_500_000_000)
    assert bounds["rank", "reward", 3] is None
    assert bounds["engine", "rollout", 0] is None
    assert bounds["spans", None, 0] is None


def test_the_bounds_of_a_step_take_as_long_per_rank_for_many_ranks_as_for_few():
    """The windows of the manifest are read once, not once for each source."""

    def found(ranks):
        windows = [
            {"host": "h", "pid": 7 + rank, "rank": rank, "start_unix_ns": BASE, "end_unix_ns": BASE + 5}
            for rank in range(ranks)
        ]
        inputs = [
            Input(Origin("rank", "x", "actor", rank, None, "h", 7 + rank), (), 0) for rank in range(ranks)
        ]
        return Found(inputs, [{"windows": windows}])

    few, many = (instructions_of(tasks_of, found(ranks)) for ranks in (50, 500))
    assert many < 11 * few


def test_digest_input_can_run_on_another_host(run, tmp_path):
    """`digest_input` does the work of one task from its input and bounds alone, as another host would."""
    found = find([], output_dir=tmp_path)
    wanted = next(each for each in found.inputs if each.origin.label == "actor rank 0")
    made = digest_input(wanted, (BASE, BASE + 150_000_000))
    assert (made.bytes, made.status) == (wanted.bytes, "complete")
    assert [time.total for time in made.ops.times] == [50_000_000]


def test_a_trace_of_another_tool(tmp_path):
    (tmp_path / "trace.json.gz").write_bytes(kineto(("cpu_op", "aten::mm", 0, 50)))
    report = analyse(find([tmp_path / "trace.json.gz"], output_dir=tmp_path))
    assert (report.seconds, report.step, [op.name for op in report.ops]) == (0.05, None, ["aten::mm"])
    assert report.run_id == "trace.json.gz"


def test_a_lost_rank_of_another_host_is_on_the_clock_that_the_manifest_compared(tmp_path):
    """The lost rank left neither a trace nor spans. Its window is placed with the offset of its
    host, 5 s, which the driver measured.
    """
    run = make_run(tmp_path, "r")
    record(run, rank=0, data=kineto(("cpu_op", "aten::mm", 100, 50)))
    far = {"host": "far", "boot_id": None, "pid": 8}
    record(
        run, rank=1, data=b"", status="lost", error="export: killed", host="far", pid=8, writer={**ended_writer(), **far},
        start_unix_ns=BASE + 5_000_000_000, end_unix_ns=BASE + 6_000_000_000,
    )  # fmt: skip
    clocks = [{"host": "far", "offset_ns": 5_000_000_000, "error_ns": 1000, "method": "ping-pong"}]
    tell_engines(run, writer={**ended_writer(), "host": "h", "boot_id": None}, clocks=clocks)
    report = analyse(find([], output_dir=tmp_path), workers=1)
    assert [island.hosts for island in report.islands] == [["h", "far"]]
    assert [(row.label, row.bars[0].start, row.bars[0].seconds) for row in report.gantt] == [
        ("actor rank 0", 0.0, 1.5),
        ("actor rank 1", 0.0, 1.0),
    ]


JOINED = """
import sys, torch, stepprof
stepprof.init({"steps": "2,3", "ranks": "all", "join_steps": True, "output_dir": sys.argv[1]}, run_id="joined")
x = torch.randn(8, 8)
for step in range(1, 5):
    with stepprof.profile_step(step, role="actor"), stepprof.region("multiply", step=step):
        for _ in range(10 * step):
            x @ x
"""


@pytest.mark.torch
def test_each_step_of_one_capture_has_its_own_operators(warm, tmp_path):
    """One trace covers two consecutive steps. The report of each step counts only the operators of
    that step.
    """
    warm.leave = True
    warm.run(JOINED, str(tmp_path)).check()
    for step in (2, 3):
        report = analyse(find([], output_dir=tmp_path, step=step))
        assert {op.name: op.calls for op in report.ops}["aten::mm"] == 10 * step
        assert [(row.region, row.per_process[0].calls) for row in report.regions] == [("multiply", 1)]
        assert [(row.label, row.kind) for row in report.gantt] == [("actor rank 0", "rank")]


def test_run_json_has_command_line_and_versions(tmp_path, monkeypatch) -> None:
    """`run.json` has the command line, without secrets, and versions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", "--hf-token", "abc", "lr=1"])
    stepprof.init({"steps": "1", "backend": "null", "output_dir": str(tmp_path / "runs")})
    stepprof.shutdown()
    job = job_of(list_runs(tmp_path / "runs"))
    assert job.command == ["python", "train.py", "--hf-token", "…", "lr=1"]
    assert job.versions["stepprof"] == stepprof.__version__
    assert "python" in job.versions


def test_a_ray_worker_does_not_describe_the_job(tmp_path, monkeypatch) -> None:
    """The command line of a Ray worker contains Ray's addresses and passwords, so it is not recorded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/x/ray/_private/workers/default_worker.py", "--node=1"])
    stepprof.init({"steps": "1", "backend": "null", "output_dir": str(tmp_path / "runs")})
    stepprof.shutdown()
    assert job_of(list_runs(tmp_path / "runs")).command == []


def test_a_model_comes_from_an_adapter(tmp_path) -> None:
    adapters = {
        "trl": {"status": "attached", "version": "1"},
        "verl": {"status": "attached", "model": "Qwen/Qwen3-8B"},
        "ray": {"status": "refused"},
    }
    run = runs.make_run(tmp_path, adapters=adapters)
    assert job_of([run.path]) == Job(world_size=2, model="Qwen/Qwen3-8B", adapters=["trl", "verl"])


def test_damaged_fields_are_left_out(tmp_path) -> None:
    """Each field of `run.json` is given damaged values, one at a time. The report leaves these fields out."""
    run = runs.make_run(tmp_path)
    for value in (None, 1, "x" * 10_000, [1, None, {}], {"a": 1, "b": []}, {"": {"status": "attached"}}):
        for key in ("command", "versions", "platform", "adapters", "world_size"):
            (run.path / "run.json").write_text(json.dumps({"run_id": "r", key: value}))
            job = job_of([run.path])
            assert all(isinstance(each, str) for each in job.command)
            assert job.versions == {}
            assert job.platform is None


def test_no_run_no_job(tmp_path) -> None:
    assert job_of([]) is None
    assert job_of([tmp_path]) is None
