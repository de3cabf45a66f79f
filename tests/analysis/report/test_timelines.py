"""What is known of each process over a step, of hand-made steps: its waits where no collective shows them, and its work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from combined import found, path, report, slack, stacks, topics
from digested import MS, T0, engine, engine_entry, manifest, spans, trace, window


def ranks(*enters, end=1200):
    """Return ranks that leave `collect` at the same time. Rank 0 enters it at the first of these times, and so on."""
    return [
        spans(
            rank,
            ("window", "step", 0, end, None),
            ("region", "load", 0, enters[rank], None),
            ("region", "collect", enters[rank], end - enters[rank], None),
        )
        for rank in range(len(enters))
    ]


def busy(rank, end=1200):
    """Return stacks that compute all the time."""
    return stacks(rank, (0, end, "torch.mm", 1.0))


class TestCommonEnds:
    def test_ranks_that_compute_until_one_deadline_do_not_wait_for_each_other(self):
        """Rank 1 enters `collect` 0.5 s later; both compute until 1.2 s."""
        made = report(*ranks(100, 600), evidence=[busy(0), busy(1)])
        assert topics(made) == []
        assert slack(made) == {}

    def test_what_a_rank_does_before_the_deadline_has_no_known_gain(self):
        """Rank 1 loads data for 0.5 s longer, and would only compute longer in `collect` without that."""

        def loading(rank, until):
            return spans(
                rank,
                ("window", "step", 0, 1800, None),
                ("region", "load_batch", 0, until, None),
                ("region", "collect", until, 1200 - until, None),
                ("region", "save_checkpoint", 1200, 600, None),
            )

        made = report(loading(0, 100), loading(1, 600), evidence=[busy(0, 1800), busy(1, 1800)])
        gains = {each.topic: each.saves for each in made.findings if each.start is not None}
        assert gains["data"] is None
        assert gains["checkpoint"] == 0.6

    @pytest.mark.parametrize(("collected", "saves"), [(1, None), (200, 0.4)])
    def test_a_rank_that_comes_after_the_deadline_would_have_computed_until_then(self, collected, saves):
        """Rank 1 spends longer on `load`. When it enters `collect`, rank 0 has left it after 0.4 s: at a deadline, if rank 1 has nothing more to do there."""

        def rank(number, load, collects):
            ready = load + collects + 300
            return spans(
                number,
                ("window", "step", 0, 1201, None),
                ("region", "load", 0, load, None),
                ("region", "collect", load, collects, None),
                ("region", "meet", ready, 1201 - ready, None),
            )

        made = report(rank(0, 100, 400), rank(1, 900 - collected, collected))
        gains = [each.saves for each in made.findings if each.region == "load"]
        assert gains == [saves]

    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_several_ranks_with_one_deadline(self, count):
        made = report(
            *ranks(*range(100, 100 + 250 * count, 250)), evidence=[busy(rank) for rank in range(count)]
        )
        assert topics(made) == []
        assert slack(made) == {}

    def test_operators_show_it_without_stacks(self):
        """The trace of rank 0 has operators all the time."""
        made = report(
            *ranks(100, 600),
            *(trace(rank, ("thread", "cpu_op", "aten::mm", 0, 1200)) for rank in range(2)),
            manifests=[manifest(*(window(rank, None, end=1200) for rank in range(2)))],
        )
        assert topics(made) == []
        assert slack(made) == {}

    def test_threads_that_compute_until_the_deadline(self):
        """The thread of the windows waits for the pool of its own process."""

        def pool(rank):
            waits = stacks(rank, (0, 100, "torch.mm", 1.0), (100, 1100, "future.result", 0.0))
            (work,) = busy(rank).stretches
            return replace(
                waits, stretches=(*waits.stretches, replace(work, thread=8, task="tokenize", pool=True))
            )

        made = report(*ranks(100, 600), evidence=[pool(0), pool(1)])
        assert "straggler" not in topics(made)
        assert slack(made) == {}

    @pytest.mark.parametrize("call", ["sock.recv", "barrier.wait", "store.wait", "self.channel.take"])
    def test_a_rank_whose_thread_waits_meets_the_others(self, call):
        """Rank 0 uses no CPU until rank 1 enters; then both compute."""
        early = stacks(0, (0, 100, "torch.mm", 1.0), (100, 500, call, 0.0), (600, 600, "torch.mm", 1.0))
        made = report(*ranks(100, 600), evidence=[early, busy(1)])
        assert found(made, "straggler") == [("rank 1", "load", 0.5, 0.5)]
        assert slack(made) == {("rank 0", None): 0.5, ("rank 1", None): 0.0}

    @pytest.mark.parametrize("call", ["sock.recv", "queue.get"])
    def test_ranks_that_all_wait_may_wait_for_something_else(self, call):
        """Rank 1 enters `collect` last and waits there too, for 0.6 s: both may have read from a source until one deadline."""
        evidence = [
            stacks(rank, (0, enters, "torch.mm", 1.0), (enters, 1200 - enters, call, 0.0))
            for rank, enters in enumerate((100, 600))
        ]
        made = report(*ranks(100, 600), evidence=evidence)
        (about,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert (about.process, about.saves) == ("rank 1", None)
        assert "whether another rank waited for it is not known" in about.why
        assert slack(made) == {}

    @pytest.mark.parametrize("known", [False, True])
    def test_without_a_sign_of_either_it_is_not_known_whether_they_met(self, known):
        """There are no stacks, or rank 0 sleeps. No gain, no slack and no wait is claimed."""
        early = stacks(0, (0, 100, "torch.mm", 1.0), (100, 1100, "time.sleep", 0.0))
        late = stacks(1, (0, 600, "torch.mm", 1.0), (600, 600, "time.sleep", 0.0))
        made = report(*ranks(100, 600), evidence=[early, late] if known else [])
        (about,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert (about.process, about.saves) == ("rank 1", None)
        assert "whether another rank waited for it is not known" in about.why
        assert slack(made) == {}

    def test_ranks_that_leave_as_soon_as_the_last_one_enters_have_met(self):
        """Rank 1 is in `collect` for 10 ms, after 1 s in which rank 0 was there."""
        made = report(*ranks(100, 1190))
        assert found(made, "straggler") == [("rank 1", "load", 1.09, 1.09)]
        assert slack(made)["rank 0", None] == 1.09

    @pytest.mark.parametrize(
        ("call", "ready", "waited_for"),
        [("not_empty.wait", 0.0, False), ("barrier.wait", 0.06, True), (None, 0.0, True)],
    )
    def test_a_rank_that_still_waits_when_the_last_one_has_left_did_not_wait_for_it(
        self, call, ready, waited_for
    ):
        """Rank 1 leaves `collect` 10 ms after it has entered it, rank 0 60 ms later: it waited for something else, unless
        its thread was ready for these 60 ms and had no CPU. Without its stacks, they have met.
        """
        early, late = (
            spans(
                rank,
                ("window", "step", 0, 1500, None),
                ("region", "load", 0, enters, None),
                ("region", "collect", enters, leaves - enters, None),
                ("region", "compute", leaves, 1500 - leaves, None),
            )
            for rank, enters, leaves in ((0, 100, 1170), (1, 1100, 1110))
        )
        evidence = []
        if call is not None:
            own = stacks(0, (0, 100, "torch.mm", 1.0), (100, 1070, call, 0.0), (1170, 330, "torch.mm", 1.0))
            waits = replace(own.stretches[1], run_queue_seconds=ready)
            own = replace(own, stretches=(own.stretches[0], waits, own.stretches[2]))
            evidence = [own, busy(1, 1500)]
        made = report(early, late, evidence=evidence)
        assert (("rank 0", None) in slack(made)) == waited_for
        about = [each for each in made.findings if each.topic == "straggler" and each.process == "rank 1"]
        assert [bool(each.saves) for each in about if each.start is not None] == [waited_for] * len(about)
        assert bool(about) or not waited_for

    def test_ranks_that_leave_another_call_of_the_region_apart_did_not_meet_in_it(self):
        """Rank 0 enters `forward` 1 s before rank 1, and both leave it at nearly the same time. They leave the second
        call 0.9 s apart, so the region contains no meeting: rank 0 worked in it.
        """

        def rank(number, *calls):
            return [
                spans(
                    number,
                    ("window", "step", 0, 3600 - number, None),
                    *(("region", name, start, end - start, None) for name, start, end in calls),
                ),
                trace(
                    number,
                    ("thread", "cpu_op", "aten::mm", 0, 500 if number == 0 else 3500),
                    (("thread", "gloo"), "user_annotation", "gloo:all_reduce", 3500, 5),
                    world=2,
                ),
            ]

        made = report(
            *rank(
                0, ("load", 0, 100), ("forward", 100, 1500), ("backward", 1500, 1700), ("forward", 1700, 3000)
            ),
            *rank(
                1,
                ("load", 0, 1100),
                ("forward", 1100, 1510),
                ("backward", 1510, 1705),
                ("forward", 1705, 2100),
            ),
            manifests=[manifest(*(window(number, None, end=3600 - number) for number in range(2)))],
        )
        assert {each.process for each in made.path if each.start < 1.5} == {"rank 0"}

    def test_a_rank_that_computed_first_may_have_waited_where_others_met(self):
        """Rank 1 waits in `collect` until rank 2 enters it: they met. Rank 0 enters it shortly before rank 2, and computes
        until then. So it is not known that the step would be shorter without what rank 0 did before.
        """
        alone = spans(
            0,
            ("window", "step", 0, 1800, None),
            ("region", "load", 0, 800, None),
            ("region", "collect", 800, 400, None),
            ("region", "save_checkpoint", 1200, 600, None),
        )
        early = stacks(
            1, (0, 100, "torch.mm", 1.0), (100, 900, "sock.recv", 0.0), (1000, 200, "torch.mm", 1.0)
        )
        made = report(alone, *ranks(800, 100, 1000)[1:], evidence=[busy(0, 1800), early, busy(2)])
        assert [each.region for each in made.findings if each.process == "rank 0" and each.saves] == [
            "save_checkpoint"
        ]

    def test_a_region_with_a_collective_is_left_together_because_of_it(self):
        """Both ranks compute for 0.5 s in `update` and leave it by an all-reduce; rank 1 enters it 0.4 s later. Its delay
        counts in `load`, and its time in `update` is that of rank 0.
        """

        def rank(number, late):
            return [
                spans(
                    number,
                    ("window", "actor", 0, 1200, "actor"),
                    ("region", "load", 0, late, "actor"),
                    ("region", "update", late, 1200 - late, "actor"),
                ),
                trace(
                    number,
                    ("thread", "cpu_op", "aten::mm", late, 500),
                    (("thread", "gloo"), "user_annotation", "gloo:all_reduce", late + 500, 700 - late),
                    world=2,
                ),
            ]

        made = report(
            *rank(0, 100),
            *rank(1, 500),
            manifests=[manifest(*(window(number, end=1200) for number in range(2)))],
        )
        assert found(made, "straggler") == [("actor rank 1", "load", 0.4, 0.4)]


class TestEngines:
    """Annotations of an engine that are no forward steps."""

    def rollout(self, *notes):
        return report(
            spans(
                "driver",
                ("window", "step", 0, 6000, None),
                ("window", "rollout", 0, 5000, "rollout"),
                ("region", "train", 5000, 1000, None),
            ),
            engine(0, (100, 2900, 64), (3000, 2000, 1), notes=notes),
            manifests=[manifest(engines=[engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 5000 * MS)])],
        )

    @pytest.mark.parametrize(
        "notes",
        [
            [("gpu_model_runner: forward", start, 20) for start in range(100, 5000, 25)],
            [("Torch-Compiled Region: 0/0", 200, 10)],
            [("outer", 100, 4900), *(("inner", start, 5) for start in range(100, 5000, 50))],
            [("before", 0, 50), ("after", 5200, 700)],
        ],
    )
    def test_annotations_change_neither_gain_nor_slack_nor_path(self, notes):
        plain, noted = self.rollout(), self.rollout(*notes)
        assert found(noted, "tail") == found(plain, "tail") == [("rollout/0 worker 0", None, 2.0, 2.0)]
        assert slack(noted) == slack(plain)
        assert slack(noted)["rollout/0 worker 0", "rollout"] == 0.0
        assert path(noted) == path(plain)

    def test_annotations_on_several_threads_and_workers(self):
        """Two replicas with two workers each have annotations on two threads."""
        made = report(
            spans("driver", ("window", "rollout", 0, 5000, "rollout")),
            *(
                engine(
                    replica,
                    (0, 2000, 64),
                    (2000, 3000 - 500 * replica, 1),
                    rank=rank,
                    notes=[("gpu_model_runner: forward", start, 9) for start in range(0, 2400, 10)],
                )
                for replica in range(2)
                for rank in range(2)
            ),
            manifests=[
                manifest(
                    engines=[
                        engine_entry(replica, start_unix_ns=T0, end_unix_ns=T0 + 5000 * MS)
                        for replica in range(2)
                    ]
                )
            ],
        )
        assert found(made, "tail") == [("rollout/0 worker 0", None, 3.0, 3.0)]
        assert slack(made) == {
            ("rollout driver", "rollout"): 5.0,
            **{(f"rollout/0 worker {rank}", "rollout"): 0.0 for rank in range(2)},
            **{(f"rollout/1 worker {rank}", "rollout"): 0.5 for rank in range(2)},
        }

    def test_engines_alone(self):
        """Without a driver the path is that of the engine that finished last, and nothing is known of a gain."""
        made = report(
            engine(
                0,
                (0, 2000, 64),
                (2000, 2000, 1),
                notes=[("forward", start, 5) for start in range(0, 4000, 10)],
            ),
            engine(1, (0, 1000, 64)),
        )
        assert path(made) == [("rollout/0 worker 0", 0.0, 4.0, "engine", "rollout")]
        assert found(made, "tail") == [("rollout/0 worker 0", None, 2.0, None)]
        assert slack(made) == {}
