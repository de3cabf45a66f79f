"""Build the report from the found sources.

Each source is read and digested in a worker process, or on the host that has its file. Only the
digests are returned.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.recording_cost import RecordingCost, recording_cost
from stepprof.analysis.report.allocators import read_counts
from stepprof.analysis.report.captures import last_captures
from stepprof.analysis.report.clock_placement import estimated, moved_alignment, place, rank_job
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import Digest, digest
from stepprof.analysis.report.marked import marked_lengths, marked_step, of_marked_steps
from stepprof.analysis.report.process_groups import Communication
from stepprof.analysis.report.processes import measurable
from stepprof.analysis.report.schema import Job, Problem, Report
from stepprof.analysis.report.wording import names
from stepprof.analysis.timeline.clocks import never_compared
from stepprof.analysis.timeline.correlations import Numbered, lacks_arrows, with_launches
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.file_names import shortened
from stepprof.analysis.timeline.find import Found, Input
from stepprof.analysis.timeline.load import LAUNCHES, load
from stepprof.analysis.timeline.manifest_sources import windows_edges
from stepprof.analysis.timeline.model import Alignment
from stepprof.analysis.timeline.profiler_steps import cut_to_step, marked_steps, median_step
from stepprof.analysis.timeline.workers import Failed, each_in_worker
from stepprof.errors import StepprofError
from stepprof.host.plain_files import resolved
from stepprof.run.evidence import read_evidence
from stepprof.run.fields import LONGEST_NAME
from stepprof.run.runs import read_run

if TYPE_CHECKING:
    from stepprof.analysis.timeline.ray_workers import Cluster

Progress = Callable[[int, int], None]
Bounds = tuple[int, int]
Task = tuple[Input, "Bounds | None", "Mapping[str, int] | None"]


def analyse(
    found: Found,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    assume: Mapping[str, int] | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Report on the found sources.

    Args:
        found: by `stepprof.analysis.timeline.find.find`.
        workers: the largest number of processes; by default one per processor, and none for small
            inputs. 1: everything in this process.
        progress: called with (sources done, all sources) after each.
        assume: nanoseconds that are added to the times of sources, as `load` takes them.
        cluster: does the work instead of processes of this machine.
    """
    sizes = [wanted.bytes for wanted in found.inputs]
    tasks = tasks_of(found, assume)
    each = each_in_worker if cluster is None else cluster.each
    results = list(each(digest_input, tasks, sizes=sizes, workers=workers, progress=progress))
    found, kept = _last_captures(found, results)
    results, tasks, sizes = (list(compress(every, kept)) for every in (results, tasks, sizes))
    chosen = marked_step(found, [each for each in results if isinstance(each, Digest)])
    if chosen is None:
        return report_of(found, results)
    again = [
        number
        for number, made in enumerate(results)
        if isinstance(made, Digest) and made.marked and made.marked_step != chosen
    ]
    moved = [(dataclasses.replace(tasks[at][0], marked_step=chosen), *tasks[at][1:]) for at in again]
    for at, made in zip(
        again, each(digest_input, moved, sizes=[sizes[at] for at in again], workers=workers), strict=True
    ):
        results[at] = made
    return report_of(dataclasses.replace(found, step=chosen), results)


def _last_captures(found: Found, results: Sequence[Digest | Failed]) -> tuple[Found, list[bool]]:
    """Return the sources of one capture of each process with a note about the others, and which sources these are.

    Raises:
        ConfigError: no trace has the selected step.
    """
    digests = [
        each if isinstance(each, Digest) else _without(wanted, each)
        for wanted, each in zip(found.inputs, results, strict=True)
    ]
    selected = next((each.marked_step for each in found.inputs if each.marked_step is not None), None)
    if selected is not None:
        marked_step(found, digests)
    kept, note = last_captures(digests, selected)
    notes = [] if note is None else [(None, note)]
    inputs = list(compress(found.inputs, kept))
    return dataclasses.replace(found, inputs=inputs, findings=[*found.findings, *notes]), kept


def tasks_of(found: Found, assume: Mapping[str, int] | None = None) -> list[Task]:
    """Return the arguments of `digest_input` for each source, for the process that reads the
    source.
    """
    windows = [window for manifest in found.manifests for window in manifest["windows"]]
    # a capture of a rank may cover several steps: of the step is what is in windows of its process
    bounds = windows_edges(map(measurable, windows))
    origins = [wanted.origin for wanted in found.inputs]
    edges = [bounds.get(origin.process) if origin.kind == "rank" else None for origin in origins]
    return [(wanted, edge, assume) for wanted, edge in zip(found.inputs, edges, strict=True)]


def report_of(found: Found, results: Sequence[Digest | Failed]) -> Report:
    """Return the report from the results of `digest_input` for each source, in order. A source that
    failed becomes a finding.
    """
    digests = [
        result if isinstance(result, Digest) else _without(wanted, result)
        for wanted, result in zip(found.inputs, results, strict=True)
    ]
    if len(digests) == 1 and _is_of_unknown_host(digests[0]):  # no other clock to compare with
        digests = [msgspec.structs.replace(digests[0], alignment=Alignment("reference"))]
    origins = shortened([each.origin for each in digests])  # the ones left out had the same names
    digests = [
        msgspec.structs.replace(each, origin=origin) for each, origin in zip(digests, origins, strict=True)
    ]
    digests, placed, problems = place(digests, found.manifests, found.placed)
    apart = _of_unknown_clocks(digests)
    if len(apart) > 1:
        problems = [*problems, _never_compared(list(apart.values()))]
    digests = [
        msgspec.structs.replace(each, findings=[*each.findings, *never_compared(each.origin, each.alignment)])
        if len(apart) < 2 or not _is_of_unknown_host(each)
        else each
        for each in digests
    ]
    step, runs = found.step, found.runs
    report = combine(
        digests,
        step=step,
        run_id=found.run_id or _name_of(found),
        manifests=found.manifests,
        problems=[
            *(Problem(source, problem) for source, problem in found.findings),
            *(Problem(None, problem) for problem in problems),
        ],
        placed=placed,
        evidence=[] if step is None else [each for run in runs for each in read_evidence(run, step)],
        counts=read_counts(found.folder, found.manifests),
        neighbours=None if step is None or not runs else Neighbours(runs, step),
        runs=runs,
    )
    return msgspec.structs.replace(
        report,
        occurrence=found.occurrence,
        occurrences=found.occurrences,
        job=job_of(runs),
        marked=marked_lengths(digests),
        recording=_cost(found),
        findings=[*report.findings[:1], *of_marked_steps(digests), *report.findings[1:]],
    )


def _name_of(found: Found) -> str:
    """Return the name of traces without a run: of the only file, or of their folder."""
    if found.stem is not None:
        return found.inputs[0].origin.path
    return "" if found.folder is None else resolved(found.folder).name


def _is_of_unknown_host(made: Digest) -> bool:
    """Return whether a trace that stepprof did not record states no host."""
    return made.origin.kind == "trace" and made.origin.host is None


def _of_unknown_clocks(digests: Sequence[Digest]) -> dict[str, list[str]]:
    """Return the labels of the traces of unknown hosts by the island of their clock, with the common clock if such traces alone share it."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in digests:
        if _is_of_unknown_host(each):
            found[each.alignment.island].append(each.origin.label)
    if any(each.alignment.method != "shared" for each in digests if not each.alignment.island):
        found.pop("", None)
    return dict(found)


def _never_compared(groups: Sequence[Sequence[str]]) -> str:
    if all(len(labels) == 1 for labels in groups):
        which, each = names([labels[0] for labels in groups]), "each"
    else:
        which = f"{len(groups)} groups of sources ({'; '.join(map(names, groups[:MOST_GROUPS]))}{'; …' * (len(groups) > MOST_GROUPS)})"
        each = "each group"
    return (
        f"the clocks of {which} were never compared with each other, and their hosts are unknown: {each} is placed by its own "
        "clock, with an unknown error; --one-clock says that they are of one machine"
    )


def placed(
    found: Found,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    assume: Mapping[str, int] | None = None,
    cluster: Cluster | None = None,
) -> Found:
    """Return the found sources on the common clock, as far as collectives show the clock offsets.

    A merge needs it. If hosts were never compared, the collectives of their ranks are read first.

    Args:
        found: by `stepprof.analysis.timeline.find.find`.
        workers: processes at most, as `stepprof.analysis.report.analyse.analyse` takes them.
        progress: called with (sources done, all sources) after each that has to be read.
        assume: offsets of sources [ns], as `load` takes them.
        cluster: runs the work instead of processes of this machine.

    Raises:
        StepprofError: a process that read a source for this died.
    """
    islands: dict[object, set[str]] = defaultdict(set)
    for each in found.considered:
        islands[rank_job(each.origin)].add(each.alignment.island)
    wanted = [
        task
        for task in tasks_of(dataclasses.replace(found, inputs=found.considered), assume)
        if (job := rank_job(task[0].origin)) is not None and len(islands[job]) > 1
    ]
    if not wanted:
        return found
    each_of = each_in_worker if cluster is None else cluster.each
    sizes = [task[0].bytes for task in wanted]
    results = each_of(digest_input, wanted, sizes=sizes, workers=workers, progress=progress)
    made = estimated([result for result in results if isinstance(result, Digest)], found.manifests)
    for task, result in zip(wanted, results, strict=True):
        if isinstance(result, Failed) and result.unread:  # without it, other sources would be misplaced
            raise StepprofError(f"{task[0].origin.path}: {result.reason}; the clocks cannot be compared")
    return dataclasses.replace(
        found,
        inputs=[
            dataclasses.replace(each, alignment=moved_alignment(each.alignment, made.moves))
            for each in found.inputs
        ],
        findings=[*found.findings, *((None, problem) for problem in made.findings)],
    )


def digest_input(
    wanted: Input, bounds: Bounds | None = None, assume: Mapping[str, int] | None = None
) -> Digest:
    """Read one source and digest it: the work of one worker, on the host that has the file.

    Args:
        wanted: from `find`.
        bounds: when its process was in windows of the step, by its own clock; None: all of the source is of the step.
        assume: as `load` takes it.
    """
    keep = True if wanted.origin.kind == "spans" else Communication()
    source = load(wanted, args=keep, assume=assume, flows=LAUNCHES, evidence=False, lines=True, apart=True)
    if wanted.origin.kind == "trace" and lacks_arrows(source):
        source = with_launches(
            load(
                wanted,
                args=Numbered(keep),
                assume=assume,
                flows=LAUNCHES,
                evidence=False,
                lines=True,
                apart=True,
            )
        )
    marked = marked_steps(source) if wanted.origin.kind == "trace" else []
    number = wanted.marked_step
    if number is None and marked:
        number = median_step(marked)
    at = next((step for step in reversed(marked) if step.number == number), None)
    part = cut(source if at is None else cut_to_step(source, at), wanted.window)
    made = digest(part.source, bounds)
    return msgspec.structs.replace(
        made,
        bytes=wanted.bytes,
        status=wanted.status,
        recorded_steps=part.recorded,
        unclear=not part.is_known,
        marked=marked,
        marked_step=None if at is None else number,
        end=made.end if at is None or made.end is None else max(made.end, at.end),
    )


def _cost(found: Found) -> RecordingCost | None:
    """Return the step compared with its neighbours, and the known costs of recording; None for a step whose parts are in several folders, or without a run."""
    if len(found.runs) != 1 or found.step is None or not found.manifests:
        return None
    windows, engines = (
        [each for manifest in found.manifests for each in manifest[key]] for key in ("windows", "engines")
    )
    return recording_cost(found.runs[0], found.step, windows, engines)


def _without(wanted: Input, failed: Failed) -> Digest:
    return Digest(
        wanted.origin,
        wanted.alignment,
        events=0,
        findings=[f"not in the report: {failed.reason}"],
        bytes=wanted.bytes,
        status=wanted.status,
        whole=False,
        unread=failed.unread,
    )


MOST_GROUPS = 3
MOST_ARGUMENTS = 400
MOST_ENTRIES = 64


def job_of(runs: Sequence[Path]) -> Job | None:
    """Return the job of a run, by the first of its folders that describes it; None: none does."""
    for run in runs:
        content = read_run(run)
        if content:
            return _job(content)
    return None


def _job(content: dict[str, Any]) -> Job:
    versions, adapters = _table(content, "versions"), _table(content, "adapters")
    attached = {name: state for name, state in adapters.items() if isinstance(state, dict)}
    models = [model for state in attached.values() if (model := _text(state.get("model")))]
    return Job(
        command=_texts(content.get("command")),
        world_size=content.get("world_size"),
        model=models[0] if models else None,
        versions={name: text for name, text in versions.items() if _text(text)},
        platform=_text(content.get("platform")),
        adapters=[
            name for name, state in attached.items() if state.get("status") in ("attached", "untested")
        ],
    )


def _table(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping at a key of the file: the first of its entries with valid names."""
    value = content.get(key)
    entries = list(value.items())[:MOST_ENTRIES] if isinstance(value, dict) else []
    return {name: each for name, each in entries if _text(name)}


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        return []
    return [each for each in value[:MOST_ARGUMENTS] if isinstance(each, str)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_NAME else None
