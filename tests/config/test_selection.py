"""The selection of steps and ranks: its grammar, its members, and the errors."""

from __future__ import annotations

import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprof.config.selection import Ranks, Steps
from stepprof.errors import ConfigError

numbers = st.integers(0, 60)
ranges = st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))
periods = st.integers(1, 20)
items = st.lists(st.one_of(numbers, ranges, periods.map(lambda period: ("every", period))), max_size=6)


def text_of(parts: list[object]) -> str:
    """Return the items in the grammar."""
    words = []
    for part in parts:
        if isinstance(part, int):
            words.append(str(part))
        else:
            first, last = part
            words.append(f"every {last}" if first == "every" else f"{first} - {last}")
    return " , ".join(words) or "none"


def naive(parts: list[object], step: int) -> bool:
    """Return whether the step is selected, according to the definition."""
    for part in parts:
        if isinstance(part, int):
            if step == part:
                return True
        elif part[0] == "every":
            if step > 0 and step % part[1] == 0:
                return True
        elif step in range(part[0], part[1] + 1):
            return True
    return False


class TestSteps:
    @given(items)
    def test_numbers_and_ranges_select_their_members(self, parts: list[object]) -> None:
        """A step is selected if a number, a range or a period contains it, and otherwise not."""
        steps = Steps.parse(text_of(parts))
        assert [step for step in range(-3, 130) if naive(parts, step)] == [
            step for step in range(-3, 130) if step in steps
        ]

    @given(items)
    def test_canonical_text_reads_back(self, parts: list[object]) -> None:
        """The string of a selection is read as an equal selection with an equal hash."""
        steps = Steps.parse(text_of(parts))
        again = Steps.parse(str(steps))
        assert (again, hash(again), str(again)) == (steps, hash(steps), str(steps))

    @given(items, st.integers(-5, 130))
    def test_next_after_is_the_least_greater_member(self, parts: list[object], step: int) -> None:
        """`next_after` returns the first selected step after the given one."""
        expected = next((later for later in range(step + 1, 400) if naive(parts, later)), None)
        assert expected == Steps.parse(text_of(parts)).next_after(step)

    @given(items)
    def test_a_list_equals_its_text(self, parts: list[object]) -> None:
        """A list of items selects the same steps as the string with commas."""
        text = text_of(parts)
        assert Steps.parse(text) == Steps.parse(text.split(",") if parts else [])

    @given(items, st.sets(numbers))
    def test_without_returns_the_listed_steps_that_never_came(
        self, parts: list[object], seen: set[int]
    ) -> None:
        """`without` returns the listed steps that were not seen. Steps of a period are not included."""
        steps = Steps.parse(text_of(parts))
        listed = [part for part in parts if isinstance(part, int) or part[0] != "every"]
        missing = [step for step in range(70) if naive(listed, step) and step not in seen]
        left = steps.without(seen).intervals
        assert missing == [step for first, last in left for step in range(first, last + 1)]

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (2, "2"),
            ([2, 10], "2,10"),
            ((3, 1, 2), "1-3"),
            (range(4, 7), "4-6"),
            ({5, 4}, "4-5"),
            (["2", "10-12", 13], "2,10-13"),
            ([], "none"),
            (" NONE ", "none"),
            ("All", "all"),
            ("every  100, 2", "2,every 100"),
            ("every 4, every 2", "every 2"),
            ("0", "0"),
        ],
    )
    def test_accepts_every_form(self, value: object, text: str) -> None:
        """Numbers, lists, ranges, sets, and strings in any case and spacing are accepted."""
        assert text == str(Steps.parse(value))

    def test_a_selection_is_returned_as_it_is(self) -> None:
        """Parsing a selection returns the same object."""
        steps = Steps.parse("2")
        assert steps is Steps.parse(steps)

    def test_step_zero_belongs_to_no_period(self) -> None:
        """`every 100` begins at 100, and step 0 has to be listed."""
        assert 0 not in Steps.parse("every 100")
        assert 0 in Steps.parse("0, every 100")

    def test_all_selects_everything_that_is_a_step(self) -> None:
        """`all` selects each step from 0 on, and no negative number or string."""
        steps = Steps.parse("all")
        assert (0 in steps, 10**9 in steps, -1 in steps, "2" in steps) == (True, True, False, False)
        assert (steps.next_after(-5), steps.next_after(7)) == (0, 8)

    def test_none_selects_nothing(self) -> None:
        """`none` selects no step and has no next step."""
        steps = Steps.parse("none")
        assert (steps.is_none, 0 in steps, steps.next_after(0), list(steps.intervals)) == (
            True,
            False,
            None,
            [],
        )

    @pytest.mark.parametrize(
        ("value", "longest"),
        [("none", 0), ("every 5", 1), ("2, 10-12", 3), ("all", math.inf), ("every 1", math.inf)],
    )
    def test_longest_run(self, value: str, longest: float) -> None:
        """`longest_run` returns the length of the longest run of consecutive steps, which may be infinite."""
        assert longest == Steps.parse(value).longest_run()

    def test_a_long_range_costs_nothing(self) -> None:
        """A range of any length is stored as its two ends."""
        steps = Steps.parse("5-999999999999999999")
        assert (10**15 in steps, str(steps.without([6]))) == (True, "5,7-999999999999999999")

    def test_pickles(self) -> None:
        """A selection can be pickled."""
        steps = Steps.parse("2, every 3")
        assert steps == pickle.loads(pickle.dumps(steps))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("5-2", 'steps = "5-2": the range 5-2 is empty; did you mean "2-5"?'),
            ("2, 9 - 7", 'steps = "2, 9 - 7": the range 9 - 7 is empty; did you mean "7-9"?'),
            ("5..7", 'steps = "5..7": cannot read "5..7"; did you mean "5-7"?'),
            ("5:7", 'steps = "5:7": cannot read "5:7"; did you mean "5-7"?'),
            ("evry 100", 'steps = "evry 100": cannot read "evry 100"; did you mean "every 100"?'),
            ("every 0", 'steps = "every 0": "every 0" selects nothing; did you mean "every 1"?'),
            ("-3", 'steps = "-3": cannot read "-3"; numbers start at 0; did you mean "3"?'),
            ("non", 'steps = "non": cannot read "non"; did you mean "none"?'),
            (
                "x",
                'steps = "x": cannot read "x"; expected a number, a range such as "10-12", or one of: none, all, every 100',
            ),
            ("1,,2", 'steps = "1,,2": an empty item; did you mean "1, 2"?'),
            ("", 'steps = "": an empty item; did you mean "none"?'),
            ("none, 3", 'steps = "none, 3": "none" cannot be combined; did you mean "none"?'),
            (["all", 3], 'steps = ["all", 3]: "all" cannot be combined; did you mean "all"?'),
            (True, 'steps = true: expected a string or a list of numbers, such as "2, 10-12, every 100"'),
            (2.5, 'steps = 2.5: expected a string or a list of numbers, such as "2, 10-12, every 100"'),
            (
                [1, 2.5],
                'steps = [1, 2.5]: 2.5 is not a number; expected something like "2, 10-12, every 100"',
            ),
            (b"12", "steps = b'12': expected a string or a list of numbers"),
            ("1" * 19, 'cannot read "1111111111111111111"; a number has at most 18 digits'),
            ("²", 'cannot read "²"'),
        ],
    )
    def test_mistakes_name_key_value_and_suggestion(self, value: object, message: str) -> None:
        """The error names the key, the value and, where possible, a suggestion."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            Steps.parse(value)


class TestRanks:
    @given(st.lists(st.one_of(numbers, ranges), max_size=6))
    def test_numbers_and_ranges_select_their_members(self, parts: list[object]) -> None:
        """A rank is selected if a number or a range contains it, and the string of a
        selection is read as an equal one.
        """
        ranks = Ranks.parse(text_of(parts))
        expected = [rank for rank in range(70) if naive(parts, rank)]
        assert expected == [rank for rank in range(70) if rank in ranks]
        assert ranks == Ranks.parse(str(ranks))
        assert ranks.is_none == (not expected)

    def test_all(self) -> None:
        """`all` selects each rank and each process without a rank."""
        ranks = Ranks.parse("all")
        assert (7 in ranks, "driver" in ranks, ranks.is_none) == (True, True, False)
        assert str(ranks) == "all"
        assert ranks.check(1) is None

    def test_a_process_without_a_rank_counts_as_rank_0(self) -> None:
        """A process with a name instead of a rank is selected with rank 0."""
        assert "driver" in Ranks.parse("0")
        assert "driver" not in Ranks.parse("1-3")
        assert None not in Ranks.parse("0")

    @pytest.mark.parametrize(("text", "absent"), [("8", 8), ("0-3,8", 8), ("0-9", 8), ("99", 99)])
    def test_a_rank_beyond_the_world_is_refused(self, text: str, absent: int) -> None:
        """The error names the key, the rank that does not exist, and the nearest one that does."""
        message = f'roles.actor.ranks = "{text}": there is no rank {absent} in a world of 8; did you mean 7?'
        with pytest.raises(ConfigError, match=re.escape(message)):
            Ranks.parse(text).check(8, "roles.actor.ranks")

    def test_ranks_of_the_world_pass(self) -> None:
        """Ranks that exist in the world are accepted."""
        assert Ranks.parse("0-3,7").check(8) is None

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (
                "every 2",
                'ranks = "every 2": cannot read "every 2"; expected a number, a range such as "10-12"',
            ),
            ("al", 'ranks = "al": cannot read "al"; did you mean "all"?'),
            ("3-0", 'ranks = "3-0": the range 3-0 is empty; did you mean "0-3"?'),
            ([None], "ranks = [None]: None is not a number"),
            ("all,0", 'ranks = "all,0": "all" cannot be combined'),
        ],
    )
    def test_mistakes_name_key_value_and_suggestion(self, value: object, message: str) -> None:
        """The error names the key, the value and, where possible, a suggestion."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            Ranks.parse(value)

    def test_a_selection_is_returned_as_it_is(self) -> None:
        """Parsing a selection returns the same object."""
        ranks = Ranks.parse([0, 8])
        assert ranks is Ranks.parse(ranks)
