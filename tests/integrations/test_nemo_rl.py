"""Cases of NeMo-RL's loops that the job of `tests/real/contracts` does not have: several teachers, a loop
inside an `except` block, and vLLM.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.integrations import nemo_rl
from stepprof.remote.attach import waiting
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), ({"one": "a", "two": "b"}, ["a", "b"])],
)
def test_parameters_may_hold_one_several_or_no_workers(given, found) -> None:
    """`_each` accepts one group of workers, a list or a mapping of groups, or None."""
    assert list(nemo_rl._each(given)) == found


def test_the_first_actor_of_a_shared_model_owns_the_engine() -> None:
    """Of the actors that share a model, only the first one has vLLM's engine."""
    leaders = [0, 2]
    group = SimpleNamespace(
        workers=["a", "b", "c", "d"], dp_size=2, get_dp_leader_worker_idx=leaders.__getitem__
    )
    assert nemo_rl._owners(group) == ["a", "c"]


def test_megatron_generation_is_not_an_engine() -> None:
    """Generation with Megatron attaches no engine, although its options may contain a part for vLLM."""
    nemo_rl._attach_engines(SimpleNamespace(cfg={"backend": "megatron", "vllm_cfg": {}}))
    nemo_rl._attach_engines(SimpleNamespace())
    assert not waiting


class TestTimers:
    @pytest.fixture
    def spans(self, tmp_path, monkeypatch):
        """Return a function that ends the job and reads the spans of step 1."""
        for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
            monkeypatch.setenv(f"STEPPROF_{name}", value)
        job = nemo_rl.NemoRLJob()
        job.number = 1
        monkeypatch.setattr(nemo_rl, "_jobs", [job])

        def end():
            stepprof.shutdown()
            (run,) = list_runs(tmp_path)
            return [(each["kind"], each.get("error")) for each in read_spans(run, step=1)]

        yield end
        stepprof.shutdown()

    def test_a_handled_error_is_not_the_steps(self, spans) -> None:
        """An exception that the job is already handling is not recorded as the error of the step."""
        timer = SimpleNamespace()
        try:
            raise ValueError
        except ValueError:
            nemo_rl._timer_begins(timer, (nemo_rl.STEP,), {})
            nemo_rl._timer_ends(timer, (), {"label": nemo_rl.STEP})
        ((kind, error),) = spans()
        assert (kind, bool(error)) == ("window", False)

    def test_a_timer_that_is_started_twice_leaves_the_step_open(self, spans) -> None:
        """A second start of the timer has no effect, and neither has a stop without a start: the step has
        one window.
        """
        timer = SimpleNamespace()
        nemo_rl._timer_ends(timer, (nemo_rl.STEP,), {})
        nemo_rl._timer_begins(timer, (nemo_rl.STEP,), {})
        nemo_rl._timer_begins(timer, (nemo_rl.STEP,), {})
        nemo_rl._timer_ends(timer, (nemo_rl.STEP,), {})
        assert [kind for kind, _ in spans()] == ["window"]
