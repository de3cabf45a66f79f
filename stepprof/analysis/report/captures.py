"""Choose one capture of each process, if a folder has several: torch's `schedule(repeat=2)`, or a folder for each profiled iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepprof.analysis.report.digest import Digest

MOST_NAMED = 3


def last_captures(digests: Sequence[Digest]) -> tuple[list[bool], str | None]:
    """Return which traces to keep, and what was left out; all of them if no process has two captures.

    Captures belong together if they overlap. Only traces that stepprof did not record are looked at, and of these the ones that
    state their rank or process id.
    """
    groups: list[list[int]] = []
    reach = None
    for at in sorted(
        (at for at, made in enumerate(digests) if made.origin.kind == "trace" and made.start is not None),
        key=lambda at: digests[at].start or 0,
    ):
        start, end = digests[at].start or 0, digests[at].end or 0
        if reach is None or start > reach:
            groups.append([])
        groups[-1].append(at)
        reach = max(end, reach or end)
    seen: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for number, group in enumerate(groups):
        for at in group:
            origin = digests[at].origin
            if origin.rank is not None or origin.pid is not None:
                seen[origin.host, origin.pid, origin.rank].add(number)
    if all(len(numbers) < 2 for numbers in seen.values()):
        return [True] * len(digests), None
    left = {at for group in groups[:-1] for at in group}
    names = [digests[at].origin.path for at in sorted(left)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    note = (
        f"{len(groups)} captures, one after the other, are of one process: this is the last one; "
        f"name another one, or two to compare (left out: {', '.join(names[:MOST_NAMED])}{more})"
    )
    return [at not in left for at in range(len(digests))], note
