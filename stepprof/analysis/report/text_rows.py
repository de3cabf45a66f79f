"""Lay out figures as rows of text, for the terminal and for Markdown: what engines did, and slack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepprof.analysis.report.engine_work import STAGES
from stepprof.analysis.report.schema import EngineWork, Finding, Problem, Report, Rollout, Stage
from stepprof.analysis.report.wording import names, seconds, seconds_text
from stepprof.formatting import number

FIRST = 3
"""Causes on the first screen."""
SPARE = 0.01
"""Share of the step below which slack is not shown."""
Rows = tuple[list[str], list[list[str]]]


def length_text(report: Report) -> str:
    """Return how long the step took; at least, if its end is not known."""
    if report.ended:
        return seconds(report.seconds)
    return f"at least {seconds(report.seconds)}" if report.seconds else "not known how long"


def first_screen(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings for the first screen, and the others: the first causes, with the length and what is missing."""
    causes = [at for at, each in enumerate(findings) if each.seconds is not None and each.topic != "step"]
    if len(causes) <= FIRST:
        return [*findings], []
    end = causes[FIRST]
    return [*findings[:end]], [*findings[end:]]


def notes_of(problems: Sequence[Problem]) -> list[str]:
    """Return each problem as a line; one line for all sources that have it.

    >>> notes_of([Problem("a.json", "is empty"), Problem(None, "no step"), Problem("b.json", "is empty")])
    ['a.json and b.json: is empty', 'no step']
    """
    sources: dict[str, list[str]] = {}
    for each in problems:
        of = sources.setdefault(each.problem, [])
        of.extend([] if each.source is None or each.source in of else [each.source])
    return [f"{names(of)}: {text}" if of else text for text, of in sources.items()]


def reasons(finding: Finding) -> Iterator[str]:
    """Yield the evidence of a finding, the advice, and the gain."""
    if finding.why:
        yield f"why: {finding.why}"
    if finding.advice:
        yield f"try: {finding.advice}"
    if finding.saves is not None:
        gain = seconds_text(finding.saves) if finding.saves > 0 else "none"
        yield f"gain: {gain}, if {finding.assumption}"


def token_rows(engines: Sequence[EngineWork]) -> Rows:
    """Return the headings and a row for each engine with its own statistics."""
    headers = [
        "engine", "prompt tokens", "prompt/s", "generated", "generated/s", "recomputed", "preemptions",
        "batch of limit", "first token", "per token",
    ]  # fmt: skip
    rows = [
        [
            each.label,
            _count(each.prompt_tokens),
            _count(each.prompt_tokens_per_second),
            _count(each.generated_tokens),
            _count(each.generated_tokens_per_second),
            _count(each.recomputed_tokens),
            _count(each.preemptions),
            _batch(each),
            seconds(each.first_token),
            seconds(each.per_token),
        ]
        for each in engines
        if each.generated_tokens is not None or each.limit is not None
    ]
    return headers, rows


def stage_rows(engines: Sequence[EngineWork]) -> Rows:
    """Return the headings and a row for each engine with the forward steps of each stage that occurs."""
    there = [
        stage for stage in STAGES if any(each.stage == stage for work in engines for each in work.stages)
    ]
    rows = []
    for work in engines:
        known = {each.stage: each for each in work.stages}
        if known:
            rows.append([work.label, *(_stage(known[stage]) if stage in known else "-" for stage in there)])
    return ["engine", *there], rows


def sample_rows(rollouts: Sequence[Rollout]) -> Rows:
    """Return the headings, and the rows for the bound samples of each process: their time, and the times of their
    requests to the first token and between two tokens, and their tokens.
    """
    headers = ["", "of each", "number", "mean", "median", "95th percentile", "longest"]
    rows = [
        [
            each.label,
            what,
            number(reported.count),
            *map(shown, (reported.mean, reported.median, reported.p95, reported.longest)),
        ]
        for each in rollouts
        for what, reported, shown in (
            ("sample", each.sample_seconds, seconds),
            ("first token", each.first_token, seconds),
            ("per token", each.per_token, seconds),
            ("tokens", each.generated_tokens, _count),
        )
        if reported is not None
    ]
    return headers, rows


def slack_rows(report: Report, top: int) -> Rows:
    """Return the headings, and the first `top` rows of how much longer processes could have worked."""
    spare = [each for each in report.slack if each.seconds >= SPARE * report.seconds][:top]
    rows = [[each.role or "step", each.process, seconds(each.seconds)] for each in spare]
    return ["role", "process", "could take longer"], rows


def _stage(stage: Stage) -> str:
    """Return steps, seconds and tokens in one cell."""
    steps = "1 step" if stage.iterations == 1 else f"{number(stage.iterations)} steps"
    reported = [each for each in (stage.prefill_tokens, stage.decode_tokens) if each is not None]
    tokens = f", {number(sum(reported))} tokens" if len(reported) == 2 else ""
    return f"{seconds(stage.seconds)}, {steps}{tokens}"


def _batch(work: EngineWork) -> str:
    if work.limit is None:
        return "-"
    if work.peak_batch is None or work.mean_batch is None:
        return f"? of {number(work.limit)}"
    return f"mean {work.mean_batch:.0f}, peak {work.peak_batch:.0f} of {number(work.limit)}"


def _count(value: float | None) -> str:
    return "-" if value is None else number(round(value))
