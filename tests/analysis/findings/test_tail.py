"""The long tail of a rollout, of hand-made steps."""

from __future__ import annotations

from combined import found, report, topics
from digested import MS, T0, engine, engine_entry, manifest, source, spans

from stepprof.analysis.timeline.model import Origin


def entries(*roles):
    """Return a manifest with an engine of each role."""
    return [
        manifest(
            engines=[engine_entry(role=role, start_unix_ns=T0, end_unix_ns=T0 + 9000 * MS) for role in roles]
        )
    ]


class TestLongTail:
    def test_an_engine_of_another_role_is_no_tail_of_the_rollout(self):
        """The engine of a reward model works on three samples after a rollout of 64: neither has a tail."""
        made = report(
            spans(
                "driver",
                ("window", "rollout", 0, 3000, "rollout"),
                ("window", "reward", 3000, 4000, "reward"),
            ),
            engine(0, (0, 3000, 64)),
            engine(0, (3000, 4000, 3), role="reward"),
            manifests=entries("rollout", "reward"),
        )
        assert topics(made) == []

    def test_each_role_has_its_own_tail(self):
        """Both the rollout and the reward model end with one sample of 64."""
        made = report(
            spans(
                "driver",
                ("window", "rollout", 0, 3000, "rollout"),
                ("window", "reward", 3000, 4000, "reward"),
            ),
            engine(0, (0, 2000, 64), (2000, 1000, 1)),
            engine(0, (3000, 2000, 64), (5000, 2000, 1), role="reward"),
            manifests=entries("rollout", "reward"),
        )
        assert [
            (each.text.partition(" took")[0], each.seconds, each.saves) for each in made.findings[1:3]
        ] == [
            ("the reward's tail", 2.0, 2.0),
            ("the rollout's tail", 1.0, 1.0),
        ]

    def test_an_evaluation_has_no_tail(self):
        """It needs all samples: neither its last ones nor a shorter response are advice, and its time is one finding."""
        made = report(
            spans(
                "driver",
                ("window", "step", 0, 5000, None),
                ("window", "validation", 1000, 3000, "validation"),
            ),
            engine(0, (1000, 1000, 64), (2000, 2000, 1), role="validation"),
            manifests=entries("validation"),
        )
        assert found(made, "evaluation") == [("validation/0 worker 0", None, 3.0, 3.0)]
        assert topics(made) == ["evaluation"]

    def test_a_second_rollout_with_few_samples_is_no_tail_of_the_first(self):
        """Between two rollouts of 64 and of 3 samples, the driver trains for 2 s."""
        made = report(
            spans(
                "driver",
                ("window", "step", 0, 7000, None),
                ("window", "rollout", 0, 3000, "rollout"),
                ("window", "rollout", 5000, 2000, "rollout"),
            ),
            engine(0, (0, 3000, 64), (5000, 2000, 3)),
            manifests=entries("rollout"),
        )
        assert topics(made) == []

    def test_workers_of_one_scheduler_count_once(self):
        """Two tensor-parallel workers run the same steps: the engine had 64 sequences, not 128."""
        made = report(
            spans("driver", ("window", "rollout", 0, 4000, "rollout")),
            *(engine(0, (0, 2000, 64), (2000, 2000, 1), rank=rank) for rank in range(2)),
            manifests=entries("rollout"),
        )
        (tail,) = [each for each in made.findings if each.topic == "tail"]
        assert tail.text == "the rollout's tail took 2.0 s: of 64 sequences at most 3 were still generated"

    def test_with_a_capped_engine_the_number_of_sequences_is_not_known(self):
        """The second engine may have generated until the end."""
        (both,) = entries("rollout")
        both["engines"].append(
            engine_entry(1, start_unix_ns=T0, end_unix_ns=T0 + 1000 * MS, capped_by="max_seconds")
        )
        made = report(
            spans("driver", ("window", "rollout", 0, 4000, "rollout")),
            engine(0, (0, 2000, 64), (2000, 2000, 1)),
            engine(1, (0, 1000, 64)),
            manifests=[both],
        )
        assert topics(made) == []

    def test_samples_of_another_role_are_no_tail_of_the_rollout(self):
        """A process that scores four samples after the rollout of 100 binds them too."""

        def bound(rank, role, start, count):
            origin = Origin("spans", f"spans/{rank}.jsonl", None, rank, None, "h", 100 + rank)
            samples = [(("sample", f"{role}{n}"), "region", "work", start, 1000, role) for n in range(count)]
            return source(origin, ("thread", "window", role, start, 1000, role), *samples)

        assert topics(report(bound(0, "rollout", 0, 100), bound(1, "reward", 1000, 4))) == []
