"""Test the analysis by the real torch_npu: later with `stepprof analyse`, inside the job, and as
input of timelines and reports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from timelines import Timeline

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.verify import verify_run
from stepprof.formats.npu_folder import OUTPUT, is_analysed

ONE = """
init({options})
use_device()
with profile_step(2, role="actor"):
    with region("update"):
        work()
while stepprof.state().pending_exports:
    time.sleep(0.01)
"""
CPU = 'activities=["cpu"]'


def command(npu, cann, *arguments, **env):
    """Run the command line in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "stepprof", *arguments],
        cwd=npu.folder,
        env={**os.environ, **cann, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_captures_can_be_analysed_later(npu, cann):
    """A capture that is not analysed can be checked. After `stepprof analyse` it can be merged and
    reported on.
    """
    npu.run(ONE.format(options=CPU)).check()
    run = str(npu.run_path)
    assert verify_run(npu.run_path).ok
    before = command(npu, cann, "merge", run)
    assert 'is not analysed yet: run "stepprof analyse' in before.stdout + before.stderr
    done = command(npu, cann, "analyse", run, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["analysed"]
    assert result["problem"] is None
    assert is_analysed(npu.folder_of())
    again = command(npu, cann, "analyse", run)
    assert "0 of 0 captures analysed, 1 were analysed before" in again.stdout
    events = json.loads((npu.folder_of() / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text())
    assert sum(event.get("name") == "aten::mm" for event in events) == 20
    merged = command(npu, cann, "merge", run, "--output", "timeline.pftrace")
    assert merged.returncode == 0, merged.stdout + merged.stderr
    timeline = Timeline((npu.folder / "timeline.pftrace").read_bytes())
    assert sum(each["name"] == "aten::mm" for each in timeline.slices) == 20
    report = command(npu, cann, "report", run, "--step", "2")
    assert report.returncode == 0, report.stderr
    assert verify_run(npu.run_path).ok


def slices_of(path):
    """Count the slices that the reader finds in a file, by name, category and times."""
    (found,) = find([path], output_dir=path.parent).inputs
    source = load(found, args=False)
    assert source.findings == []
    columns = source.slices
    return Counter(
        (source.names[name], source.categories[category], int(start), int(duration))
        for name, category, start, duration in zip(
            columns.name, columns.category, columns.start, columns.duration, strict=True
        )
    )


def test_the_database_gives_the_same_slices_as_the_trace(npu):
    """torch_npu analyses one recording into a trace and a database. Both have the same slices at
    the same nanoseconds.
    """
    options = f'analyse=True, {CPU}, export_type=["text", "db"], with_stack=True, record_shapes=True, gc_detect_threshold=0'
    npu.run(ONE.format(options=options).replace("work()", "work(); import gc; gc.collect()")).check()
    output = npu.folder_of() / OUTPUT
    (database,) = output.glob("ascend_pytorch_profiler*.db")
    found = slices_of(database)
    assert found == slices_of(output / "trace_view.json")
    assert {"cpu_op", "python_function", "GC"} == {category for _, category, _, _ in found}


def test_the_database_alone(npu, cann):
    """A later analysis writes only a database. The timeline and the report are made from it."""
    npu.run(ONE.format(options=f'{CPU}, export_type=["db"]')).check()
    run = str(npu.run_path)
    assert 'not analysed yet: "stepprof analyse' in command(npu, cann, "show", run).stdout
    assert command(npu, cann, "analyse", run).returncode == 0
    assert not (npu.folder_of() / OUTPUT / "trace_view.json").exists()
    shown = command(npu, cann, "show", run)
    assert "analysed: ascend_pytorch_profiler.db" in shown.stdout, shown.stdout + shown.stderr
    merged = command(npu, cann, "merge", run, "--output", "timeline.pftrace")
    assert merged.returncode == 0, merged.stdout + merged.stderr
    timeline = Timeline((npu.folder / "timeline.pftrace").read_bytes())
    assert sum(each["name"] == "aten::mm" for each in timeline.slices) == 20
    report = command(npu, cann, "report", run, "--step", "2", "--json")
    (source,) = [each for each in json.loads(report.stdout)["sources"] if each["kind"] == "rank"]
    assert source["path"].endswith(f"{OUTPUT}/ascend_pytorch_profiler.db")
    assert source["events"] > 20


def test_operations_lie_in_their_window(npu):
    """Operations lie within their window. torch_npu alone would shift them by the adjustment of the clock
    since the start of the machine.
    """
    npu.run(ONE.format(options=f"analyse=True, {CPU}")).check()
    window = npu.window()
    (found,) = [
        each for each in find([npu.run_path], output_dir=npu.folder).inputs if each.origin.kind == "rank"
    ]
    source = load(found, args=False)
    starts = source.slices.start[[source.names[name] == "aten::mm" for name in source.slices.name]]
    assert len(starts) == 20
    assert window["start_unix_ns"] - 10**6 < starts.min()
    assert starts.max() < window["end_unix_ns"] + 10**6


def test_inside_the_job(npu):
    npu.run(ONE.format(options=f"analyse=True, {CPU}")).check()
    window = npu.window()
    assert (window["status"], window["error"]) == ("complete", None)
    assert is_analysed(npu.folder_of())


def test_a_failed_analysis_inside_the_job(npu):
    """Without CANN's msprof the data of the device cannot be analysed. The manifest says that the
    capture itself is complete.
    """
    npu.run(ONE.format(options="analyse=True")).check()
    window = npu.window()
    assert window["status"] == "partial"
    assert "'msprof' command not found" in window["error"]
    assert "the capture itself is complete" in window["error"]
    assert npu.folder_of().is_dir()


@pytest.mark.parametrize(
    ("env", "arguments", "reason"),
    [
        ({}, [], "'msprof' command not found"),
        ({}, ["--timeout", "0.2"], "did not end within 0.2 s"),
        ({"LD_LIBRARY_PATH": ""}, [], "libhccl.so"),
    ],
)
def test_obstacles_to_the_analysis_are_reported(npu, cann, env, arguments, reason):
    npu.run(ONE.format(options="")).check()
    done = command(npu, cann, "analyse", str(npu.run_path), *arguments, **env)
    assert done.returncode == 1
    assert reason in done.stdout
    assert "0 of 1 captures analysed" in done.stdout
