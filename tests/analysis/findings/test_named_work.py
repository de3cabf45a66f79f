"""Work that the name of a region shows, and names that only look like it. Times are in milliseconds."""

from __future__ import annotations

import pytest
from digested import MS, T0, engine, engine_entry, manifest, spans, trace, window
from spanning import write_steps

from stepprof.analysis.findings.named_work import named_work
from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest

assert named_work is not None


def places(name, operators=0, engines=()):
    """Return the findings about places of a step with one region, in which operators run for
    `operators` milliseconds.
    """
    made = combine(
        [
            digest(spans(0, ("window", "actor", 0, 100, "actor"), ("region", name, 0, 90, "actor"))),
            digest(trace(0, ("thread", "cpu_op", "aten::mm", 0, operators))),
        ],
        step=2,
        run_id="r",
        manifests=[manifest(window(0, end=100), engines=engines)],
    )
    return [each for each in made.findings if each.start is not None]


def topics(name, operators=0):
    return [each.topic for each in places(name, operators)]


@pytest.mark.parametrize(
    "name",
    ["evaluate_actions", "checkpoint_forward", "data_parallel_forward", "sync_gradients", "load_checkpoint", "tokenwise_loss", "value_eval_loss", "fetch_add", "save_rollouts", "update_weights", "weight_update", "refit"],
)  # fmt: skip
def test_a_name_with_other_words(name):
    """One word of the name does not show what the region does, so there is no finding."""
    assert topics(name) == []


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("evaluate", "evaluation"), ("run_eval", "evaluation"), ("validation_step", "evaluation"), ("val", "evaluation"),
        ("save_checkpoint", "checkpoint"), ("save_actor_checkpoint", "checkpoint"), ("save", "checkpoint"), ("Trainer.save_checkpoint", "checkpoint"),
        ("sync_weights", "weight_sync"), ("broadcast_weights", "weight_sync"), ("tokenize", "data"),
    ],
)  # fmt: skip
def test_a_name_that_says_it(name, topic):
    """The whole name shows the kind of work, also if the region consists of operators."""
    assert topics(name) == topics(name, 90) == [topic]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sync_weights",
            "weights were transferred for 90 ms: actor rank 0 in `sync_weights` (in role actor)",
        ),
        (
            "update_weights",
            "weights were updated for 90 ms: actor rank 0 in `update_weights` (in role actor)",
        ),
    ],
)
def test_weights_of_a_job_with_engines(name, text):
    """A name does not show where weights are sent to. An optimizer updates weights too: that name counts in a
    job with engines only.
    """
    (found,) = places(name, engines=[engine_entry()])
    assert (found.topic, found.text) == ("weight_sync", text)


@pytest.mark.parametrize(("name", "topic"), [("checkpoint", "checkpoint"), ("next_batch", "data"), ("dataloader", "data"), ("load-data", "data")])  # fmt: skip
def test_operators_contradict_the_name(name, topic):
    """A region that is mostly operators does not wait for data, and a checkpoint of activations
    writes no file.
    """
    assert topics(name, 30) == [topic]
    assert topics(name, 80) == []


@pytest.mark.parametrize(("length", "region"), [(85, "build_batch"), (50, "get_batch")])
def test_the_region_that_has_nearly_all_of_the_wait(length, region):
    """A region inside `get_batch` builds the data. The finding names it if it has nearly all of the wait."""
    regions = [("region", "get_batch", 0, 90, "actor"), ("region", "build_batch", 0, length, "actor")]
    made = combine([digest(spans(0, ("window", "actor", 0, 100, "actor"), *regions))], step=2, run_id="r")
    (found,) = [each for each in made.findings if each.topic == "data"]
    assert (found.region, found.seconds) == (region, 0.09)


def test_an_evaluation_by_engines():
    """Without it, neither the engine nor the driver that waits for it takes any time."""
    made = combine(
        [
            digest(spans("driver", ("window", "step", 0, 90, None), ("window", "eval", 30, 60, "eval"))),
            digest(engine(0, (30, 60, 64), role="eval")),
        ],
        step=2,
        run_id="r",
        manifests=[manifest(engines=[engine_entry(role="eval", start_unix_ns=T0, end_unix_ns=T0 + 90 * MS)])],
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (found.topic, found.seconds, found.saves) == ("evaluation", 0.06, 0.06)


@pytest.mark.parametrize("name", ["load_batch", "load_batch_{}", "worker{}/load_batch"])
def test_work_with_the_number_of_its_rank(name):
    """Both ranks load for 50 ms, then meet: without it, the step is that much shorter."""
    made = combine(
        [
            digest(each)
            for rank in range(2)
            for each in (
                spans(
                    rank, ("window", "actor", 0, 100, "actor"), ("region", name.format(rank), 0, 50, "actor")
                ),
                trace(
                    rank,
                    ("thread", "cpu_op", "aten::mm", 50, 20),
                    (("thread", "gloo"), "user_annotation", "gloo:all_reduce", 70, 30),
                    world=2,
                ),
            )
        ],
        step=2,
        run_id="r",
        manifests=[manifest(*(window(rank, end=100) for rank in range(2)))],
    )
    (found,) = [each for each in made.findings if each.topic == "data"]
    assert (found.seconds, found.saves) == (0.05, 0.05)


def test_a_part_that_another_finding_has():
    """Rank 0 evaluates for 80 ms, rank 1 for 20 ms: the evaluation did not take 20 ms."""
    ranks = [
        spans(
            rank,
            ("window", "step", 0, 100, None),
            ("region", "evaluate", 0, length, None),
            ("region", "meet", length, 100 - length, None),
        )
        for rank, length in enumerate((80, 20))
    ]
    made = combine([digest(each) for each in ranks], step=2, run_id="r")
    first, second = (each for each in made.findings if each.start is not None)
    assert (first.topic, first.seconds) == ("straggler", 0.06)
    assert second.text == (
        "an evaluation took 20 ms of the step: rank 0 in `evaluate`, not counting 60 ms of other findings"
    )


class TestOtherSteps:
    """The sentence says which steps have such work, or how many of the steps around lack it."""

    @pytest.mark.parametrize("window", [True, False], ids=["role", "region"])
    def test_an_evaluation_in_every_third_step(self, tmp_path, window):
        train = ("region", "train", 0, 60, None)
        eval_ = ("window", "eval", 60, 40, "eval") if window else ("region", "evaluate", 60, 40, None)
        steps = {
            at: [("window", "step", 0, 60 if at % 3 else 100, None), train, *([] if at % 3 else [eval_])]
            for at in range(2, 11)
        }
        found = self.found(tmp_path, steps)
        place = "the window of eval" if window else "`evaluate`"
        assert found.text == (
            f"an evaluation took 40 ms of the step: rank 0 in {place}, which every 3rd step has"
        )
        assert "steps 3, 9 have it too" in found.why

    def test_an_evaluation_in_every_step(self, tmp_path):
        steps = {
            at: [("window", "step", 0, 100, None), ("region", "evaluate", 0, 40, None)] for at in range(2, 11)
        }
        assert (
            self.found(tmp_path, steps).text == "an evaluation took 40 ms of the step: rank 0 in `evaluate`"
        )

    def test_a_name_that_only_the_recorded_step_has(self, tmp_path):
        """The steps around take as long: they may evaluate too, without a region."""
        steps = {at: [("window", "step", 0, 100, None)] for at in range(2, 11)}
        steps[6].append(("region", "evaluate", 0, 40, None))
        assert (
            self.found(tmp_path, steps).text == "an evaluation took 40 ms of the step: rank 0 in `evaluate`"
        )

    def found(self, run, steps):
        """Return the finding about the evaluation of step 6."""
        write_steps(run, steps)
        made = combine([digest(spans(0, *steps[6]))], step=6, run_id="r", neighbours=Neighbours([run], 6))
        return next(each for each in made.findings if each.topic == "evaluation")
