"""Compare two steps or two runs: find what became slower or faster by more than noise.

Like is compared with like: the slowest process with the slowest one, among the processes that both steps
have. Operators, kernels and rollouts are compared only if the captures of both steps cover the same windows
from begin to end.

The noise of roles and regions is that between the other steps of the runs, whose spans are known. Operators,
kernels and rollouts are known for recorded steps only. Between processes that did equal work they may differ
by less than between two steps, and the whole step by more: what lies between is not judged. A change within
the noise means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepprof.analysis.report.changes import (
    change_of_processes,
    change_of_steps,
    in_other_steps,
    noise_between_steps,
)
from stepprof.analysis.report.generations import SUMS
from stepprof.analysis.report.like_processes import Likes
from stepprof.analysis.report.other_tools import is_of_others
from stepprof.analysis.report.schema import (
    Change,
    Comparison,
    Finding,
    Op,
    Problem,
    ProcessTime,
    Report,
    Rollout,
)
from stepprof.analysis.report.step_noise import FEWEST, noise_of_difference
from stepprof.analysis.report.step_times import STEP, Part, RunSteps
from stepprof.analysis.report.totals import MOST_REGIONS
from stepprof.analysis.report.wording import seconds_text
from stepprof.errors import ConfigError
from stepprof.formatting import counted

MOST_CHANGES = 200
MOST_HEADLINES = 8
WORTH_SAYING = 0.01
"""Share of the step. A smaller change is not a finding. A smaller part that only one step has is
not a problem.
"""
ONE_PROCESS = "step in its slowest process"
WHOLE_TRACE = "whole trace"
UNTIL_NEXT = "step until the next one begins"
NO_ROLE = "a window without a role"

_Times = Mapping[Part, Sequence[ProcessTime]]
"""The time of each role and region in each process, by its own clock."""


@dataclass(frozen=True)
class _Row:
    change: Change
    note: str = ""
    """How the amounts of work differ, for its sentence."""


def compare(a: Report, b: Report, a_run: RunSteps | None = None, b_run: RunSteps | None = None) -> Comparison:
    """Compare B with A, and list what became slower or faster.

    Args:
        a: the report of the step to compare with.
        b: the report of another step, of the same run or of another.
        a_run: the steps of A's run, which show how much its steps differ; None: not known.
        b_run: those of B's run.

    Raises:
        ConfigError: one is a step of a trace, and the other one a whole trace.
    """
    _refuse_unlike(a, b)
    runs = (a_run or RunSteps(), b_run or RunSteps())
    likes = Likes(a, b)
    rows = [
        *_steps(a, b, likes, runs),
        *_times(a, b, likes, runs),
        *_ops(a.ops, b.ops, "op", likes, runs),
        *_ops(a.kernels, b.kernels, "kernel", likes, runs),
        *_rollouts(a, b, runs),
    ]
    headline = [row for row in rows if row.change.topic == "step"][:1]
    rows = [row for row in rows if not _repeats(row.change, headline)]
    rows.sort(key=lambda row: -abs(row.change.b - row.change.a))
    findings = [*map(_headline, headline), *_findings(a, [row for row in rows if row not in headline])]
    return Comparison(
        a=_name(a),
        b=_name(b),
        findings=findings,
        changes=[row.change for row in rows][:MOST_CHANGES],
        problems=[*_problems(a, b, likes), *_warm_up(a, b, runs)],
    )


def _repeats(change: Change, headline: Sequence[_Row]) -> bool:
    """Return whether a change is that of the step once more: its windows without a role are as long as it is."""
    return change.what == NO_ROLE and any(
        all(
            abs(mine - whole) <= WORTH_SAYING * whole
            for mine, whole in ((change.a, row.change.a), (change.b, row.change.b))
        )
        for row in headline
    )


def _name(report: Report) -> str:
    if report.step is None:
        return report.run_id
    of = f" ({report.occurrence} of {report.occurrences})" if report.occurrences > 1 else ""
    return f"{report.run_id} step {report.step}{of}"


def _refuse_unlike(a: Report, b: Report) -> None:
    """Raise ConfigError if torch's profiler marked steps in one of two traces: the other one may have any number of them."""
    if is_of_others(a) and is_of_others(b) and (a.step is None) != (b.step is None):
        marked, whole = (a, b) if b.step is None else (b, a)
        raise ConfigError(
            f"{_name(marked)} is one step, and {whole.run_id} has no marked steps: their lengths say nothing; "
            "compare traces that both call profiler.step(), or neither"
        )


def _steps(a: Report, b: Report, likes: Likes, runs: tuple[RunSteps, RunSteps]) -> Iterator[_Row]:
    """Yield the step from its first window to its last one, and from its begin to that of the next one."""
    noise = noise_between_steps(STEP, runs)
    if likes.is_whole and max(len(a.islands), len(b.islands)) <= 1:
        error = ((a.clock_error_ns or 0) + (b.clock_error_ns or 0)) / 1e9
        times = (a.seconds, b.seconds)
        what = WHOLE_TRACE if is_of_others(a) and a.step is None else "step"
        yield _Row(change_of_steps(what, "step", times, noise, error), in_other_steps(STEP, runs, times))
    elif own := _of_slowest(a, b, likes, runs):
        yield _Row(change_of_steps(ONE_PROCESS, "step", own, noise), in_other_steps(STEP, runs, own))
    if a.recording is not None and b.recording is not None:
        lengths = [[*run.lengths.values()] for run in runs]
        count = len(lengths[0]) if runs[0] is runs[1] else sum(map(len, lengths))
        times = (a.recording.seconds, b.recording.seconds)
        held = a.recording.held + b.recording.held
        change = change_of_steps(UNTIL_NEXT, "step", times, (noise_of_difference(*lengths), count), held)
        yield _Row(change)


def _of_slowest(
    a: Report, b: Report, likes: Likes, runs: tuple[RunSteps, RunSteps]
) -> tuple[float, float] | None:
    """Return the step in the slowest of the ranks that both have, each by its own clock; None: not known.

    Clocks that were never compared do not show when the last process ended, nor do the ranks that are there if
    others are missing.
    """
    before, after = (
        run.by_rank(run.visit(report.step, report.occurrence, report.occurrences))
        for run, report in zip(runs, (a, b), strict=True)
    )
    both = (before.keys() & after.keys()) - likes.unfollowed_ranks
    return (max(before[rank] for rank in both), max(after[rank] for rank in both)) if both else None


def _times(a: Report, b: Report, likes: Likes, runs: tuple[RunSteps, RunSteps]) -> Iterator[_Row]:
    """Compare the times of roles and regions, each by the clock of its process."""
    before, after = _by_part(a), _by_part(b)
    for part in after:
        own, now = likes.followed(before.get(part, ()), after[part])
        if own and now:
            topic, times = "role" if part[1] is None else "region", (_most(own), _most(now))
            change = change_of_steps(_what(part), topic, times, noise_between_steps(part, runs))
            yield _Row(change, _calls(own, now) + in_other_steps(part, runs, times))


def _by_part(report: Report) -> _Times:
    """Return the time of each role and region in each process, over all clocks."""
    found: dict[Part, list[ProcessTime]] = {}
    for time in (*report.roles, *report.regions):
        found.setdefault((time.role, time.region), []).extend(time.per_process)
    return found


def _what(part: Part) -> str:
    role, region = part
    if region is None:
        return role or NO_ROLE
    return region if role is None else f"{role}: {region}"


def _most(times: Iterable[ProcessTime]) -> float:
    return max(time.seconds for time in times)


def _calls(a: Sequence[ProcessTime], b: Sequence[ProcessTime]) -> str:
    """Return how often the slowest processes called it, if that differs."""
    before, after = (max(of, key=lambda time: time.seconds).calls for of in (a, b))
    return "" if before == after else f"; {counted(before, 'call')} before, {after} now"


def _ops(
    a: Iterable[Op], b: Iterable[Op], topic: str, likes: Likes, runs: Sequence[RunSteps]
) -> Iterator[_Row]:
    before = {op.name: op for op in a}
    for after in b:
        known = before.get(after.name)
        if known is not None:
            own, now = likes.captured(known.per_process, after.per_process)
            if own and now:
                sides = [[time.seconds for time in of] for of in (own, now)]
                change = change_of_processes(after.name, topic, (max(sides[0]), max(sides[1])), sides, runs)
                yield _Row(change, _calls(own, now))


def _rollouts(a: Report, b: Report, runs: Sequence[RunSteps]) -> Iterator[_Row]:
    """Compare engines with engines, and samples of processes with samples of processes."""
    tokens = [{work.label: work.generated_tokens for work in report.engines} for report in (a, b)]
    before = {row.label: row for row in a.rollout if _can_compare(row, a, b)}
    for after in (row for row in b.rollout if _can_compare(row, b, a)):
        known = before.get(after.label)
        if known is None:
            continue
        alike = [[row for row in _parts(report, after) if row.whole] for report in (a, b)]
        amounts = [of.get(after.label) for of in tokens]
        note = "" if amounts[0] == amounts[1] else f"; {amounts[0]} generated tokens before, {amounts[1]} now"
        note = "" if None in amounts else note
        for what, which in ((after.label, _length), (f"{after.label}: tail", _tail)):
            sides = [[which(row) for row in of] for of in alike]
            yield _Row(change_of_processes(what, "rollout", (which(known), which(after)), sides, runs), note)


def _length(row: Rollout) -> float:
    return row.seconds


def _tail(row: Rollout) -> float:
    return row.tail


def _parts(report: Report, of: Rollout) -> list[Rollout]:
    """Return the rows of single engines, or those of the samples of single processes."""
    return [
        row
        for row in report.rollout
        if bool(row.iterations) == bool(of.iterations) and not row.label.startswith(SUMS)
    ]


def _can_compare(row: Rollout, report: Report, other: Report) -> bool:
    """Return whether a rollout has a counterpart: it is whole, and the work is divided among equally many."""
    is_sum = row.label.startswith(SUMS)
    return row.whole and (is_sum or len(_parts(report, row)) == len(_parts(other, row)))


def _headline(row: _Row) -> Finding:
    change = row.change
    difference = abs(change.b - change.a)
    subject = f"the {change.what}"
    if difference < WORTH_SAYING * change.a:
        return Finding(f"{subject} took {seconds_text(change.b)}, as long as before", "step", difference)
    text = f"{subject} took {_than(change.a, change.b)}{row.note}; {noise_text(change)}"
    return Finding(text, "step", difference)


def _findings(a: Report, rows: Iterable[_Row]) -> Iterator[Finding]:
    reported = 0
    for row in rows:
        change = row.change
        difference = abs(change.b - change.a)
        if difference < WORTH_SAYING * a.seconds or reported == MOST_HEADLINES:
            continue
        if not change.significant and change.noise is not None:
            continue
        reported += 1
        what = f"the {change.what}" if change.topic == "step" else change.what
        text = f"{what} took {_than(change.a, change.b)}{row.note}; {noise_text(change)}"
        yield Finding(text, change.topic, difference)


def noise_text(change: Change) -> str:
    """Return the noise of a change in words, with its origin."""
    if change.noise is None:
        if change.topic in ("step", "role", "region"):
            known = "are known" if change.topic == "step" else "with it are known"
            return f"the noise is unknown: fewer than {FEWEST} other steps {known}"
        if change.noise_processes is None:
            return "the noise is unknown: there are no two processes that did equal work"
        between = seconds_text(change.noise_processes)
        return f"the noise is unknown: {between} between processes, and between steps perhaps more"
    text = f"the noise is {seconds_text(change.noise)}"
    if change.noise == change.noise_steps:
        text += f", from step to step ({change.steps} steps)"
    elif change.noise == change.noise_processes:
        text += ", between processes"
    else:
        text += ", by which whole steps differ"
    return text if change.significant else f"{text}: within noise"


def _than(before: float, after: float) -> str:
    more = f"{abs(after / before - 1):.0%} " if before > 0 else ""
    return f"{more}{'longer' if after > before else 'shorter'}: {seconds_text(before)} before, {seconds_text(after)} now"


def _warm_up(a: Report, b: Report, runs: tuple[RunSteps, RunSteps]) -> Iterator[Problem]:
    """Yield the step that is the first one of its process, if the other one is not."""
    first = [
        run.visit(report.step, report.occurrence, report.occurrences) in run.first
        for run, report in zip(runs, (a, b), strict=True)
    ]
    if first[0] != first[1]:
        yield Problem(_name(a if first[0] else b), "it is the first step of its process, which takes longer")


def _problems(a: Report, b: Report, likes: Likes) -> Iterator[Problem]:
    """Yield problems about what cannot be compared."""
    yield from likes.problems
    if max(len(a.islands), len(b.islands)) > 1 or not likes.is_whole:
        islands = max(len(a.islands), len(b.islands)) > 1
        why = "clocks of hosts were never compared" if islands else "a process or a part of it is missing"
        yield Problem(None, f"{why}: the step as a whole is not compared, but the slowest rank by its spans")
    parts = [_by_part(report) for report in (a, b)]
    for side, (report, other) in enumerate(((a, b), (b, a))):
        if len(other.regions) >= MOST_REGIONS:
            continue  # it has the longest regions only
        for part, times in parts[side].items():
            known = likes.followed(times, times)[side]
            if part not in parts[1 - side] and known and _most(known) >= WORTH_SAYING * report.seconds:
                took = seconds_text(_most(known))
                yield Problem(
                    _name(report), f"{_what(part)} took {took} and does not occur in {_name(other)}"
                )
    for part, times in parts[0].items():
        counts = len(times), len(parts[1].get(part, ()))
        if part[1] is None and counts[1] and counts[0] != counts[1]:
            yield Problem(None, f"{_what(part)}: processes: {counts[0]} in A, {counts[1]} in B")
    for report, other in ((a, b), (b, a)):
        left_out = [row.label for row in report.rollout if not _can_compare(row, report, other)]
        if left_out:
            why = "its capture is not whole, or the work is divided among another number"
            yield Problem(_name(report), f"rollout of {', '.join(left_out[:4])} is not compared: {why}")
        if report.problems:
            yield Problem(
                _name(report), f"its report has {counted(len(report.problems), 'note')}: it may be incomplete"
            )
