"""The command `stepprof report`: its output files, the arguments that mean one run or two runs, and
those that it refuses.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
from runs import make_run, record, region, tell_engines, write_spans

from stepprof.analysis.report.schema import Comparison, Report
from stepprof.analysis.report.store import read
from stepprof.cli.main import main
from stepprof.cli.trace_options import progress_bar

BASE = 1_700_000_000_000_000_000
TRACE = gzip.compress(
    json.dumps(
        {
            "schemaVersion": 1,
            "baseTimeNanoseconds": BASE,
            "traceEvents": [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 100_000, "dur": 400_000}
            ],
        }
    ).encode()
)  # fmt: skip


def make(folder, run_id="r", steps=(2,), seconds=0.5, rank=0, name="update"):
    run = make_run(folder, run_id)
    spans = []
    for step in steps:
        record(run, step=step, rank=rank, data=TRACE)
        spans.append(
            {
                "name": "actor",
                "kind": "window",
                "start": BASE,
                "dur": 1_500_000_000,
                "step": step,
                "role": "actor",
            }
        )
        spans.append(region(name, seconds * step / steps[0], step=step))
    write_spans(run, rank, *spans)
    return run.path  # fmt: skip


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPPROF_OUTPUT_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def report(*arguments):
    return main(["report", *map(str, arguments)])


class TestOneStep:
    def test_the_report_is_printed_and_written_to_the_steps_folder(self, runs, capsys):
        path = make(runs)
        assert report() == 0
        out = capsys.readouterr().out
        folder = path / "step-000002"
        assert out.startswith("run r  step 2  1.50 s")
        assert out.splitlines()[-2:] == [str(folder / "report.html"), str(folder / "report.json")]
        assert read(folder / "report.json", Report).regions[0].seconds == 0.5
        assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")

    def test_a_second_report_replaces_the_first(self, runs):
        path = make(runs)
        (path / "step-000002" / "report.json").write_text("old")
        assert report() == 0
        assert read(path / "step-000002" / "report.json", Report).run_id == "r"
        assert [each.name for each in (path / "step-000002").iterdir() if each.name.startswith(".")] == []

    def test_json_alone_is_printed_and_nothing_written(self, runs, capsys):
        path = make(runs)
        assert report("--json") == 0
        content = json.loads(capsys.readouterr().out)
        assert (content["run_id"], content["schema_version"]) == ("r", 4)
        assert not list(path.rglob("report.*"))

    def test_output_files_can_be_named(self, runs, tmp_path):
        path = make(runs)
        assert report("r", "--html", "out/a.html", "--json", "out/b.json") == 0
        assert read(tmp_path / "out" / "b.json", Report).step == 2
        assert (tmp_path / "out" / "a.html").is_file()
        assert not list(path.rglob("report.*"))

    def test_html_alone_is_in_the_steps_folder(self, runs):
        path = make(runs)
        assert report("--html") == 0
        assert [each.name for each in path.rglob("report.*")] == ["report.html"]

    @pytest.mark.parametrize("how", [("r:2",), ("r", "--step", "2"), ("runs/r/step-000002",), ("runs/r:2",)])
    def test_a_step_is_named(self, runs, capsys, how):
        make(runs, steps=(2, 5))
        assert report(*how) == 0
        assert capsys.readouterr().out.startswith("run r  step 2 ")

    @pytest.mark.parametrize(
        ("given", "noted"), [("runs", True), ("./runs", True), ("r", False), ("runs/r", False), (None, False)]
    )
    def test_traces_in_a_folder_of_runs(self, runs, capsys, given, noted):
        """A note says that they are left out, and how to read them."""
        make(runs)
        (runs / "tokenizer.json").write_text("{}")
        for name in ("b", "a"):
            (runs / f"{name}.pt.trace.json.gz").write_bytes(TRACE)
        assert report(*([given] if given else [])) == 0
        out = " ".join(capsys.readouterr().out.split())
        note = 'runs: traces there, such as "a.pt.trace.json.gz", are of no run and are left out: name the files to read them, as in `stepprof report'
        assert (note in out) == noted

    def test_parts_of_one_run_from_two_nodes_are_one_report(self, runs, tmp_path, capsys):
        """Two directories with the same run id are parts of one run and not compared."""
        make(tmp_path / "a", rank=0)
        make(tmp_path / "b", rank=1)
        assert report("a/r", "b/r", "--json") == 0
        content = json.loads(capsys.readouterr().out)
        assert {source["rank"] for source in content["sources"]} == {0, 1}
        assert "findings" in content

    def test_a_trace_of_another_tool_is_reported(self, runs, tmp_path, capsys):
        (tmp_path / "plain").mkdir()
        (tmp_path / "plain" / "w.pt.trace.json.gz").write_bytes(TRACE)
        assert report("plain") == 0
        assert read(tmp_path / "plain" / "report.json", Report).ops[0].name == "aten::mm"
        out = capsys.readouterr().out
        assert "aten::mm" in out
        assert out.startswith("traces of plain  400 ms")
        assert read(tmp_path / "plain" / "report.json", Report).step is None

    def test_a_trace_states_its_step(self, runs, tmp_path, capsys):
        """stepprof writes run and step into the head of a trace, so they are known wherever the
        file is copied to.
        """
        content = {
            "stepprof": {"run_id": "a-run", "step": 7, "rank": 3},
            **json.loads(gzip.decompress(TRACE)),
        }
        (tmp_path / "x.trace.json").write_text(json.dumps(content))
        assert report("x.trace.json") == 0
        assert capsys.readouterr().out.startswith("run a-run  step 7  400 ms")

    def test_a_file_never_hides_a_run_of_the_same_name(self, runs, tmp_path, capsys):
        make(runs)
        (tmp_path / "r").write_text("notes")
        assert report("r") == 0
        assert capsys.readouterr().out.startswith("run r  step 2 ")

    def test_a_file_that_is_not_a_trace_gets_no_report(self, runs, tmp_path, capsys):
        (tmp_path / "README.md").write_text("# words")
        assert report("README.md") == 2
        assert 'stepprof report: "README.md": is text and no trace: ' in capsys.readouterr().err
        assert [each.name for each in tmp_path.iterdir()] == ["README.md"]

    def test_a_terminal_that_lacks_a_character_still_gets_its_report(self, runs):
        """The command runs in a process with ASCII output. A character that cannot be printed
        becomes an escape.
        """
        make(runs, name="µ_batch")
        done = subprocess.run(
            [sys.executable, "-m", "stepprof", "report"], capture_output=True, env={"PYTHONIOENCODING": "ascii", "STEPPROF_OUTPUT_DIR": str(runs), "PATH": ""}, check=False
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert rb"\xb5_batch" in done.stdout


class TestTwo:
    def test_two_runs(self, runs, capsys):
        make(runs, "a", seconds=0.5)
        path = make(runs, "b", seconds=0.8)
        assert report("a", "b", "--html", "--json", "c.json") == 0
        comparison = read(runs.parent / "c.json", Comparison)
        (change,) = [each for each in comparison.changes if each.topic == "region"]
        assert (change.a, change.b) == (0.5, 0.8)
        assert "+300 ms" in capsys.readouterr().out
        assert (path / "step-000002" / "comparison.html").is_file()

    def test_two_steps_of_a_run_write_nothing_unasked(self, runs, capsys):
        path = make(runs, steps=(2, 5))
        before = sorted(path.rglob("*"))
        assert report("r:2", "r:5") == 0
        out = capsys.readouterr().out
        assert out.splitlines()[:2] == ["A  r step 2", "B  r step 5"]
        assert sorted(path.rglob("*")) == before

    def test_two_step_folders_are_two(self, runs, capsys):
        path = make(runs, steps=(2, 5))
        assert report(path / "step-000002", path / "step-000005", "--json") == 0
        assert json.loads(capsys.readouterr().out)["a"] == "r step 2"


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--json", "r"), ['--json "r"', "r.json", "put it before --json"]),
            (("r", "--html", "x.htm"), ['--html "x.htm"', ".html"]),
            (("--workers", "0"), ["--workers = 0", ">= 1"]),
            (("r:3",), ["step 3", "did you mean 2?"]),
            (("r:2", "--step", "5"), ["--step = 5", "r:2"]),
            (("r:2", "r:5", "elsewhere"), ["3 runs given", "r:2, r:5, "]),
            (("r", "r"), ['"r" given twice', "two different runs"]),
            (("nowhere",), ['run "nowhere"']),
            (("r", "--assume-offset", "hast=1"), ["--assume-offset", 'did you mean "']),
            (("r", "--assume-offset", "h=soon"), ["--assume-offset", "h=soon"]),
        ],
    )
    def test_errors_name_the_nearest_valid_value(self, runs, capsys, arguments, said):
        make(runs, steps=(2, 5))
        assert report(*arguments) == 2
        error = capsys.readouterr().err
        assert [each for each in said if each not in error] == []

    def test_without_the_extra_the_message_names_it(self, runs, capsys, monkeypatch):
        """Where stepprof is installed without extras, the message names the extra and there is no traceback."""
        make(runs)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "msgspec" else name)
        assert report() == 2
        assert 'install the extra "report" of stepprof' in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal_alone(capsys, monkeypatch):
    with progress_bar("reading") as nothing:
        assert nothing is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("reading") as progress:
        progress(1, 2)
        progress(2, 2)
    assert "2/2" in capsys.readouterr().err


class TestMarkdown:
    def test_markdown_is_printed_and_no_file_written(self, runs, capsys):
        path = make(runs)
        assert report("--markdown") == 0
        out = capsys.readouterr().out
        assert out.startswith("### r, step 2: 1.50 s\n\n- ")
        assert "| actor/update | 500 ms |" in out
        assert not list(path.rglob("report.*"))

    def test_a_file(self, runs, tmp_path, capsys):
        make(runs)
        assert report("r", "--markdown", "out.md", "--json", "out.json") == 0
        assert (tmp_path / "out.md").read_text(encoding="utf-8").startswith("### r, step 2")
        assert capsys.readouterr().out.splitlines()[-2:] == ["out.json", "out.md"]

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (("--markdown", "--json"), "--json and --markdown: both print to stdout"),
            (("--markdown", "r"), '--markdown "r": must end in .md'),
        ],
    )
    def test_invalid_options_are_refused(self, runs, capsys, options, problem):
        make(runs)
        assert report(*options) == 2
        assert problem in capsys.readouterr().err


class TestGate:
    """`--fail-on-regression` on two runs. Steps 1 to 12 of each have spans, and step 2 is recorded."""

    @staticmethod
    def job(
        folder, run_id, seconds, *, recorded=1.5, noise=0.01, steps=12, pause=0.2, ahead=(0, 0), ranks=(0, 1), lacks=()
    ):  # fmt: skip
        """Write a run of two ranks on two hosts.

        Args:
            folder: of the runs.
            run_id: its name.
            seconds: the length of a step.
            recorded: that of the recorded one.
            noise: the share by which steps differ.
            steps: how many there are.
            pause: seconds between steps.
            ahead: seconds by which the clock of each host is ahead, as the manifest states it.
            ranks: whose spans are there.
            lacks: steps of which the spans of rank 1 are missing.
        """
        run = make_run(folder, run_id)
        begins, at = {}, BASE - int((seconds + pause) * 10**9)
        for step in range(1, steps + 1):
            own = recorded if step == 2 else seconds * (1 + noise * ((step * 7) % 5 - 2))
            begins[step] = at, int(own * 1e9)
            at += int((own + pause) * 1e9)
        record(run, step=2, data=TRACE)
        clock = {"host": "other", "offset_ns": int(ahead[1] * 1e9), "error_ns": 1000, "method": "ping-pong"}
        tell_engines(run, clocks=[clock])
        for rank in ranks:
            shift = int(ahead[rank] * 1e9)
            spans = [
                {"name": "actor", "kind": "window", "start": start + shift, "dur": dur, "step": step, "role": "actor"}
                for step, (start, dur) in begins.items()
                if rank == 0 or step not in lacks
            ]  # fmt: skip
            write_spans(run, rank, *spans, host=("h", "other")[rank], pid=7 + rank)
        return run

    @pytest.mark.parametrize(
        ("seconds", "noise", "status", "text"),
        [
            (1.0, 0.01, 0, "no regression above 5%: "),
            (1.2, 0.01, 3, "regression above 5%: 1.20 s before, 1.40 s now (+16.7%, "),
            (0.5, 0.01, 0, "no regression above 5%: "),
            (1.0, 0.2, 4, "cannot be judged: the noise hides a change of 5%: "),
        ],
    )
    def test_the_exit_status_depends_on_unrecorded_steps(self, runs, capsys, seconds, noise, status, text):
        """The status depends on the steps that were not recorded. The recorded ones would give
        another result, and do not count.
        """
        self.job(runs, "a", 1.0, noise=noise)
        self.job(runs, "b", seconds, noise=noise, recorded=1.5 if seconds > 1 else 9.0)
        assert report("a", "b", "--fail-on-regression", "5%") == status
        assert capsys.readouterr().out.splitlines()[-2].startswith(text)

    def test_too_few_steps(self, runs, capsys):
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 2.0, steps=4)
        assert report("a", "b", "--fail-on-regression", "5%") == 4
        assert (
            "cannot be judged: run B has the spans of 2 steps that can be compared and needs 6"
            in capsys.readouterr().out
        )

    def test_the_verdict_is_in_the_json_and_the_page(self, runs, capsys):
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 1.2)
        assert report("a", "b", "--fail-on-regression", "12.5%", "--json") == 3
        gate = json.loads(capsys.readouterr().out)["gate"]
        assert (gate["verdict"], gate["limit"]) == ("regression", 0.125)
        assert report("a", "b", "--json") == 0
        assert json.loads(capsys.readouterr().out)["gate"] is None

    def test_a_clock_that_is_ahead_is_no_regression(self, runs, capsys):
        """In B the clock of the second host is 2 s ahead, and the manifest says so."""
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 1.0, ahead=(0, 2))
        assert report("a", "b", "--fail-on-regression", "5%") == 0
        assert "no regression above 5%: 1.20 s before, 1.20 s now" in capsys.readouterr().out

    def test_time_between_windows_is_a_regression(self, runs, capsys):
        """In B data are loaded for a second between the steps."""
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 1.0, pause=1.2)
        assert report("a", "b", "--fail-on-regression", "5%") == 3
        assert "from begin to begin" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("missing", "text"),
        [
            ({"ranks": (0,)}, "run B has no spans of rank 1 in step 3, which run A has"),
            ({"ranks": (1,)}, "run B has no spans of rank 0 in step 3, which run A has"),
            ({"lacks": range(8, 13)}, "run B has no spans of rank 1 in step 8, which run A has"),
            ({"lacks": (5,)}, "run B has no spans of rank 1 in step 5, which run A has"),
            ({"ranks": ()}, "run B has the spans of 0 steps that can be compared and needs 6"),
        ],
    )
    def test_missing_spans_cannot_be_judged(self, runs, capsys, missing, text):
        """Spans of a rank are missing in B, of all steps or of some."""
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 1.0, **missing)
        assert report("a", "b", "--fail-on-regression", "5%") == 4
        assert f"cannot be judged: {text}" in capsys.readouterr().out

    def test_a_rank_that_both_runs_lack_cannot_be_judged(self, runs, capsys):
        """The run says that it has two ranks."""
        for name in ("a", "b"):
            self.job(runs, name, 1.0, ranks=(0,))
        assert report("a", "b", "--fail-on-regression", "5%") == 4
        assert "run A has the spans of 1 of its 2 ranks" in capsys.readouterr().out

    def test_noise_of_two_steps_is_that_of_the_other_steps(self, runs, capsys):
        """For two steps of one run, the noise is the variation between its other steps."""
        run = self.job(runs, "r", 1.5)
        record(run, step=5, data=TRACE)
        assert report("r:2", "r:5", "--fail-on-regression", "10%") == 0
        out = capsys.readouterr().out
        assert "two steps of one run, noise from 9 other steps" in out
        assert "the time until the next step does not count" in out

    def test_a_comparison_states_the_noise_between_steps(self, runs, capsys):
        """The terminal, the JSON and the page state the noise between steps."""
        run = self.job(runs, "r", 1.5, noise=0.1)
        record(run, step=5, data=TRACE)
        assert report("r:2", "r:5", "--html", "c.html", "--json", "c.json") == 0
        shown = capsys.readouterr().out
        assert "9 steps" in shown
        assert "within noise" in shown
        comparison = read(runs.parent / "c.json", Comparison)
        (change,) = [each for each in comparison.changes if each.topic == "role"]
        assert (change.steps, change.significant, change.noise) == (9, False, change.noise_steps)
        assert "noise_steps" in (runs.parent / "c.html").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (("a", "b", "--fail-on-regression", "5"), '"5": must be a percentage, such as 5%'),
            (("a", "b", "--fail-on-regression", "-5%"), "expected one argument"),
            (("a", "--fail-on-regression", "5%"), "needs two runs, or two RUN:STEP"),
        ],
    )
    def test_invalid_options_are_refused(self, runs, capsys, arguments, problem):
        self.job(runs, "a", 1.0)
        self.job(runs, "b", 1.0)
        try:
            status = report(*arguments)
        except SystemExit as ended:
            status = ended.code
        assert status == 2
        assert problem in capsys.readouterr().err
