"""Databases of torch_npu on a timeline have the rows of its JSON. A damaged part of a database
loses only its own events.
"""

from __future__ import annotations

import re
import sqlite3

import msgspec
import pytest
from npudatabase import BEGAN, SCHEMA, write_database
from runs import make_run, record

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.load import load

NAME = "ascend_pytorch_profiler_3.db"


@pytest.fixture
def database(tmp_path):
    return write_database(tmp_path / "d" / NAME)


def read(path, **options):
    (found,) = find([path], output_dir=path.parent).inputs
    return load(found, args=True, **options)


def slice_times(source):
    """Return for each name its track kind, category, start and duration [µs]."""
    slices = source.slices
    return {
        source.names[name]: (
            source.tracks[track].kind,
            source.categories[category],
            (int(start) - BEGAN) // 1000,
            int(duration) // 1000,
        )
        for name, track, category, start, duration in zip(
            slices.name, slices.track, slices.category, slices.start, slices.duration, strict=True
        )
    }


class TestRead:
    def test_every_table_is_read(self, database):
        """Host, CANN, device, communication, ranges and marks are read, as from the JSON of the
        same recording.
        """
        source = read(database)
        assert source.findings == []
        assert slice_times(source) == {
            "aten::mm": ("thread", "cpu_op", 0, 10),
            "Enqueue@mm": ("thread", "enqueue", 2, 1),
            "train.py(7): step": ("thread", "python_function", 0, 90),
            "update": ("thread", "mstx", 0, 80),
            "launch": ("thread", "runtime", 4, 1),
            "GC": ("thread", "GC", 50, 5),
            "MatMulV2": ("stream", "kernel", 20, 20),
            "Notify_Wait": ("stream", "communication", 41, 19),
            "EVENT_RECORD": ("stream", "overhead", 61, 1),
            "weights synced": ("stream", "kernel", 82, 0),
            "hcom_allReduce__428_0_1": ("stream", "communication", 41, 19),
        }
        assert [source.names[name] for name in source.instants.name] == ["weights synced"]
        kernel = source.names.index("MatMulV2")
        (at,) = [number for number, name in enumerate(source.slices.name) if name == kernel]
        assert msgspec.json.decode(source.slices.args[at]) == {
            "Task Type": "AI_CORE",
            "Op Type": "MatMulV2",
            "Input Shapes": "2,2;\r\n2,2",
        }

    def test_arrows_lead_from_operations_to_kernels(self, database):
        flows = read(database).flows
        assert [(int(flows.start[0]) - BEGAN, int(flows.end[0]) - BEGAN)] == [(0, 20_000)]

    def test_the_origin_comes_from_stepprofs_metadata(self, database):
        """The origin is the one that stepprof wrote into the metadata."""
        origin = read(database).origin
        assert (origin.kind, origin.role, origin.rank, origin.host) == ("rank", "actor", 3, "n1")

    def test_the_origin_comes_from_torch_npus_tables(self, database):
        """Without stepprof's metadata, the origin comes from torch_npu's tables."""
        with sqlite3.connect(database) as connection:
            connection.execute("DELETE FROM META_DATA")
        connection.close()
        origin = read(database).origin
        assert (origin.kind, origin.rank, origin.host) == ("trace", 5, "n2")

    def test_a_report(self, database):
        """The report recognises the device as an NPU, and its communication."""
        report = analyse(find([database], output_dir=database.parent), workers=1)
        (row,) = report.overlap
        assert (row.label, row.device) == ("actor rank 3", "npu")
        assert row.compute == pytest.approx(20e-6, abs=1e-9)  # tasks that only wait or record are no work
        assert row.communication == pytest.approx(19e-6)
        assert "MatMulV2" in {kernel.name for kernel in report.kernels}

    def test_reading_writes_no_files(self, database):
        read(database)
        assert [path.name for path in database.parent.iterdir()] == [NAME]


class TestFound:
    def test_the_json_is_preferred_to_the_database(self, database):
        """Both have the same events, so only one is read."""
        (database.parent / "trace_view.json").write_text("[]")
        (database.parent / "analysis.db").write_bytes(database.read_bytes())
        (found,) = find([database.parent], output_dir=database.parent).inputs
        assert found.origin.path == "trace_view.json"

    def test_in_a_folder(self, database):
        (database.parent / "analysis.db").write_bytes(database.read_bytes())
        (found,) = find([database.parent], output_dir=database.parent).inputs
        assert found.origin.path == NAME

    @pytest.fixture
    def analysed(self, tmp_path):
        """Return a run with the folder of a torch_npu recording whose analysis is done, and the
        analysis output.
        """
        made = make_run(tmp_path / "runs")
        path = "actor/rank-0.npu/worker_1_20260101_ascend_pt"
        artifact = {"path": path, "kind": "npu-profile", "bytes": 2, "events": None}
        claim = record(made, data=b"", backend="npu", artifacts=[artifact])
        output = claim.folder / path / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (output / "analyse.done").touch()
        return made, output

    def test_in_a_run(self, analysed, tmp_path):
        run, output = analysed
        write_database(output / "ascend_pytorch_profiler_0.db")
        found = find([run.path], output_dir=tmp_path)
        (only,) = found.inputs
        assert only.origin.label == "actor rank 0"
        assert len(load(only, args=False).slices) == 11

    def test_an_analysis_without_json_and_database(self, analysed, tmp_path):
        """The message says that the analysis wrote nothing, not that it has not run."""
        run, _ = analysed
        (finding,) = [text for _, text in find([run.path], output_dir=tmp_path).findings if "npu" in text]
        assert "the analysis wrote no trace and no database" in finding
        assert "--again" in finding

    def test_a_capture_over_several_steps(self, analysed, tmp_path):
        """The folder is in the first step of the capture and is used for the others too."""
        run, output = analysed
        write_database(output / "ascend_pytorch_profiler_0.db")
        record(run, step=3, data=b"", backend="npu", status="joined", capture={"step": 2, "stem": "actor/rank-0"})  # fmt: skip
        (found,) = find([run.path], output_dir=tmp_path, step=3).inputs
        assert found.origin.path.endswith("ascend_pytorch_profiler_0.db")


class TestDamaged:
    def test_no_database(self, tmp_path):
        file = tmp_path / NAME
        file.write_bytes(b"no database at all, and long enough to be looked at" * 40)
        source = read(file)
        assert len(source.slices) == 0
        assert "is not a readable database" in source.findings[0]

    def test_cut_off(self, database):
        """The part of a truncated database that can be read is kept."""
        whole = database.read_bytes()
        database.write_bytes(whole[: len(whole) // 2])
        source = read(database)
        assert len(source.slices) < 11
        assert source.findings

    def test_a_missing_table_is_skipped(self, tmp_path):
        """Which tables a database has depends on the recording, so a missing one is no problem."""
        file = write_database(tmp_path / NAME)
        with sqlite3.connect(file) as connection:
            for table in ("TASK", "COMMUNICATION_OP", "CONNECTION_IDS", "GC_RECORD", "META_DATA"):
                connection.execute(f"DROP TABLE {table}")
        connection.close()
        source = read(file)
        assert source.findings == []
        assert {"aten::mm", "launch", "update"} <= set(slice_times(source))

    def test_a_missing_column_skips_its_table(self, tmp_path):
        """Only the table with the missing column is skipped, and a finding names it."""
        file = write_database(
            tmp_path / NAME, schema=re.sub("endGlobalTid INTEGER", "other INTEGER", SCHEMA).replace("message", "text")
        )  # fmt: skip
        source = read(file)
        assert any("its table MSTX_EVENTS cannot be read" in finding for finding in source.findings)
        assert "MatMulV2" in slice_times(source)

    def test_values_of_other_types(self, database):
        """A column of SQLite can hold any type. A row without a time is ignored; invalid characters
        in a name are replaced.
        """
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE STRING_IDS SET value = x'ff61' WHERE value = 'MatMulV2'")
            connection.execute("UPDATE STRING_IDS SET value = CAST(x'fe62' AS TEXT) WHERE value = 'launch'")
            connection.execute("UPDATE TASK SET startNs = NULL WHERE globalTaskId = 2")
            connection.execute("UPDATE TASK SET deviceId = 'none', streamId = NULL WHERE globalTaskId = 3")
            connection.execute("UPDATE CANN_API SET globalTid = 'x'")
            connection.execute("UPDATE META_DATA SET value = '{'")
        connection.close()
        source = read(database)
        assert source.findings == [
            "its stepprof entry in META_DATA is not JSON and was ignored",
            "1 byte is not UTF-8: replaced by U+FFFD",
        ]
        assert "EVENT_RECORD" in slice_times(source)
        assert "Notify_Wait" not in slice_times(source)
        assert "\ufffdb" in slice_times(source)

    def test_rows_beyond_the_limit_are_reported(self, database):
        """The memory limit of a source also applies to a database."""
        source = read(database, limits=Limits(memory_bytes=1))
        assert len(source.slices) < len(read(database).slices)
        assert source.findings[0].startswith("the first ")
        assert not source.whole
