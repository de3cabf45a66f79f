"""Print the report as text: findings, roles over time, and the first rows of each table. The page
has all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stepprof.analysis.report.headlines import shown_first
from stepprof.analysis.report.other_tools import is_of_others
from stepprof.analysis.report.schema import Comparison, Finding, Problem, Report
from stepprof.analysis.report.terminal_tables import (
    MOST_PROCESSES,
    changes_table,
    cost_lines,
    figures_table,
    idle_table,
    neighbours_table,
    ops_table,
    overlap_table,
    parts_table,
    regions_table,
    rollouts_table,
    skew_table,
    stops_table,
    text_table,
    tree_table,
    unmatched_table,
)
from stepprof.analysis.report.text_rows import (
    first_screen,
    length_text,
    notes_of,
    reasons,
    sample_rows,
    slack_rows,
    stage_rows,
    token_rows,
)
from stepprof.analysis.report.wording import seconds
from stepprof.formatting import number, printable

_INDENT = 2
_MOST_PROBLEMS = 10
_CHANGES = {
    "step": "step",
    "role": "roles",
    "rollout": "rollout",
    "region": "regions",
    "op": "operators, self time per process",
    "kernel": "kernels, self time per process",
}
_VERDICTS = {"none": "green", "regression": "red", "unknown": "yellow"}
_TOPICS = {
    "straggler": "red",
    "tail": "yellow",
    "idle": "yellow",
    "collectives": "yellow",
    "overlap": "magenta",
    "overhead": "cyan",
    "memory": "cyan",
    "coverage": "red",
}


def print_report(report: Report, console: Console, *, top: int = 8) -> None:
    """Print a report.

    Args:
        report: what to print.
        console: to print to; without colour and with its own width if it is no terminal.
        top: rows of the longest tables.
    """
    plain = not console.encoding.lower().startswith("utf")
    room = console.width - _INDENT
    version = "" if report.version is None else f"  version {report.version}"
    foreign = report.step is None or is_of_others(report)
    one_file = [source.path for source in report.sources] == [report.run_id]
    which = "run" if not foreign else "trace" if one_file else "traces of"
    of = f" ({report.occurrence} of {report.occurrences})" if report.occurrences > 1 else ""
    step = "" if report.step is None else f"  step {report.step}{of}"
    title = Text(printable(f"{which} {report.run_id}{step}{version}"), style="bold")
    title.append(f"  {length_text(report)}", style="bold cyan")
    console.print(title, soft_wrap=True)
    _print_findings(console, report.findings)
    if report.neighbourhood is not None:
        console.print()
        _indented(console, Text(printable(f"among the steps of the run: {report.neighbourhood.text}")))
        strips = None if plain else neighbours_table(report.neighbourhood, report.step, room)
        if strips is not None:
            console.print()
            _indented(console, strips)
    heading = "where the time went: in any process, which can overlap, and on the critical path"
    _section(console, heading, parts_table(report, plain, room))
    heading = "batch sizes of engines" if is_of_others(report) else "rollout"
    _section(console, heading, rollouts_table(report.rollout[:MOST_PROCESSES], plain, room))
    engines = report.engines[:MOST_PROCESSES]
    for heading, rows in (
        ("bound samples and their requests", sample_rows(report.rollout[:MOST_PROCESSES])),
        ("what engines generated, by their own statistics", token_rows(engines)),
        ("forward steps of engines by stage", stage_rows(engines)),
    ):
        _section(console, heading, figures_table(*rows, room))
    _section(console, "stragglers", skew_table(report, top, room))
    heading = "how much longer processes could take without making the step longer"
    _section(console, heading, text_table(*slack_rows(report, top), "llr", room))
    heading = "collectives that were not recorded on all ranks, or could not be matched"
    _section(console, heading, unmatched_table(report.unmatched[:top], room))
    _section(console, "work and waiting", idle_table(report.idle, room))
    if report.overlap:
        _section(console, "communication and compute, mean of the processes", overlap_table(report, room))
    named = "annotation" if foreign else "region"
    tree = tree_table(report, plain, room, top=max(20, 2 * top))
    if tree is not None:
        median = ", median of the processes" if len(report.processes) > 1 else ""
        _section(console, f"{named}s and what they called{median}", tree)
    else:
        _section(console, f"{named}s", regions_table(report.regions[:top], room))
    for name, ops in (("operators", report.ops), ("kernels", report.kernels)):
        _section(console, f"{name} by self time, all processes", ops_table(ops[:top], room))
    _section(console, "memory and recording overhead", cost_lines(report))
    heading = "time that engines took to write their traces, with estimates for other limits"
    _section(console, heading, stops_table(report.stops, room))
    _print_problems(console, report.problems)
    console.print()
    _indented(console, Text(printable(f"clock: {report.clock.rstrip('.')}"), style="dim"), 0)


def print_comparison(comparison: Comparison, console: Console, *, top: int = 12) -> None:
    """Print what changed from A to B, with `top` rows of each kind."""
    console.print(Text(printable(f"A  {comparison.a}"), style="bold"), soft_wrap=True)
    console.print(Text(printable(f"B  {comparison.b}"), style="bold"), soft_wrap=True)
    _print_findings(console, comparison.findings)
    there = dict.fromkeys(change.topic for change in comparison.changes)
    for topic in [
        *(known for known in _CHANGES if known in there),
        *(other for other in there if other not in _CHANGES),
    ]:
        changes = [change for change in comparison.changes if change.topic == topic]
        _section(console, _CHANGES.get(topic, topic), changes_table(changes[:top], console.width - _INDENT))
    _print_problems(console, comparison.problems)
    if comparison.gate is not None:
        console.print()
        style = f"bold {_VERDICTS[comparison.gate.verdict]}"
        console.print(Text(printable(comparison.gate.text), style=style), soft_wrap=True)


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the first screen, and below it the other findings, as the first part of what is behind it."""
    first, others = first_screen(shown_first(findings))
    _print_all(console, first)
    if len(first) + len(others) < len(findings):
        _indented(console, Text("the page, `report.json` and `--markdown` list the findings", style="dim"))
    if others:
        console.print()
        console.print(Text(f"and {number(len(others))} more", style="bold"))
        _print_all(console, others)


def _print_all(console: Console, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        cost = "-" if finding.seconds is None else seconds(finding.seconds)
        style = "dim" if finding.seconds is None else f"bold {_TOPICS.get(finding.topic, 'blue')}"
        table.add_row(Text(cost, style=style), Text(printable(finding.text)))
        for line in reasons(finding):
            table.add_row("", Text(printable(line), style="dim"))
    console.print()
    _indented(console, table)


def _section(console: Console, title: str, content: RenderableType | None) -> None:
    if content is None:
        return
    console.print()
    console.print(Text(title, style="bold"), soft_wrap=True)
    _indented(console, content)


def _indented(console: Console, content: RenderableType, indent: int = _INDENT) -> None:
    """Print without trailing spaces; the terminal wraps lines that are too long."""
    options = console.options.update_width(max(console.width - indent, 1))
    for line in Segment.split_lines(console.render(content, options)):
        text = Text.assemble(" " * indent, *((segment.text, segment.style or "") for segment in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def _print_problems(console: Console, problems: Sequence[Problem]) -> None:
    if not problems:
        return
    console.print()
    console.print(Text("notes", style="bold"))
    notes = notes_of(problems)
    for note in notes[:_MOST_PROBLEMS]:
        _indented(console, Text(printable(note), style="yellow"))
    if len(notes) > _MOST_PROBLEMS:
        more = f"and {len(notes) - _MOST_PROBLEMS} more, in the JSON"
        _indented(console, Text(more, style="yellow"))
