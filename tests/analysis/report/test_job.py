"""What the report says about the job, from any `run.json`."""

from __future__ import annotations

import json

import runs

import stepprof
from stepprof.analysis.report.job import job_of
from stepprof.analysis.report.schema import Job
from stepprof.run.runs import list_runs


def test_what_a_session_writes(tmp_path, monkeypatch) -> None:
    """Command line and versions of this process; no commit outside of a repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", "--hf-token", "abc", "lr=1"])
    stepprof.init({"steps": "1", "backend": "null", "output_dir": str(tmp_path / "runs")})
    stepprof.shutdown()
    job = job_of(list_runs(tmp_path / "runs"))
    assert job.command == ["python", "train.py", "--hf-token", "…", "lr=1"]
    assert job.commit is None
    assert job.versions["stepprof"] == stepprof.__version__
    assert "python" in job.versions


def test_a_worker_of_ray_is_not_the_job(tmp_path, monkeypatch) -> None:
    """Its command line has Ray's own addresses and passwords."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/x/ray/_private/workers/default_worker.py", "--node=1"])
    stepprof.init({"steps": "1", "backend": "null", "output_dir": str(tmp_path / "runs")})
    stepprof.shutdown()
    assert job_of(list_runs(tmp_path / "runs")).command == []


def test_a_model_comes_from_an_adapter(tmp_path) -> None:
    adapters = {
        "trl": {"status": "attached", "version": "1"},
        "verl": {"status": "attached", "model": "Qwen/Qwen3-8B"},
        "ray": {"status": "refused"},
    }
    run = runs.make_run(tmp_path, adapters=adapters, commit="a" * 40)
    assert job_of([run.path]) == Job(
        commit="a" * 40, world_size=2, model="Qwen/Qwen3-8B", adapters=["trl", "verl"]
    )


def test_damaged_fields_are_left_out(tmp_path) -> None:
    """Every field of a hostile file, one at a time."""
    run = runs.make_run(tmp_path)
    for value in (None, 1, "x" * 10_000, [1, None, {}], {"a": 1, "b": []}, {"": {"status": "attached"}}):
        for key in ("command", "commit", "versions", "platform", "adapters", "world_size"):
            (run.path / "run.json").write_text(json.dumps({"run_id": "r", key: value}))
            job = job_of([run.path])
            assert all(isinstance(each, str) for each in job.command)
            assert job.commit is None
            assert job.versions == {}
            assert job.platform is None


def test_no_run_no_job(tmp_path) -> None:
    assert job_of([]) is None
    assert job_of([tmp_path]) is None
