"""The tables of a run, as pyarrow reads them through the Arrow C stream interface."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from runs import make_run, record, record_engine, region, tell_engines, write_spans

import stepprof
from stepprof.analysis.data.schema import TABLES
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.cli.main import main
from stepprof.errors import ConfigError

BASE = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def window(step, start, seconds=1.0, role=None, **more):
    return {
        "name": role or "step",
        "kind": "window",
        "start": BASE + int(start * SECOND),
        "dur": int(seconds * SECOND),
        "step": step,
        "role": role,
        "thread": 7,
        **more,
    }


def trace(*events):
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": list(events)}
    return gzip.compress(json.dumps(content).encode())


def op(name, ts, dur, **more):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, **more}


def rows(table):
    return pa.table(table).to_pylist()


@pytest.fixture
def run(tmp_path):
    """Return a run whose spans cover four steps. Step 2 is recorded, with an engine."""
    made = make_run(tmp_path, "r", config={"steps": "2"})
    steps = [op("aten::mm", 100, 50, args={"Input Dims": [[2, 2]]}), op("aten::add", 300, 7)]
    record(made, data=trace(*steps), start_unix_ns=BASE + 2 * SECOND, end_unix_ns=BASE + 3 * SECOND)
    forward = op("execute_context_1(7)_generation_3(3)", 400, 90, cat="user_annotation")
    tell_engines(made, record_engine(made, data=trace(forward), host="h"))
    write_spans(
        made,
        0,
        *(window(step, step) for step in range(1, 5)),
        region("update", 0.25, attrs={"tokens": 3}, thread=7),
        {
            "name": "batch",
            "kind": "counter",
            "start": BASE,
            "dur": 0,
            "step": 3,
            "value": 1.5,
            "error": True,
        },
    )
    return stepprof.open_run(made.path)


class TestRun:
    def test_attributes_and_repr(self, run, tmp_path):
        assert (run.id, run.path, run.recorded) == ("r", tmp_path / "r", [2])
        assert run.info["config"] == {"steps": "2"}
        assert repr(run) == f"<run r in {tmp_path / 'r'}>"

    def test_steps(self, run):
        """The table has one row for each step, with its duration and the time until the next step."""
        assert rows(run.steps) == [
            {
                "step": step,
                "visit": 1,
                "process": "rank 0",
                "recorded": step == 2,
                "start_unix_ns": BASE + step * SECOND,
                "duration_ns": SECOND,
                "until_next_ns": SECOND if step < 4 else None,
            }
            for step in range(1, 5)
        ]

    def test_spans(self, run):
        found = rows(run.spans)
        assert [(row["kind"], row["name"], row["step"]) for row in found] == [
            *(("window", "step", step) for step in range(1, 5)),
            ("region", "update", 2),
            ("counter", "batch", 3),
        ]
        update, batch = found[-2:]
        assert (update["role"], update["process"], update["rank"], update["host"], update["pid"]) == (
            "actor",
            "rank 0",
            0,
            "h",
            7,
        )
        assert (update["start_unix_ns"], update["duration_ns"]) == (BASE, SECOND // 4)
        assert json.loads(update["attributes"]) == {"tokens": 3}
        assert (batch["value"], batch["error"], batch["attributes"]) == (1.5, True, None)

    def test_a_step_that_is_visited_again(self, tmp_path):
        """Each visit of a step has a row. The times of the recorded window show which visit was recorded."""
        made = make_run(tmp_path, "r")
        record(made, step=1, start_unix_ns=BASE + 20 * SECOND + 1, end_unix_ns=BASE + 21 * SECOND)
        write_spans(made, 0, *(window(step, at) for step, at in ((1, 0), (2, 10), (1, 20), (2, 30))))
        found = rows(stepprof.open_run(made.path).steps)
        assert [(row["step"], row["visit"], row["recorded"]) for row in found] == [
            (1, 1, False),
            (2, 1, False),
            (1, 2, True),
            (2, 2, False),
        ]

    def test_a_visit_that_another_rank_recorded(self, tmp_path):
        """Rank 3 recorded step 1, which rank 0 visits twice. Whether a visit of step 1 was recorded
        is unknown (null).
        """
        made = make_run(tmp_path, "r")
        record(made, step=1, rank=3, pid=9)
        write_spans(made, 0, window(1, 0), window(2, 10), window(1, 20))
        found = rows(stepprof.open_run(made.path).steps)
        assert [row["recorded"] for row in found] == [None, False, None]

    def test_without_spans_steps_come_from_the_manifest(self, tmp_path):
        """In a run without spans, the table of steps has the recorded steps of the manifest."""
        made = make_run(tmp_path, "r")
        record(made, step=2, rank=1, end_unix_ns=None)
        record(made, step=3, rank=1)
        first, second = rows(stepprof.open_run(made.path).steps)
        assert (first["step"], first["process"], first["duration_ns"]) == (2, "rank 1", None)
        assert (second["step"], second["recorded"], second["duration_ns"]) == (3, True, 3 * SECOND // 2)

    def test_the_driver_counts(self, tmp_path):
        made = make_run(tmp_path, "r")
        write_spans(made, 0, window(1, 0.5, 0.1))
        write_spans(made, "driver", window(1, 0), pid=1)
        (only,) = rows(stepprof.open_run(made.path).steps)
        assert (only["process"], only["duration_ns"]) == ("driver", SECOND)

    def test_a_process_with_windows_in_few_steps(self, tmp_path):
        """The driver has windows in two of five steps. Every step has a row, all with the times of one rank."""
        made = make_run(tmp_path, "r")
        write_spans(made, "driver", *(window(step, step, 0.1) for step in (2, 4)), pid=1)
        write_spans(made, 0, *(window(step, step) for step in range(1, 6)))
        found = rows(stepprof.open_run(made.path).steps)
        assert [(row["step"], row["process"]) for row in found] == [(n, "rank 0") for n in range(1, 6)]
        assert [row["until_next_ns"] for row in found] == [*[SECOND] * 4, None]

    def test_steps_that_only_another_process_has(self, tmp_path):
        """Rank 0 has most steps, and rank 1, whose clock is 100 s ahead, alone has the others. They stand in
        their order, and no times of the two clocks are subtracted.
        """
        made = make_run(tmp_path, "r")
        write_spans(made, 0, *(window(step, step) for step in (1, 2, 4, 5)))
        write_spans(made, 1, *(window(step, 100 + step) for step in (0, 3, 4, 6)), host="other", pid=8)
        found = rows(stepprof.open_run(made.path).steps)
        assert [(row["step"], row["process"]) for row in found] == [
            (0, "rank 1"),
            (1, "rank 0"),
            (2, "rank 0"),
            (3, "rank 1"),
            (4, "rank 0"),
            (5, "rank 0"),
            (6, "rank 1"),
        ]
        assert [row["until_next_ns"] for row in found] == [None, SECOND, None, None, SECOND, None, None]

    def test_a_step_that_is_visited_again_after_a_restart(self, tmp_path):
        """The second process of a rank visits step 2 again, and it is the one that recorded it."""
        made = make_run(tmp_path, "r")
        record(made, step=2, pid=8, start_unix_ns=BASE + 20 * SECOND + 1, end_unix_ns=BASE + 21 * SECOND)
        write_spans(made, 0, window(1, 0), window(2, 10))
        write_spans(made, 0, window(2, 20), window(3, 30), pid=8)
        found = rows(stepprof.open_run(made.path).steps)
        assert [(row["step"], row["visit"], row["recorded"]) for row in found] == [
            (1, 1, False),
            (2, 1, False),
            (2, 2, True),
            (3, 1, False),
        ]

    def test_damage_is_reported_and_the_rest_is_read(self, run):
        (file,) = (run.path / "spans").iterdir()
        with file.open("a") as lines:
            lines.write("{no\n")
        assert len(rows(run.spans)) == 6
        assert run.problems == [f"spans/{file.name}: 1 damaged line ignored"]

    def test_values_that_utf8_and_arrow_cannot_hold_are_replaced(self, tmp_path):
        """U+FFFD replaces a lone surrogate in a name; an integer that does not fit is null."""
        made = make_run(tmp_path, "r")
        write_spans(made, 0, {**window(1, 0), "name": "x\ud800", "thread": 1 << 63}, pid=1 << 63)
        (only,) = rows(stepprof.open_run(made.path).spans)
        assert (only["name"], only["thread"], only["pid"]) == ("x\ufffd", None, None)

    def test_an_empty_run_has_empty_tables(self, tmp_path):
        run = stepprof.open_run(make_run(tmp_path, "r").path)
        for table in (run.steps, run.spans):
            assert pa.table(table).num_rows == 0
            assert pa.table(table).column_names == [column.name for column in table.columns]
        with pytest.raises(ConfigError, match="no step is recorded"):
            run.step()

    def test_tables_are_read_lazily_and_again_each_time(self, tmp_path):
        """A table is read each time its rows are requested, because the run may have grown."""
        made = make_run(tmp_path, "r")
        steps = stepprof.open_run(made.path).steps
        write_spans(made, 0, window(1, 0))
        assert pa.table(steps).num_rows == 1
        write_spans(made, 0, window(2, 2))
        assert pa.table(steps).num_rows == 2

    def test_which_run(self, tmp_path, monkeypatch):
        monkeypatch.setenv("STEPPROF_OUTPUT_DIR", str(tmp_path))
        make_run(tmp_path, "a")
        assert stepprof.open_run().id == "a"
        assert stepprof.open_run("a").path == tmp_path / "a"
        assert stepprof.open_run("a", output_dir=tmp_path).path == tmp_path / "a"
        with pytest.raises(ConfigError, match='run "b": neither a run'):
            stepprof.open_run("b")
        make_run(tmp_path, "b")
        with pytest.raises(ConfigError, match="must be directories of one run"):
            stepprof.open_run("a", "b")

    def test_parts_of_one_run(self, tmp_path):
        """The parts of a run were copied from two nodes. The run has the ranks of both, and the step once."""
        for rank, node in enumerate(("x", "y")):
            made = make_run(tmp_path / node, "r")
            write_spans(made, rank, window(1, 0), pid=rank)
        run = stepprof.open_run(tmp_path / "x" / "r", tmp_path / "y" / "r")
        assert {row["rank"] for row in rows(run.spans)} == {0, 1}
        assert len(rows(run.steps)) == 1


class TestStep:
    def test_slices(self, run):
        """The table has the slices of traces and of spans, each with its process."""
        found = {row["name"]: row for row in rows(run.step().slices)}
        assert set(found) == {
            "aten::mm",
            "aten::add",
            "execute_context_1(7)_generation_3(3)",
            "step",
            "update",
        }
        mm = found["aten::mm"]
        assert json.loads(mm["arguments"]) == {"Input Dims": [[2, 2]]}
        assert (mm["step"], mm["occurrence"], mm["process"], mm["role"], mm["rank"]) == (
            2,
            1,
            "actor rank 0",
            "actor",
            0,
        )
        assert (mm["start_unix_ns"], mm["duration_ns"]) == (BASE + 100_000, 50_000)
        assert (mm["source_kind"], mm["source"]) == ("rank", "step-000002/actor/rank-0.trace.json.gz")
        assert (mm["clock"], mm["host"], mm["category"], mm["track_kind"]) == (None, "h", "cpu_op", "thread")
        assert found["aten::add"]["arguments"] is None
        assert found["update"]["source_kind"] == "spans"

    def test_clocks_that_were_never_compared(self, tmp_path):
        """The clocks of the two hosts were never compared. Each slice names its own clock, so that
        their times are not compared.
        """
        made = make_run(tmp_path, "r")
        record(made, data=trace(op("a", 1, 1)))
        record(made, rank=1, host="other", data=trace(op("b", 1, 1)))
        found = {row["name"]: row["clock"] for row in rows(stepprof.open_run(made.path).step().slices)}
        assert len(set(found.values())) == 2

    def test_iterations(self, run):
        (only,) = rows(run.step(2).iterations)
        assert only["batch_size"] == 4
        assert (only["process"], only["role"], only["replica"], only["worker"]) == (
            "rollout/0 worker 0",
            "rollout",
            0,
            0,
        )
        assert (only["start_unix_ns"], only["duration_ns"]) == (BASE + 400_000, 90_000)

    def test_the_report_is_that_of_the_command(self, run, capsys):
        assert main(["report", str(run.path), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        step = run.step()
        assert step.report == printed
        found = rows(step.findings)
        assert [row["text"] for row in found] == [each["text"] for each in printed["findings"]]
        assert [(row["step"], row["occurrence"], row["number"]) for row in found] == [
            (2, 1, number) for number in range(1, len(found) + 1)
        ]
        for row, each in zip(found, printed["findings"], strict=True):
            del each["stretches"], each["also"]  # lists, which the table leaves out
            assert {name: row[name] for name in each} == each

    def test_columns_that_are_not_selected_are_not_read(self, run, mocker):
        """If `arguments` is not selected, the traces are read without arguments, which cost the most."""
        import stepprof.analysis.data.slices as module

        read = mocker.spy(module, "load")
        table = run.step().slices.select("name", "duration_ns")
        assert pa.table(table).column_names == ["name", "duration_ns"]
        assert [call.kwargs["args"] for call in read.call_args_list] == [False] * 3

    def test_an_unknown_column_is_an_error(self, run):
        with pytest.raises(
            ConfigError, match=r'column "duration": not in slices.*did you mean "duration_ns"'
        ):
            run.step().slices.select("duration")

    def test_a_step_that_is_not_recorded_is_an_error(self, run):
        with pytest.raises(ConfigError, match=r"step 3: not recorded in .*; did you mean 2"):
            run.step(3)

    def test_a_damaged_trace(self, run):
        (run.path / "step-000002" / "actor" / "rank-0.trace.json.gz").write_bytes(b"no gzip")
        assert "aten::mm" not in {row["name"] for row in rows(run.step().slices)}
        assert any("rank-0.trace.json.gz" in problem for problem in run.problems)

    def test_a_capture_of_two_steps_is_cut(self, tmp_path):
        """Each step has only its own slices, as in the timeline."""
        made = make_run(tmp_path, "r")
        capture = {"step": 2, "stem": "actor/rank-0"}
        record(
            made,
            step=2,
            data=trace(op("early", 100, 1), op("late", 5_000_000, 1)),
            start_unix_ns=BASE,
            end_unix_ns=BASE + 4 * SECOND,
            capture=capture,
        )
        record(
            made,
            step=3,
            data=b"",
            start_unix_ns=BASE + 4 * SECOND,
            end_unix_ns=BASE + 8 * SECOND,
            capture=capture,
            status="joined",
        )
        run = stepprof.open_run(made.path)
        assert [row["name"] for row in rows(run.step(2).slices)] == ["early"]
        assert [row["name"] for row in rows(run.step(3).slices)] == ["late"]

    def test_numbers_are_not_copied(self, run):
        """The array of pyarrow shares the memory of the trace's start times."""
        (source, *_) = (load(each, args=False) for each in find([str(run.path)], output_dir=run.path).inputs)
        array = pa.array(source.slices.start)
        assert np.shares_memory(array.to_numpy(), source.slices.start)


class TestTable:
    @pytest.mark.parametrize("name", TABLES)
    def test_the_schema_is_that_of_the_code(self, run, name):
        """The schema carries the names, types, units and descriptions of the columns."""
        table = getattr(run if name in ("steps", "spans") else run.step(), name)
        assert table.name == name
        assert name in repr(table)
        schema = pa.schema(table)
        assert schema == pa.table(table).schema
        for field, column in zip(schema, TABLES[name].columns, strict=True):
            assert field.name == column.name
            assert field.metadata == {
                b"description": column.text.encode(),
                b"unit": column.unit.encode(),
            }

    def test_without_pyarrow_the_error_names_the_extra(self, run_script, tmp_path):
        """Without pyarrow, the error names the extra `stepprof[data]`."""
        make_run(tmp_path, "r")
        done = run_script(
            f"""
            import sys
            sys.modules["pyarrow"] = None
            import stepprof
            try:
                stepprof.open_run({str(tmp_path / "r")!r})
            except stepprof.errors.ConfigError as error:
                print(error)
            """
        ).check()
        assert done.stdout.strip() == (
            'tables of a run need pyarrow, which is not installed: install the extra "data" of stepprof (docs/adopting.md#install)'
        )

    def test_a_job_that_opens_a_run(self, run_script, tmp_path):
        """`init` imports neither `stepprof.analysis` nor pyarrow, and `open_run` works after it."""
        make_run(tmp_path, "r")
        run_script(
            f"""
            import sys, stepprof
            stepprof.init({{"output_dir": "runs", "backend": "null", "steps": "1"}}, rank=0, world_size=1)
            assert not [name for name in sys.modules if name.startswith(("stepprof.analysis", "pyarrow"))]
            assert stepprof.open_run({str(tmp_path / "r")!r}).id == "r"
            stepprof.shutdown()
            """
        ).check()


class TestTraces:
    """Traces that stepprof did not record."""

    @pytest.fixture
    def marked(self, tmp_path):
        """Return a trace of three steps that torch's profiler marked, with an operator before them."""
        events = [op("aten::zeros", 0, 50)]
        for number in (4, 5, 6):
            at = 1000 * number
            events += [
                op(f"ProfilerStep#{number}", at, 900 + number, cat="user_annotation"),
                op("aten::mm", at + 100, 500),
                op("execute_context_1(7)_generation_3(3)", at + 700, 90, cat="user_annotation"),
            ]
        (tmp_path / "a.json.gz").write_bytes(trace(*events))
        return tmp_path / "a.json.gz"

    def test_steps_are_those_that_the_profiler_marked(self, marked):
        """The last one ends with the trace."""
        opened = stepprof.open_run(marked)
        assert (opened.id, opened.path, opened.recorded, dict(opened.info)) == (
            "a.json.gz",
            marked,
            [4, 5, 6],
            {},
        )
        assert [(row["step"], row["duration_ns"], row["until_next_ns"]) for row in rows(opened.steps)] == [
            (4, 1_000_000, 1_000_000),
            (5, 1_000_000, 1_000_000),
            (6, 906_000, None),
        ]
        assert rows(opened.spans) == []

    def test_slices_have_the_step_in_which_they_begin(self, marked):
        """Without a number, everything is there; an operator before the first step is in none."""
        table = rows(stepprof.open_run(str(marked)).step().slices.select("step", "name"))
        assert [row["step"] for row in table if row["name"] == "aten::mm"] == [4, 5, 6]
        assert [row["step"] for row in table if row["name"] == "aten::zeros"] == [None]

    def test_one_step(self, marked):
        """Its slices, forward steps, report and findings."""
        step = stepprof.open_run(marked).step(5)
        assert {row["step"] for row in rows(step.slices)} == {5}
        assert [(row["step"], row["batch_size"]) for row in rows(step.iterations)] == [(5, 4)]
        assert step.report["step"] == 5
        assert {row["step"] for row in rows(step.findings)} == {5}
        assert repr(step) == "<step 5 of a.json.gz>"

    def test_a_number_that_is_marked_twice(self, tmp_path):
        """The last one counts. What began in the first one is in no step, and a problem says so."""
        events = []
        for at, number in enumerate((4, 5, 6, 5)):
            events += [
                op(f"ProfilerStep#{number}", 1000 * at, 900, cat="user_annotation"),
                op(f"in {at}", 1000 * at + 100, 500),
                op("execute_context_1(7)_generation_3(3)", 1000 * at + 700, 90, cat="user_annotation"),
            ]
        (tmp_path / "a.json.gz").write_bytes(trace(*events))
        said = "a.json.gz: 1 steps that torch's profiler marked have the number of a later one: the last one of each number counts"
        opened = stepprof.open_run(tmp_path / "a.json.gz")
        found = rows(opened.step().slices.select("step", "name"))
        assert [row["step"] for row in found if row["name"].startswith("in ")] == [4, None, 6, 5]
        assert opened.problems == [said]
        opened = stepprof.open_run(tmp_path / "a.json.gz")
        assert [row["step"] for row in rows(opened.step().iterations)] == [4, None, 6, 5]
        assert opened.problems == [said]
        opened = stepprof.open_run(tmp_path / "a.json.gz")
        assert opened.recorded == [4, 5, 6]
        assert opened.problems == [said]

    def test_damage_is_a_problem(self, marked, tmp_path):
        """The table of steps names a trace that breaks off, and one without events."""
        whole = gzip.decompress(marked.read_bytes())
        (tmp_path / "cut.trace.json").write_bytes(whole[:-30])
        (tmp_path / "none.trace.json").write_text('{"traceEvents": []}')
        opened = stepprof.open_run(tmp_path)
        assert len(rows(opened.steps)) == 3
        assert [each.partition(":")[0] for each in opened.problems] == ["cut.trace.json", "none.trace.json"]
        assert "breaks off" in opened.problems[0]

    def test_without_marks_there_is_one_row(self, tmp_path):
        """A trace of `torch.profiler.profile()` without a schedule."""
        (tmp_path / "a.json").write_bytes(gzip.decompress(trace(op("aten::mm", 10, 500))))
        opened = stepprof.open_run(tmp_path)
        assert opened.recorded == []
        (row,) = rows(opened.steps)
        assert (row["step"], row["start_unix_ns"], row["duration_ns"]) == (None, BASE + 10_000, 500_000)
        assert [each["step"] for each in rows(opened.step().slices)] == [None]

    def test_what_is_refused(self, marked, run):
        """A step that is not marked, a file that is no trace, a run among traces."""
        with pytest.raises(ConfigError, match=r"step = 9: not marked in a\.json\.gz: 4-6"):
            stepprof.open_run(marked).step(9)
        with pytest.raises(ConfigError, match=r'test_run\.py": is text and no trace'):
            stepprof.open_run(__file__)
        with pytest.raises(ConfigError, match="must be one run, or traces"):
            stepprof.open_run(marked, run.path)
