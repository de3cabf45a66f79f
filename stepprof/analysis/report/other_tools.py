"""Speak of traces that stepprof did not record in the words of torch: they have annotations, and no windows or regions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from stepprof.analysis.report.schema import Finding, Op, RegionRow, Report
from stepprof.analysis.report.wording import quoted, seconds
from stepprof.formatting import counted

UNNAMED = "in no annotation"
"""The part of a step that no annotation names."""
MOST_OPERATORS = 3
_WORTH_NAMING = 0.2
"""Share of the step from which on the report says how to name its parts."""
_WORTH_LISTING = 0.02
_NAME = 'name the parts of the loop: `with torch.profiler.record_function("forward"):`'
_STEP = "call `profiler.step()` after each iteration: then the report is about one of them"
_INSTEAD = (
    ("the rollout's tail took", "the last requests took"),
    (
        "generate more samples than needed and drop the last ones, or start training on those that are done",
        "or have other requests ready that fill the batch",
    ),
    ("a region around it", "`record_function` around it"),
    ("its stacks and its operators", "its operators, and with `with_stack=True` its Python frames"),
    ("its stacks, its operators", "its operators, and with `with_stack=True` its Python frames"),
    ("; `[watch]` records the step after a slow one", ""),
    ("; with `tokens` on its regions, the report shows whether it has more to do", ""),
)


def is_of_others(report: Report) -> bool:
    """Return whether stepprof recorded none of the sources."""
    return bool(report.sources) and all(source.kind == "trace" for source in report.sources)


def length_of_others(report: Report, parts: Sequence[str]) -> Finding:
    """Return the first sentence: the length, and its parts. If much has no name, also what runs there and how to name it.

    The annotations in a trace of an engine are not those of a loop of its author.
    """
    text = f"{_covered(report)} {seconds(report.seconds)}"
    if _is_unknown(report):
        return _unknown(report, text)
    text += f": {', '.join(parts)}" if parts else ", and no annotation divides it"
    rest = sum(part.share or 0.0 for part in report.parts if part.name == UNNAMED)
    if report.engines or (parts and rest < _WORTH_NAMING):
        return Finding(text, "step", report.seconds)
    return Finding(text, "step", report.seconds, why=_longest(report), advice=_naming(report))


def lengths_of_others(report: Report, by_clock: str, is_divided: bool) -> Finding:
    """Return the first sentence about traces whose clocks were never compared: the length on each. If no annotation divides them, also how to name the parts."""
    text = f"{_covered(report)} {by_clock}"
    if is_divided or report.engines:
        return Finding(text, "step", report.seconds)
    if _is_unknown(report):
        return _unknown(report, text)
    text += ", and no annotation divides them"
    return Finding(text, "step", report.seconds, why=_longest(report), advice=_naming(report))


def _is_unknown(report: Report) -> bool:
    """Return whether no table has an event of the traces, as those of programs without torch."""
    tables = (
        report.ops,
        report.kernels,
        report.tree,
        report.engines,
        report.overlap,
        report.idle,
        report.memory,
    )
    return not any(tables)


def _unknown(report: Report, text: str) -> Finding:
    events = sum(source.events for source in report.sources)
    whose = "its" if len(report.sources) == 1 else "their"
    text = f"{text}: none of {whose} {counted(events, 'event')} is an operator, an annotation or a kernel as torch writes them, so no table has them"
    return Finding(text, "step", report.seconds, advice="`stepprof open` shows them in a browser")


def _covered(report: Report) -> str:
    """Return the words before a length: only marked steps are steps."""
    if report.step is not None:
        return "the step took"
    return "the traces cover" if len(report.sources) > 1 else "the trace covers"


def _naming(report: Report) -> str:
    return _NAME if report.step is not None else f"{_NAME}, and {_STEP}"


def _longest(report: Report) -> str | None:
    """Return the longest kernels, or else operators, that no annotation called; None: there is none of some length."""
    step = next((at for at, row in enumerate(report.tree) if row.kind == "step"), None)
    rows = [row for row in report.tree if row.parent == step and row.name != "others"]
    for kind, what, all_of in (("kernel", "kernels", report.kernels), ("op", "operators", report.ops)):
        of = [row for row in rows if row.kind == kind] if report.tree else all_of
        times = [(_typical(row), row.name) for row in of]
        worth = [each for each in times if each[0] >= _WORTH_LISTING * report.seconds]
        longest = sorted(worth, key=lambda each: -each[0])[:MOST_OPERATORS]
        if longest:
            listed = ", ".join(f"{quoted(name)} {seconds(time)}" for time, name in longest)
            of_all = ", median of the processes that have them" if len(report.processes) > 1 else ""
            return f"the longest {what}{f' {UNNAMED}' if report.tree else ''}{of_all}: {listed}"
    return None


def _typical(row: Op | RegionRow) -> float:
    """Return the self time of an operator or a kernel in one process: the sum over ranks is longer than the step."""
    return median([each.seconds for each in row.per_process] or [row.self_seconds])


def in_words_of_torch(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose advice its reader can follow: a trace of torch has no regions of stepprof, one of an engine no rollout."""
    return [
        replace(each, text=_spoken(each.text), advice=each.advice and _spoken(each.advice))
        for each in findings
    ]


def _spoken(advice: str) -> str:
    for ours, theirs in _INSTEAD:
        advice = advice.replace(ours, theirs)
    return advice
