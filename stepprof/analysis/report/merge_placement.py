"""Place the sources of a timeline on the common clock before the merge.

If hosts were never compared, the collectives of their ranks are read first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from stepprof.analysis.report.analyse import digest_input, tasks_of
from stepprof.analysis.report.clock_placement import estimated, job_of, moved_alignment
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.timeline.find import Found

if TYPE_CHECKING:
    from stepprof.analysis.timeline.ray_workers import Cluster


def placed(
    found: Found,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    assume: Mapping[str, int] | None = None,
    cluster: Cluster | None = None,
) -> Found:
    """Return the found sources on the common clock, as far as collectives show the clock offsets.

    Args:
        found: by `stepprof.analysis.timeline.find.find`.
        workers: processes at most, as `stepprof.analysis.report.analyse.analyse` takes them.
        progress: called with (sources done, all sources) after each that has to be read.
        assume: offsets of sources [ns], as `load` takes them.
        cluster: runs the work instead of processes of this machine.
    """
    from stepprof.analysis.timeline.workers import each_in_worker

    islands: dict[object, set[str]] = defaultdict(set)
    for each in found.considered:
        islands[job_of(each.origin)].add(each.alignment.island)
    wanted = [
        task
        for task in tasks_of(replace(found, inputs=found.considered), assume)
        if (job := job_of(task[0].origin)) is not None and len(islands[job]) > 1
    ]
    if not wanted:
        return found
    each_of = each_in_worker if cluster is None else cluster.each
    sizes = [task[0].bytes for task in wanted]
    results = each_of(digest_input, wanted, sizes=sizes, workers=workers, progress=progress)
    made = estimated([result for result in results if isinstance(result, Digest)], found.manifests)
    return replace(
        found,
        inputs=[
            replace(each, alignment=moved_alignment(each.alignment, made.moves)) for each in found.inputs
        ],
        findings=[*found.findings, *((None, problem) for problem in made.findings)],
    )
