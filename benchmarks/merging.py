"""Measure merging traces into one timeline: compared with the peers, compared with msgspec's own
decoding, and with an increasing number of sources. The traces are those of `make_traces`. Every
subject is a separate process, without its imports. Rates are of uncompressed text per second of one
processor.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.make_traces import STEP, make_traces, traces_folder
from benchmarks.trace_peers import PEERS, Done, interpreter, measure, rows_of

__all__ = ["measure_merging"]

MERGERS = ("sglang", "viztracer")
GROUP = "merge two traces of {megabytes:.0f} MB together"
SOURCES = "merge more and more sources, two workers"


def measure_merging(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of stepprof, the peers and msgspec for the same files, and rows over the number
    of sources.
    """
    if find_spec("torch") is None:
        return [], {"merge": "the traces to merge are made with torch"}
    absent: dict[str, str] = {}
    rows = _beside_peers(absent, events=5_000 if quick else 100_000, rounds=1 if quick else 3)
    return rows + _sources(quick=quick), absent


def actor_traces(run: Path, ranks: int) -> list[Path]:
    """Return the traces of the role that trains, which are the large ones."""
    return [run / f"step-{STEP:06d}" / "actor" / f"rank-{rank}.trace.json.gz" for rank in range(ranks)]


def text_bytes(files: Sequence[Path]) -> int:
    """Return the uncompressed length of the files."""
    return sum(len(gzip.decompress(file.read_bytes())) for file in files)


def run_rounds(
    subjects: Sequence[tuple[str, str, dict[str, object]]], rounds: int, absent: dict[str, str]
) -> dict[str, list[Done]]:
    """Run every subject (row, subject, its input) once per round. Report and omit a peer that has
    no environment or fails.
    """
    results: dict[str, list[Done]] = {}
    python_of = {}
    for row, subject, _ in subjects:
        python, reason = (sys.executable, "") if subject not in PEERS else interpreter(subject)
        if python is None:
            absent[PEERS[subject].name] = reason
        else:
            python_of[row] = python
    for _ in range(rounds):
        for row, subject, given in subjects:
            if row not in python_of:
                continue
            try:
                results.setdefault(row, []).append(measure(python_of[row], subject, given))
            except RuntimeError as error:
                if subject not in PEERS:
                    raise
                absent[row] = str(error).strip().splitlines()[-1]
                del python_of[row]
                results.pop(row, None)
    return results


def _beside_peers(absent: dict[str, str], *, events: int, rounds: int) -> list[Row]:
    files = actor_traces(make_traces(traces_folder(), events=events), 2)
    megabytes = text_bytes(files) / 1e6
    group = GROUP.format(megabytes=megabytes)
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as work:
        given: dict[str, object] = {"files": [str(file) for file in files], "folder": work, "workers": 1}
        subjects = [
            ("stepprof merge", "merge", given),
            ("msgspec: typed decode, nothing else", "decode", given),
            *((PEERS[subject].name, subject, given) for subject in MERGERS),
        ]
        results = run_rounds(subjects, rounds, absent)
    sizes = {
        row: f", {float(str(done[0].answer)) / 1e6:,.1f} MB written"
        for row, done in results.items()
        if "decode" not in row
    }
    rows = rows_of(
        group,
        [(row, done, sizes.get(row, "")) for row, done in results.items()],
        megabytes,
        "stepprof merge",
    )
    best = {row: min(each.cpu_seconds for each in done) for row, done in results.items()}
    peers = [best[PEERS[subject].name] for subject in MERGERS if PEERS[subject].name in best]
    ours = best["stepprof merge"]
    if peers:
        rows.append(_judged(group, "stepprof merge as a share of the fastest peer", ours / min(peers), 0.2))
    over = ours / best["msgspec: typed decode, nothing else"]
    rows.append(_judged(group, "stepprof merge over msgspec's decode", over, 1 / 0.3))
    return rows


def _sources(*, quick: bool) -> list[Row]:
    """Measure peak memory and seconds over the number of sources of equal size, and compare one
    worker with two.
    """
    events, counts = (5_000, (2, 4)) if quick else (50_000, (2, 16, 64))
    rows = []
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as work:
        for ranks in counts:
            files = actor_traces(make_traces(traces_folder(), events=events, ranks=ranks), ranks)
            given = {"files": [str(file) for file in files], "folder": work}
            done = measure(sys.executable, "merge", {**given, "workers": 2})
            name = f"{ranks} sources"
            rows += [
                Row(SOURCES, f"{name}: peak of the parent", "MiB", done.rss_mib),
                Row(SOURCES, f"{name}: peak of the largest worker", "MiB", done.child_rss_mib),
                Row(SOURCES, f"{name}: wall", "s", done.wall_seconds),
            ]
        wall: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(1 if quick else 3):  # alternately, because other programs slow down either
            for workers, seconds in wall.items():
                each = measure(sys.executable, "merge", {**given, "workers": workers})
                seconds.append(each.wall_seconds)
    for workers, seconds in wall.items():
        name = f"{counts[-1]} sources, {workers} worker{'s' * (workers > 1)}: wall"
        rows.append(Row(SOURCES, name, "s", min(seconds)))
    rows.append(Row(SOURCES, "two workers are faster by", "x", min(wall[1]) / min(wall[2])))
    return rows


def _judged(group: str, name: str, value: float, limit: float) -> Row:
    return Row(group, name, "x", value, limit=limit, limit_on="min", judged=value)
