"""The parts into which a step is divided: their time on the critical path, and in any process."""

from __future__ import annotations

from collections.abc import Sequence

from stepprof.analysis.report.critical_path import Segment
from stepprof.analysis.report.digest import Window
from stepprof.analysis.report.division import divide, stated
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import Part
from stepprof.analysis.report.timelines import Stretch
from stepprof.analysis.timeline.model import Alignment, Origin

SECOND = 10**9
Piece = tuple[float, float, str | None, tuple[str, ...]]
"""Start, end, role and regions, in seconds."""
PATH: list[Piece] = [
    (0.0, 3.0, None, ("load",)),
    (3.0, 9.0, None, ("train", "forward")),
    (9.0, 9.05, None, ("log",)),
    (9.05, 10.0, None, ()),
]


def segment(piece: Piece, kind: str = "work") -> Segment:
    start, end, role, region = piece
    return Segment("rank 0", round(start * SECOND), round(end * SECOND), role, region, kind)


def process(windows: Sequence[tuple[str | None, float, float]]) -> Process:
    made = Process("rank 0", "rank", Origin("rank", ""), Alignment("reference"), [])
    made.windows = [Window(role, round(start * SECOND), round(end * SECOND)) for role, start, end in windows]
    return made


def divided(
    windows: Sequence[tuple[str | None, float, float]],
    path: Sequence[Piece] = PATH,
    more: Sequence[Piece] = (),
    kinds: Sequence[str] = (),
) -> list[Part]:
    """Return the parts of a step of 10 s. `more`: what other processes did meanwhile. `kinds`: of the segments, instead of work."""
    segments = [segment(piece, kind) for piece, kind in zip(path, kinds or ["work"] * len(path), strict=True)]
    stretches: list[Stretch] = [(each.start, each.end, each.role, each.region) for each in segments]
    others: list[Stretch] = [
        (round(a * SECOND), round(b * SECOND), role, region) for a, b, role, region in more
    ]
    found = divide(segments, [process(windows)], [stretches, others], (0, 10 * SECOND))
    spent = [
        sum(each.end - each.start for each, part in zip(segments, found.of_path, strict=True) if part == at)
        / 1e9
        for at in range(len(found.parts))
    ]
    assert [part.seconds for part in found.parts] == spent
    return found.parts


def shown(parts: Sequence[Part]) -> list[tuple[str, float | None, float | None]]:
    return [(part.name, part.seconds, part.wall_seconds) for part in parts]


def test_roles_divide_the_step() -> None:
    """Roles are the parts, in the order in which they begin. Their times in any process overlap; those on the path add up to the step."""
    path = [(0.0, 4.0, "rollout", ()), (4.0, 9.0, "actor", ("update",)), (9.0, 10.0, None, ())]
    parts = divided([(None, 0, 10), ("actor", 3, 9), ("rollout", 0, 5)], path)
    assert shown(parts) == [("rollout", 4.0, 5.0), ("actor", 5.0, 6.0), ("no role", 1.0, None)]
    assert [part.share for part in parts] == [0.4, 0.5, 0.1]
    assert parts[1].when == [(3.0, 6.0)]


def test_regions_divide_the_time_in_no_role() -> None:
    """If a fifth of the step or more is in no role, its outermost regions are parts behind the roles. A region of a role is none of them."""
    path = [*PATH[:3], (9.05, 9.5, "eval", ("load",)), (9.5, 10.0, None, ())]
    parts = divided([(None, 0, 10), ("eval", 9.05, 9.5)], path)
    assert [(part.name, part.role, part.region) for part in parts] == [
        ("eval", "eval", None),
        ("load", None, "load"),
        ("train", None, "train"),
        ("other regions", None, None),
        ("no role or region", None, None),
    ]
    assert [
        part.name
        for part in divided([("eval", 0, 9)], [(0.0, 9.0, "eval", ()), (9.0, 10.0, None, ("load",))])
    ] == ["eval", "no role"]


def test_regions_take_the_place_of_roles() -> None:
    """Without roles, or with one role for nearly all of the step, outermost regions are the parts."""
    rest = [("other regions", 0.05, None), ("no region", 0.95, None)]
    assert [(name, round(a, 9), b) for name, a, b in shown(divided([(None, 0, 10)]))] == [
        ("load", 3.0, 3.0),
        ("train", 6.0, 6.0),
        *rest,
    ]
    inside = [(start, end, "actor", region) for start, end, _, region in PATH]
    parts = divided([("actor", 0.2, 10)], inside)
    assert [(part.name, part.role) for part in parts[:2]] == [("load", "actor"), ("train", "actor")]
    assert [part.name for part in divided([("actor", 0.2, 10)], [(0.0, 10.0, "actor", ())])] == ["actor"]


def test_a_region_of_several_roles_is_named_with_its_role() -> None:
    """Where regions divide the step, those of one name in two roles are two parts with names of their own."""
    path = [
        (0.0, 4.0, "ref", ("forward",)),
        (4.0, 9.0, "actor", ("forward",)),
        (9.0, 10.0, "actor", ("update",)),
    ]
    parts = divided([(None, 0, 10)], path)
    assert [(part.name, part.seconds) for part in parts] == [
        ("forward (ref)", 4.0),
        ("forward (actor)", 5.0),
        ("update", 1.0),
    ]


def test_a_region_counts_where_it_is_the_outermost_one() -> None:
    """Inside another region, a region of the same name is a part of that one, on the path and in any process. A slash in a name is no border between regions."""
    path = [
        (0.0, 1.0, None, ("loss",)),
        (1.0, 3.0, None, ("loss", "kl")),
        (3.0, 4.0, None, ("loss/kl",)),
        (4.0, 10.0, None, ("update", "loss")),
    ]
    more = [(5.0, 7.0, None, ("loss",)), (7.0, 10.0, None, ("update", "loss"))]
    assert shown(divided([(None, 0, 10)], path, more)) == [
        ("loss", 3.0, 5.0),
        ("loss/kl", 1.0, 1.0),
        ("update", 6.0, 6.0),
    ]


def test_time_without_work() -> None:
    """Time in no window, and in no region when the profiler held the process up, is a part of its own."""
    path = [(0.0, 5.0, "actor", ()), (5.0, 6.0, None, ()), (6.0, 10.0, None, ())]
    kinds = ["work", "recording", "outside"]
    assert shown(divided([("actor", 0, 5)], path, kinds=kinds)) == [
        ("actor", 5.0, 5.0),
        ("held up by the profiler", 1.0, None),
        ("in no window", 4.0, None),
    ]


def test_without_roles_and_regions_the_step_is_one_part() -> None:
    assert shown(divided([(None, 0, 10)], [(0.0, 10.0, None, ())])) == [("step", 10.0, 10.0)]
    assert divide([], [], [], (0, 0)).parts == []


def test_stated() -> None:
    """The parts that are stated are the longest ones on the path, without those below 1 %."""
    path = [(0.0, 0.05, "a", ()), (0.05, 4.0, "b", ()), (4.0, 10.0, "c", ())]
    parts = divided([("a", 0, 0.05), ("b", 0.05, 4), ("c", 4, 10)], path)
    assert [part.name for part in stated(parts, 5)] == ["c", "b"]
    assert [part.name for part in stated(parts, 1)] == ["c"]
