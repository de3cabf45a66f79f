"""Render the figures of the report as terminal tables, each with a few rows. A table without a row is None."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from stepprof.analysis.recording_cost import cost_sentences
from stepprof.analysis.report.division import WORTH_SAYING
from stepprof.analysis.report.region_rows import OTHERS, costliest
from stepprof.analysis.report.schema import (
    CauseTimes,
    Change,
    Idle,
    Neighbourhood,
    Op,
    Part,
    RegionRow,
    Report,
    Rollout,
    StepTime,
    StopCost,
    TimeOf,
    UnmatchedTime,
    Usual,
)
from stepprof.analysis.report.wording import causes, seconds, share
from stepprof.formatting import counted, number, printable, size

MOST_CLOCKS = 4
"""Clocks whose parts are shown."""
_RIBBON, _SHORT_RIBBON = 44, 12
_NAME = 10  # maximum characters of a name in one line
_STEPS = 30
"""Number of steps to draw next to each other."""
_GAP = 2  # between two columns
MOST_PROCESSES = 8
"""With more processes, the mean and the extremes are shown instead of a row for each."""
_TREE_BAR, _SHORT_TREE_BAR = 20, 11
_OP_FIGURES = 30
"""Room for the figures next to the name of an operator."""
_WIDE = 100
"""Minimum room for a region tree with all columns."""
_BOLD = ("step", "role", "region", "threads")
_OTHERS = {"op": "other operators", "kernel": "other kernels", "regions": "shorter regions"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_STYLES = ("cyan", "blue", "magenta", "yellow", "red", "green")


def text_table(
    headers: Sequence[str], rows: Iterable[Sequence[str | Text]], align: str, room: int
) -> Table | None:
    """Return a table that fits into its room; None: it has no row.

    Right-aligned columns (figures) and "w" columns are never truncated. Other columns have a
    minimum width; below that the table is wider than its room.
    """
    cells = [[cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row] for row in rows]
    if not cells:
        return None
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    natural, wrapped, least = [], [], []
    for header, side, column in zip(headers, align, zip(*cells, strict=True), strict=True):
        content = max(cell.cell_len for cell in column)
        word = max(map(len, header.split()), default=1)
        natural.append(max(content, len(header)))
        wrapped.append(max(content, word))
        least.append(max(min(content, _NAME) if side == "l" else content, word))
    widths = _narrowed(_narrowed(natural, wrapped, room), least, room)
    for header, side, width in zip(headers, align, widths, strict=True):
        justify: JustifyMethod = "right" if side == "r" else "left"
        table.add_column(header, justify=justify, overflow="fold", width=width)
    table.width = sum(widths) + _GAP * (len(widths) - 1)
    for row in cells:
        table.add_row(*row)
    return table


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return column widths that fit the room. The widest column shrinks first, and none below its
    minimum.

    >>> _narrowed([7, 30, 13], [7, 16, 6], 100), _narrowed([7, 30, 13], [7, 16, 6], 44), _narrowed([7, 30, 13], [7, 16, 6], 20)
    ([7, 30, 13], [7, 20, 13], [7, 16, 6])
    """
    narrowed = list(widths)
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    for _ in range(excess):
        wide = max(range(len(narrowed)), key=lambda at: (narrowed[at] > least[at], narrowed[at]))
        narrowed[wide] = max(narrowed[wide] - 1, least[wide])
    return narrowed


def tree_table(report: Report, plain: bool, room: int, *, top: int = 20) -> Table | None:
    """Return the region tree: the costliest rows with the rows around them, bars scaled to the step.

    Each row is one line: names that are too long are cut. A narrow table has short bars, and no column
    for the spread over the processes. None: no row has a share of the step that is worth a line.
    """
    shown = costliest(report.tree, top)
    if not shown:
        return None
    wide = room >= _WIDE
    full, most = "=" if plain else "█", _TREE_BAR if wide else _SHORT_TREE_BAR
    several = wide and any(report.tree[at].processes > 1 for at in shown)
    depth = {-1: -1}
    figures: list[list[str | Text]] = []
    for at in shown:
        row = report.tree[at]
        depth[at] = depth[-1 if row.parent is None else row.parent] + 1
        bar = (full * round(min(row.share or 0.0, 1.0) * most)).ljust(most)
        calls = number(row.calls) if row.calls else ""
        spread = f"{seconds(row.least)} to {seconds(row.most)}" if row.processes > 1 else ""
        line = [share(row.share), seconds(row.seconds), seconds(row.self_seconds), calls]
        figures.append(
            [Text(bar, "cyan" if row.kind in _BOLD else "dim cyan"), *line, *([spread] if several else [])]
        )
    headers = ["of the step", "", "total", "self", "calls", *(["least to most"] if several else [])]
    taken = sum(
        _GAP + max(len(header), *(len(cell) for cell in column))
        for header, column in zip(headers, zip(*figures, strict=True), strict=True)
    )
    names = [
        Text(
            _shortened("  " * depth[at] + _tree_name(report.tree[at]), max(room - taken, _NAME)),
            style="" if report.tree[at].kind in _BOLD else "dim",
        )
        for at in shown
    ]
    rows = [[name, *line] for name, line in zip(names, figures, strict=True)]
    return text_table(["region", *headers], rows, "lwrrrr" + "r" * several, room)


def _tree_name(row: RegionRow) -> str:
    return _OTHERS.get(row.kind, row.name) if row.name == OTHERS else printable(row.name)


def _shortened(name: str, room: int) -> str:
    """Return a name that fits; names of operators and kernels differ at their ends too.

    >>> _shortened("flash_attention_for_cpu_backward", 20)
    'flash_attent…ackward'
    """
    if cell_len(name) <= room:
        return name
    end = (room - 1) * 2 // 5
    return f"{set_cell_size(name, room - 1 - end)}…{name[-end:]}"


def neighbours_table(among: Neighbourhood, step: int | None, room: int) -> Table | None:
    """Return the steps around this one as bars, this one in brackets: a row for the whole step, one for each
    role or outermost region, and one for each place of a cause; None: the other steps are too few to compare with.
    """
    if not among.parts:
        return None
    here = next(at for at, each in enumerate(among.steps) if each.step == step)
    first = max(0, min(here - _STEPS // 2, len(among.steps) - _STEPS))
    shown = among.steps[first : first + _STEPS]
    rows: list[list[str | Text]] = []
    measured = [
        (part.role or part.region or "whole step", part, [_taken(each, part) for each in shown])
        for part in among.parts[:MOST_PROCESSES]
    ]
    measured += [
        (
            f"{_of_role(place)} of {place.process}",
            place.usual,
            [place.by_step.get(each.step) for each in shown],
        )
        for place in among.places
        if place.usual is not None
    ]
    for name, part, taken in measured:
        longest = max((each for each in taken if each is not None), default=0.0) or 1.0
        bars = [" " if each is None else _LEVELS[max(1, round(each / longest * 8))] for each in taken]
        bars[here - first] = f"[{bars[here - first]}]"
        usual = f"{seconds(part.median)} ({seconds(part.shortest)} to {seconds(part.longest)})"
        if part.steps < len(among.others):
            usual += f" in {part.steps} of {len(among.others)}"
        rows.append(
            [
                name,
                Text("".join(bars), "yellow" if part.typical is False else ""),
                seconds(part.seconds),
                usual,
            ]
        )
    span = f"steps {shown[0].step} to {shown[-1].step}"
    return text_table(["", span, f"step {step}", "usually"], rows, "lwrl", room)


def _of_role(place: CauseTimes) -> str | None:
    """Return the name of a region with its role, which the process may name: several roles may have a region of this name."""
    if place.region is None or place.role is None or place.process.startswith(place.role):
        return place.region or place.role
    return f"{place.region} ({place.role})"


def _taken(step: StepTime, part: Usual) -> float | None:
    if part.region is not None:
        return step.regions.get(part.region)
    return step.seconds if part.role is None else step.roles.get(part.role)


def parts_table(report: Report, plain: bool, room: int) -> Table | None:
    """Return when each part of the step was active, for how long in any process, and its time on the critical path;
    `plain`: without block characters. Of many clocks, the first ones only.
    """
    parts = [
        each for each in report.parts if each.wall_seconds is not None or (each.share or 0.0) >= WORTH_SAYING
    ]
    if all(each.wall_seconds is None for each in parts):  # the first sentence says the rest
        return None
    length = _RIBBON if room >= _WIDE else _SHORT_RIBBON
    clocks = list(dict.fromkeys(each.clock for each in parts))
    parts = [each for each in parts if each.clock in clocks[:MOST_CLOCKS]]
    rows: list[list[str | Text]] = [
        [
            part.name + ("" if part.clock is None else f" on {part.clock}"),
            Text(_ribbon(part, report.seconds, plain, length), _STYLES[index % len(_STYLES)]),
            seconds(part.wall_seconds),
            share(part.wall_share),
            seconds(part.seconds),
            Text(share(part.share), "bold"),
        ]
        for index, part in enumerate(parts)
    ]
    left = len(clocks) - MOST_CLOCKS
    if left > 0:
        rows.append([f"and those on {counted(left, 'more clock')}, in the JSON", "", "", "", "", ""])
    headers = ["", "from begin to end", "in any process", "", "on the path", ""]
    return text_table(headers, rows, "lwrrrr", room)


def _ribbon(part: Part, total: float, plain: bool, length: int) -> str:
    """Return the times of a part as characters from the start of the step to its end."""
    cells = [False] * length
    for begin, took in part.when if total > 0 else ():
        first = int(begin / total * length)
        last = int((begin + took) / total * length - 1e-9)
        for cell in range(max(0, first), min(length - 1, last) + 1):
            cells[cell] = True
    return "".join(("#" if plain else "█") if cell else ("." if plain else "·") for cell in cells)


def rollouts_table(rollouts: Sequence[Rollout], plain: bool, room: int) -> Table | None:
    """Return each engine's batch sizes and tail; `plain`: without the curve."""
    headers = ["engine", "seconds", "peak", "mean", "below half", "at the end", "batch over time"]
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
    return text_table(headers, rows, "lrrrrrw", room)


def figures_table(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Table | None:
    """Return a table of a column of names and columns of figures."""
    return text_table(headers, rows, "l" + "r" * (len(headers) - 1), room)


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


def skew_table(report: Report, top: int, room: int) -> Table | None:
    """Return the `top` phases in which the straggler lost the most time."""
    phases = sorted(
        report.skew,
        key=lambda phase: (
            not phase.significant,
            max(phase.began_later or 0.0, phase.by_profiler, 0.0) + phase.by_waiting - phase.behind_median,
        ),
    )[:top]
    rows = [
        [
            phase.role or "step",
            phase.region or "-",
            phase.straggler,
            seconds(phase.spread),
            seconds(phase.behind_median),
            seconds(phase.began_later),
            "in collectives"
            if phase.basis == "collectives"
            else ""
            if phase.significant
            else "within the clocks' error",
        ]
        for phase in phases
    ]
    return text_table(
        ["role", "region", "last", "first to last", "behind median", "had begun later", ""],
        rows,
        "lllrrrl",
        room,
    )


def idle_table(idle: Sequence[Idle], room: int) -> Table | None:
    """Return how the processes spent the step."""
    kinds = causes(each.causes for each in idle)
    headers = ["", "step", "work", *kinds.values()]

    def row(label: str, which: Sequence[Idle]) -> list[str]:
        count = len(which)
        return [
            label,
            seconds(sum(each.wall for each in which) / count),
            seconds(sum(each.busy for each in which) / count),
            *(seconds(sum(each.causes.get(kind, 0.0) for each in which) / count) for kind in kinds),
        ]

    if len(idle) <= MOST_PROCESSES:
        rows = [row(each.label, [each]) for each in idle]
    else:
        least, most = min(idle, key=lambda each: each.busy), max(idle, key=lambda each: each.busy)
        rows = [
            row(f"mean of {len(idle)}", idle),
            row(f"least: {least.label}", [least]),
            row(f"most: {most.label}", [most]),
        ]
    return figures_table(headers, rows, room)


def unmatched_table(rows: Sequence[UnmatchedTime], room: int) -> Table | None:
    """Return time in collectives whose waits cannot be attributed."""
    cells = [
        [
            row.role or "step",
            row.region or "-",
            number(len(row.spent)),
            seconds(sum(each.seconds for each in row.spent) / len(row.spent)),
            f"{seconds(row.spent[0].seconds)} {row.spent[0].label}",
            f"{row.recorded} of {row.members}" if row.recorded and row.members else "-",
        ]
        for row in rows
    ]
    return text_table(
        ["role", "region", "processes", "mean", "longest", "members recorded"], cells, "llrrll", room
    )


def overlap_table(report: Report, room: int) -> Table | None:
    """Return communication and computation, the mean of the processes."""
    count = len(report.overlap)
    total = sum(each.communication for each in report.overlap)
    overlapped = sum(each.overlapped for each in report.overlap)
    busy = [each.busy_share for each in report.overlap if each.busy_share is not None]
    row = [
        seconds(sum(each.compute for each in report.overlap) / count),
        seconds(total / count),
        seconds(sum(each.exposed for each in report.overlap) / count),
        share(overlapped / total) if total else "-",
        *([share(sum(busy) / len(busy))] if busy else []),
    ]
    headers = ["compute", "communication", "exposed", "overlapped", "device busy"][: len(row)]
    return text_table(headers, [row], "r" * len(row), room)


def regions_table(times: Sequence[TimeOf], room: int) -> Table | None:
    """Return a row per region, in the given order."""
    rows = []
    for time in times:
        each = time.per_process
        longest = max(each, key=lambda process: process.seconds, default=None)
        rows.append(
            [
                time.role or "step",
                (time.region or "-") + ("" if time.clock is None else f" on {time.clock}"),
                seconds(time.seconds),
                share(time.share),
                number(len(each)),
                "-" if not each else seconds(sum(process.seconds for process in each) / len(each)),
                "-" if longest is None else f"{seconds(longest.seconds)} {longest.label}",
            ]
        )
    headers = ["role", "region", "wall time", "of the step", "processes", "mean", "longest"]
    return text_table(headers, rows, "llrrrrl", room)


def ops_table(ops: Sequence[Op], room: int) -> Table | None:
    """Return a row per operator or kernel, in the given order."""
    rows = [
        [_shortened(printable(op.name), max(room - _OP_FIGURES, _NAME)), number(op.calls), seconds(op.self_seconds), share(op.share)]
        for op in ops
    ]  # fmt: skip
    return text_table(["name", "calls", "self", "of all"], rows, "lrrr", room)


def cost_lines(report: Report) -> RenderableType | None:
    """Return memory and recording overhead, one sentence each; None if nothing is known."""
    lines = []
    if report.memory:
        peak = max(report.memory, key=lambda each: each.peak_bytes)
        lines.append(f"memory peaked at {size(peak.peak_bytes)} on {peak.label} ({peak.device})")
    held = [each for each in report.overhead if each.stop is None]
    if held:
        worst = max(held, key=lambda each: each.held)
        mean = sum(each.held for each in held) / len(held)
        lines.append(
            f"recording delayed the processes by {seconds(mean)} on average, {seconds(worst.held)} at most ({worst.label})"
        )
    stops = [each for each in report.overhead if each.stop is not None]
    if stops:
        slowest = max(stops, key=lambda each: each.stop or 0.0)
        lines.append(f"the slowest engine took {seconds(slowest.stop)} to stop recording ({slowest.label})")
    lines += cost_sentences(report.recording)
    return Group(*(Text(printable(line)) for line in lines)) if lines else None


def stops_table(costs: Sequence[StopCost], room: int) -> Table | None:
    """Return the time that engines took to write their traces, with estimates for other limits.

    The longest time per forward step is first.
    """
    bounds = sorted({bound for cost in costs for bound, _ in cost.estimates})
    longest = sorted(costs, key=lambda cost: -cost.seconds / cost.iterations)
    rows = []
    for cost in longest[:MOST_PROCESSES]:
        known = dict(cost.estimates)
        others = [f"~ {seconds(known[bound])}" if bound in known else "-" for bound in bounds]
        rows.append([cost.label, number(cost.iterations), seconds(cost.seconds), *others])
    headers = ["", "forward steps", "took", *(f"estimate for {bound}" for bound in bounds)]
    return figures_table(headers, rows, room)


def changes_table(changes: Sequence[Change], room: int) -> Table | None:
    """Return a row per change, in the given order."""
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
                _noise_of(change),
                "within noise" if is_noise else "",
            ]
        )
    return text_table(["", "A", "B", "change", "%", "noise", "between", ""], rows, "lrrrrrll", room)


def _noise_of(change: Change) -> str:
    """Return the processes or steps between which the noise was measured."""
    if change.noise is None:
        return ""
    if change.noise == change.noise_steps:
        return f"{change.steps} steps"
    return "processes" if change.noise_processes in (None, change.noise) else "whole steps"
