"""Sets of intervals and self times, compared with an obvious implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.intervals import EMPTY, Intervals, depths, nesting_order, self_times

pairs = st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 25)), max_size=14)


def made(raw):
    return Intervals.union([start for start, _ in raw], [start + length for start, length in raw])


def points(raw):
    return {at for start, length in raw for at in range(start, start + length)}


def points_of(intervals):
    return {at for start, end in intervals.pairs() for at in range(start, end)}


class TestSets:
    @settings(deadline=None)
    @given(pairs)
    def test_a_union_is_sorted_disjoint_and_covers_its_parts(self, raw):
        union = made(raw)
        assert points_of(union) == points(raw)
        assert union.total == len(points(raw))
        assert all(start < end for start, end in union.pairs())
        assert (union.start[1:] > union.end[:-1]).all()

    @settings(deadline=None)
    @given(pairs, pairs)
    def test_two_sets_are_compared_as_sets_are(self, one, other):
        assert points_of(made(one) & made(other)) == points(one) & points(other)
        assert points_of(made(one) - made(other)) == points(one) - points(other)
        assert points_of(made(one) | made(other)) == points(one) | points(other)

    @settings(deadline=None)
    @given(pairs, st.integers(-30, 70), st.integers(0, 30))
    def test_clipped(self, raw, start, length):
        assert points_of(made(raw).clip(start, start + length)) == points(raw) & set(
            range(start, start + length)
        )

    @settings(deadline=None)
    @given(pairs, st.integers(1, 6))
    def test_a_coarse_set_closes_the_narrowest_gaps_and_returns_their_length(self, raw, most):
        union = made(raw)
        coarse, closed = union.coarse(most)
        assert len(coarse) <= most
        assert points_of(coarse) >= points_of(union)
        gaps = sorted((union.start[1:] - union.end[:-1]).tolist())
        assert closed == sum(gaps[: max(len(union) - most, 0)]) == coarse.total - union.total

    @settings(deadline=None)
    @given(pairs)
    def test_packed_and_back(self, raw):
        assert Intervals.unpack(made(raw).pack()).pairs() == made(raw).pairs()

    def test_nothing(self):
        assert Intervals.one(5, 5) is EMPTY
        assert len(Intervals.union([], [])) == len(EMPTY & EMPTY) == 0


@st.composite
def nested(draw):
    """Draw slices that nest as calls do, on some tracks, in any order. A slice is (track, start,
    duration).
    """
    found = []

    def fill(track, start, end, level):
        at = start
        for _ in range(draw(st.integers(0, 3))):
            begin = draw(st.integers(at, end))
            finish = draw(st.integers(begin, end))
            found.append((track, begin, finish - begin))
            if level and finish > begin:
                fill(track, begin, finish, level - 1)
            at = finish
            if at >= end:
                break

    for track in range(draw(st.integers(1, 3))):
        fill(track, 0, 200, 3)
    return draw(st.permutations(found))


def columns(slices):
    return tuple(np.array([each[at] for each in slices], np.int64) for at in range(3))


def own_slowly(slices):
    """Return for each slice how many points of time it is the innermost one. Of equal slices, the
    one opened last is the innermost.
    """
    owned = [0] * len(slices)
    for track in {track for track, _, _ in slices}:
        mine = [at for at, each in enumerate(slices) if each[0] == track]
        for time in range(201):
            over = [at for at in mine if slices[at][1] <= time < slices[at][1] + slices[at][2]]
            if over:
                owned[min(over, key=lambda at: (slices[at][2], -at))] += 1
    return owned


class TestSelfTimes:
    @settings(deadline=None)
    @given(nested())
    def test_each_moment_belongs_to_the_innermost_slice(self, slices):
        track, start, duration = columns(slices)
        own = self_times(track.astype(np.int32), start, duration)
        # equal slices (same track, start and length) may come in either order, so their times are
        # compared sorted
        slow = own_slowly(slices)
        assert sorted(zip(slices, own.tolist(), strict=True)) == sorted(zip(slices, slow, strict=True))

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 30)), max_size=20))
    def test_slices_that_do_not_nest_keep_between_nothing_and_all(self, slices):
        track, start, duration = columns(slices)
        own = self_times(track.astype(np.int32), start, duration)
        assert ((own >= 0) & (own <= duration)).all()

    def test_a_child_that_outlives_its_parent_is_charged_to_it_while_both_last(self):
        track, start, duration = columns([(0, 0, 10), (0, 6, 10)])
        assert self_times(track.astype(np.int32), start, duration).tolist() == [6, 10]

    def test_times_that_lie_centuries_apart(self):
        """A damaged file may contain such times. They fit no common sort key, so they are sorted by
        the slower way.
        """
        slices = [(5, -(2**62), 10), (7, 2**62, 100), (7, 2**62 + 10, 20), (5, -(2**62) + 2, 3)]
        track, start, duration = columns(slices)
        assert self_times(track.astype(np.int32), start, duration).tolist() == [7, 80, 20, 3]

    @given(nested())
    @settings(max_examples=30, deadline=None)
    def test_depth_is_how_many_are_open(self, slices):
        slices = [each for each in slices if each[2]]
        track, start, duration = columns(slices)
        order = nesting_order(track, start, start + duration)
        track, start, end = track[order], start[order], (start + duration)[order]
        expected = [
            sum(track[other] == track[at] and end[other] > start[at] for other in range(at))
            for at in range(len(order))
        ]
        assert depths(track, start, end).tolist() == expected
