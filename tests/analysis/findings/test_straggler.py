"""What the report advises about the work of one rank. Times are in milliseconds."""

from __future__ import annotations

import pytest
from digested import manifest, source, spans, trace, window
from spanning import write_steps

from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.findings.straggler import BALANCE, EVERY, LOOK, OWN, TELL
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Origin


def straggler(*sources, **more):
    made = combine([digest(each) for each in sources], step=2, run_id="r", **more)
    return next(each for each in made.findings if each.topic == "straggler" and each.start is not None)


def rank(number, *regions, role="actor"):
    """Return the spans of a rank: its regions (name, start, length), and `meet` until 100 ms."""
    end = max((start + length for _, start, length in regions), default=0)
    own = [("region", name, start, length, role) for name, start, length in regions]
    return spans(
        number,
        ("window", role or "step", 0, 100, role),
        *own,
        ("region", "meet", end, 100 - end, role),
    )


class TestMissingSpans:
    """The spans of rank 1 are missing; its trace shows that it was in the window."""

    def made(self, *regions):
        traced = [
            trace(
                number,
                ("thread", "cpu_op", "aten::mm", 0, 100),
                ("thread", "user_annotation", "gloo:all_reduce", 80, 19),
                *(each for each in regions if number),
                world=2,
            )
            for number in range(2)
        ]
        windows = [manifest(*(window(number, "actor", end=100) for number in range(2)))]
        return combine(
            [digest(each) for each in (rank(0, ("forward", 0, 60)), *traced)],
            step=2,
            run_id="r",
            manifests=windows,
        )

    def test_nothing_shows_what_the_rank_did(self):
        """It may have been in `forward` as long: nothing is said about a rank that did not."""
        assert [each for each in self.made().findings if "no other rank" in each.text] == []
        assert [
            each.topic
            for each in self.made().findings
            if each.start is not None and each.topic == "straggler"
        ] == []

    def test_regions_in_its_trace_show_it(self):
        """Its trace has another region: it was not in `forward`."""
        made = self.made(("thread", "user_annotation", "load", 0, 70))
        assert [each.text for each in made.findings if "no other rank" in each.text] != []


class TestWorkOfOneRank:
    @pytest.mark.parametrize("role", [None, "actor"])
    @pytest.mark.parametrize("ranks", [2, 3])
    def test_a_region_that_no_other_rank_has(self, role, ranks):
        """The others do not do this work, so that their machines show nothing about it."""
        found = straggler(
            rank(0, ("write_samples", 0, 60), role=role), *(rank(at, role=role) for at in range(1, ranks))
        )
        assert found.text.endswith(", and no other rank did")
        assert found.advice == f"only this rank does it: {OWN}"

    def test_a_region_that_no_other_rank_and_few_other_steps_have(self, tmp_path):
        """Rank 0 writes a log in every fifth step. Of a log that only this step has, the sentence says how many lack it."""
        for every, phrase in ((5, "every 5th step has"), (99, "8 of the 8 steps around it do not have")):
            steps = {
                at: [
                    ("window", "actor", 0, 40 if (at - 10) % every else 100, "actor"),
                    *([] if (at - 10) % every else [("region", "log", 0, 60, "actor")]),
                ]
                for at in range(1, 21)
            }
            write_steps(tmp_path / str(every), steps)
            found = straggler(
                rank(0, ("log", 0, 60)), rank(1), neighbours=Neighbours([tmp_path / str(every)], 10)
            )
            assert (
                found.text
                == f"actor rank 0 spent 60 ms in `log` (in role actor), which {phrase}, and no other rank did"
            )

    def test_a_region_in_which_the_others_only_meet(self):
        """Rank 0 works for 60 ms before an all-reduce, in which rank 1 waits. The others' own time there does not show
        whether they do the same work, so neither a machine nor the work of one rank is named.
        """
        regions = [("window", "actor", 0, 100, "actor"), ("region", "save", 0, 100, "actor")]
        found = straggler(
            *(spans(number, *regions) for number in range(2)),
            *(
                trace(
                    number,
                    ("thread", "user_annotation", "gloo:all_reduce", start, 100 - start),
                    world=2,
                )
                for number, start in enumerate((60, 0))
            ),
            manifests=[manifest(window(0), window(1))],
        )
        assert found.advice == LOOK

    def test_time_in_no_region(self):
        """Rank 0 spends 60 ms in its window alone, the others 1 ms: no region shows what it does there."""
        found = straggler(
            spans(0, ("window", "actor", 0, 100, "actor"), ("region", "meet", 60, 40, "actor")),
            *(
                spans(at, ("window", "actor", 0, 100, "actor"), ("region", "meet", 1, 99, "actor"))
                for at in (1, 2)
            ),
        )
        assert found.text.endswith("in the window of actor")
        assert found.advice == LOOK


class TestOtherSteps:
    """What the steps around show about a rank that is late."""

    def late(self, run, names=lambda at: "prepare"):
        """Return the finding about rank 1, which is 50 ms late in a role within a region in each step.

        Args:
            run: a folder.
            names: returns the name of the region in a step.
        """
        made = []
        for number, length in enumerate((40, 90)):
            steps = {
                at: [
                    ("window", "step", 0, 100, None),
                    ("region", names(at), 0, length, None),
                    ("window", "rollout", 0, length, "rollout"),
                ]
                for at in range(1, 6)
            }
            write_steps(run, steps, number)
            made.append(spans(number, *steps[3], ("region", "meet", length, 100 - length, None)))
        return straggler(*made, neighbours=Neighbours([run], 3))

    def test_a_rank_that_is_late_at_a_period(self, tmp_path):
        """Rank 1 is late in every 7th step: a slow machine is none of its causes."""
        made = []
        for number in range(2):
            steps = {
                at: [
                    ("window", "step", 0, 100, None),
                    ("region", "load", 0, 90 if number and at % 7 == 0 else 10, None),
                ]
                for at in range(1, 30)
            }
            write_steps(tmp_path, steps, number)
            length = steps[14][1][3]
            made.append(spans(number, *steps[14], ("region", "meet", length, 100 - length, None)))
        found = straggler(*made, neighbours=Neighbours([tmp_path], 14))
        assert (found.process, found.region) == ("rank 1", "load")
        assert "also in every 7th step" in found.why
        assert found.advice == EVERY

    def test_a_region_around_the_window_of_a_role(self, tmp_path):
        """The time is of the role, and in a region that has none: it is the same in the steps around."""
        found = self.late(tmp_path)
        assert (found.role, found.region) == ("rollout", "prepare")
        assert "also in each of 4 steps around it" in found.why

    def test_names_that_count(self, tmp_path):
        """No other step has the region of this name, so these do not show that the rank was late in this step alone."""
        assert "in this step alone" not in self.late(tmp_path, "prepare_{}".format).why


def with_attributes(number, role, *slices):
    """Return the spans of a rank: slices (kind, name, start, length, attributes)."""
    rows = [("thread", *each[:4], {"step": 2, "role": role, **each[4]}) for each in slices]
    return source(
        Origin("spans", f"spans/rank-{number}.000001.jsonl", None, number, None, "h", 100 + number), *rows
    )


def findings(*sources, **more):
    made = combine([digest(each) for each in sources], step=2, run_id="r", **more)
    return [each for each in made.findings if each.topic in ("straggler", "half_batch")]


class TestProcessesThatEndedEarly:
    """They are no measure for the others."""

    @pytest.mark.parametrize("ending", [{"unfinished": "SIGTERM"}, {"error": True}])
    @pytest.mark.parametrize("calls", [1, 4])
    def test_an_exception_or_a_signal(self, ending, calls):
        """Rank 1 ended after 20 of 100 ms, in its first call: the other ranks have no more to do than planned."""

        def rank(number, end):
            updates = [
                ("region", "update", at, min(80 / calls, end - at), {"tokens": 10} | (ending if number else {}))
                for at in range(0, 80, 80 // calls) if at < end
            ]  # fmt: skip
            return with_attributes(
                number, "actor", ("window", "actor", 0, end, ending if number == 1 else {}), *updates
            )

        assert findings(rank(0, 100), rank(1, 20)) == []
        assert findings(rank(0, 100), rank(1, 20), rank(2, 100)) == []

    def test_a_region_that_raised(self):
        """The exception was caught within the window."""

        def rank(number, length, more):
            return with_attributes(
                number, "actor", ("window", "actor", 0, 100, {}), ("region", "update", 0, length, more)
            )

        assert findings(rank(0, 80, {}), rank(1, 20, {"error": True})) == []
        assert len(findings(rank(0, 80, {}), rank(1, 20, {}))) == 1


class TestAmounts:
    """An amount counts only if each call states it."""

    def test_batches_without_samples(self):
        """Two of four batches do not state their samples: how full they were is not known."""
        amounts = [{"batch_size": 8, "samples": 8}, {"batch_size": 8}] * 2
        calls = [("region", "forward", 25 * at, 25, each) for at, each in enumerate(amounts)]
        assert findings(with_attributes(0, "actor", ("window", "actor", 0, 100, {}), *calls)) == []
        half = [("region", "forward", 25 * at, 25, {"batch_size": 8, "samples": 4}) for at in range(4)]
        (found,) = findings(with_attributes(0, "actor", ("window", "actor", 0, 100, {}), *half))
        assert (found.topic, round(found.seconds, 3)) == ("half_batch", 0.05)

    @pytest.mark.parametrize(
        ("tokens", "calls", "reason"),
        [
            (112, 4, None),
            (150, 4, "it had 600 tokens"),
            (100, 4, None),
            (100, 5, None),
            (100, 7, "it made 7 calls"),
        ],
    )
    def test_more_that_does_not_explain_the_time(self, tokens, calls, reason):
        """Rank 0 takes 80 ms and rank 1 40 ms: 12 % more tokens or a call more is not the reason."""

        def rank(number, length, calls, tokens):
            regions = [
                ("region", "forward", length / calls * at, length / calls, {"tokens": tokens * 4 / calls})
                for at in range(calls)
            ]
            return with_attributes(number, "actor", ("window", "actor", 0, 100, {}), *regions)

        (found,) = findings(rank(0, 80, calls, tokens), rank(1, 40, 4, 100))
        assert found.why.startswith(reason or "80 ms against 40 ms")
        assert (found.advice == BALANCE) == (reason is not None)

    @pytest.mark.parametrize(
        ("calls", "seconds"),
        [
            ([(80, 8), (10, 4), (10, 4)], []),
            ([(10, 8), (10, 4), (80, 1)], [0.075]),
            ([(40, 8), (20, 4), (10, 2), (10, 2), (10, 2), (10, 2)], []),
        ],
        ids=["the short ones", "the long one", "as long as their samples take"],
    )
    def test_empty_places_of_some_calls(self, calls, seconds):
        """Calls have room for 8 samples. Those that are not full count by their own time, unless it follows the samples."""
        at, regions = 0, []
        for length, samples in calls:
            regions.append(("region", "forward", at, length, {"batch_size": 8, "samples": samples}))
            at += length
        made = findings(with_attributes(0, "actor", ("window", "actor", 0, 100, {}), *regions))
        assert [round(each.seconds, 3) for each in made] == seconds

    def test_amounts_of_some_calls(self):
        """Rank 0 states the tokens of four calls, rank 1 those of two: their sums are no reason."""

        def rank(number, length, stated):
            calls = [
                ("region", "forward", length * at, length, {"tokens": 100} if at < stated else {})
                for at in range(4)
            ]
            return with_attributes(number, "actor", ("window", "actor", 0, 100, {}), *calls)

        (found,) = findings(rank(0, 20, 4), rank(1, 10, 2))
        assert "tokens" not in found.why
        assert found.advice != BALANCE


def synchronised(*ranks, call=500):
    """Return ranks that meet in an all-reduce when the last one has ended its regions (name, milliseconds)."""
    ends = [sum(length for _, length in regions) for regions in ranks]
    end, made = max(ends) + call, []
    for number, regions in enumerate(ranks):
        starts = [sum(length for _, length in regions[:at]) for at in range(len(regions))]
        placed = zip(regions, starts, strict=True)
        made += [
            spans(
                number,
                ("window", "actor", 0, end, "actor"),
                *(("region", name, start, length, "actor") for (name, length), start in placed),
            ),
            trace(
                number,
                ("thread", "cpu_op", "aten::mm", 0, ends[number]),
                (("thread", "gloo"), "user_annotation", "gloo:all_reduce", ends[number], end - ends[number]),
                world=len(ranks),
            ),
        ]
    manifests = [manifest(*(window(number, end=end) for number in range(len(ranks))))]
    return combine([digest(each) for each in made], step=2, run_id="r", manifests=manifests)


def stragglers(made):
    """Return (process, region, seconds, gain) of the ranks that are slow."""
    return [
        (each.process, each.region, round(each.seconds, 3), each.saves and round(each.saves, 3))
        for each in made.findings
        if each.topic == "straggler" and each.start is not None
    ]


def of_regions(rank, *ends):
    """Return the digest of a rank whose regions follow each other: (name, end in ms)."""
    starts = [0, *(end for _, end in ends)]
    regions = [
        ("region", name, start, end - start, "actor")
        for start, (name, end) in zip(starts, ends, strict=False)
    ]
    return digest(spans(rank, ("window", "actor", 0, starts[-1], "actor"), *regions))


class TestGain:
    def test_equal_and_opposite_differences_get_no_advice(self):
        """Rank 0 is slower in `g` by as much as rank 1 is in `f`. A rank that was as fast as the other one in either would
        wait for it.
        """
        made = synchronised([("f", 1000), ("g", 1510)], [("f", 1500), ("g", 1000)])
        assert stragglers(made) == []

    def test_four_ranks_with_opposite_differences(self):
        made = synchronised(*[[("f", 1000), ("g", 1510)]] * 2, *[[("f", 1500), ("g", 1000)]] * 2)
        assert stragglers(made) == []

    @pytest.mark.parametrize(
        ("names", "gain"),
        [(("shard_0", "shard_1"), 2.0), (("shard_0", "shard_1", "shard_2"), 2.0), (("left", "right"), None)],
    )
    def test_names_with_the_number_of_their_rank(self, names, gain):
        """Rank 0 is in its region for 3 s, and each other one for 1 s in a region of its own number: these do the same work."""
        made = synchronised(*([(name, 1000 if rank else 3000)] for rank, name in enumerate(names)))
        (first,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        if gain is None:
            assert first.text.endswith(", and no other rank did")
        else:
            assert (first.process, first.region, first.seconds, first.saves) == (
                "actor rank 0",
                "shard_0",
                gain,
                gain,
            )
            assert first.text.endswith(
                " in regions with other numbers in their names, collectives not counted"
            )

    def test_several_regions_with_numbers(self):
        """Rank 0 has the even shards, rank 1 the odd ones: which of them are the same work is not known."""
        made = synchronised([("shard_4", 2000), ("shard_2", 1000)], [("shard_5", 1000), ("shard_3", 1000)])
        assert stragglers(made) == []

    def test_numbers_of_calls_and_of_ranks(self):
        """Each micro-batch has a region of its number and of that of its rank; rank 2 is slow in the second one."""
        made = synchronised(
            *(
                [(f"micro_{at}_rank{rank:02}", 3000 if (at, rank) == (1, 2) else 1000) for at in range(3)]
                for rank in range(3)
            )
        )
        assert stragglers(made) == [("actor rank 2", "micro_1_rank02", 2.0, 2.0)]

    @pytest.mark.parametrize("loads", [(100, 660), (100, 740), (100, 400, 740)])
    def test_calls_until_a_common_time(self, loads):
        """Ranks collect episodes of 150 ms until 1.5 s. They end up to an episode apart: those that load for less time collect more."""

        def rank(number, load):
            episodes = [*range(load, 1500, 150)]
            regions = [("region", "episode", at, 150, "actor") for at in episodes]
            end = episodes[-1] + 150
            return spans(
                number,
                ("window", "actor", 0, end + 200, "actor"),
                ("region", "load", 0, load, "actor"),
                ("region", "collect", load, end - load, "actor"),
                *regions,
                ("region", "update", end, 200, "actor"),
            )

        made = combine([digest(rank(number, load)) for number, load in enumerate(loads)], step=2, run_id="r")
        assert stragglers(made) == []

    def test_opposite_differences_of_ranks_that_may_have_met(self):
        """Spans alone do not show whether rank 0 works in `g` or waits there for rank 1. If it works, nothing in `f` is worth it."""
        made = [
            spans(
                number,
                ("window", "actor", 0, 2500, "actor"),
                ("region", "f", 0, took, "actor"),
                ("region", "g", took, 2500 - took, "actor"),
            )
            for number, took in enumerate((1000, 1500))
        ]
        found = straggler(*made)
        assert (found.process, found.saves) == ("actor rank 1", None)
        assert found.advice.startswith(TELL)
        assert "whether another rank waited for it is not known" in found.why

    def test_differences_that_even_out_without_a_known_wait(self):
        """Rank 0 is 0.5 s slower in `f`, rank 1 is 0.44 s slower in `g`: of 10 s, a rank that is as fast as the other one in `f`
        would save 0.06 s at most.
        """
        ranks = [
            of_regions(rank, ("f", f), ("g", g), ("rest", 10_000))
            for rank, (f, g) in enumerate(((1500, 6500), (1000, 6440)))
        ]
        made = combine(ranks, step=2, run_id="r")
        assert stragglers(made) == []

    @pytest.mark.parametrize("others", [[], [(1000, 1000)]])
    def test_ranks_that_are_slow_in_turns_and_may_have_met_between(self, others):
        """If the ranks met after the first backward, each delay costs its time. So both are stated, without a gain."""
        ranks = [
            of_regions(
                rank,
                ("forward_1", first),
                ("backward_1", 2000),
                ("forward_2", 2000 + second),
                ("backward_2", 4000),
            )
            for rank, (first, second) in enumerate([(1000, 1500), (1500, 1000), *others])
        ]
        made = combine(ranks, step=2, run_id="r")
        assert stragglers(made) == [
            ("actor rank 1", "forward_1", 0.5, None),
            ("actor rank 0", "forward_2", 0.5, None),
        ]

    def test_opposite_differences_around_a_collective_are_each_worth_it(self):
        """The ranks meet between `f` and `g`."""
        first = synchronised([("f", 1000)], [("f", 1500)])
        assert stragglers(first) == [("actor rank 1", "f", 0.5, 0.5)]

    def test_of_unequal_differences_the_larger_one_is_worth_the_rest(self):
        made = synchronised([("f", 1000), ("g", 1300)], [("f", 1500), ("g", 1000)])
        assert stragglers(made) == [("actor rank 1", "f", 0.5, 0.2)]

    def test_ranks_that_are_equally_slow_are_named_together(self):
        """Ranks 1 and 2 of four take 0.5 s longer: only both of them make the step shorter."""
        made = synchronised([("f", 1000)], [("f", 1500)], [("f", 1499)], [("f", 1000)])
        assert stragglers(made) == [("actor rank 1", "f", 0.5, 0.5)]
        (slow,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert " and actor rank 2 took longer than " in slow.text
        assert slow.also == ["actor rank 2"]
        assert slow.assumption == "the ranks take as long as the median of the others"

    @pytest.mark.parametrize(
        ("slow", "fast", "than"),
        [(2, 1, "actor rank 2"), (3, 2, "2 of the 4 others"), (2, 2, "the median of the others")],
    )
    def test_half_of_the_others_are_as_slow(self, slow, fast, than):
        """The median of the others would be a time between theirs: the slow ranks are measured by the fast ones, and named together."""
        made = synchronised(*[[("f", 1500)]] * slow, *[[("f", 700)]] * fast)
        assert stragglers(made) == [("actor rank 0", "f", 0.8, 0.8)]
        (found,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert f" took longer than {than} in `f`" in found.text
        assert found.text.endswith("together 800 ms on the path")
        assert found.also == [f"actor rank {rank}" for rank in range(1, slow)]
        assert found.assumption == f"the ranks take as long as {than}"

    def test_more_ranks_that_are_equally_slow_where_ranks_leave_together(self):
        """Three of eight leave `sync` with the others. One of them alone has no known gain; the three have one, and each is named."""
        made = combine(
            [
                digest(
                    spans(
                        rank,
                        ("window", "actor", 0, 1600, "actor"),
                        ("region", "f", 0, took := 1500 if rank in (1, 4, 6) else 1000, "actor"),
                        ("region", "sync", took, 1510 - took, "actor"),
                    )
                )
                for rank in range(8)
            ],
            step=2,
            run_id="r",
        )
        (slow,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert (slow.process, slow.also) == ("actor rank 1", ["actor rank 4", "actor rank 6"])
        assert " and 2 other ranks took longer than " in slow.text
        assert slow.saves == pytest.approx(0.5)
