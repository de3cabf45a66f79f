"""Cases of MindSpeed-RL's trainers that the skeleton of `tests/real/contracts` does not have: workers, and
an iteration that fails.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.instrument.context import cell
from stepprof.integrations import mindspeed_rl
from stepprof.integrations.groups import merged


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    mindspeed_rl._jobs.clear()
    stepprof.shutdown()


def trainer(rewards=(), **groups):
    """Return a trainer of two iterations with the given groups."""
    return SimpleNamespace(
        train_iters=2, reward_list=rewards, **{**dict.fromkeys(mindspeed_rl.GROUPS), **groups}
    )


class TestGroups:
    def test_integrated_workers(self) -> None:
        """The actor's processes also hold the reference model. A reward that is a rule has no ranks."""
        first, second = SimpleNamespace(_actor_id="a"), SimpleNamespace(_actor_id="b")
        shared = SimpleNamespace(actor_handlers=[first])
        rewards = [SimpleNamespace(actor_handlers=[second]), SimpleNamespace()]
        found = merged(mindspeed_rl._groups(trainer(rewards, actor_worker=shared, ref_worker=shared)))
        assert found == [([first], ["actor", "ref"]), ([second], ["reward"])]


class TestTrainer:
    def test_a_failed_iteration_is_closed(self, environment) -> None:
        """If an iteration fails, it is finished. The end of the training ends the session."""
        begun = mindspeed_rl._fit_begins(trainer(), (), {})
        mindspeed_rl._iteration_is_known(1)
        close = mindspeed_rl._jobs[0].begin("iteration")
        assert mindspeed_rl._jobs[0].loop.step == 2
        error = RuntimeError("no samples")
        close(error)
        assert mindspeed_rl._jobs[0].finished == 1
        mindspeed_rl._fit_ends(begun, error)
        assert cell.session is None

    def test_the_last_iteration_ends_the_session(self, environment) -> None:
        """The session ends after the last iteration, because Ray is shut down before `fit` returns."""
        begun = mindspeed_rl._fit_begins(trainer(), (), {})
        mindspeed_rl._iteration_is_known(1)
        mindspeed_rl._jobs[0].begin("iteration")(None)
        assert cell.session is None
        mindspeed_rl._fit_ends(begun, None)
