"""Test what `stepprof run` records of the real TRL, and that it changes no result. The job contains
no line of stepprof.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(500)

JOB = Path(__file__).with_name("grpo_job.py")
RECORDED = [sys.executable, "-m", "stepprof", "run", "--steps", "2", "--"]
ALONE = [sys.executable, str(JOB)]
TWO = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
    *("--nproc-per-node", "2", str(JOB)),
]


def start(folder: Path, command: list[str], **settings: object) -> subprocess.Popen[str]:
    """Start a job in its own folder."""
    folder.mkdir()
    offline = {"HF_HUB_OFFLINE": "1", "JOB_SETTINGS": json.dumps(settings), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **offline},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Wait for a job, check that it succeeds, and return its stderr."""
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    return errors


def results(folder: Path) -> list[dict[str, object]]:
    """Return losses and a digest of the weights of each rank."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def windows(folder: Path, step: int = 2) -> list[tuple[int, str, str]]:
    """Return rank, role and status of each window."""
    (run,) = list_runs(folder / "stepprof-runs")
    found = read_step(run, step)["windows"]
    return sorted((each["rank"], each["role"] or "step", each["status"]) for each in found)


class TestOneProcess:
    @pytest.mark.oldest
    def test_a_step_is_recorded_and_nothing_changes(self, tmp_path) -> None:
        """Losses and weights are those of a run without stepprof, bit for bit. Two micro-steps are
        one step.
        """
        plain, recorded = start(tmp_path / "plain", ALONE), start(tmp_path / "recorded", RECORDED + ALONE)
        end(plain)
        errors = end(recorded)
        assert results(tmp_path / "plain") == results(tmp_path / "recorded")
        assert windows(tmp_path / "recorded") == [
            (0, "actor", "joined"),
            (0, "actor", "joined"),
            (0, "reward", "joined"),
            (0, "rollout", "joined"),
            (0, "step", "complete"),
        ]
        assert "next: stepprof report" in errors
        (run,) = list_runs(tmp_path / "recorded" / "stepprof-runs")
        adapters = read_run(run)["adapters"]
        assert {name: entry["status"] for name, entry in adapters.items()} == dict.fromkeys(
            adapters, "attached"
        )
        assert {"transformers", "trl"} <= set(adapters)

    def test_a_step_without_generation_is_reported(self, tmp_path) -> None:
        """Samples of step 1 are used again in step 2, so the log and the report refer to step 3.
        Evaluations have a separate role.
        """
        command = [*RECORDED, *ALONE]
        errors = end(
            start(tmp_path / "job", command, num_iterations=2, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
        )  # fmt: skip
        assert "step 2 generated nothing" in errors
        assert "--steps 3" in errors
        roles = [role for _, role, _ in windows(tmp_path / "job")]
        assert "rollout" not in roles
        assert roles.count("eval") == 1
        (run,) = list_runs(tmp_path / "job" / "stepprof-runs")
        printed = subprocess.run([sys.executable, "-m", "stepprof", "report", str(run), "--step", "2"], capture_output=True, text=True, check=True)  # fmt: skip
        assert "no process recorded a rollout in this step; the nearest step with one is step 3" in " ".join(
            printed.stdout.split()
        )


TRAINER = """
import stepprof, torch
from transformers import Trainer, TrainingArguments
from stepprof.integrations.transformers import StepprofCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": self.layer(x).sum()}

def trainer(*callbacks):
    args = TrainingArguments("out", use_cpu=True, report_to=[], max_steps=3, save_strategy="no", disable_tqdm=True)
    return Trainer(Model(), args, train_dataset=[{"x": torch.ones(4)}] * 64, callbacks=list(callbacks))

stepprof.init({"steps": "2", "backend": "null", "output_dir": "stepprof-runs"})
trainer().train()                      # without the callback: no windows in a session of the job's own
trainer(StepprofCallback()).train()
print(dict(stepprof.state().adapters)["transformers"]["status"])
"""


class TestInCode:
    def test_one_trainer_is_recorded(self, tmp_path) -> None:
        """In the job's own session, only the trainer with the callback is recorded."""
        (tmp_path / "job.py").write_text(TRAINER)
        end(start(tmp_path / "job", [sys.executable, str(tmp_path / "job.py")]))
        assert windows(tmp_path / "job") == [(0, "step", "complete")]


class TestTwoRanks:
    @pytest.mark.oldest
    def test_torchrun(self, tmp_path) -> None:
        """Both ranks record into one run, and train as without stepprof."""
        end(start(tmp_path / "plain", TWO))
        command = [*RECORDED[:-1], "--ranks", "all", "--", *TWO]
        end(start(tmp_path / "recorded", command))
        assert results(tmp_path / "plain") == results(tmp_path / "recorded")
        assert [each for each in windows(tmp_path / "recorded") if each[1] == "step"] == [
            (0, "step", "complete"),
            (1, "step", "complete"),
        ]


class TestAsyncGRPO:
    def test_a_step_is_recorded_and_nothing_changes(self, tmp_path) -> None:
        """TRL's own trainer runs with stand-ins for its samples and for its attention kernel, which
        needs a GPU. The wait for samples is a region.
        """
        job = [sys.executable, str(JOB.with_name("async_grpo_job.py"))]
        plain, recorded = start(tmp_path / "plain", job), start(tmp_path / "recorded", RECORDED + job)
        end(plain)
        end(recorded)
        assert results(tmp_path / "plain") == results(tmp_path / "recorded")
        assert windows(tmp_path / "recorded") == [
            (0, "actor", "joined"),
            (0, "actor", "joined"),
            (0, "step", "complete"),
            (0, "weight_sync", "joined"),
        ]
        (run,) = list_runs(tmp_path / "recorded" / "stepprof-runs")
        assert read_run(run)["adapters"]["trl.async_grpo"]["status"] == "attached"
        assert "fetch_data" in {span["name"] for span in read_spans(run) if span.get("step") == 2}
