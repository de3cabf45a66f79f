"""What a driver waits for, of hand-made steps. Times are in milliseconds."""

from __future__ import annotations

import pytest
from combined import found, path, report, slack, stacks, topics
from digested import MS, T0, engine, engine_entry, manifest, source, spans, window

from stepprof.analysis.timeline.model import Origin


def rank(number, *windows):
    """Return the spans of a rank: windows (role, start, length) with a region `update` each."""
    return spans(
        number,
        *(("window", role, start, length, role) for role, start, length in windows),
        *(("region", "update", start, length, role) for role, start, length in windows),
    )


def driver(*windows, end=10_000):
    """Return the spans of a driver: a step window, and windows (role, start, length) in it."""
    inner = (("window", role, start, length, role) for role, start, length in windows)
    return spans("driver", ("window", "step", 0, end, None), *inner)


def engines(*roles, end=9000):
    """Return a manifest with an engine of each role."""
    entries = [engine_entry(role=role, start_unix_ns=T0, end_unix_ns=T0 + end * MS) for role in roles]
    return [manifest(engines=entries)]


class TestStepWindow:
    def test_the_path_follows_the_ranks_that_a_step_window_calls(self):
        """The rollout takes 3.7 s; then the driver waits in its step window for ranks in the role `actor`, of which
        rank 0 takes 3 s longer.
        """
        made = report(
            driver(("rollout", 0, 3700)),
            engine(0, (0, 3700, 64)),
            rank(0, ("actor", 3800, 6000)),
            *(rank(number, ("actor", 3800, 3000)) for number in (1, 2)),
            manifests=engines("rollout"),
        )
        assert path(made) == [
            ("rollout/0 worker 0", 0.0, 3.7, "engine", "rollout"),
            ("driver", 3.7, 3.8, "work", None),
            ("actor rank 0", 3.8, 9.8, "work", "actor"),
            ("driver", 9.8, 10.0, "work", None),
        ]
        assert found(made, "straggler") == [("actor rank 0", "update", 3.0, 3.0)]
        assert made.findings[0].text == "the step took 10.0 s: actor 60%, rollout 37%, no role 3%"
        assert {key: spare for key, spare in slack(made).items() if key[1] == "actor"} == {
            ("actor rank 0", "actor"): 0.0,
            ("actor rank 1", "actor"): 3.0,
            ("actor rank 2", "actor"): 3.0,
        }

    @pytest.mark.parametrize("role", [None, "train"])
    def test_calls_one_after_the_other(self, role):
        """In one window of the driver the ranks work twice, in two roles. What a rank saves in the first call, all save."""
        made = report(
            spans("driver", ("window", role or "step", 0, 10_000, role)),
            rank(0, ("ref", 100, 2000), ("actor", 2500, 6000)),
            rank(1, ("ref", 100, 1000), ("actor", 2500, 3000)),
        )
        assert [each[:3] for each in path(made)] == [
            (path(made)[0][0], 0.0, 0.1),
            ("rank 0", 0.1, 2.1),
            (path(made)[0][0], 2.1, 2.5),
            ("rank 0", 2.5, 8.5),
            (path(made)[0][0], 8.5, 10.0),
        ]
        assert found(made, "straggler") == [("rank 0", "update", 3.0, 3.0), ("rank 0", "update", 1.0, 1.0)]

    def test_a_driver_whose_ranks_have_step_windows_too(self):
        """In their step windows the ranks wait for the driver's next call, as they do if the driver has roles."""
        made = report(
            driver(end=8000),
            *(
                spans(
                    number,
                    ("window", "step", 0, 8000, None),
                    ("window", "actor", 3000, length, "actor"),
                    ("region", "forward", 3000, length, "actor"),
                )
                for number, length in enumerate((4000, 2000))
            ),
        )
        assert [each[:3] for each in path(made)] == [
            ("driver", 0.0, 3.0),
            ("rank 0", 3.0, 7.0),
            ("driver", 7.0, 8.0),
        ]
        assert found(made, "straggler") == [("rank 0", "forward", 2.0, 2.0)]

    def test_the_shares_are_those_of_the_path(self):
        """The driver computes in no role while its ranks work: they are not on the path."""
        made = report(
            driver(), rank(0, ("actor", 500, 6000)), evidence=[stacks("driver", (0, 10_000, "torch.mm", 1.0))]
        )
        assert made.findings[0].text == "the step took 10.0 s: no role 100%"


class TestEarlyEnd:
    @pytest.mark.parametrize("ending", [{"error": True}, {"unfinished": "SIGTERM"}])
    def test_a_rank_that_ended_early_has_no_slack(self, ending):
        """An exception or SIGTERM ended rank 1 after 1 s: how much work it had left is not known."""

        def ended(length, attributes):
            origin = Origin("spans", "spans/rank-1.000001.jsonl", None, 1, None, "h", 101)
            return source(
                origin, ("thread", "window", "actor", 500, length, {"step": 2, "role": "actor", **attributes})
            )

        made = report(driver(("actor", 0, 5000)), rank(0, ("actor", 500, 4500)), ended(1000, ending))
        assert "actor rank 1" not in {process for process, _ in slack(made)}
        made = report(driver(("actor", 0, 5000)), rank(0, ("actor", 500, 4500)), ended(1000, {}))
        assert slack(made)["actor rank 1", "actor"] == 3.5


class TestComputingDriver:
    """What computes does not wait."""

    def test_the_path_stays_in_a_driver_that_computes_all_the_time(self):
        made = report(
            driver(),
            rank(0, ("actor", 500, 5000)),
            rank(1, ("actor", 500, 3000)),
            evidence=[stacks("driver", (0, 10_000, "torch.mm", 1.0))],
        )
        assert path(made) == [("driver", 0.0, 10.0, "work", None)]
        assert topics(made) == []

    @pytest.mark.parametrize("role", [None, "actor"])
    def test_a_driver_that_computes_first_and_then_waits(self, role):
        """It waits from 4.0 to 9.5 s. Without 5 s of rank 0, rank 1 would be the last one at 6.5 s."""
        made = report(
            spans("driver", ("window", role or "step", 0, 10_000, role)),
            rank(0, ("actor", 500, 9000)),
            rank(1, ("actor", 500, 6000)),
            evidence=[stacks("driver", (0, 4000, "torch.mm", 1.0), (4000, 5500, "ray.get", 0.0))],
        )
        assert found(made, "straggler") == [("actor rank 0", "update", 3.0, 3.0)]

    def test_its_ranks_bound_what_less_computing_saves(self):
        """The driver prepares data until 8 s while its ranks work until 6 s: without these 7.5 s it would wait for
        them, so that 2 s are saved.
        """
        made = report(
            spans("driver", ("window", "step", 0, 10_000, None), ("region", "load_batch", 500, 7500, None)),
            rank(0, ("actor", 500, 5500)),
            evidence=[stacks("driver", (0, 10_000, "tokenizer.encode", 1.0))],
        )
        assert found(made, "data") == [("driver", "load_batch", 7.5, 2.0)]
        assert slack(made)["actor rank 0", "actor"] == 2.0

    def test_a_driver_that_computes_with_the_first_results_of_an_engine(self):
        """It waits until 6 s, and checks samples until 9 s; the engine generates until 8 s."""
        made = report(
            driver(("rollout", 0, 9000)),
            engine(0, (0, 8000, 64)),
            manifests=engines("rollout"),
            evidence=[stacks("driver", (0, 6000, "ray.get", 0.0), (6000, 4000, "verify", 1.0))],
        )
        assert path(made) == [
            ("rollout/0 worker 0", 0.0, 6.0, "engine", "rollout"),
            ("driver", 6.0, 9.0, "work", "rollout"),
            ("driver", 9.0, 10.0, "work", None),
        ]
        assert topics(made) == []


class TestOneStepAhead:
    """The ranks train on the samples of the step before, while the engine generates the next ones."""

    def test_the_driver_waits_for_the_training(self):
        """The engine has finished at 6.0 s and rank 0 at 7.5 s: then the rollout is not on the path."""
        made = report(
            driver(("rollout", 0, 6000), end=8000),
            engine(0, (0, 3000, 64), (3000, 3000, 1)),
            rank(0, ("actor", 500, 7000)),
            rank(1, ("actor", 500, 3000)),
            manifests=engines("rollout"),
        )
        assert [each[:3] for each in path(made)] == [
            ("driver", 0.0, 0.5),
            ("actor rank 0", 0.5, 7.5),
            ("driver", 7.5, 8.0),
        ]
        # the rollout ends at 6.0 s
        assert found(made, "straggler") == [("actor rank 0", "update", 4.0, 1.5)]

    def test_the_driver_waits_for_the_rollout(self):
        """The ranks have finished before. Whether and when the driver needs their work is not known: they have no slack."""
        made = report(
            driver(("rollout", 0, 6000), end=8000),
            engine(0, (0, 6000, 64)),
            rank(0, ("actor", 500, 4000)),
            rank(1, ("actor", 500, 3000)),
            manifests=engines("rollout"),
        )
        assert [each[:4] for each in path(made)] == [
            ("rollout/0 worker 0", 0.0, 6.0, "engine"),
            ("driver", 6.0, 8.0, "work"),
        ]
        assert topics(made) == []
        assert not any(role == "actor" for _, role in slack(made))


class TestSeveralEngines:
    """Engines of one role generate side by side."""

    @staticmethod
    def _report(role, *batches, evidence=()):
        return report(
            spans("driver", ("window", role or "step", 0, 10_000, role)),
            *(engine(number, *of) for number, of in enumerate(batches)),
            manifests=[
                manifest(
                    engines=[
                        engine_entry(replica=number, start_unix_ns=T0, end_unix_ns=T0 + 9900 * MS)
                        for number in range(len(batches))
                    ]
                )
            ],
            evidence=evidence,
        )

    @pytest.mark.parametrize("role", [None, "rollout", "train"])
    def test_the_path_has_the_last_engine_alone(self, role):
        """One engine ends at 8 s and the other one at 9 s, whichever role the driver has."""
        made = self._report(role, [(0, 8000, 64)], [(0, 9000, 64)])
        assert [each[:3] for each in path(made)] == [
            ("rollout/1 worker 0", 0.0, 9.0),
            (path(made)[1][0], 9.0, 10.0),
        ]

    @pytest.mark.parametrize("role", [None, "rollout", "train"])
    def test_first_results_are_of_an_engine_that_had_begun(self, role):
        """The driver computes from 3 to 9 s. Engine 1 generates within this time: the driver waited for engine 0."""
        made = self._report(
            role,
            [(0, 9900, 64)],
            [(5000, 3000, 64)],
            evidence=[
                stacks(
                    "driver",
                    (0, 3000, "ray.get", 0.0),
                    (3000, 6000, "verify", 1.0),
                    (9000, 1000, "ray.get", 0.0),
                )
            ],
        )
        assert [each[1:4] for each in path(made)][:3] == [
            (0.0, 3.0, "engine"),
            (3.0, 9.0, "work"),
            (9.0, 9.9, "engine"),
        ]
        assert {each[0] for each in path(made) if each[3] == "engine"} == {"rollout/0 worker 0"}

    @pytest.mark.parametrize("role", [None, "rollout"])
    def test_a_driver_that_waits_while_no_engine_generates(self, role):
        """It computes twice; between these times it waits for something else."""
        made = self._report(
            role,
            [(0, 2000, 64), (2000, 5000, 0), (7000, 2000, 64)],
            evidence=[
                stacks(
                    "driver",
                    (0, 2000, "ray.get", 0.0),
                    (2000, 2000, "verify", 1.0),
                    (4000, 1000, "tool.wait", 0.0),
                    (5000, 2000, "verify", 1.0),
                    (7000, 3000, "ray.get", 0.0),
                )
            ],
        )
        assert [each[1:3] for each in path(made) if each[3] == "engine"] == [(0.0, 2.0), (7.0, 9.0)]

    def test_an_engine_of_another_role_may_need_what_the_first_ones_generate(self):
        """The reward models work on samples of the rollout, which ends at 3 s; they end at 3.8 and 3.9 s."""
        roles = ("rollout", "reward", "reward")
        made = report(
            driver(end=4000),
            engine(0, (0, 3000, 64)),
            engine(0, (500, 3300, 64), role="reward"),
            engine(1, (500, 3400, 64), role="reward"),
            manifests=engines(*roles),
        )
        assert [each[:3] for each in path(made)] == [
            ("rollout/0 worker 0", 0.0, 3.0),
            ("reward/1 worker 0", 3.0, 3.9),
            ("driver", 3.9, 4.0),
        ]


class TestEnginesOfSeveralRoles:
    @pytest.mark.parametrize("start", [0, 1500])
    def test_a_window_is_about_the_engines_of_its_role(self, start):
        """The reference model works during the rollout, and its engine has finished before."""
        made = report(
            spans("driver", ("window", "rollout", 0, 4000, "rollout")),
            engine(0, (0, 2000, 64), (2000, 2000, 1)),
            engine(0, (start, 2400, 64), role="ref"),
            manifests=engines("rollout", "ref"),
        )
        assert found(made, "tail") == [("rollout/0 worker 0", None, 2.0, 2.0)]

    def test_one_that_finishes_later_in_the_window_is_awaited_too(self):
        """The rollout has generated at 3 s, and the reward model is done at 3.9 s."""
        made = report(
            spans("driver", ("window", "rollout", 0, 4000, "rollout")),
            engine(0, (0, 3000, 64)),
            engine(0, (500, 3400, 64), role="reward"),
            manifests=engines("rollout", "reward"),
        )
        assert path(made) == [
            ("rollout/0 worker 0", 0.0, 3.0, "engine", "rollout"),
            ("reward/0 worker 0", 3.0, 3.9, "engine", "reward"),
            ("rollout driver", 3.9, 4.0, "work", "rollout"),
        ]
        assert topics(made) == []

    def test_one_that_goes_on_is_not_awaited_there(self):
        """The reward model works until 7 s, in the next window of the driver."""
        made = report(
            spans(
                "driver",
                ("window", "rollout", 0, 6000, "rollout"),
                ("window", "reward", 6000, 1000, "reward"),
            ),
            engine(0, (0, 6000, 64)),
            engine(0, (1000, 6000, 8), role="reward"),
            manifests=engines("rollout", "reward"),
        )
        assert [each[:3] for each in path(made)] == [
            ("rollout/0 worker 0", 0.0, 6.0),
            ("reward/0 worker 0", 6.0, 7.0),
        ]

    def test_a_step_window_waits_for_engines(self):
        """The driver has no role."""
        made = report(
            driver(end=5000),
            engine(0, (0, 2000, 64), (2000, 2000, 1)),
            manifests=engines("rollout"),
        )
        assert found(made, "tail") == [("rollout/0 worker 0", None, 2.0, 2.0)]
        assert path(made)[0] == ("rollout/0 worker 0", 0.0, 4.0, "engine", "rollout")


class TestRecording:
    def test_a_driver_does_not_poll_while_the_profiler_of_a_rank_stops(self):
        """The profiler holds rank 0 up for 0.5 s before its window and 1 s after it: the driver waits for that, and for
        nothing of the job.
        """
        made = report(
            spans("driver", ("window", "actor", 0, 5000, "actor")),
            spans(0, ("window", "actor", 500, 3500, "actor")),
            manifests=[manifest(window(0, start=500, end=4000, start_seconds=0.5, stall_seconds=1.0))],
        )
        assert [each[:4] for each in path(made)] == [
            ("actor rank 0", 0.0, 0.5, "recording"),
            ("actor rank 0", 0.5, 4.0, "work"),
            ("actor rank 0", 4.0, 5.0, "recording"),
        ]
        assert "poll" not in topics(made)

    def test_a_profiler_that_stops_after_a_call_gives_no_slack(self):
        """The driver calls two ranks twice. The profiler holds both up for 50 ms after the first call: if rank 1 worked there for longer
        than rank 0 does, the driver would make its second call later.
        """
        roles = [("ref", 0, 2000, 1000), ("actor", 2500, 4000, 3000)]
        manifests = [
            manifest(
                *(
                    window(rank, role, start=start, end=start + length[rank], stall_seconds=0.05)
                    for rank in range(2)
                    for role, start, *length in roles
                )
            )
        ]
        ranks = [
            rank(number, *((role, start, length[number]) for role, start, *length in roles))
            for number in range(2)
        ]
        made = report(driver(("ref", 0, 2100), ("actor", 2400, 4200), end=6600), *ranks, manifests=manifests)
        assert slack(made)["rank 1", "ref"] == 1.0
        assert slack(made)["rank 1", "actor"] == 1.0
        assert slack(made)["rank 0", "ref"] == slack(made)["rank 0", "actor"] == 0.0
