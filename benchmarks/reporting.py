"""Measure the analysis of traces: ten million events, and pairs of traces of several sizes compared with the peers. The
pairs are CUDA-shaped, because HolisticTraceAnalysis reads only those. Each peer runs its own
analysis, which covers less than a report. stepprof and HolisticTraceAnalysis both return the
overlap of communication and computation, each of these, and idle time. A difference ends the
measurement.
"""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from typing import Any

from benchmarks.figures import Row
from benchmarks.make_traces import STEP, make_traces, traces_folder
from benchmarks.merging import actor_traces, run_rounds, text_bytes
from benchmarks.trace_peers import PEERS, Done, measure, rows_of
from stepprof.run.manifest import read_step

__all__ = ["measure_reporting"]

ANALYSERS = ("hta", "tensorboard", "rl_insight", "tracelens")
GROUP = "analyse two CUDA-shaped traces of {megabytes:.0f} MB together"
SIZES = (5_000, 30_000, 100_000)
SHARE = 0.25
LARGE_MB = 50
"""Of smaller files, most of the memory is that of Python and its libraries."""
LARGE = "report of a run of {events:,.0f} events in {sources} sources"


def measure_reporting(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of stepprof and the peers for the same files, and rows of a large run."""
    if find_spec("torch") is None:
        return [], {"report": "the traces to report on are made with torch"}
    absent: dict[str, str] = {}
    rows = [
        row
        for events in ((5_000,) if quick else SIZES)
        for row in _beside_peers(absent, events=events, rounds=1 if quick else 3)
    ]
    return rows + _large(quick=quick), absent


def _beside_peers(absent: dict[str, str], *, events: int, rounds: int) -> list[Row]:
    files = actor_traces(make_traces(traces_folder(), events=events, cuda=True), 2)
    megabytes = text_bytes(files) / 1e6
    given: dict[str, object] = {"files": [str(file) for file in files], "workers": 1}
    subjects = [("stepprof report", "report", given)]
    subjects += [(PEERS[subject].name, subject, given) for subject in ANALYSERS]
    results = run_rounds(subjects, rounds, absent)
    group = GROUP.format(megabytes=megabytes)
    rows = rows_of(group, [(row, done, "") for row, done in results.items()], megabytes, "stepprof report")
    if PEERS["hta"].name in results:
        ours, theirs = results["stepprof report"], results[PEERS["hta"].name]
        _agree(ours[0], theirs[0])
        rows += [
            _limited(group, f"{what} as a share of HolisticTraceAnalysis", "x", of(ours) / of(theirs), limit)
            for what, of, limit in (
                ("processor time", _seconds, SHARE),
                ("peak memory", _memory, SHARE if megabytes >= LARGE_MB else 1.0),
            )
        ]
    return rows


def _seconds(rounds: list[Done]) -> float:
    return min(each.cpu_seconds for each in rounds)


def _memory(rounds: list[Done]) -> float:
    return max(each.rss_mib for each in rounds)


def _agree(ours: Done, theirs: Done) -> None:
    """Raise RuntimeError if the two differ by more than HolisticTraceAnalysis rounds, because the
    speed of wrong results means nothing.
    """
    answer: Any = ours.answer
    other: Any = theirs.answer
    temporal = other["temporal"]
    mine = sorted(
        (100 * overlapped / communication, compute * 1e6, exposed * 1e6, (compute + exposed) * 1e6)
        for compute, communication, overlapped, exposed in answer["overlap"].values()
    )
    its = sorted(
        zip(
            other["overlap"]["comp_comm_overlap_pctg"],
            temporal["compute_time(us)"],
            temporal["non_compute_time(us)"],
            (
                whole - idle
                for whole, idle in zip(temporal["kernel_time(us)"], temporal["idle_time(us)"], strict=True)
            ),
            strict=True,
        )
    )
    close = all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=0.01)
        for left, right in zip(mine, its, strict=True)
        for a, b in zip(left, right, strict=True)
    )
    if not close:
        raise RuntimeError(
            f"overlap in percent, compute, exposed communication and busy in us: stepprof says {mine}, HolisticTraceAnalysis {its}"
        )


def _large(*, quick: bool) -> list[Row]:
    events, ranks = (5_000, 4) if quick else (520_000, 20)
    run = make_traces(traces_folder(), events=events, ranks=ranks)
    windows = read_step(run, STEP)["windows"]
    total = sum(artifact["events"] for window in windows for artifact in window["artifacts"])
    group = LARGE.format(events=total, sources=len(windows))
    done: dict[int, list[Done]] = {1: [], 2: []}
    for _ in range(1 if quick else 2):
        for workers, rounds in done.items():
            rounds.append(measure(sys.executable, "report", {"files": [str(run)], "workers": workers}))
    rows = []
    wall = {}
    for workers, rounds in done.items():
        name = f"{workers} worker{'s' * (workers > 1)}"
        seconds = min(each.cpu_seconds for each in rounds)
        peak = max(each.rss_mib + (workers * each.child_rss_mib if workers > 1 else 0) for each in rounds)
        wall[workers] = min(each.wall_seconds for each in rounds)
        rows += [
            _limited(group, f"{name}: processor time", "s", seconds, 20.0 * total / 1e7),
            _limited(group, f"{name}: peak memory, all processes at most", "MiB", peak, 2048.0),
            Row(group, f"{name}: wall", "s", wall[workers]),
        ]
    return [*rows, Row(group, "two workers are faster by", "x", wall[1] / wall[2])]


def _limited(group: str, name: str, unit: str, value: float, limit: float) -> Row:
    return Row(group, name, unit, value, limit=limit, limit_on="value", judged=value)
