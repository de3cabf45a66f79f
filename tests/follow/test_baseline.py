"""The baseline of the watch: noise causes no alert, each slow step causes one, and an
outlier does not move the baseline.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.config.options.watch import WatchOptions
from stepprof.follow.baseline import Floor, History

MIB = 2**20


def history(**options):
    return History(WatchOptions(**{"skip_first": 0, "min_seconds": 0.001, **options}))


def noise(kind: str, seed: int, count: int) -> list[float]:
    """Return the seconds of usual steps."""
    source = random.Random(seed)
    draw = {
        "uniform": lambda: source.uniform(0.5, 1.5),
        "normal": lambda: max(source.gauss(1, 0.2), 0.01),
        "skewed": lambda: source.lognormvariate(0, 0.2),
        "two kinds": lambda: source.choice((1.0, 1.6)) * source.uniform(0.95, 1.05),
        "constant": lambda: 1.0,
    }[kind]
    return [draw() for _ in range(count)]


class TestHistory:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        kind=st.sampled_from(["uniform", "normal", "skewed", "two kinds", "constant"]),
        seed=st.integers(0, 10**6),
        scale=st.floats(0.001, 1000),
    )
    def test_noise_alone_causes_no_alert(self, kind, seed, scale) -> None:
        """Steps that vary by a half, are skewed, of two kinds, or equal cause no alert
        in a thousand, at any scale.
        """
        watched = history()
        assert [value for value in noise(kind, seed, 1000) if watched.add(value * scale) is not None] == []

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        kind=st.sampled_from(["uniform", "normal", "constant"]),
        seed=st.integers(0, 10**6),
        place=st.integers(30, 900),
    )
    def test_a_slow_step_causes_an_alert(self, kind, seed, place) -> None:
        """A step that is ten times slower than usual causes the only alert, wherever it
        comes after the first 30 steps.
        """
        watched = history()
        values = noise(kind, seed, 1000)
        values[place] = 10.0
        found = [number for number, value in enumerate(values) if watched.add(value) is not None]
        assert found == [place]

    def test_an_alert_states_median_and_deviation(self) -> None:
        """An alert states the median and the deviation of the earlier steps."""
        watched = history(min_steps=4)
        for value in (1.0, 1.1, 0.9, 1.0):
            assert watched.add(value) is None
        unusual = watched.add(5.0)
        assert unusual is not None
        assert (unusual.value, unusual.median, unusual.excess) == (5.0, 1.0, 4.0)
        assert unusual.deviation == pytest.approx(0.05 * 1.4826)

    def test_the_first_steps_leave_no_trace(self) -> None:
        """The first steps, which compile and take a minute, are not in the history."""
        watched = history(skip_first=3, min_steps=3)
        assert [watched.add(value) for value in (60.0, 60.0, 60.0, 1.0, 1.0, 1.0)] == [None] * 6
        assert watched.add(5.0) is not None

    def test_small_delays_cause_no_alert(self) -> None:
        """A step that is ten times slower causes no alert if the difference is below `min_seconds`."""
        watched = history(min_steps=4, min_seconds=0.05)
        assert [watched.add(value) for value in (0.001, 0.001, 0.001, 0.001, 0.01)] == [None] * 5
        assert watched.add(0.06) is not None

    def test_a_new_pace_becomes_usual(self) -> None:
        """If all further steps have a new pace, it causes no alert once most of the history has it."""
        watched = history(window=20, min_steps=5)
        for _ in range(20):
            watched.add(1.0)
        assert watched.add(3.0) is not None
        later = [watched.add(3.0) for _ in range(30)]
        assert later[-15:] == [None] * 15


class TestFloor:
    def test_temporary_memory_causes_no_alert(self) -> None:
        """Only the lowest memory of several steps counts, so temporary peaks cause no alert."""
        floor = Floor(100 * MIB, steps=10, skip_first=0)
        readings = [500 * MIB, 3000 * MIB, 900 * MIB, 5000 * MIB, 501 * MIB] * 40
        assert [floor.add(reading, number) for number, reading in enumerate(readings)] == [None] * 200

    def test_a_leak_causes_one_alert_per_growth(self) -> None:
        """A leak of 10 MiB per step causes one alert for each 100 MiB, with the growth."""
        floor = Floor(100 * MIB, steps=10, skip_first=5)
        reported = [floor.add((500 + 10 * number) * MIB, number) for number in range(100)]
        found = [unusual for unusual in reported if unusual is not None]
        assert len(found) == 8
        assert all(100 * MIB <= unusual.excess <= 110 * MIB for unusual in found)

    def test_few_readings_cause_no_alert(self) -> None:
        """If only a few readings exist for many steps, there is no alert."""
        floor = Floor(MIB, steps=10, skip_first=0)
        assert [floor.add(number * 100 * MIB, 1000 * number) for number in (0, 1)] == [None, None]
        assert floor.add(0, 3000) is None
        assert floor.add(900 * MIB, 4000) is None
