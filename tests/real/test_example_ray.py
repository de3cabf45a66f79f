"""Run the GRPO example under Ray unchanged, by the command of docs/adopting.md and in its own
process. With SGLang it runs in lockstep, and another process requests the second recorded step.
With vLLM it runs one step ahead.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import steps as recorded_steps
from stepprof.run.spans import read_spans
from stepprof.run.status import read_statuses

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "ray_grpo_vllm.py"
PROMPTS, GROUP = 32, 12
MINI_BATCHES = 2 * 6
STEPS, RECORDED = 4, [2, 3]
WHOLE = 500  # seconds; on two shared cores it took 80 to 400

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(WHOLE + 50)]

LOG = re.compile(r"^step +(\d+)/\d+  reward (\S+)  correct +\S+  gap (\S+) ", re.MULTILINE)

VLLM_STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)")
SGLANG_STEP = re.compile(r"step\[(EXTEND|DECODE) bs=(\d+)")


@dataclass(frozen=True)
class Job:
    """A completed run of the example."""

    engine: str
    ahead: bool
    stdout: str
    path: Path

    @property
    def gaps(self) -> dict[int, float]:
        """Return for each step the difference between the log-probabilities of the engine and of the
        trainers.
        """
        return {int(step): float(gap) for step, _, gap in LOG.findall(self.stdout)}

    @property
    def rewards(self) -> list[float]:
        return [float(reward) for _, reward, _ in LOG.findall(self.stdout)]

    def engines(self, step: int, role: str) -> list[dict[str, Any]]:
        return [engine for engine in read_step(self.path, step)["engines"] if engine["role"] == role]

    def windows(self, step: int, role: str) -> dict[Any, dict[str, Any]]:
        """Return the windows of a step and a role, by rank."""
        manifest = read_step(self.path, step)
        return {window["rank"]: window for window in manifest["windows"] if window["role"] == role}

    def trace(self, step: int, artifact: dict[str, Any]) -> dict[str, Any]:
        with gzip.open(self.path / f"step-{step:06d}" / artifact["path"], "rt") as file:
            return json.load(file)

    def counter(self, name: str) -> dict[int, float]:
        """Return the value of a counter in each step."""
        return {
            span["step"]: span["value"]
            for span in read_spans(self.path)
            if span["name"] == name and "value" in span
        }


JOBS = [pytest.param(("vllm", True), marks=pytest.mark.variant), ("sglang", False)]
"""The engines, and whether they run one step ahead. The driver decides that; an engine gets the
same calls in the same order.
"""


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: f"{job[0]}-{'ahead' if job[1] else 'lockstep'}")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run the example: four steps, of which two are recorded, one of them requested during the run."""
    engine, ahead = request.param
    record = "2-3" if ahead else "2"
    folder = tmp_path_factory.mktemp(f"{engine}-{'ahead' if ahead else 'lockstep'}")
    command = [sys.executable, str(EXAMPLE), "--engine", engine, "--steps", str(STEPS), "--record", record]
    # a dozen processes import torch: coverage would double their time, for lines that other tests
    # run
    left_out = ("STEPPROF", "COVERAGE_PROCESS")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    if engine == "sglang":
        paths = [str(HERE / "sglang" / "stubs"), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    printed, problems = folder / "stdout", folder / "stderr"
    with printed.open("w") as stdout, problems.open("w") as stderr:
        running = subprocess.Popen(
            [*command, *(["--async"] if ahead else [])], cwd=folder, env=environ, stdout=stdout, stderr=stderr
        )
    try:
        if not ahead:
            ask_for(3, folder / "stepprof-runs", running)
        running.wait(WHOLE)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, f"{printed.read_text()[-4000:]}\n{problems.read_text()[-8000:]}"
    (path,) = (folder / "stepprof-runs").iterdir()
    return Job(engine, ahead, printed.read_text(), path)


def ask_for(step: int, runs: Path, running: subprocess.Popen[bytes]) -> None:
    """Request the recording of a step from a shell, as soon as the job accepts requests."""
    deadline = time.monotonic() + WHOLE
    while not any(read_statuses(run) for run in runs.glob("*")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (run,) = runs.iterdir()
    command = [sys.executable, "-m", "stepprof", "trigger", str(run), "--step", str(step), "--wait", "30"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert asked.returncode == 0, asked.stdout + asked.stderr


class TestTheJob:
    def test_the_job_learns(self, job: Job) -> None:
        """The reward rises; the model begins with random weights."""
        assert len(job.rewards) == STEPS
        assert job.rewards[-1] > job.rewards[0]

    def test_the_job_sends_its_weights_to_the_engine(self, job: Job) -> None:
        """The engine generates with the weights that the update starts from. One step ahead, it has
        those of the update before.
        """
        synced = [step for step in job.gaps if step == 1 or not job.ahead]
        assert max(job.gaps[step] for step in synced) < 1e-4
        assert all(gap > 0.05 for step, gap in job.gaps.items() if step not in synced)


class TestTheManifest:
    def test_the_manifest_has_the_selected_steps(self, job: Job) -> None:
        """Two of four steps are recorded. Every file that a manifest names exists and is complete."""
        assert recorded_steps(job.path) == RECORDED
        assert verify_run(job.path).problems == []

    @pytest.mark.parametrize("step", RECORDED)
    def test_the_manifest_names_the_engine(self, job: Job, step: int) -> None:
        """The entry of the engine is complete, has a trace, and names kind and replica."""
        (engine,) = job.engines(step, "rollout")
        assert (engine["status"], engine["error"], engine["health"]) == ("complete", None, "ok")
        assert (engine["kind"], engine["replica"]) == (job.engine, 0)
        assert len(engine["artifacts"]) == 1

    @pytest.mark.parametrize("step", RECORDED)
    def test_the_manifest_has_both_trainers(self, job: Job, step: int) -> None:
        """The ranks in actors follow the driver's window. Each rank has its own window with its
        trace.
        """
        ranks = job.engines(step, "actor")
        assert [(rank["kind"], rank["replica"], rank["status"]) for rank in ranks] == [
            ("rank", 0, "complete"),
            ("rank", 1, "complete"),
        ]
        windows = job.windows(step, "actor")
        assert {0, 1} <= windows.keys()
        for rank in (0, 1):
            assert (windows[rank]["status"], windows[rank]["backend"]) == ("complete", "torch")
            assert (windows[rank]["world_size"], len(windows[rank]["artifacts"])) == (2, 1)

    def test_the_manifest_shows_overlapping_windows(self, job: Job) -> None:
        """One step ahead, the engine's window of step 3 starts before the trainers' windows of step
        2 end. In lockstep it starts later.
        """
        (engine,) = job.engines(3, "rollout")
        trainers = job.windows(2, "actor")
        ends = [trainers[rank]["end_unix_ns"] for rank in (0, 1)]
        assert (engine["start_unix_ns"] < min(ends)) == job.ahead

    def test_the_manifest_is_printed_at_the_end(self, job: Job) -> None:
        """The output has the tables of both steps, with the engine and the ranks."""
        assert len(re.findall(rf"^rollout/0 +{job.engine} +complete", job.stdout, re.MULTILINE)) == len(
            RECORDED
        )
        assert len(re.findall(r"^actor +[01] +complete +torch", job.stdout, re.MULTILINE)) == 2 * len(
            RECORDED
        )


class TestTheTraces:
    @pytest.mark.parametrize("step", RECORDED)
    def test_the_engines_trace_has_the_forward_steps_of_the_window(self, job: Job, step: int) -> None:
        """The trace contains the prefill and each token of every sequence of that rollout, and no
        sequence of another step.
        """
        (engine,) = job.engines(step, "rollout")
        trace = job.trace(step, engine["artifacts"][0])
        names = [event.get("name", "") for event in trace["traceEvents"] if event.get("ph") == "X"]
        begun, continued = 0, 0
        if job.engine == "vllm":
            for context, generation in filter(None, map(_numbers_of, names)):
                begun, continued = begun + context, continued + generation
            assert begun == PROMPTS * GROUP
            assert begun + continued == job.counter("response_tokens")[step]
        else:
            batches = [found.groups() for found in map(SGLANG_STEP.match, names) if found]
            begun = sum(int(size) for kind, size in batches if kind == "EXTEND")
            continued = sum(int(size) for kind, size in batches if kind == "DECODE")
            assert (
                begun == PROMPTS + PROMPTS * GROUP
            )  # SGLang computes the prompt of a group once before the group
            assert begun + continued >= job.counter("response_tokens")[step]  # SGLang sees an end a step late

    @pytest.mark.parametrize("step", RECORDED)
    def test_the_engines_trace_states_step_role_and_replica(self, job: Job, step: int) -> None:
        """The trace states step, role, replica, rank, run, and the version of the weights that it
        generated with.
        """
        (engine,) = job.engines(step, "rollout")
        stamp = job.trace(step, engine["artifacts"][0])["stepprof"]
        assert (stamp["step"], stamp["role"], stamp["replica"], stamp["rank"]) == (step, "rollout", 0, 0)
        assert stamp["version"] == (step - 2 if job.ahead else step - 1)
        assert stamp["run_id"] == job.path.name

    @pytest.mark.parametrize("step", RECORDED)
    @pytest.mark.parametrize("rank", [0, 1])
    def test_the_trainers_traces_have_one_update(self, job: Job, step: int, rank: int) -> None:
        """The trace has the regions of exactly one update, and torch's operators in them."""
        trace = job.trace(step, job.windows(step, "actor")[rank]["artifacts"][0])
        events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        names = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
        assert (names["update"], names["forward"], names["optimizer"]) == (1, MINI_BATCHES, MINI_BATCHES)
        operations = {event["name"] for event in events}
        assert any(name.startswith("gloo:all_reduce") for name in operations)
        assert "aten::mm" in operations


def _numbers_of(name: str) -> tuple[int, int] | None:
    found = VLLM_STEP.match(name)
    return (int(found[1]), int(found[2])) if found else None


class TestTheEnd:
    def test_the_job_ends_with_one_timeline(self, job: Job) -> None:
        """The job writes the timeline of the last recorded step and prints its path."""
        timeline = job.path / f"step-{RECORDED[-1]:06d}" / "timeline.pftrace"
        assert timeline.stat().st_size > 100_000
        assert str(timeline) in job.stdout

    def test_the_job_ends_with_a_report_of_engine_and_trainers(self, job: Job) -> None:
        """The page and the data of the report exist, and the job prints its findings. The rollout
        has the engine's own steps.
        """
        folder = job.path / f"step-{RECORDED[-1]:06d}"
        assert (folder / "report.html").stat().st_size > 10_000
        report = json.loads((folder / "report.json").read_bytes())
        assert report["findings"][0]["text"].partition(":")[0] in job.stdout
        assert {each["role"] for each in report["roles"]} >= {"rollout", "reward", "actor"}
        engines = [each for each in report["rollout"] if each["iterations"]]
        assert len(engines) == 1
        assert engines[0]["peak_batch"] > 1
        assert {source["kind"] for source in report["sources"]} == {"engine", "rank", "spans"}
        assert all(source["events"] for source in report["sources"])
