"""The command `stepprof merge`."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import runs
from analysis.timeline.test_merge import kineto
from runs import make_run, record_engine, tell_engines
from timelines import Timeline

from stepprof.cli.main import main

record = functools.partial(runs.record, stall_seconds=0.0)
"""Record a window that the profiler did not delay."""


@pytest.fixture
def folder(tmp_path):
    run = make_run(tmp_path, "r")
    record(run, rank=0, data=kineto("a0", "b0"))
    record(run, rank=1, pid=8, data=kineto("a1", "b1"))
    record(run, role="ref", rank=0, data=kineto("r0"))
    return run.path


def names(path):
    return {each["name"] for each in Timeline(path.read_bytes()).slices}


def test_a_timeline_in_the_steps_folder(folder, capsys):
    """The command prints the sources, their alignment and the path of the file, which `open` serves."""
    assert main(["merge", str(folder)]) == 0
    output = folder / "step-000002" / "timeline.pftrace"
    lines = capsys.readouterr().out.splitlines()
    assert names(output) == {"a0", "b0", "a1", "b1", "r0"}
    assert lines[0].startswith("3 sources, ")
    assert "5 events of 3 sources" in lines[1]
    assert lines[2] == "clock: 3 sources by the clock of one host"
    assert lines[-1] == str(output)


def test_roles_ranks_and_times_are_filtered(folder, tmp_path, capsys):
    """Roles, ranks and a range of time, counted from the begin of the step, select events."""
    out = tmp_path / "t"
    for options, expected in (
        (["--roles", "ref"], {"r0"}),
        (["--roles", "ref, actor", "--ranks", "1"], {"a1", "b1"}),
        (["--from", "0.000009"], {"b0", "b1"}),
        (["--to", "0.000009", "--ranks", "0"], {"a0", "r0"}),
        (["--min-us", "5"], {"a0", "b0", "a1", "b1", "r0"}),
    ):
        assert main(["merge", str(folder), "--output", str(out), *options]) == 0
        assert names(out) == expected, options


def test_the_profilers_delay_is_in_the_timeline(tmp_path):
    """The delay by the profiler is a slice in the timeline."""
    run = make_run(tmp_path, "r")
    runs.record(run, data=kineto("a"), stall_seconds=0.012)
    assert main(["merge", str(run.path)]) == 0
    assert names(run.path / "step-000002" / "timeline.pftrace") == {"a", "profiler stop"}


@pytest.mark.parametrize("options", [["--min-us", "5.001"], ["--no-cpu-ops"], ["--from", "99"]])
def test_filters_that_leave_nothing(folder, capsys, options):
    """Filters that leave no event are refused, and an existing timeline stays."""
    assert main(["merge", str(folder)]) == 0
    assert main(["merge", str(folder), *options]) == 2
    assert "nothing is left of 3 sources" in capsys.readouterr().err
    assert names(folder / "step-000002" / "timeline.pftrace") == {"a0", "b0", "a1", "b1", "r0"}


def test_a_role_within_the_capture_of_the_whole_step(tmp_path, capsys):
    """The windows of the role joined the capture of the step. The timeline has the part from the
    first to the last of them, and says that it is cut.
    """
    run = make_run(tmp_path, "r")
    begin = 1_700_000_000_000_000_000
    record(run, role=None, data=kineto("a", "b", "c"))
    for number, (start, end) in enumerate([(9_000, 14_000), (15_000, 16_000)], 1):
        record(
            run, role="ref", occurrence=number, data=b"", status="joined",
            start_unix_ns=begin + start, end_unix_ns=begin + end,
        )  # fmt: skip
    out = tmp_path / "t"
    assert main(["merge", str(run.path), "--roles", "ref", "--output", str(out)]) == 0
    assert names(out) == {"b"}
    assert "rank 0 · h: its capture spans several steps or roles" in capsys.readouterr().out


def test_as_json(folder, tmp_path, capsys):
    """The JSON output has the written file, its sources and their problems."""
    record(make_run(folder.parent, "r"), role="ref", rank=1, pid=8, data=b"no trace")
    assert main(["merge", str(folder), "--output", str(tmp_path / "t"), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert (reported["schema_version"], reported["step"], reported["run_id"]) == (1, 2, "r")
    assert reported["bytes"] == (tmp_path / "t").stat().st_size
    assert [(source["name"], source["slices"]) for source in reported["sources"]] == [
        ("actor rank 0 · h", 2), ("actor rank 1 · h", 2), ("ref rank 0 · h", 1), ("ref rank 1 · h", 0),
    ]  # fmt: skip
    assert "is not a trace" in reported["findings"][0]["problem"]


def test_a_source_without_events_is_reported(folder, capsys):
    """A source without events is printed, and the exit status is 1."""
    record(make_run(folder.parent, "r"), role="ref", rank=1, pid=8, data=b"no trace")
    assert main(["merge", str(folder)]) == 1
    assert "ref rank 1 · h: is not a trace" in capsys.readouterr().out


def test_several_files_outside_of_a_run(tmp_path, capsys):
    """The timeline is written into the folder of the files."""
    for number in (0, 1):
        (tmp_path / f"rank{number}.pt.trace.json.gz").write_bytes(kineto(f"x{number}"))
    assert main(["merge", *map(str, sorted(tmp_path.iterdir()))]) == 0
    assert names(tmp_path / "timeline.pftrace") == {"x0", "x1"}


def test_too_large_a_timeline_is_warned_about(folder, capsys, monkeypatch):
    """The warning says that the file is larger than what a browser opens."""
    monkeypatch.setattr("stepprof.analysis.timeline.parts._BROWSER", 10)
    assert main(["merge", str(folder)]) == 0
    assert "timeline.pftrace is larger than what a browser opens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "--workers = 0"),
        (["--min-us", "-1"], "--min-us = -1"),
        (["--min-us", "nan"], "--min-us = nan"),
        (["--from", "inf"], "--from = inf"),
        (["--from", "2", "--to", "1"], "--from = 2: must be less than --to = 1"),
        (["--roles", "actr"], 'did you mean "actor"?'),
        (["--ranks", "x"], "--ranks"),
        (["--ranks", "7"], 'ranks: "7" recorded nothing in this step; must be one of: 0, 1'),
        (["--step", "7"], "step 7"),
    ],
)
def test_invalid_options_are_named(folder, capsys, options, message):
    """The error has the option, its value and, where there is one, the most similar valid value."""
    assert main(["merge", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


class TestPerReplica:
    """`--per-replica` writes a file for each engine, with its workers."""

    @pytest.fixture
    def run(self, folder):
        run = make_run(folder.parent, "r")
        engines = [
            record_engine(run, replica, host="h", files=("rank-0", "rank-1"), data=kineto(f"e{replica}"))
            for replica in (0, 1)
        ]
        tell_engines(run, *engines)
        return run

    def test_each_replica_gets_one_file(self, run, capsys):
        """Each file has the workers of one replica only. `check` and `merge` do not take it for a
        source afterwards.
        """
        assert main(["merge", str(run.path), "--per-replica", "--json"]) == 0
        reported = json.loads(capsys.readouterr().out)["timelines"]
        place = run.path / "step-000002" / "rollout"
        assert [each["path"] for each in reported] == [
            str(place / f"replica-{replica}" / "timeline.pftrace") for replica in (0, 1)
        ]
        for replica, each in enumerate(reported):
            assert [(source["name"], source["slices"]) for source in each["sources"]] == [
                (f"rollout/{replica} worker 0 · h", 1), (f"rollout/{replica} worker 1 · h", 1),
            ]  # fmt: skip
        assert [sorted(names(Path(each["path"]))) for each in reported] == [["e0"], ["e1"]]
        assert main(["check", str(run.path)]) == 0
        capsys.readouterr()
        assert main(["merge", str(run.path), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["sources"]) == 7

    def test_the_output_counts_the_timelines(self, run, capsys):
        """The output has the number of timelines and the path of each."""
        assert main(["merge", str(run.path), "--per-replica"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("4 sources, ")
        assert "2 timelines will have about" in lines[0]
        assert sum(line.endswith("timeline.pftrace") for line in lines) == 2

    def test_per_replica_refuses_output(self, run, tmp_path, capsys):
        """`--output` names one file, but `--per-replica` writes several, so the combination is refused."""
        assert main(["merge", str(run.path), "--per-replica", "--output", str(tmp_path / "t")]) == 2
        assert "--output: cannot be combined with --per-replica" in capsys.readouterr().err

    def test_a_run_without_engines_has_no_replica(self, folder, capsys):
        """A run without engines has no replica, so `--per-replica` is refused."""
        assert main(["merge", str(folder), "--per-replica"]) == 2
        assert "no trace of an engine's replica was found" in capsys.readouterr().err


def test_a_file_that_is_not_a_trace(tmp_path, capsys):
    """No file is written, and the error has the reason."""
    (tmp_path / "README.md").write_text("# words\n")
    assert main(["merge", str(tmp_path / "README.md")]) == 2
    assert 'README.md": is text and no trace: a trace is .json' in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]
