"""Choose what divides the step in bars and strips: its roles, with the outermost regions of the time in no role; or those regions alone where no role divides it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepprof.analysis.report.schema import PathSegment, Report, TimeOf

NEARLY_ALL = 0.95
"""A single role with at least this share of the step does not divide it."""
WORTH_SAYING = 0.01
"""A region with a smaller share of the step's wall time is not shown as a part of the step."""
MOST_PARTS = 8
LEAST_REST = 0.2
"""The time in no role on the critical path is shown and stated if it has at least this share of the step."""
WORKS = ("work", "communication", "waiting", "unmatched", "handover")
"""What processes do on the critical path."""


def in_no_role(report: Report) -> list[PathSegment]:
    """Return the parts of the critical path in which a process works in no role; empty: they are less than a fifth of the step."""
    found = [each for each in report.path if each.role is None and each.kind in WORKS]
    return found if sum(each.seconds for each in found) >= LEAST_REST * report.seconds else []


def parts_of(report: Report) -> list[TimeOf]:
    """Return the roles of a step, or the outermost regions on its critical path, in the order in which they begin. Regions of the time in no role come behind the roles."""
    roles = [time for time in report.roles if time.role is not None]
    if len(report.islands) > 1:
        return roles or report.roles
    if len(roles) > 1 or (roles and roles[0].share < NEARLY_ALL):
        return [*roles, *_outermost(report, in_no_role(report))]
    return _outermost(report, report.path) or roles or report.roles


def outermost_region(path: str, known: Collection[str]) -> str:
    """Return the outermost of the regions in a path. The name of a region may itself have a slash.

    >>> outermost_region("update/forward", ["update", "forward"])
    'update'
    >>> outermost_region("v1/chat/parse", ["v1/chat", "parse"])
    'v1/chat'
    """
    return _regions_of(path, known)[0]


def innermost_region(path: str, known: Collection[str]) -> str:
    """Return the innermost of the regions in a path.

    >>> innermost_region("rollout/v1/chat", ["rollout", "v1/chat"])
    'v1/chat'
    """
    return _regions_of(path, known)[-1]


def _regions_of(path: str, known: Collection[str]) -> list[str]:
    """Split a path into the names of its regions. A name that is not known is assumed to have no slash."""
    parts = path.split("/")
    found: list[str] = []
    while parts:
        count = next(
            (
                count
                for count in range(1, len(parts) + 1)
                if "/".join(parts[:count]) in known and _is_known(parts[count:], known)
            ),
            1,
        )
        found.append("/".join(parts[:count]))
        parts = parts[count:]
    return found


def _is_known(parts: Sequence[str], known: Collection[str]) -> bool:
    """Return whether some parts of a path are regions with known names."""
    ends = {0}
    for end in range(1, len(parts) + 1):
        if any("/".join(parts[begin:end]) in known for begin in ends):
            ends.add(end)
    return len(parts) in ends


def _outermost(report: Report, path: Sequence[PathSegment]) -> list[TimeOf]:
    """Return the longest outermost regions of parts of the critical path."""
    rows = {(time.role, time.region): time for time in report.regions}
    known = {time.region for time in report.regions if time.region is not None}
    outermost = dict.fromkeys(
        (segment.role, outermost_region(segment.region, known))
        for segment in path
        if segment.region is not None
    )
    found = [rows[key] for key in outermost if key in rows and rows[key].share >= WORTH_SAYING]
    shown = sorted(found, key=lambda time: -time.seconds)[:MOST_PARTS]
    return [time for time in found if time in shown]
