"""Very long region names, as from a formatted tensor: they are cut, and use no memory."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from faulty import control
from runs import make_run, record, write_spans
from runs import region as region_line
from spanning import spans_of

import stepprof
from stepprof import counter, mark, profile_step, region
from stepprof.cli.main import main
from stepprof.instrument.attributes import LONGEST_NAME, short_name
from stepprof.run.spans import read_spans

LONG = "x" * 2**20


class TestShortName:
    def test_different_long_names_stay_different(self) -> None:
        """Two long names that differ only at their end stay different. A cut name is not cut again."""
        names = [short_name(LONG + end) for end in ("a", "b", "\ud800")]
        assert len(set(names)) == 3
        assert all(len(name) == LONGEST_NAME for name in names)
        assert [short_name(name) for name in names] == names
        assert short_name("x" * LONGEST_NAME) == "x" * LONGEST_NAME


@pytest.mark.usefixtures("faulty")
class TestRecording:
    def test_every_kind_of_span(self, start, caplog) -> None:
        """Names of regions, decorated functions, marks and counters are cut, and one log line says so."""
        session = start(steps="none")
        with caplog.at_level(logging.WARNING, "stepprof"):
            for number in range(3):
                with region(f"{number}{LONG}"):
                    pass
                region(f"{number}d{LONG}")(lambda: None)()
                mark(f"{number}m{LONG}")
                counter(f"{number}c{LONG}", 1)
            names = [span["name"] for span in spans_of(session)]
        assert len(set(names)) == 12
        assert all(len(name) == LONGEST_NAME and "… (10485" in name for name in names)
        reported = [
            record.getMessage() for record in caplog.records if "region.name_cut" in record.getMessage()
        ]
        assert len(reported) == 1
        assert len(reported[0]) < 500

    def test_backends_get_the_short_names(self, start) -> None:
        """A backend gets the cut names, for its ranges and its annotations."""
        start(steps="1")
        with profile_step(1), region(LONG, batch=1):
            pass
        stepprof.shutdown()
        assert [len(name) for name in control.marks if name[0] == "x"] == [LONGEST_NAME]
        assert max(len(each.name) for some in control.annotations for each in some) == LONGEST_NAME

    def test_long_names_do_not_use_memory(self, run_script) -> None:
        """After 600 names of 1 MB, the process has grown by less than 64 MB."""
        done = run_script(
            """
            import resource, stepprof, sys
            stepprof.init({"output_dir": sys.argv[1], "backend": "null", "steps": "none", "spans": True})
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(600):
                with stepprof.region(f"{number}" + "x" * 2**20):
                    pass
            stepprof.shutdown()
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
            """,
            "runs",
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 64


class TestReading:
    def test_long_names_of_other_programs_are_cut(self, tmp_path: Path, capsys) -> None:
        """`read_spans`, `spans` and `merge` cut long names that another program has written."""
        run = make_run(tmp_path)
        record(run)
        write_spans(run, 0, *(region_line(f"{number}{LONG}", 1) for number in range(20)))
        assert {len(span["name"]) for span in read_spans(run.path)} == {LONGEST_NAME}
        assert main(["spans", str(run.path), "--json"]) == 0
        assert {len(span["name"]) for span in json.loads(capsys.readouterr().out)["spans"]} == {LONGEST_NAME}
        assert main(["merge", str(run.path), "--step", "2"]) in (0, 1)
        timeline = run.path / "step-000002" / "timeline.pftrace"
        assert timeline.stat().st_size < 1 << 20
