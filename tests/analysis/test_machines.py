"""Which sources belong to one machine, and which to one process."""

from __future__ import annotations

import json
import os

import pytest
from runs import ended_writer, make_run, record, region, write_spans

import stepprof
from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from stepprof.host.process_identity import writer_identity

CONTAINERS = {
    "machines of one name": ({"boot_id": "one"}, {"boot_id": "other"}),
    "containers of one machine": ({"pid_namespace": "pid:[1]"}, {"pid_namespace": "pid:[2]"}),
}


def nodes(folder, *writers, spans=True):
    """Return the directories of two ranks with the same host name and process id. Each has its own
    folder, as on nodes without a shared disk.
    """
    runs = []
    for rank, who in enumerate(writers):
        run = make_run(folder / f"node-{rank}")
        writer = {**ended_writer(), "host": "localhost", "pid": 7, **who}
        record(run, rank=rank, host="localhost", pid=7, writer=writer)
        identity = {key: writer[key] for key in ("boot_id", "pid_namespace")} if spans else {}
        write_spans(run, rank, region("work", 0.5), host="localhost", pid=7, **identity)
        runs.append(run.path)
    return runs


class TestProcesses:
    @pytest.mark.parametrize("writers", CONTAINERS.values(), ids=CONTAINERS)
    @pytest.mark.parametrize("spans", [True, False], ids=["header with identity", "older header"])
    def test_processes_of_two_boots_are_distinguished(self, tmp_path, writers, spans):
        """Boot and process-id namespace distinguish two processes with the same host name and
        process id. A span file without either belongs to its rank's window.
        """
        found = find(nodes(tmp_path, *writers, spans=spans), output_dir=tmp_path)
        processes = {each.origin.process for each in found.inputs}
        assert len(found.inputs) == 4
        assert len(processes) == 2
        report = analyse(found, workers=1)
        assert [row.label for row in report.gantt] == ["actor rank 0", "actor rank 1"]

    def test_clocks_of_machines_of_one_name(self, tmp_path):
        """Two machines of one name have two clocks, and the report says that they were never
        compared. Containers of one machine share a clock.
        """
        apart, together = (
            find(nodes(tmp_path / str(number), *writers), output_dir=tmp_path)
            for number, writers in enumerate(CONTAINERS.values())
        )
        assert len({each.alignment.island for each in apart.inputs}) == 2
        assert {each.alignment.island for each in together.inputs} == {""}
        reported = [finding.problem for finding in analyse(apart, workers=1).problems]
        assert sum("never compared" in problem for problem in reported) == 2

    def test_trace_and_spans_belong_to_one_process(self, tmp_path):
        """The trace and the spans with the same host name and process id belong to one process."""
        run = make_run(tmp_path)
        record(run, host="localhost", pid=7, writer={**ended_writer(), "host": "localhost", "pid": 7})
        write_spans(run, 0, region("work", 0.5), host="localhost")
        assert len({each.origin.process for each in find([run.path], output_dir=tmp_path).inputs}) == 1

    def test_manifest_and_spans_name_the_machine(self, tmp_path):
        """The manifest and the span file of a session have the boot and the process-id namespace."""
        stepprof.init(
            {"output_dir": str(tmp_path), "steps": "1", "ranks": "all", "backend": "null"}, rank=0, run_id="r"
        )
        with stepprof.profile_step(1, role="actor"), stepprof.region("work"):
            pass
        stepprof.shutdown()
        here = writer_identity()
        (file,) = (tmp_path / "r" / "spans").iterdir()
        header = json.loads(file.read_text().splitlines()[0])
        assert {key: header[key] for key in ("host", "pid", "boot_id", "pid_namespace")} == {
            key: here[key] for key in ("host", "pid", "boot_id", "pid_namespace")
        }
        (spans,) = find([tmp_path / "r"], output_dir=tmp_path).inputs
        assert spans.origin.process == (here["boot_id"], here["pid_namespace"], os.getpid(), 0)
