"""Which rank waited for which one inside collectives, for how long and in which phase. Times are in
milliseconds.
"""

from __future__ import annotations

import pytest
from digested import MS, T0, numbered, peer
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.matching import match
from stepprof.analysis.report.waiting import waits_in

ACTOR = ("actor", None)
DEVICE = "ncclDevKernel_Broadcast_RING_LL"


def held(*stretches):
    """Return the times (from, to) at which the profiler delayed a process."""
    return Intervals.union(
        [T0 + start * MS for start, _ in stretches], [T0 + end * MS for _, end in stretches]
    )


def waits(*peers, profiler=None, phases=None, computing=None):
    """Return the waits of the ranks of one job.

    By label, `profiler` has the times at which the profiler delayed the process, and `phases` the
    phase of each call. `computing` has the times of computation.
    """
    labels = [each.label for each in peers]
    of = phases or {}
    return waits_in(
        labels,
        match(peers),
        [of.get(each.label, [ACTOR] * len(each.columns.start)) for each in peers],
        [(profiler or {}).get(label, EMPTY) for label in labels],
        [(computing or {}).get(label, EMPTY) for label in labels],
    )


def in_ms(times):
    """Return milliseconds by label, without zeros."""
    return {label: nanoseconds / MS for label, nanoseconds in times.items() if nanoseconds}


def waited(found, phase=ACTOR):
    return in_ms(found.by_phase[phase].waited)


def when(intervals):
    return [((start - T0) / MS, (end - T0) / MS) for start, end in intervals.pairs()]


class TestSynchronising:
    """In these collectives no rank leaves before the last one has entered, so each rank waits until then."""

    def test_the_last_to_arrive_waits_least(self):
        """b enters the first call last, and c the second."""
        found = waits(
            peer("a", 0, (0, 12), (20, 11), world=3),
            peer("b", 1, (10, 2), (20, 11), world=3),
            peer("c", 2, (5, 7), (30, 1), world=3),
        )
        phase = found.by_phase[ACTOR]
        assert in_ms(phase.waited) == {"a": 20, "b": 10, "c": 5}
        assert in_ms(phase.caused) == {"b": 15, "c": 20}
        assert (phase.straggler, in_ms(phase.for_straggler)) == ("c", {"a": 10, "b": 10})
        assert phase.calls == {"a": 2, "b": 2, "c": 2}
        assert when(found.by_process["a"].when) == [(0, 10), (20, 30)]

    def test_a_call_that_ends_late_has_not_waited_all_that_time(self):
        """The thread of a was not scheduled when the collective had ended. It waited only until b entered."""
        assert waited(waits(peer("a", 0, (0, 30), world=2), peer("b", 1, (10, 2), world=2))) == {"a": 10}

    def test_the_last_to_arrive_may_be_the_last_to_leave(self):
        assert waited(waits(peer("a", 0, (0, 12), world=2), peer("b", 1, (10, 30), world=2))) == {"a": 10}

    def test_time_hidden_by_computation_is_not_a_wait(self):
        """The call ran asynchronously while the process computed. It waited for 3 of the 10 ms."""
        computing = {"a": held((-5, -1), (2, 9), (15, 20))}
        found = waits(peer("a", 0, (0, 12), world=2), peer("b", 1, (10, 2), world=2), computing=computing)
        assert waited(found) == {"a": 3}
        assert in_ms(found.by_phase[ACTOR].caused) == {"b": 3}
        alone = waits(peer("a", 0, (0, 12), world=2), computing=computing)
        assert in_ms(alone.unmatched[ACTOR].spent) == {"a": 5}

    def test_durations_of_kernels_bound_a_wait(self):
        """The kernels end together. A kernel that took only 3 ms longer than the other cannot have
        waited for 8 ms.
        """
        assert waited(waits(peer("a", 0, numbered(0, 5, 1)), peer("b", 1, numbered(8, 2, 1)))) == {"a": 3}
        assert waited(waits(peer("a", 0, numbered(0, 10, 1)), peer("b", 1, numbered(8, 2, 1)))) == {"a": 8}

    def test_on_clocks_that_may_be_wrong_the_durations_bound_a_wait(self):
        """The clocks of two hosts may be wrong by 3 ms each. By the entries the wait is 8 ± 6 ms;
        by the durations it is 9 ms.
        """
        hosts = [
            peer("a", 0, (0, 11), world=2, error=3, host="h"),
            peer("b", 1, (8, 2), world=2, error=3, host="g"),
        ]
        assert waited(waits(*hosts)) == {"a": 9}
        # by the clocks b is the first, within the error; its call is the shortest, so it entered
        # last, at most 6 ms after a
        hosts = [
            peer("a", 0, (0, 11), world=2, error=3, host="h"),
            peer("b", 1, (-1, 2), world=2, error=3, host="g"),
        ]
        found = waits(*hosts)
        assert (waited(found), found.by_phase[ACTOR].straggler) == ({"a": 6}, "b")

    def test_exact_clocks_name_the_last_to_arrive(self):
        """c entered 5 ms after b, by clocks with an error of 0.4 ms. b's call was the shortest only
        because c's thread continued 10 ms late.
        """
        found = waits(
            peer("a", 0, (0, 97), world=3, error=0.2, host="f"),
            peer("b", 1, (90, 7), world=3, error=0.2, host="g"),
            peer("c", 2, (95, 12), world=3, error=0.2, host="h"),
        )
        phase = found.by_phase[ACTOR]
        assert (phase.straggler, in_ms(phase.for_straggler)) == ("c", {"a": 90})
        assert in_ms(phase.waited) == {"a": 90}

    def test_without_clock_comparison_only_durations_count(self):
        found = waits(peer("a", 0, numbered(0, 10, 1)), peer("b", 1, numbered(7000, 2, 1), island="other"))
        assert (waited(found), found.by_phase[ACTOR].straggler) == ({"a": 8}, "b")

    def test_ranks_that_arrive_together_do_not_wait(self):
        found = waits(peer("a", 0, (0, 10), world=2), peer("b", 1, (0, 10), world=2))
        assert (waited(found), found.by_phase[ACTOR].straggler) == ({}, None)

    def test_unmatched_calls_are_not_waits(self):
        found = waits(peer("a", 0, (0, 10), (20, 5), world=3), peer("b", 1, (5, 5), world=3))
        assert found.by_phase == {}
        unmatched = found.unmatched[ACTOR]
        assert (in_ms(unmatched.spent), dict(unmatched.calls)) == ({"a": 15, "b": 5}, {"a": 2, "b": 1})
        assert (unmatched.recorded, unmatched.members) == ({2}, {3})
        assert when(found.by_process["a"].unmatched) == [(0, 10), (20, 25)]

    def test_calls_at_the_same_time_count_once(self):
        """An all-reduce and an all-gather run at the same time. A wait during both counts once."""
        gather = "gloo:all_gather"
        found = waits(
            peer("a", 0, (0, 10), (gather, 1, 9), world=2), peer("b", 1, (8, 2), (gather, 8, 2), world=2)
        )
        phase = found.by_phase[ACTOR]
        assert (in_ms(phase.waited), in_ms(phase.for_straggler)) == ({"a": 8}, {"a": 8})

    @settings(deadline=None)
    @given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=5))
    def test_each_waits_for_the_last_one(self, arrivals):
        """Each of three collectives ends for all ranks 5 ms after the last rank has entered."""
        last = [max(rank[number] for rank in arrivals) for number in range(3)]
        found = waits(
            *(
                peer(
                    f"{rank}",
                    rank,
                    *((100 * number + late, last[number] + 5 - late) for number, late in enumerate(mine)),
                    world=len(arrivals),
                )
                for rank, mine in enumerate(arrivals)
            )
        )
        expected = {
            f"{rank}": sum(each - late for each, late in zip(last, mine, strict=True))
            for rank, mine in enumerate(arrivals)
        }
        assert waited(found) == {label: wait for label, wait in expected.items() if wait}
        assert sum(in_ms(found.by_phase[ACTOR].caused).values()) == sum(expected.values())


class TestRooted:
    """Broadcast, reduce, gather and scatter: a rank leaves when it has sent or received its data,
    possibly before others enter.
    """

    def calls(self, *calls, name="gloo:broadcast", **more):
        return waits(
            *(
                peer(f"{rank}", rank, (name, *call), world=len(calls), **more)
                for rank, call in enumerate(calls)
            )
        )

    def test_a_late_source_is_waited_for(self):
        """Rank 0, the source, enters the broadcast at 200 ms. The others wait for it."""
        found = self.calls((200, 2), (0, 202), (5, 197))
        phase = found.by_phase[ACTOR]
        assert (in_ms(phase.waited), phase.straggler) == ({"1": 200, "2": 195}, "0")

    def test_a_late_receiver_delays_only_the_source(self):
        """The source waits until 280 ms for rank 1. Rank 2 had its data after 1 ms, left, and
        waited for no rank.
        """
        found = self.calls((0, 282), (280, 2), (0, 1))
        phase = found.by_phase[ACTOR]
        assert (in_ms(phase.waited), phase.straggler) == ({"0": 280}, "1")

    def test_a_rank_that_arrives_after_all_left_delays_no_rank(self):
        found = self.calls((0, 1), (0, 1), (50, 1))
        assert (waited(found), found.by_phase[ACTOR].straggler) == ({}, None)

    def test_a_transfer_is_not_a_wait(self):
        """The calls end together, 30 ms after the first began. Most of this time is the transfer,
        since the source sends to one rank after another.
        """
        assert waited(self.calls((0, 30), (1, 29), (2, 28))) == pytest.approx({"0": 2, "1": 1})

    def test_of_two_that_arrived_together_neither_is_named(self):
        """Rank 0 left 2 ms after rank 2 entered. It may have waited for rank 1 instead, whose
        transfer took as long.
        """
        found = self.calls((0, 12), (9, 3), (10, 2), name=DEVICE)
        assert found.by_phase[ACTOR].straggler is None
        assert waited(found)["0"] == 10

    @pytest.mark.parametrize(("name", "straggler"), [("gloo:broadcast", None), (DEVICE, "2")])
    def test_a_thread_may_leave_late(self, name, straggler):
        """Rank 2 entered 20 ms after rank 1, shortly before rank 0 left. On a busy machine, a
        thread may resume that late with the data of rank 1; a kernel does not.
        """
        found = self.calls((0, 222), (200, 1), (220, 2), name=name)
        assert found.by_phase[ACTOR].straggler == straggler
        assert waited(found) == {"0": 220}

    @pytest.mark.parametrize("name", ["gloo:reduce", "gloo:gather", "gloo:scatter"])
    def test_all_kinds_with_a_root(self, name):
        assert waited(self.calls((0, 30), (28, 2), (0, 1), name=name)) == {"0": 28}

    @pytest.mark.parametrize(("late", "straggler"), [(5, None), (12, None), (20, "b")])
    def test_no_rank_is_named_within_the_clock_error(self, late, straggler):
        """The clocks of the two hosts may be wrong by 3 ms each. The wait is the difference of the
        durations.

        The last rank to enter is certain only if the difference exceeds 6 ms twice and a transfer.
        The waiting rank's end may be wrong by 6 ms, and another rank's entry by 6 ms more.
        """
        hosts = [
            peer("a", 0, (DEVICE, 0, late + 1), world=2, error=3, host="h"),
            peer("b", 1, (DEVICE, late, 1), world=2, error=3, host="g"),
        ]
        found = waits(*hosts)
        assert (waited(found), found.by_phase[ACTOR].straggler) == ({"a": late}, straggler)


class TestProfiler:
    """If the profiler delayed one rank longer than the others, that part of the wait is caused by
    the recording.
    """

    def test_a_start_that_took_longer(self):
        """The profiler of b starts for 40 ms and that of a for 10 ms. Of the 40 ms that a waits, b
        itself causes 10 ms.
        """
        found = waits(
            peer("a", 0, (10, 45), world=2),
            peer("b", 1, (50, 5), world=2),
            profiler={"a": held((0, 10)), "b": held((0, 40))},
        )
        assert waited(found) == {"a": 10}
        process = found.by_process["a"]
        assert (process.when.total / MS, process.for_profiler.total / MS) == (10, 30)

    def test_the_whole_wait_may_be_the_profilers(self):
        """Without the profiler, b would have entered first, and b would have waited for a."""
        found = waits(
            peer("a", 0, (10, 35), world=2),
            peer("b", 1, (40, 5), world=2),
            profiler={"a": held((0, 5)), "b": held((0, 40))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total / MS) == ({}, 30)

    def test_a_start_that_took_as_long_on_all_changes_nothing(self):
        found = waits(
            peer("a", 0, (10, 35), world=2),
            peer("b", 1, (40, 5), world=2),
            profiler={"a": held((0, 10)), "b": held((0, 10))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total) == ({"a": 30}, 0)

    def test_a_profiler_delay_is_subtracted_once(self):
        """After the first collective both continue together, so the second delay of b is its own."""
        found = waits(
            peer("a", 0, (10, 35), (100, 20), world=2),
            peer("b", 1, (40, 5), (115, 5), world=2),
            profiler={"b": held((0, 30))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total / MS) == ({"a": 15}, 30)

    def test_a_stop_between_two_calls(self):
        """The profiler of b writes for 20 ms between the collectives."""
        found = waits(
            peer("a", 0, (0, 10), (60, 30), world=2),
            peer("b", 1, (0, 10), (85, 5), world=2),
            profiler={"b": held((50, 70))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total / MS) == ({"a": 5}, 20)

    def test_the_ranks_that_waited_are_late_for_their_next_group(self):
        """The profiler of b delays a by 30 ms in their group, so a is late for c. Both waits are
        due to the profiler.
        """
        found = waits(
            peer("a", 0, numbered(0, 35, 1, (0, 1)), numbered(40, 5, 1, (0, 2))),
            peer("b", 1, numbered(30, 5, 1, (0, 1))),
            peer("c", 2, numbered(10, 35, 1, (0, 2))),
            profiler={"b": held((0, 30))},
        )
        assert waited(found) == {}
        assert {label: found.by_process[label].for_profiler.total / MS for label in "abc"} == {
            "a": 30,
            "b": 0,
            "c": 30,
        }

    def test_a_source_that_was_held_up(self):
        """The profiler delays the source of a broadcast."""
        found = waits(
            peer("a", 0, (DEVICE, 40, 5), world=2),
            peer("b", 1, (DEVICE, 0, 45), world=2),
            profiler={"a": held((0, 30))},
        )
        assert (waited(found), found.by_process["b"].for_profiler.total / MS) == ({"b": 10}, 30)

    def test_a_meeting_in_between_that_could_not_be_matched(self):
        """In the unmatched collective, a may already have waited for b's profiler, so no rank is
        named. The next collective ends this doubt.
        """
        between = numbered(20, 15, 1, (0, 9))  # rank 9 was not recorded
        found = waits(
            peer("a", 0, between, numbered(40, 30, 1, (0, 1)), numbered(80, 20, 2, (0, 1))),
            peer("b", 1, numbered(65, 5, 1, (0, 1)), numbered(95, 5, 2, (0, 1))),
            profiler={"b": held((0, 30))},
        )
        assert waited(found) == {"a": 40}
        assert found.by_process["a"].for_profiler.total == 0
        assert in_ms(found.by_phase[ACTOR].caused) == {"b": 15}

    def test_a_meeting_before_the_profiler_held_anything(self):
        """An unmatched collective before the profiler's delay does not affect later collectives."""
        found = waits(
            peer("a", 0, numbered(0, 5, 1, (0, 9)), numbered(40, 30, 1, (0, 1))),
            peer("b", 1, numbered(65, 5, 1, (0, 1))),
            profiler={"b": held((10, 30))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total / MS) == ({"a": 5}, 20)

    def test_a_clock_that_is_ahead(self):
        """The clock of c is 8 ms ahead, so the first collective seems to end after the next one of
        a and b. The profiler delayed b and c equally.
        """
        found = waits(
            peer("a", 0, numbered(0, 40, 1, (0, 1, 2)), numbered(41, 2, 1, (0, 1)), error=5),
            peer("b", 1, numbered(20, 20, 1, (0, 1, 2)), numbered(41, 2, 1, (0, 1)), error=5),
            peer("c", 2, numbered(43, 5, 1, (0, 1, 2)), error=5, host="other"),
            profiler={"b": held((0, 20)), "c": held((0, 20))},
        )
        assert waited(found) == {"a": 15, "b": 15}
        assert in_ms({label: found.by_process[label].for_profiler.total for label in "abc"}) == {"a": 20}

    def test_a_meeting_that_seems_to_be_over(self):
        """The clock of b may be 5 ms ahead. Then a was still in an unmatched call when the profiler
        delayed b.
        """
        found = waits(
            peer("a", 0, numbered(0, 9, 1, (0, 9)), numbered(40, 30, 1, (0, 1)), error=5),
            peer("b", 1, numbered(65, 5, 1, (0, 1)), host="other"),
            profiler={"b": held((10, 30))},
        )
        assert (waited(found), found.by_process["a"].for_profiler.total) == ({"a": 25}, 0)
        assert in_ms(found.by_phase[ACTOR].caused) == {}


class TestPhases:
    """A wait belongs to the phase of the waiting rank's own call."""

    FORWARD, BACKWARD = ("actor", "forward"), ("actor", "backward")

    def test_each_phase_has_its_own_straggler(self):
        """b is late in the forward pass, and a in the backward pass."""
        phases = {label: [self.FORWARD, self.BACKWARD] for label in ("a", "b")}
        found = waits(
            peer("a", 0, (0, 10), (50, 5), world=2),
            peer("b", 1, (8, 2), (30, 25), world=2),
            phases=phases,
        )
        assert {phase: (each.straggler, in_ms(each.waited)) for phase, each in found.by_phase.items()} == {
            self.FORWARD: ("b", {"a": 8}),
            self.BACKWARD: ("a", {"b": 20}),
        }

    def test_the_straggler_is_the_rank_that_cost_most(self):
        """In one phase, b is 8 ms late first and a is 20 ms late afterwards. a is the straggler,
        because waiting for it took longer.
        """
        found = waits(peer("a", 0, (0, 10), (50, 5), world=2), peer("b", 1, (8, 2), (30, 25), world=2))
        phase = found.by_phase[ACTOR]
        assert (phase.straggler, in_ms(phase.for_straggler)) == ("a", {"b": 20})
        assert in_ms(phase.waited) == {"a": 8, "b": 20}

    def test_ranks_may_be_in_different_phases_of_one_call(self):
        """a waited in its backward pass. The phase of b at that time does not count."""
        found = waits(
            peer("a", 0, (0, 10), world=2),
            peer("b", 1, (8, 2), world=2),
            phases={"a": [self.BACKWARD], "b": [self.FORWARD]},
        )
        assert waited(found, self.BACKWARD) == {"a": 8}
        assert waited(found, self.FORWARD) == {}
        assert found.by_phase[self.BACKWARD].straggler == "b"

    def test_unmatched_time_is_listed_by_phase(self):
        found = waits(peer("a", 0, (0, 10), (20, 5), world=2), phases={"a": [self.FORWARD, self.BACKWARD]})
        assert {phase: in_ms(each.spent) for phase, each in found.unmatched.items()} == {
            self.FORWARD: {"a": 10},
            self.BACKWARD: {"a": 5},
        }


def test_a_call_that_had_not_ended_is_unmatched_time():
    """The call counts as unmatched for as long as it was recorded."""
    found = waits(peer("a", 0, (20, 8, {"finished": False}), world=2), peer("b", 1, (25, 5), world=2))
    assert in_ms(found.unmatched[ACTOR].spent) == {"a": 8, "b": 5}


def test_without_calls_there_are_no_waits():
    found = waits()
    assert (found.by_process, found.by_phase, found.unmatched) == ({}, {}, {})
