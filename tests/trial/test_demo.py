"""Test that the examples run unchanged, and that `stepprof demo` trains, records and shows its
recording. Real processes run them from the command line.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from stepprof.analysis.verify import verify_run
from stepprof.cli.commands.demo import TRAIN_STEPS
from stepprof.cli.main import main
from stepprof.run.manifest import read_step
from stepprof.run.runs import find_run, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = [pytest.mark.torch, pytest.mark.demo, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINED = 4
ROLES = ("rollout", "reward", "ref", "actor")


def run(*command: str, cwd: Path, timeout: float = 250, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def events_of(trace: Path, phase: str = "X") -> Counter[str]:
    """Return how often each name is in a trace. Phase X: events on a thread's stack; b:
    asynchronous events.
    """
    with gzip.open(trace) as file:
        return Counter(event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == phase)


def spans_of(run_path: Path, kind: str) -> list[dict]:
    return [span for span in read_spans(run_path) if span["kind"] == kind]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the complete demo once with few steps, recording steps 2 and 3. Return its process and
    its run directory.
    """
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("STEPPROF")]:
            patch.delenv(name)
        done = run("-m", "stepprof", "demo", "--train-steps", str(TRAINED), "--steps", "2-3", cwd=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done, folder / "stepprof-runs" / "demo-1"


@pytest.mark.slow
class TestDemo:
    def test_the_selected_step_is_recorded(self, demo) -> None:
        """Both ranks have a complete capture of both steps, which the roles joined. Nothing else is
        recorded.
        """
        _, path = demo
        assert steps(path) == [2, 3]
        for step in (2, 3):
            windows = {(w["role"], w["rank"]): w["status"] for w in read_step(path, step)["windows"]}
            assert windows == {
                (role, rank): "joined" if role else "complete" for role in (None, *ROLES) for rank in (0, 1)
            }
        assert read_run(path)["world_size"] == 2

    def test_the_artifacts_are_whole(self, demo) -> None:
        """`stepprof check` opens every artifact and finds no problem."""
        _, path = demo
        result = verify_run(path)
        assert (result.problems, result.artifacts) == ([], 4)

    def test_traces_hold_the_work_and_the_regions(self, demo) -> None:
        """A trace has torch's operators, each region of the loop as often as it ran, and the
        windows of all roles.
        """
        _, path = demo
        for step, rank in ((2, 1), (3, 0)):
            trace = path / f"step-{step:06d}/step/rank-{rank}.trace.json.gz"
            events = events_of(trace)
            assert events["aten::mm"] > 1000
            assert (events["mini_batch"], events["grade"], events["generate"]) == (32, 64, 1)
            assert set(events_of(trace, "b")) >= {"step", *ROLES}

    def test_spans_of_every_step(self, demo) -> None:
        """Steps that were not recorded have their spans too: windows, regions with their attributes
        and sample, marks and counters.
        """
        _, path = demo
        windows = Counter((s["step"], s["rank"], s["role"]) for s in spans_of(path, "window"))
        assert windows == {
            (step, rank, role): 1
            for step in range(1, TRAINED + 1)
            for rank in (0, 1)
            for role in (None, *ROLES)
        }
        graded = [s for s in spans_of(path, "region") if s["name"] == "grade" and s["rank"] == 1]
        assert {s["attrs"]["sample"] for s in graded if s["step"] == 3} == {f"3/{n}" for n in range(64)}
        batches = [s for s in spans_of(path, "region") if s["name"] == "mini_batch"]
        assert Counter(s["attrs"]["number"] for s in batches) == dict.fromkeys(range(16), 4 * TRAINED)
        assert len([s for s in spans_of(path, "mark") if s["name"] == "policy_updated"]) == 2 * TRAINED

    def test_the_reward_rises(self, demo) -> None:
        """Even in these few steps the reward more than doubles, according to its own counter."""
        _, path = demo
        rewards = {s["step"]: s["value"] for s in spans_of(path, "counter") if s["name"] == "reward"}
        assert sorted(rewards) == list(range(1, TRAINED + 1))
        assert rewards[TRAINED] > 2 * rewards[1]

    def test_shows_progress_and_tables(self, demo) -> None:
        """The demo prints one line per step with reward, seconds and the profiler's state. Then it
        prints a table per recorded step, the reward, and the next command.
        """
        done, path = demo
        lines = re.findall(
            r"^step +(\d+)/\d+  reward 0\.\d+ .* \d+\.\d\d s  (idle|armed|recording) ",
            done.stdout,
            re.MULTILINE,
        )
        assert [int(step) for step, _ in lines] == list(range(1, TRAINED + 1))
        assert [state for _, state in lines if state == "recording"] == ["recording"] * 2
        for step in (2, 3):
            assert f"run demo-1  step {step}\n" in done.stdout
        assert re.search(r"^actor +update_policy +2 ", done.stdout, re.MULTILINE)
        assert re.search(r"^reward 0\.\d+ at step 1, 0\.\d+ at step 4$", done.stdout, re.MULTILINE)
        assert re.search(
            r"^recording delayed a rank by at most \d+\.\d\d s in a step", done.stdout, re.MULTILINE
        )
        assert f"stepprof show {Path('stepprof-runs') / path.name} --step 2" in done.stdout

    def test_ends_with_one_timeline_and_a_report(self, demo) -> None:
        """The demo prints the paths of the timeline and the report of the first recorded step. It
        prints the report's findings, which cover both ranks and all roles.
        """
        done, path = demo
        folder = Path("stepprof-runs") / path.name / "step-000002"
        for line in ("timeline  {}/timeline.pftrace", "report    {}/report.html", "          {}/report.json"):
            assert f"{line.format(folder)}\n" in done.stdout
        report = json.loads((path / "step-000002" / "report.json").read_bytes())
        assert {each["role"] for each in report["roles"]} >= set(ROLES)
        assert report["findings"][0]["text"] in done.stdout
        assert {source["rank"] for source in report["sources"] if source["kind"] == "rank"} == {0, 1}
        assert (path / "step-000002" / "timeline.pftrace").stat().st_size > 100_000
        assert not (path / "step-000003" / "timeline.pftrace").exists()

    def test_stderr_has_only_the_lines_of_recorded_steps(self, demo) -> None:
        """stderr has no warning of torchrun, Kineto, transformers or stepprof."""
        done, _ = demo
        shown = done.stderr.splitlines()
        assert [line.split(" is recorded: ")[0] for line in shown] == ["stepprof: step 2", "stepprof: step 3"]

    def test_an_unavailable_backend_is_reported(self, tmp_path: Path) -> None:
        """If nothing can be recorded, the loop still trains. The demo ends with status 1 and prints
        the reason.
        """
        command = ("-m", "stepprof", "demo", "--train-steps", "1", "--steps", "1", "--output-dir", "runs")
        done = run(*command, cwd=tmp_path, STEPPROF_BACKEND="npu")
        assert done.returncode == 1
        assert "reward 0." in done.stdout
        assert re.search(r"^stepprof demo: .*npu", done.stderr, re.MULTILINE)

    def test_a_failed_loop_is_reported(self, tmp_path: Path) -> None:
        """A loop that fails ends the demo with status 1. Its error is printed, and the missing step
        is named.
        """
        (tmp_path / "tokenizers.py").write_text("raise ImportError('not today')\n")
        done = run(
            "-m", "stepprof", "demo", cwd=tmp_path, PYTHONPATH=path_with(tmp_path), STEPPROF_RUN_ID="mine"
        )
        assert done.returncode == 1
        assert "recorded in" not in done.stdout
        assert str(tmp_path / "stepprof-runs" / "mine") in done.stdout
        assert "ImportError: not today" in done.stderr
        assert done.stderr.endswith(
            "stepprof demo: the loop ended with exit status 1\nstepprof demo: step 2 is not recorded\n"
        )


class TestBeforeTheStart:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--train-steps", "0"], "--train-steps = 0: must be >= 1"),
            (["--steps", "99"], f'trains steps 1 to {TRAIN_STEPS}, and "99" is never reached'),
            (["--steps", "2,30"], 'and "30" is never reached'),
            (["--steps", "every 100"], 'and "every 100" is never reached'),
            (["--steps", "5-2"], '--steps = "5-2": the range 5-2 is empty'),
            (["--steps", "none"], "nothing would be recorded"),
            (["--ranks", "7"], '--ranks = "7": there is no rank 7 in a world of 2'),
        ],
    )
    def test_refuses_what_would_record_nothing(self, arguments, message, tmp_path, capsys) -> None:
        """A selection that cannot match is refused at once, and the message names it. No folder is
        created.
        """
        folder = tmp_path / "runs"
        assert main(["demo", *arguments, "--output-dir", str(folder)]) == 2
        assert message in capsys.readouterr().err
        assert not folder.exists()

    def test_refuses_when_switched_off(self, monkeypatch, tmp_path, capsys) -> None:
        """With STEPPROF=0 the demo ends with an error before it trains."""
        monkeypatch.setenv("STEPPROF", "0")
        assert main(["demo", "--output-dir", str(tmp_path)]) == 2
        assert "STEPPROF=0 is set" in capsys.readouterr().err

    def test_missing_packages_are_named(self, monkeypatch, capsys) -> None:
        """Without transformers, the error names the package and the command that installs it."""
        monkeypatch.setitem(sys.modules, "transformers", None)
        assert main(["demo"]) == 2
        message = capsys.readouterr().err
        assert "not installed: transformers" in message
        assert 'install the extra "demo" of stepprof' in message

    def test_names_an_unwritable_folder(self, tmp_path, capsys) -> None:
        """An output folder below a file cannot be created. The error names the option for another
        folder.
        """
        (tmp_path / "file").touch()
        assert main(["demo", "--output-dir", str(tmp_path / "file" / "runs")]) == 2
        assert "--output-dir" in capsys.readouterr().err


LAUNCHING = """
import sys
from stepprof.cli import demo_launcher
demo_launcher.STOP_SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
sys.exit(demo_launcher.launch([sys.argv[1]], {}, 2))
"""
LAUNCHING_IN_A_THREAD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from stepprof.cli.demo_launcher import launch
with ThreadPoolExecutor() as threads:
    status = threads.submit(launch, [sys.argv[1]], {}, 2).result()
sys.exit(status)
"""


class TestLaunch:
    @pytest.mark.parametrize("launching", [LAUNCHING, LAUNCHING_IN_A_THREAD], ids=["main", "thread"])
    def test_ranks_find_each_other_and_errors_come_through(self, launching, run_script, tmp_path) -> None:
        """The output of the ranks is printed without Kineto's probe lines. If a rank fails, the
        launch fails.
        """
        script = tmp_path / "loop.py"
        script.write_text(
            "import os, sys\n"
            'os.write(1, f\'world {os.environ["WORLD_SIZE"]} offline {os.environ["HF_HUB_OFFLINE"]}\\n\'.encode())\n'
            "os.write(2, b'USDT:profiler_start\\n')\n"
            "os.write(2, f'rank {os.environ[\"RANK\"]} says why\\n'.encode())\n"
            "sys.exit(3)\n"
        )
        done = run_script(launching, str(script))
        assert done.returncode == 1
        assert "world 2 offline 1" in done.stdout
        assert "says why" in done.stderr
        assert "USDT" not in done.stderr

    def test_no_file_of_the_current_folder_is_imported(self, tmp_path) -> None:
        """Neither torchrun nor a rank imports a file of the folder in which the demo is started."""
        (tmp_path / "loops").mkdir()
        (tmp_path / "loops" / "loop.py").write_text("import os; os.write(1, b'ran ')")
        for name in (*sys.stdlib_module_names, "torch", "numpy", "stepprof"):
            (tmp_path / f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')")
        launching = "import sys; sys.path.remove('')\n" + LAUNCHING
        done = subprocess.run(
            [sys.executable, "-c", launching, "loops/loop.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (0, "ran ran ")
        assert not (tmp_path / "imported").exists()

    def test_stderr_of_the_ranks_is_made_printable(self, run_script, tmp_path) -> None:
        """Control characters of a rank are printed as escapes and a password as "…". A line that is
        too long is cut.
        """
        script = tmp_path / "loop.py"
        script.write_text(
            "import os\n"
            r"os.write(2, b'\x1b]0;title\x07 \x1b[2Jnot http://me:secret@node/a \xff\n' + b'x' * 300_000 + b'\n')"
        )
        done = run_script(LAUNCHING, str(script))
        assert r"\x1b]0;title\x07 \x1b[2Jnot http://…@node/a" in done.stderr
        assert all(line.isprintable() and len(line) < 3000 for line in done.stderr.splitlines())

    @pytest.mark.parametrize(
        ("number", "status", "patience"),
        [
            pytest.param(signal.SIGINT, -signal.SIGINT, 60, id="ctrl-c"),
            pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, 60, id="sigterm"),
            pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, 0.2, id="deaf"),
        ],
    )
    def test_a_signal_ends_every_process(self, number, status, patience, tmp_path) -> None:
        """Ctrl-C or SIGTERM ends torchrun and both ranks within 20 s, without torchrun's traceback.
        This includes ranks that ignore SIGTERM.
        """
        script = tmp_path / "loop.py"
        script.write_text(
            f"import os, signal, time\nif {patience} < 1: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.write(1, b'started\\n')\ntime.sleep(200)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", LAUNCHING, str(script), str(patience)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            started = [process.stdout.readline() for _ in range(2)]
            children = psutil.Process(process.pid).children(recursive=True)
            began = time.monotonic()
            process.send_signal(number)
            _, errors = process.communicate(timeout=200)
        assert started == ["started\n"] * 2
        assert time.monotonic() - began < 20
        assert process.returncode == status
        assert len(children) == 3
        assert psutil.wait_procs(children, timeout=5)[1] == []
        assert "stopping the ranks" in errors
        assert "SignalException" not in errors


class TestOtherExamples:
    def test_minimal(self, tmp_path) -> None:
        """Three lines in a loop record its step 2."""
        done = run("-W", "error", str(EXAMPLES / "minimal.py"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"^step \d  loss 0\.\d+  (?:idle|armed)", done.stdout, re.MULTILINE)) == 5
        path = find_run(tmp_path / "stepprof-runs")
        assert verify_run(path).problems == []
        events = events_of(path / "step-000002/step/rank-0.trace.json.gz")
        assert (events["forward"], events["backward"]) == (1, 1)
        assert Counter(s["step"] for s in spans_of(path, "region")) == dict.fromkeys(range(1, 6), 2)

    def test_async_rollout(self, tmp_path) -> None:
        """Coroutines of two steps overlap. Each episode has its own span, which is at least as long
        as its waits, and step 3 is recorded in both roles.
        """
        done = run("-W", "error", str(EXAMPLES / "async_rollout.py"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        path = find_run(tmp_path / "stepprof-runs")
        assert verify_run(path).problems == []
        windows = {w["role"]: w["status"] for w in read_step(path, 3)["windows"]}
        assert windows == {"rollout": "complete", "actor": "complete"}
        episodes = [s for s in spans_of(path, "region") if s["name"] == "play"]
        assert Counter(s["step"] for s in episodes) == dict.fromkeys(range(1, 21), 128)
        assert {s["attrs"]["sample"] for s in episodes if s["step"] == 7} == {f"7/{n}" for n in range(128)}
        waits = Counter()
        for span in spans_of(path, "region"):
            if span["name"] in ("generate", "tool_call"):
                waits[span["attrs"]["sample"]] += span["dur"]
        assert all(s["dur"] >= waits[s["attrs"]["sample"]] for s in episodes)
        turns = [float(text) for text in re.findall(r"turns (\d\.\d+)", done.stdout)]
        assert sum(turns[-5:]) < sum(turns[:5])

    @pytest.mark.slow
    def test_grpo_alone(self, tmp_path) -> None:
        """Without a launcher the loop runs as a single rank. Without a configuration it records no
        step, and leaves the spans of its run.
        """
        done = run(str(EXAMPLES / "grpo.py"), "--train-steps", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "after training" in done.stdout
        (left,) = tmp_path.iterdir()
        found = find_run(left)
        assert steps(found) == []
        assert 1 in {span["step"] for span in read_spans(found)}
