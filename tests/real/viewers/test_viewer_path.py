"""Test the critical path and the roles of processes in a merged timeline with Perfetto's own trace
processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from trace_processor import ask

from stepprof.cli.main import main

JOB = """
import sys, time, stepprof
stepprof.init({"steps": "1", "backend": "null", "output_dir": sys.argv[1]}, run_id="job")
with stepprof.profile_step(1):
    with stepprof.profile_step(1, role="rollout"), stepprof.region("generate"):
        time.sleep(0.05)
    with stepprof.profile_step(1, role="actor"), stepprof.region("update"):
        time.sleep(0.03)
stepprof.shutdown()
"""
TRACKS = (
    "select t.name as track, s.name, s.ts, s.dur from slice s join track t on t.id = s.track_id order by s.ts"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    subprocess.run([sys.executable, "-c", JOB, str(folder)], check=True, timeout=200)
    return folder / "job"


def test_the_path_is_a_track_with_each_moment_of_the_step(run: Path, tmp_path: Path) -> None:
    """The segments of the path follow each other without a gap, and the tracks of roles have the
    windows.
    """
    timeline, reported = tmp_path / "timeline", tmp_path / "report.json"
    assert main(["merge", str(run), "--critical-path", "--output", str(timeline)]) == 0
    assert main(["report", str(run), "--json", str(reported)]) == 0
    report = json.loads(reported.read_bytes())
    answers = ask(timeline, slices=TRACKS)
    assert answers["errors"] == []
    path = [row for row in answers["slices"] if row["track"] == "critical path"]
    assert [row["dur"] for row in path] == [
        pytest.approx(each["seconds"] * 1e9, abs=2) for each in report["path"]
    ]
    assert {"rank 0: generate", "rank 0: update"} <= {row["name"] for row in path}
    for one, other in pairwise(path):
        assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=2)
    roles = [row["name"] for row in answers["slices"] if row["track"] == "role of rank 0"]
    assert roles == ["rollout", "actor"]
