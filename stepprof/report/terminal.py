"""The report as text: headlines, the roles on the clock, and the few rows of each figure that a terminal has room for; the page has the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepprof.report.schema import (
    Change,
    Comparison,
    Finding,
    GanttRow,
    Headline,
    Idle,
    Op,
    Report,
    Rollout,
    TimeOf,
)
from stepprof.report.words import causes, seconds, share
from stepprof.tables import number, printable, size

__all__ = ["print_comparison", "print_report"]

_RIBBON = 44
_MOST_PROCESSES = 8
"""More than that: the mean and the extremes instead of a row for each."""
_MOST_FINDINGS = 10
_LEVELS = " ▁▂▃▄▅▆▇█"
_STYLES = ("cyan", "blue", "magenta", "yellow", "red", "green")
_CHANGES = {
    "step": "step",
    "role": "roles",
    "rollout": "rollout",
    "region": "regions",
    "op": "operators, self time per process",
    "kernel": "kernels, self time per process",
}
_TOPICS = {
    "straggler": "red",
    "tail": "yellow",
    "idle": "yellow",
    "overlap": "magenta",
    "overhead": "cyan",
    "memory": "cyan",
    "coverage": "red",
}


def print_report(report: Report, console: Console, *, top: int = 8) -> None:
    """Print a report.

    Args:
        report: what to print.
        console: where; without colour and at its own width where it is no terminal.
        top: rows of the longest tables.
    """
    plain = not console.encoding.lower().startswith("utf")
    version = "" if report.version is None else f"  version {report.version}"
    title = Text(printable(f"run {report.run_id}  step {report.step}{version}"), style="bold")
    title.append(f"  {seconds(report.seconds)}", style="bold cyan")
    console.print(title)
    _print_headlines(console, report.headlines)
    if report.roles:
        _section(console, "where the time went", _roles(report, plain))
    if report.rollout:
        _section(console, "rollout", _rollouts(report.rollout[:_MOST_PROCESSES], plain))
    if report.skew:
        _section(console, "whom the others waited for", _skew(report, top))
    if report.idle:
        _section(console, "work and waiting", _idle(report.idle))
    if report.overlap:
        _section(console, "communication and compute, mean of the processes", _overlap(report))
    if report.regions:
        _section(console, "regions", _regions(report.regions[:top]))
    for name, ops in (("operators", report.ops), ("kernels", report.kernels)):
        if ops:
            _section(console, f"{name} by self time, all processes", _ops(ops[:top]))
    _section(console, "memory and the cost of recording", _cost(report))
    _print_findings(console, report.findings)
    clock = report.clock.rstrip(".")
    if report.clock_error_ns:
        clock += f", right within {seconds(report.clock_error_ns / 1e9)}"
    console.print()
    console.print(Text(printable(f"clock: {clock}"), style="dim"))


def print_comparison(comparison: Comparison, console: Console, *, top: int = 12) -> None:
    """Print what changed from A to B; `top` rows of each kind."""
    console.print(Text(printable(f"A  {comparison.a}"), style="bold"))
    console.print(Text(printable(f"B  {comparison.b}"), style="bold"))
    _print_headlines(console, comparison.headlines)
    there = dict.fromkeys(change.topic for change in comparison.changes)
    for topic in [
        *(known for known in _CHANGES if known in there),
        *(other for other in there if other not in _CHANGES),
    ]:
        changes = [change for change in comparison.changes if change.topic == topic]
        _section(console, _CHANGES.get(topic, topic), _changes(changes[:top]))
    _print_findings(console, comparison.findings)


def _print_headlines(console: Console, headlines: Sequence[Headline]) -> None:
    if not headlines:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for headline in headlines:
        cost = "" if headline.seconds is None else seconds(headline.seconds)
        table.add_row(
            Text(cost, style=f"bold {_TOPICS.get(headline.topic, 'blue')}"), Text(printable(headline.text))
        )
    console.print()
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _section(console: Console, title: str, content: RenderableType | None) -> None:
    if content is None:
        return
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(content, (0, 0, 0, 2), expand=False))


def _table(headers: Sequence[str], rows: Iterable[Sequence[str | Text]], align: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1))
    for header, side in zip(headers, align, strict=True):
        table.add_column(
            header, justify="right" if side == "r" else "left", no_wrap=side == "r", overflow="fold"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return table


def _roles(report: Report, plain: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    for side in ("left", "left", "right", "right"):
        table.add_column(justify=side, no_wrap=True)
    named = [time for time in report.roles if time.role is not None] or report.roles
    for index, time in enumerate(named):
        bar = _ribbon(report.gantt, time.role, report.seconds, plain)
        table.add_row(
            Text(printable(time.role or "step")),
            Text(bar, style=_STYLES[index % len(_STYLES)]),
            Text(seconds(time.seconds), style="bold"),
            Text(share(time.share), style="dim"),
        )
    return table


def _ribbon(rows: Sequence[GanttRow], role: str | None, total: float, plain: bool) -> str:
    """When a role was at work, as characters from the start of the step to its end."""
    cells = [False] * _RIBBON
    for row in rows:
        for bar in row.bars:
            if bar.role == role and total > 0:
                first = int(bar.start / total * _RIBBON)
                last = int((bar.start + bar.seconds) / total * _RIBBON - 1e-9)
                for cell in range(max(0, first), min(_RIBBON - 1, last) + 1):
                    cells[cell] = True
    return "".join(("#" if plain else "█") if cell else ("." if plain else "·") for cell in cells)


def _rollouts(rollouts: Sequence[Rollout], plain: bool) -> Table:
    headers = ["engine", "seconds", "peak", "mean", "below half", "tail", "batch over time"]
    rows: list[list[str | Text]] = [
        [
            rollout.label,
            seconds(rollout.seconds),
            f"{rollout.peak_batch:.0f}",
            f"{rollout.mean_batch:.0f}",
            share(rollout.below_half),
            seconds(rollout.tail),
            Text("" if plain else _sparkline(rollout), style="cyan"),
        ]
        for rollout in rollouts
    ]
    return _table(headers, rows, "lrrrrrl")


def _sparkline(rollout: Rollout, width: int = 28) -> str:
    curve, peak = rollout.curve, rollout.peak_batch
    if not curve or peak <= 0 or rollout.seconds <= 0:
        return ""
    start, point, levels = curve[0][0], 0, []
    for cell in range(width):
        at = start + (cell + 0.5) / width * rollout.seconds
        while point + 1 < len(curve) and curve[point + 1][0] <= at:
            point += 1
        levels.append(_LEVELS[min(8, max(0, round(curve[point][1] / peak * 8)))])
    return "".join(levels)


def _skew(report: Report, top: int) -> Table:
    phases = sorted(
        report.skew,
        key=lambda phase: (not phase.significant, max(phase.began_later or 0.0, 0.0) - phase.behind_median),
    )[:top]
    rows = [
        [
            phase.role or "step",
            phase.region or "-",
            phase.straggler,
            seconds(phase.spread),
            seconds(phase.behind_median),
            seconds(phase.began_later),
            "within the clocks' error"
            if not phase.significant
            else "in collectives"
            if phase.basis == "collectives"
            else "",
        ]
        for phase in phases
    ]
    return _table(
        ["role", "region", "last", "first to last", "behind median", "had begun later", ""], rows, "lllrrrl"
    )


def _idle(idle: Sequence[Idle]) -> RenderableType:
    kinds = causes(each.causes for each in idle)
    headers = ["", "wall", "at work", *kinds.values()]

    def row(label: str, which: Sequence[Idle]) -> list[str]:
        count = len(which)
        return [
            label,
            seconds(sum(each.wall for each in which) / count),
            seconds(sum(each.busy for each in which) / count),
            *(seconds(sum(each.causes.get(kind, 0.0) for each in which) / count) for kind in kinds),
        ]

    if len(idle) <= _MOST_PROCESSES:
        rows = [row(each.label, [each]) for each in idle]
    else:
        least, most = min(idle, key=lambda each: each.busy), max(idle, key=lambda each: each.busy)
        rows = [
            row(f"mean of {len(idle)}", idle),
            row(f"least: {least.label}", [least]),
            row(f"most: {most.label}", [most]),
        ]
    return _table(headers, rows, "l" + "r" * (len(headers) - 1))


def _overlap(report: Report) -> Table:
    count = len(report.overlap)
    total = sum(each.communication for each in report.overlap)
    overlapped = sum(each.overlapped for each in report.overlap)
    busy = [each.busy_share for each in report.overlap if each.busy_share is not None]
    row = [
        seconds(sum(each.compute for each in report.overlap) / count),
        seconds(total / count),
        seconds(sum(each.exposed for each in report.overlap) / count),
        share(overlapped / total) if total else "-",
        share(sum(busy) / len(busy)) if busy else "-",
    ]
    return _table(["compute", "communication", "exposed", "overlapped", "device busy"], [row], "rrrrr")


def _regions(times: Sequence[TimeOf]) -> Table:
    rows = []
    for time in times:
        each = time.per_process
        longest = max(each, key=lambda process: process.seconds, default=None)
        rows.append(
            [
                time.role or "step",
                time.region or "-",
                seconds(time.seconds),
                share(time.share),
                number(len(each)),
                "-" if not each else seconds(sum(process.seconds for process in each) / len(each)),
                "-" if longest is None else f"{seconds(longest.seconds)} {longest.label}",
            ]
        )
    headers = ["role", "region", "on the clock", "of the step", "processes", "mean", "longest"]
    return _table(headers, rows, "llrrrrl")


def _ops(ops: Sequence[Op]) -> Table:
    rows = [
        [op.name if len(op.name) <= 72 else op.name[:71] + "…", number(op.calls), seconds(op.self_seconds), share(op.share)]
        for op in ops
    ]  # fmt: skip
    return _table(["name", "calls", "self", "of all"], rows, "lrrr")


def _cost(report: Report) -> RenderableType | None:
    lines = []
    if report.memory:
        peak = max(report.memory, key=lambda each: each.peak_bytes)
        lines.append(f"memory peaked at {size(peak.peak_bytes)} on {peak.label} ({peak.device})")
    stalls = [each for each in report.overhead if each.stall is not None]
    if stalls:
        worst = max(stalls, key=lambda each: each.stall or 0.0)
        mean = sum(each.stall or 0.0 for each in stalls) / len(stalls)
        lines.append(
            f"recording held the processes up by {seconds(mean)} on average, {seconds(worst.stall)} at most ({worst.label})"
        )
    stops = [each for each in report.overhead if each.stop is not None]
    if stops:
        slowest = max(stops, key=lambda each: each.stop or 0.0)
        lines.append(f"the slowest engine took {seconds(slowest.stop)} to stop recording ({slowest.label})")
    return Group(*(Text(printable(line)) for line in lines)) if lines else None


def _changes(changes: Sequence[Change]) -> Table:
    rows: list[list[str | Text]] = []
    for change in changes:
        difference = change.b - change.a
        is_noise = not change.significant and change.noise is not None
        style = "dim" if is_noise or not difference else "red" if difference > 0 else "green"
        relative = f"{difference / change.a:+.0%}".replace("-0%", "+0%") if change.a else "-"
        rows.append(
            [
                change.what,
                seconds(change.a),
                seconds(change.b),
                Text(f"{'+' if difference >= 5e-10 else ''}{seconds(difference)}", style=style),
                relative,
                "unknown" if change.noise is None else seconds(change.noise),
                "within noise" if is_noise else "",
            ]
        )
    return _table(["", "A", "B", "change", "%", "noise", ""], rows, "lrrrrrl")


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print()
    console.print(Text("notes", style="bold"))
    for finding in findings[:_MOST_FINDINGS]:
        source = "" if finding.source is None else f"{finding.source}: "
        console.print(
            Padding(Text(printable(f"{source}{finding.problem}"), style="yellow"), (0, 0, 0, 2), expand=False)
        )
    if len(findings) > _MOST_FINDINGS:
        more = f"and {len(findings) - _MOST_FINDINGS} more, in the JSON"
        console.print(Padding(Text(more, style="yellow"), (0, 0, 0, 2), expand=False))
