"""The parts into which bars and strips divide the step."""

from __future__ import annotations

from stepprof.analysis.report.division import parts_of
from stepprof.analysis.report.schema import Island, PathSegment, Report, TimeOf

WHOLE = TimeOf(None, None, 10.0, 1.0, [])
LOAD, TRAIN, INNER, SHORT = (
    TimeOf(None, name, seconds, seconds / 10, [])
    for name, seconds in (("load", 3.0), ("train", 6.0), ("forward", 2.0), ("log", 0.05))
)
REGIONS = [TRAIN, LOAD, INNER, SHORT]


def segment(start: float, seconds: float, region: str | None, role: str | None = None) -> PathSegment:
    return PathSegment("rank 0", start, seconds, "work", role, region)


PATH = [
    segment(0, 3, "load"),
    segment(3, 6, "train/forward"),
    segment(9, 0.05, "log"),
    segment(9.05, 0.95, None),
]


def report(roles: list[TimeOf], **more: object) -> Report:
    return Report("r", 1, 0, 10.0, "", None, roles=roles, **{"regions": REGIONS, "path": PATH, **more})


def test_roles_divide_the_step() -> None:
    """Roles divide the step. The window without a role, the whole step, is not one of the parts."""
    roles = [TimeOf(role, None, 5.0, 0.5, []) for role in ("rollout", "actor")]
    assert parts_of(report([WHOLE, *roles], path=[])) == roles
    assert parts_of(report([WHOLE, roles[0]], path=[])) == roles[:1]
    little = [segment(0, 8.1, None, "actor"), segment(8.1, 1.9, "train")]
    assert parts_of(report([WHOLE, roles[0]], path=little)) == roles[:1]


def test_regions_divide_the_time_in_no_role() -> None:
    """If a fifth of the step or more is in no role, its outermost regions are listed after the roles."""
    rollout = TimeOf("rollout", None, 1.0, 0.1, [])
    inside = TimeOf("rollout", "load", 1.0, 0.1, [])
    path = [*PATH[:3], segment(9.05, 0.95, "load", "rollout")]
    assert parts_of(report([WHOLE, rollout], regions=[*REGIONS, inside], path=path)) == [rollout, LOAD, TRAIN]


def test_regions_take_their_place() -> None:
    """Without roles, the outermost regions divide the step, in the order in which they begin."""
    assert parts_of(report([WHOLE])) == [LOAD, TRAIN]


def test_a_role_that_covers_the_whole_step_does_not_divide_it() -> None:
    actor = TimeOf("actor", None, 9.8, 0.98, [])
    inside = [TimeOf("actor", "load", 3.0, 0.3, [])]
    path = [segment(0, 3, "load/read", "actor")]
    assert parts_of(report([actor], regions=inside, path=path)) == inside
    assert parts_of(report([actor], regions=[], path=[])) == [actor]


def test_without_roles_and_regions_the_step_is_one_part() -> None:
    """Without roles and regions, or on clocks that were never compared, the step is one part."""
    assert parts_of(report([WHOLE], regions=[], path=[])) == [WHOLE]
    assert parts_of(report([WHOLE], islands=[Island(["a"], 0, 1.0), Island(["b"], 0, 1.0)])) == [WHOLE]
    assert parts_of(report([], regions=[], path=[])) == []
