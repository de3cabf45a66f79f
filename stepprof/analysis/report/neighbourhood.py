"""Place the recorded step among the other steps of its run, by the windows of one process.

Where no role divides the step, its outermost regions take the place of roles.

Recording can make a step longer, and the first steps of a process compile, allocate and open connections:
such steps are shown, and nothing is compared with them. Nor does the time count for which profilers held
the recorded step up, in its process or in others that this one waited for. Where profilers held the processes up for
different times, a wait that was not recorded may be longer or less long than in other steps: what this may explain is
not known to be unusual. A step is usual if it is near the median of the others, as these vary: one long step
makes no other one usual. A step is compared with steps that have the
same roles: one without a rollout is no fast one with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from stepprof.analysis.findings.step_times import kind_of
from stepprof.analysis.periodic import every, extreme, period, tolerance, warm_up
from stepprof.analysis.report.cause_times import cause_times
from stepprof.analysis.report.division import NEARLY_ALL, WORTH_SAYING
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import CauseTimes, Finding, Neighbourhood, Report, StepTime, Usual
from stepprof.analysis.report.timelines import DRIVER
from stepprof.analysis.report.unrecorded import Displaced, Unrecorded
from stepprof.analysis.report.visits import later_visits
from stepprof.analysis.report.wording import quoted, seconds
from stepprof.analysis.run_windows import (
    RunWindow,
    outermost_regions,
    own_windows,
    process_files,
)
from stepprof.analysis.timeline.model import Origin
from stepprof.run.runs import steps as recorded_steps

NOTHING = Unrecorded()
AROUND = 200
"""Number of steps to show before and after this one."""
FEWEST = 3
"""Fewer other steps say nothing."""
SIMILAR = 0.5
"""A step is as unusual as another one if it is at least this share of that one's distance from the median."""
MOST_PROCESSES = 3
"""The number of processes in which the step is searched."""
MOST_ROLES = 3
"""Maximum number of roles in the sentence."""
MOST_REGIONS = 6
"""Maximum number of regions to show."""


def neighbourhood_of(
    report: Report,
    runs: Sequence[Path],
    causes: Sequence[Finding],
    processes: Iterable[Process],
    unrecorded: Unrecorded = NOTHING,
) -> Neighbourhood | None:
    """Return the step of a report among the others of its run: in the process of the first cause, else in the one with the most time on the path.

    Args:
        report: with its path.
        runs: the folders of the run.
        causes: its findings with a place.
        processes: of the step.
        unrecorded: what the recording of the step took.
    """
    if report.step is None:
        return None
    origins = {each.label: each.origin for each in processes}
    spent: dict[str, float] = defaultdict(float)
    for segment in report.path:
        spent[segment.process] += segment.seconds
    places = [(cause.process, cause.start) for cause in causes if cause.process in origins]
    order = [process for process, _ in places[:1] if process] + sorted(spent, key=lambda label: -spent[label])
    regions = {
        segment.region[0]
        for segment in report.path
        if segment.region
        and any(
            process == segment.process and 0.0 <= (start or 0.0) - segment.start < segment.seconds
            for process, start in places
        )
    }
    found = neighbourhood(
        runs,
        report.step,
        [origins[label].rank for label in order if label in origins],
        regions,
        unrecorded,
        processes={f"{each.host} {each.pid}" for each in origins.values()},
    )
    return (
        None
        if found is None
        else replace(
            found, places=[*_places(found, report.step, runs, causes, origins=origins, unrecorded=unrecorded)]
        )
    )


def _places(
    found: Neighbourhood,
    step: int,
    runs: Sequence[Path],
    causes: Iterable[Finding],
    *,
    origins: Mapping[str, Origin],
    unrecorded: Unrecorded,
) -> Iterator[CauseTimes]:
    """Yield the times of places of causes that the parts do not show: those of another process, or inside of a part."""
    shown = {(each.role, each.region) for each in found.parts}

    def is_shown(label: str, role: str | None, region: str | None) -> bool:
        part = (role, None) if region is None else (None, region)
        return part in shown and _name(origins[label].rank) == found.process

    places = dict.fromkeys(
        place
        for each in causes
        for label in (each.process or "", *each.also)
        if label in origins and origins[label].kind != "engine" and (each.region or each.role) is not None
        if not is_shown(*(place := (label, each.role, each.region)))
    )
    compared = {*found.others}
    for times in cause_times(
        runs, step, {each.step for each in found.steps}, [*places], origins=origins, unrecorded=unrecorded
    ):
        others = [seconds for number, seconds in times.by_step.items() if number in compared]
        if len(others) >= FEWEST:
            origin = origins[times.process]
            displaced = unrecorded.displaced(f"{origin.host} {origin.pid}")
            usual = _usual(times.role, times.by_step[step], others, displaced, times.region)
            yield replace(times, usual=usual)
        else:
            yield times


def neighbourhood(
    runs: Sequence[Path],
    step: int,
    ranks: Sequence[int | str | None] = (),
    regions: Collection[str] = (),
    unrecorded: Unrecorded = NOTHING,
    *,
    processes: Collection[str] = (),
) -> Neighbourhood | None:
    """Return the steps around one of them, in one process: a rank may have been started again.

    Args:
        runs: the folders of the run.
        step: the number of the step.
        ranks: the ranks whose spans are preferred, in this order, unless the run has a driver.
        regions: the outermost regions to show, if the process has them, however short they are.
        unrecorded: what the recording of the step took.
        processes: the host and the id of those that were in the step.

    Returns:
        None: no process has spans of it and of another step, or used the number for several steps.
    """
    recorded = {number for run in runs for number in recorded_steps(run)}
    for process, files in _processes(runs, ranks):
        of_process = own_windows(files, step, processes)
        times = _steps(of_process, recorded, unrecorded)
        at = next((at for at, each in enumerate(times) if each.step == step), None)
        if at is None or len(times) < 2:
            continue
        around = times[max(at - AROUND, 0) : at + AROUND + 1]
        if not _is_divided(times[at]):
            around = _with_regions(around, files, of_process[0].process, step, regions, unrecorded=unrecorded)
        this = next(each for each in around if each.step == step)
        displaced = unrecorded.displaced(of_process[0].process)
        return _placed(process, around, this, _warm_up(times), displaced)
    return None


def _warm_up(times: Iterable[StepTime]) -> set[int]:
    """Return the first steps of a process."""
    steps = [each for each in times if not each.recorded]
    return {each.step for each in steps[: max(1, warm_up([each.seconds for each in steps]))]}


def _is_divided(step: StepTime) -> bool:
    """Return whether roles divide a step."""
    return len(step.roles) > 1 or any(of < NEARLY_ALL * step.seconds for of in step.roles.values())


def _with_regions(
    times: Sequence[StepTime],
    files: Sequence[Path],
    process: str,
    step: int,
    regions: Collection[str],
    *,
    unrecorded: Unrecorded,
) -> list[StepTime]:
    """Return the steps with the longest outermost regions of one of them, and some regions in any case."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for each in outermost_regions(files, {time.step for time in times}):
        if each.process != process:
            continue
        length = unrecorded.length(each.process, each.start, each.end)
        found[each.step][each.name] = found[each.step].get(each.name, 0) + length
    own = found.get(step, {})
    least = WORTH_SAYING * sum(own.values())
    longest = sorted((name for name in own if own[name] >= least), key=lambda name: -own[name])
    shown = {*longest[:MOST_REGIONS], *regions}
    names = [name for name in own if name in shown]  # in the order in which they begin
    counting = _counting(own, [inside for number, inside in found.items() if number != step])
    return [
        replace(each, regions={name: inside[name] / 1e9 for name in names if name in inside})
        for each in times
        for inside in [_renamed(found.get(each.step, {}), counting)]
    ]


def _counting(own: Mapping[str, int], others: Iterable[Mapping[str, int]]) -> dict[str, str]:
    """Return by their kind the names of a step that no other step has, because a number in them counts: `rollout_5`."""
    elsewhere = {name for other in others for name in other}
    kinds = Counter(map(kind_of, own))
    return {
        kind: name
        for name in own
        for kind in [kind_of(name)]
        if kind != name and kinds[kind] == 1 and name not in elsewhere
    }


def _renamed(times: Mapping[str, int], counting: Mapping[str, str]) -> Mapping[str, int]:
    """Return the times of a step by the names of another step, in which a number counts."""
    found: dict[str, int] = defaultdict(int)
    for name, length in times.items():
        found[counting.get(kind_of(name), name)] += length
    return found


def _processes(runs: Sequence[Path], ranks: Sequence[int | str | None]) -> Iterator[tuple[str, list[Path]]]:
    found = [each for run in runs for each in process_files(run)]
    last = len(ranks)
    found.sort(key=lambda each: (each[0] != DRIVER, ranks.index(each[0]) if each[0] in ranks else last))
    for name, files in found[:MOST_PROCESSES]:
        yield _name(name), files


def _name(rank: int | str | None) -> str:
    return rank if isinstance(rank, str) else f"rank {rank}"


def _steps(windows: Iterable[RunWindow], recorded: set[int], unrecorded: Unrecorded) -> list[StepTime]:
    """Return the steps in the order in which they began, without numbers that were used for several steps and without
    the step in which the process ended.
    """
    ordered = sorted(windows, key=lambda window: window[:2])
    several = {*later_visits(window[:4] for window in ordered)}
    several |= {window.step for window in ordered if not window.ends}
    by_step: dict[int, list[RunWindow]] = defaultdict(list)
    for window in ordered:
        if window.step not in several:
            by_step[window.step].append(window)
    return [_step(number, of, number in recorded, unrecorded) for number, of in by_step.items()]


def _step(number: int, windows: Sequence[RunWindow], recorded: bool, unrecorded: Unrecorded) -> StepTime:
    process = windows[0].process
    roles: dict[str, int] = {}
    reach: dict[str, int] = {}
    for window in windows:  # sorted by start
        if window.role is not None:
            since = max(window.start, reach.get(window.role, window.start))
            length = unrecorded.length(process, since, max(window.end, since))
            roles[window.role] = roles.get(window.role, 0) + length
            reach[window.role] = max(window.end, since)
    start, end = windows[0].start, max(window.end for window in windows)
    length = unrecorded.length(process, start, end)
    of_roles = {role: of / 1e9 for role, of in roles.items()}
    return StepTime(number, length / 1e9, recorded, of_roles, held=max(end - start - length, 0) / 1e9)


def _placed(
    process: str, times: list[StepTime], this: StepTime, warm: Collection[int], displaced: Displaced
) -> Neighbourhood:
    plain = [each for each in times if not each.recorded and each.step not in warm and each is not this]
    alike = [each for each in plain if each.roles.keys() == this.roles.keys()]
    parts = [] if len(alike) < FEWEST else list(_parts(this, alike, displaced))
    text = _sentence(process, this, plain, alike, parts, displaced=displaced)
    return Neighbourhood(process, times, [each.step for each in alike], parts, text)


def _parts(this: StepTime, others: Sequence[StepTime], displaced: Displaced) -> Iterator[Usual]:
    yield _usual(None, this.seconds, [each.seconds for each in others], displaced)
    for role, length in this.roles.items():
        yield _usual(role, length, [each.roles[role] for each in others], displaced)
    for region, length in this.regions.items():
        having = [each.regions[region] for each in others if region in each.regions]
        if len(having) >= FEWEST:
            yield _usual(None, length, having, displaced, region)


def _usual(
    role: str | None, length: float, others: Sequence[float], displaced: Displaced, region: str | None = None
) -> Usual:
    middle, least, most = median(others), min(others), max(others)
    apart, within = abs(length - middle), tolerance(others)
    unknown = displaced.longer if length > middle else displaced.shorter
    typical = True if apart <= within else None if apart <= within + unknown else False
    return Usual(role, length, middle, least, most, len(others), typical, region)


def _sentence(
    process: str,
    this: StepTime,
    plain: Sequence[StepTime],
    alike: Sequence[StepTime],
    parts: Sequence[Usual],
    *,
    displaced: Displaced,
) -> str:
    """Return whether the step is typical, which roles are not, and whether other steps have other roles."""
    held = (
        f", not counting {seconds(this.held)} by profilers"
        if this.held >= WORTH_SAYING * this.seconds
        else ""
    )
    took = f"step {this.step} took {seconds(this.seconds)} in {process}{held}"
    lengths = [each.seconds for each in alike]
    kind = " with the same roles" if len(alike) < len(plain) else ""
    if not parts:
        return f"{took}; too few other steps{kind} to compare it with: {len(alike)} without recording, the first of the run not counted"
    whole = parts[0]
    unknown = displaced.longer if this.seconds > whole.median else displaced.shorter
    spread = f"{seconds(whole.median)} ({seconds(whole.shortest)} to {seconds(whole.longest)})"
    others = f"the {whole.steps} other steps{kind} that were not recorded took {spread}"
    verdict = (
        f"typical{extreme(this.seconds, lengths, unknown)}"
        if whole.typical
        else _unusual(this, whole.median, alike)
    )
    if whole.typical is None:
        verdict = "whether that is usual is not known: the profiler held the processes of the step up at different times, or for different lengths of time"
    return (
        f"{took}: {verdict}; {others}{_reasons(parts)}{_other_roles(this, plain)}{_rare_regions(this, alike)}"
    )


def _unusual(this: StepTime, usual: float, others: Sequence[StepTime]) -> str:
    """Return whether a step is longer or shorter than usual, and how many of the others are so too."""
    apart = this.seconds - usual
    alike = [each.step for each in others if (each.seconds - usual) / apart >= SIMILAR]
    length = period(this.step, alike, [each.step for each in others])
    text = "longer than usual" if apart > 0 else "shorter than usual"
    if length is not None:
        return f"{text}, as {every(length)}"
    return f"{text}, as {_of(len(alike), len(others))}" if alike else text


def _reasons(parts: Sequence[Usual]) -> str:
    """Return the roles and regions that are not typical."""
    odd = sorted(
        (each for each in parts[1:] if each.typical is False),
        key=lambda each: -abs((each.seconds or 0.0) - each.median),
    )
    texts = [
        f"{each.role or quoted(each.region or '')} {seconds(each.seconds)} instead of {seconds(each.median)}"
        for each in odd[:MOST_ROLES]
    ]
    return f"; {', '.join(texts)}" if texts else ""


def _other_roles(this: StepTime, plain: Sequence[StepTime]) -> str:
    """Return the roles of other steps that this one lacks, and the number of steps that lack a role
    of this one.
    """
    missing = dict.fromkeys(role for each in plain for role in each.roles if role not in this.roles)
    lacking = [(role, sum(role not in each.roles for each in plain)) for role in this.roles]
    texts = [
        f"it has no {role}, as {_of(sum(role not in each.roles for each in plain), len(plain))}"
        for role in list(missing)[:MOST_ROLES]
    ]
    texts += [f"{_of(number, len(plain))} have no {role}" for role, number in lacking if number][:MOST_ROLES]
    return f"; {', '.join(texts)}" if texts else ""


def _rare_regions(this: StepTime, others: Sequence[StepTime]) -> str:
    """Return the number of steps that lack a region of this one. What none of them has may be in recorded steps alone."""
    lacking = {
        region: sum(region not in each.regions for each in others)
        for region, length in this.regions.items()
        if length >= WORTH_SAYING * this.seconds
    }
    texts = [
        f"; {_of(number, len(others))} {'has' if number == 1 else 'have'} no {quoted(region)}"
        for region, number in lacking.items()
        if 0 < number < len(others)
    ]
    return "".join(texts[:MOST_ROLES])


def _of(number: int, others: int) -> str:
    return f"{number} of {others} other steps"
