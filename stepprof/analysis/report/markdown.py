"""Print a report or a comparison as Markdown, for a pull request or a chat.

The names in it come from traces: they are escaped, so that they can neither format the text nor name
a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from stepprof.analysis.report.division import WORTH_SAYING
from stepprof.analysis.report.region_rows import costliest, row_text
from stepprof.analysis.report.schema import Comparison, Finding, Part, Problem, RegionRow, Report, TimeOf
from stepprof.analysis.report.text_rows import (
    length_text,
    notes_of,
    reasons,
    sample_rows,
    slack_rows,
    stage_rows,
    token_rows,
)
from stepprof.analysis.report.wording import seconds, share
from stepprof.formatting import printable

_MOST_PROBLEMS = 5
_CODE = re.compile(r"(`[^`]*[^`\s][^`]*`)")
_SPECIAL = re.compile(r"[\\`*\[\]|#~$]|(?<![^\W_])_|_(?![^\W_])")


_ENTITY = re.compile(r"&\\#(\d\d);")


def render(content: Report | Comparison, *, top: int = 8) -> str:
    """Return the findings, and the first `top` rows of the main tables."""
    lines = _report(content, top) if isinstance(content, Report) else _comparison(content, top)
    return "\n".join(lines) + "\n"


def _report(report: Report, top: int) -> Iterator[str]:
    of = f" ({report.occurrence} of {report.occurrences})" if report.occurrences > 1 else ""
    step = "" if report.step is None else f", step {report.step}{of}"
    yield f"### {_plain(report.run_id)}{step}: {length_text(report)}"
    yield from _findings(report.findings)
    if report.neighbourhood is not None:
        yield from ("", f"Among the steps of the run: {_sentence(report.neighbourhood.text)}.")
    yield from _parts(report.parts[:top])
    yield from _tree(report.tree, 2 * top) if report.tree else _regions(report.regions[:top])
    yield from _table(*sample_rows(report.rollout[:top]))
    yield from _table(*token_rows(report.engines[:top]))
    yield from _table(*stage_rows(report.engines[:top]))
    yield from _table(*slack_rows(report, top))
    yield from _problems(report.problems)


def _comparison(comparison: Comparison, top: int) -> Iterator[str]:
    yield f"### {_plain(comparison.a)} → {_plain(comparison.b)}"
    if comparison.gate is not None:
        yield from ("", f"**{_plain(comparison.gate.text)}**")
    yield from _findings(comparison.findings)
    changes = [each for each in comparison.changes if each.significant or each.topic == "step"]
    rows = (
        (each.what, seconds(each.a), seconds(each.b), _change(each.a, each.b), "?" if each.noise is None else seconds(each.noise))
        for each in changes[:top]
    )  # fmt: skip
    yield from _table(("", "A", "B", "change", "noise"), rows)
    yield from _problems(comparison.problems)


def _change(a: float, b: float) -> str:
    return f"{b / a - 1:+.1%}" if a > 0 else "new"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if findings:
        yield ""
    for finding in findings:
        cost = "" if finding.seconds is None else f"**{seconds(finding.seconds)}** "
        yield f"- {cost}{_sentence(finding.text)}"
        for text in reasons(finding):
            yield f"  - {_sentence(text)}"


def _tree(tree: Sequence[RegionRow], top: int) -> Iterator[str]:
    rows = []
    for each in (tree[at] for at in costliest(tree, top)):
        figures = (
            seconds(each.seconds),
            seconds(each.self_seconds),
            share(each.share),
            str(each.calls or ""),
            str(each.processes),
        )
        rows.append((row_text(tree, each), *figures))
    yield from _table(
        ("region", "median time", "median self time", "of the step", "calls", "processes"), rows
    )


def _parts(parts: Sequence[Part]) -> Iterator[str]:
    rows = (
        (
            part.name + ("" if part.clock is None else f" on {part.clock}"),
            seconds(part.seconds),
            share(part.share),
            seconds(part.wall_seconds),
            share(part.wall_share),
        )
        for part in parts
        if part.wall_seconds is not None or (part.share or 0.0) >= WORTH_SAYING
    )
    yield from _table(("part of the step", "on the critical path", "", "in any process", ""), rows)


def _regions(times: Sequence[TimeOf]) -> Iterator[str]:
    rows = (
        (each.region or "step", seconds(each.seconds), share(each.share), str(len(each.per_process)))
        for each in times
    )
    yield from _table(("region", "in any process", "of the step", "processes"), rows)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    shown = [f"| {' | '.join(map(_plain, row))} |" for row in rows]
    if shown:
        yield from ("", f"| {' | '.join(headers)} |", f"|---{'|--:' * (len(headers) - 1)}|", *shown)


def _problems(problems: Sequence[Problem]) -> Iterator[str]:
    if problems:
        yield from ("", "Notes:", "")
    notes = notes_of(problems)
    for note in notes[:_MOST_PROBLEMS]:
        yield f"- {_plain(note)}"
    if len(notes) > _MOST_PROBLEMS:
        yield f"- and {len(notes) - _MOST_PROBLEMS} more, in the JSON"


def _sentence(text: str) -> str:
    """Return a sentence that Markdown shows as it is, apart from the names between its backticks: they become code.

    >>> print(_sentence("rank 1 was in `load_*`, and not in `"))
    rank 1 was in `load_*`, and not in \\`
    """
    return "".join(
        printable(piece) if at % 2 else _plain(piece) for at, piece in enumerate(_CODE.split(text))
    )


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is.

    >>> print(_plain("aten::_foreach_add_ <b> [x] a|b update_actor"))
    aten::\\_foreach_add\\_ &lt;b> \\[x\\] a\\|b update_actor
    """
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    # a bare URL would become a link
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;").replace("WWW.", "WWW&#46;")
    return _ENTITY.sub(r"&#\1;", _SPECIAL.sub(r"\\\g<0>", text))
