"""Choose what divides the step in bars and strips: its roles, or its outermost regions where no role divides it."""

from __future__ import annotations

from stepprof.analysis.report.schema import Report, TimeOf

__all__ = ["NEARLY_ALL", "WORTH_SAYING", "parts_of"]

NEARLY_ALL = 0.95
"""Share of the step from which on a single role does not divide it."""
WORTH_SAYING = 0.01
"""Share of the step's wall time below which a region is no part of it."""
MOST_PARTS = 8


def parts_of(report: Report) -> list[TimeOf]:
    """Return the roles of a step, or the outermost regions on its critical path, in the order in which they begin."""
    roles = [time for time in report.roles if time.role is not None]
    if len(report.islands) > 1 or len(roles) > 1 or (roles and roles[0].share < NEARLY_ALL):
        return roles or report.roles
    rows = {(time.role, time.region): time for time in report.regions}
    outermost = dict.fromkeys(
        (segment.role, segment.region.partition("/")[0])
        for segment in report.path
        if segment.region is not None
    )
    found = [rows[key] for key in outermost if key in rows and rows[key].share >= WORTH_SAYING]
    shown = sorted(found, key=lambda time: -time.seconds)[:MOST_PARTS]
    return [time for time in found if time in shown] or roles or report.roles
