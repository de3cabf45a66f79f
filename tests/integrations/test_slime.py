"""Cases of the loops of slime and miles that the jobs of `tests/real/contracts` do not have: failures,
nested calls in weight updates, and failed attachments.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import slime, slime_job
from stepprof.integrations.patches import Patches
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans

OPTIONS = {"use_pytorch_profiler": False, "profile_target": ["train_overall"]}
PACKAGE = slime.PACKAGES[0]


class Method:
    """A method of an actor's handle in the form of Ray's; it records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.name = "ray's"

    def remote(self, *args: object) -> str:
        """Record a call."""
        self.calls.append(args)
        return "ref"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return the job of a loop whose processes are not attached; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    monkeypatch.setattr(slime_job.SlimeJob, "_attach_processes", lambda _: None)
    yield slime_job.SlimeJob("slime", "_actor_handlers", SimpleNamespace(**OPTIONS), None)
    stepprof.shutdown()


def spans(folder, step):
    """Return the names of the spans of a step."""
    (run,) = list_runs(folder)
    return [each["name"] for each in read_spans(run, step=step)]


ACTOR = SimpleNamespace(role="actor")


class TestJob:
    def test_training_fails(self, job, tmp_path) -> None:
        """If the training fails, its window is closed, and the step is still recorded."""
        job.calls("generate", (0,), {})
        job.train_begins(ACTOR, 0)
        job.train_ends(ValueError("lost"))
        job.end()
        assert spans(tmp_path, 1) == ["rollout", "actor", "step"]
        assert not job.is_training

    def test_calls_inside_a_method_of_a_group(self, job, tmp_path) -> None:
        """Calls that slime makes inside `update_weights` are part of the window `weight_sync`."""
        job.calls("generate", (0,), {})
        update = job.method_begins("update_weights")
        job.calls("onload_weights", (), {})
        nested = job.method_begins("offload")
        job.method_ends(nested, None)
        job.method_ends(update, None)
        job.end()
        assert spans(tmp_path, 1) == ["rollout", "offload", "weight_sync", "step"]

    def test_a_resumed_job_numbers_steps_of_the_whole_training(self, job, tmp_path) -> None:
        """In a resumed job the steps have the numbers of the whole training."""
        job.calls("generate", (), {"rollout_id": 41})
        job.end()
        assert spans(tmp_path, 42) == ["rollout", "step"]

    def test_actors_that_cannot_be_attached(self, job, monkeypatch) -> None:
        """If the actors cannot be attached, ConfigError is raised and the session ends."""

        def fail(_: object) -> None:
            raise ConfigError("no such rank")

        monkeypatch.setattr(slime_job.SlimeJob, "_attach_processes", fail)
        with pytest.raises(ConfigError):
            job.calls("generate", (0,), {})
        assert cell.session is None


class TestEngines:
    @pytest.mark.parametrize(
        "answer",
        [(["engine"], "lock", 0), SimpleNamespace(rollout_engines=["engine"])],
        ids=["tuple", "miles after 0.0.2"],
    )
    def test_engines_are_listed_by_the_rollout_manager(self, answer) -> None:
        """The engines are read from the answer of the rollout manager, which is a tuple or an object."""
        assert slime_job.engines_in(answer) == ["engine"]

    def test_url(self) -> None:
        """The URL of an engine is that of the server that its actor has started."""
        assert slime_job.url(SimpleNamespace(server_host="[::1]", server_port=1)) == "http://[::1]:1"


class TestHandle:
    def test_methods_are_rays(self, tmp_path) -> None:
        """If an adapter raises, the call still reaches Ray's method. Other attributes of the method are
        Ray's.
        """
        manager = SimpleNamespace(**{name: Method() for name in slime_job.CALLS})
        original = manager.generate
        patches = Patches("slime")
        slime._manager_is_created(patches, PACKAGE, (manager, None), (SimpleNamespace(**OPTIONS), None), {})
        (job,) = slime._jobs
        job.calls = lambda *_: 1 / 0
        try:
            assert manager.generate.remote(3) == "ref"
        finally:
            slime._jobs.clear()
        assert original.calls == [(3,)]
        assert manager.generate.name == "ray's"


class TestRanks:
    def test_each_actor_gets_the_adapters(self, job) -> None:
        """Each actor of a group activates the adapters, as Ray's workers may not inherit the job's
        environment. The group is added once.
        """
        actor = SimpleNamespace(__ray_call__=Method())
        group = SimpleNamespace(_actor_handlers=[actor])
        slime._jobs[:] = [job]
        try:
            slime._group_answers(group, None)
            slime._group_answers(group, None)
            slime._group_answers(SimpleNamespace(), ValueError("not created"))
        finally:
            slime._jobs.clear()
        sent = [pickle.loads(pickle.dumps(function)) for (function,) in actor.__ray_call__.calls]
        assert sent == [slime._activate] * 2
        assert job.groups == [group]

    def test_the_wait_between_trainings_is_not_a_region(self, job, tmp_path) -> None:
        """The timer `train_wait` is not a region, because it lasts from one step into the next."""
        timer = SimpleNamespace()
        job.calls("generate", (0,), {})
        slime._timer_begins(timer, ("train_wait",), {})
        slime._timer_begins(timer, (), {"name": "train"})
        slime._timer_ends(timer, ("train",), {})
        slime._timer_ends(timer, ("train_wait",), {})
        job.end()
        assert spans(tmp_path, 1) == ["train", "rollout", "step"]


class TestNeeds:
    def test_every_patch_is_among_them(self) -> None:
        """Every patched function is among the names that the adapters check before they patch."""
        for package in slime.PACKAGES:
            needs = {need for each in slime.ADAPTERS for need in each.needs}
            methods = {
                f"{package.group}.{name}" for name in (*slime_job.METHODS, package.created, package.train)
            }
            assert methods | {package.manager, f"{package.timer}.start", f"{package.timer}.end"} <= needs
