"""Compare the figures of a report with each other: what its title, bars, tables and tree say of one thing must agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from io import StringIO

from rich.console import Console

from stepprof.analysis.findings.ledger import MOST_STRETCHES
from stepprof.analysis.report.division import stated
from stepprof.analysis.report.headlines import MOST_STATED
from stepprof.analysis.report.markdown import render
from stepprof.analysis.report.schema import Part, RegionRow, Report
from stepprof.analysis.report.terminal import print_report
from stepprof.analysis.report.terminal_tables import MOST_CLOCKS
from stepprof.analysis.report.wording import quoted, seconds, share
from stepprof.formatting import printable

__all__ = ["disagreements"]

CLOSE = 2e-9
"""Seconds by which sums of rounded figures may differ, for each figure."""
_TREE = ("step", "role", "region", "regions")


def disagreements(report: Report, *, printed: bool = True) -> list[str]:
    """Return the figures that contradict each other.

    Args:
        report: of a step without coroutines: their totals overlap.
        printed: whether to compare the text of the terminal and of Markdown too.
    """
    return [
        *_parts(report),
        *_title(report),
        *_findings(report),
        *_tree(report),
        *_rows(report),
        *(_texts(report) if printed else ()),
    ]


def _apart(one: float, other: float, figures: int = 1) -> bool:
    return abs(one - other) > CLOSE * (figures + 1)


def _parts(report: Report) -> Iterator[str]:
    """Compare the parts with the path, and with the table of roles and that of regions."""
    spent: dict[int | None, float] = defaultdict(float)
    for segment in report.path:
        spent[segment.part] += segment.seconds
    count = len(report.path)
    several = len(report.islands) > 1
    if report.path and not several:
        if _apart(sum(spent.values()), report.seconds, count):
            yield f"the path has {sum(spent.values())} s, and the step {report.seconds}"
        if _apart(sum(part.seconds or 0.0 for part in report.parts), report.seconds, len(report.parts)):
            yield f"the parts have {[part.seconds for part in report.parts]} s, and the step {report.seconds}"
    roles = {(time.role, time.clock): time for time in report.roles}
    regions = {(time.role, time.region, time.clock): time for time in report.regions}
    for at, part in enumerate(report.parts):
        if several != (part.seconds is None):
            yield f"part {part.name}: {part.seconds} s on {len(report.islands)} clocks"
        if part.seconds is not None and _apart(part.seconds, spent[at], count):
            yield f"part {part.name} has {part.seconds} s, and {spent[at]} on the path"
        if part.wall_seconds is None:
            continue
        if (
            _apart(part.wall_seconds, sum(took for _, took in part.when), len(part.when))
            and len(part.when) < 200
        ):
            yield f"part {part.name} lasts {part.wall_seconds} s, and {part.when}"
        if (part.seconds or 0.0) > part.wall_seconds + CLOSE * (count + 1):
            yield f"part {part.name} has {part.seconds} s on the path, and {part.wall_seconds} in any process"
        if part.region is None:
            row = roles.get((part.role, part.clock))
            if (
                row is None
                or _apart(row.seconds, part.wall_seconds)
                or abs(row.share - (part.wall_share or 0.0)) > 1e-9
            ):
                yield f"part {part.name} lasts {part.wall_seconds} s, {part.wall_share}, and the role {row}"
        else:
            row = regions.get((part.role, part.region, part.clock))
            if row is None or part.wall_seconds > row.seconds + CLOSE * 2 * (len(part.when) + 1):
                yield f"part {part.name} lasts {part.wall_seconds} s, and the region {row}"


def _name(part: Part) -> str:
    return part.name if part.region is None else quoted(part.name)


def _title(report: Report) -> Iterator[str]:
    """Compare the first sentence with the parts."""
    first = report.findings[0] if report.findings else None
    if first is None or first.topic != "step" or len(report.islands) > 1:
        return
    if not report.ended:
        if (
            report.path
            or report.parts
            or report.slack
            or any(each.saves is not None for each in report.findings)
        ):
            yield "a step without a known end has parts, slack or gains"
        return
    text = ", ".join(
        f"{_name(part)} {share(part.share or 0.0)}" for part in stated(report.parts, MOST_STATED)
    )
    expected = f"the step took {seconds(report.seconds)}{f': {text}' if text else ''}"
    if first.text not in (
        expected,
        f"the step took {seconds(report.seconds)}, and no role or region divides it",
    ):
        yield f"the title says {first.text!r}, and the parts {expected!r}"


def _findings(report: Report) -> Iterator[str]:
    """Compare the seconds of each finding with its stretches. No moment belongs to two findings of one clock."""
    taken: list[tuple[float, float, str]] = []
    for finding in report.findings:
        if finding.start is None or finding.seconds is None or finding.end is None:
            continue
        if len(finding.stretches) < MOST_STRETCHES and _apart(
            sum(took for _, took in finding.stretches), finding.seconds, len(finding.stretches)
        ):
            yield f"{finding.text!r} has {finding.seconds} s in {finding.stretches}"
        longest = max((took for _, took in finding.stretches), default=0.0)
        if _apart(longest, finding.end - finding.start):
            yield f"{finding.text!r} is at {finding.start} to {finding.end}, its longest stretch has {longest} s"
        if finding.saves is not None and finding.saves > finding.seconds + CLOSE:
            yield f"{finding.text!r} saves {finding.saves} of {finding.seconds} s"
        taken += [(begin, begin + took, finding.text) for begin, took in finding.stretches]
    if len(report.islands) > 1:
        return
    reach, owner = 0.0, ""
    for begin, end, text in sorted(taken):
        if begin < reach - CLOSE * 2 or end > report.seconds + CLOSE * 2:
            yield f"{text!r} claims {begin} to {end}, which {owner!r} has until {reach}, of {report.seconds} s"
        reach, owner = max((reach, owner), (end, text))


def _tree(report: Report) -> Iterator[str]:
    """Compare each row in each process with its self time and its children. Rows name the median and the extremes of their processes."""
    inside: dict[tuple[int, str], float] = defaultdict(float)
    count: dict[tuple[int, str], int] = defaultdict(int)
    for row in report.tree:
        if row.parent is not None and row.kind in _TREE:
            for each in row.per_process:
                inside[row.parent, each.label] += each.seconds
                count[row.parent, each.label] += 1
    for at, row in enumerate(report.tree):
        if row.kind not in _TREE:
            continue
        for each in row.per_process:
            total = each.self_seconds + inside[at, each.label]
            if _apart(total, each.seconds, count[at, each.label]):
                yield f"{row.kind} {row.name} of {each.label} has {each.seconds} s, and inside {total}"
        if row.processes == len(row.per_process):
            times = sorted(each.seconds for each in row.per_process)
            if (
                _apart(times[0], row.least)
                or _apart(times[-1], row.most)
                or not times[0] <= row.seconds <= times[-1]
            ):
                yield f"{row.kind} {row.name} has {row.seconds}, {row.least} to {row.most}, and {times}"


def _rows(report: Report) -> Iterator[str]:
    """Find regions without a row in the tree, in the processes that are in it.

    A region outside of every known window has none: its process was killed in the window.
    """

    def names(rows: Sequence[RegionRow], kind: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            if row.kind == kind:
                for each in row.per_process:
                    found[each.label].add(row.name)
        return found

    if any(row.kind == "regions" or row.processes > len(row.per_process) > 0 for row in report.tree):
        return
    lost = {row.label for row in report.shortfalls if row.status == "lost"}
    there, in_step = names(report.tree, "region"), names(report.tree, "step")
    for time in report.regions:
        for each in time.per_process:
            if (
                time.region is not None
                and (time.role is not None or not any(row.kind == "role" for row in report.tree))
                and each.label in in_step.keys() - lost
                and each.seconds > 0
                and time.region not in there[each.label]
            ):
                yield f"region {time.region} of {each.label} has no row in the tree"


def _texts(report: Report) -> Iterator[str]:
    """Compare the parts and the findings in the terminal and in Markdown with the report."""
    out = StringIO()
    print_report(report, Console(file=out, width=300, force_terminal=False, markup=False, highlight=False))
    terminal, markdown = out.getvalue(), render(report, top=50)
    parts = [each for each in report.parts if each.wall_seconds is not None or (each.share or 0.0) >= 0.01]
    clocks = list(dict.fromkeys(each.clock for each in parts))
    for part in parts:
        on_path = (seconds(part.seconds), "-" if part.share is None else share(part.share))
        wall = (seconds(part.wall_seconds), "-" if part.wall_share is None else share(part.wall_share))
        cells = rf"{re.escape(printable(part.name))}\s.*\s{re.escape(wall[0])}\s+{re.escape(wall[1])}\s+{re.escape(on_path[0])}\s+{re.escape(on_path[1])}$"
        shown = part.clock in clocks[:MOST_CLOCKS]
        if shown and not re.search(cells, terminal, re.MULTILINE):
            yield f"the terminal does not show part {part.name} with {wall} and {on_path}"
        if f"| {' | '.join((*on_path, *wall))} |" not in markdown:
            yield f"Markdown does not show part {part.name} with {on_path} and {wall}"
    for finding in report.findings:
        if finding.seconds is not None and f"**{seconds(finding.seconds)}** " not in markdown:
            yield f"Markdown does not show {finding.seconds} s of {finding.text!r}"
