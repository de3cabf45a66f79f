"""Test the work after a recording with actors: one follower does it for all processes."""

from __future__ import annotations

import pytest
from actor_engine import Server

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.config.config import Config
from stepprof.follow.follower import Follower, stored_name
from stepprof.run.manifest import read_step

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Trainer:
    """An actor that is a rank."""

    def update(self):
        import torch

        with stepprof.region("update"):
            torch.ones(8, 8) @ torch.ones(8, 8)


class TestDriver:
    def test_engines_and_ranks(self, ray_here, tmp_path):
        """The copy contains all artifacts of engines and ranks. The command runs once for each
        step, after the ranks have exported.
        """
        url = f"file://{tmp_path}/up"
        note = 'echo "$STEPPROF_STEP $STEPPROF_STATUS $(ls $STEPPROF_STEP_DIR/actor | wc -l)" >> ' + str(
            tmp_path / "ran"
        )
        session = stepprof.init(
            {
                "output_dir": str(tmp_path / "runs"),
                "steps": "2, 4",
                "ranks": "all",
                "engine_start_timeout_seconds": 60,
            },
            run_id="job",
        )
        server = ray_here.remote(Server).options(num_cpus=0).remote()
        trainers = [ray_here.remote(Trainer).options(num_cpus=0).remote() for _ in range(2)]
        try:
            ray_here.get(server.generate.remote("warm"))
            stepprof.attach(server, find="engine")
            stepprof.attach(trainers, role="actor", kind="rank")
            for step in range(1, 6):
                with stepprof.profile_step(step, role="rollout"):
                    ray_here.get(server.generate.remote(step))
                with stepprof.profile_step(step, role="actor"):
                    ray_here.get([handle.update.remote() for handle in trainers])
        finally:
            stepprof.shutdown(60)
            for handle in (server, *trainers):
                ray_here.kill(handle)
        follower = Follower(session.path, Config(upload=url, on_complete=["sh", "-c", note], keep_steps=1))
        assert follower.look() is True
        assert not follower.has_failed
        follower.close()
        assert (tmp_path / "ran").read_text().splitlines() == ["2 complete 2", "4 complete 2"]
        manifest = read_step(session.path, 4)
        uploaded = {each["path"]: each["status"] for each in manifest["uploads"]}
        assert set(uploaded.values()) == {"uploaded"}
        named = [
            each["path"]
            for entry in (*manifest["windows"], *manifest["engines"])
            for each in entry["artifacts"]
        ]
        assert sorted(uploaded) == sorted(named)
        assert {path.split("/")[0] for path in named} == {"rollout", "actor"}
        assert [len(read_step(session.path, step)["pruned"]) for step in (2, 4)] == [1, 0]
        copy = tmp_path / "up" / stored_name(session.path)
        assert verify_run(copy).problems == []
        assert verify_run(session.path).problems == []
        assert len(list(copy.rglob("*.trace.json.gz"))) == 2 * len(named)
