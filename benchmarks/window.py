"""Measure what one recorded window of small operations adds to the whole loop, in seconds of the
main thread.

Every variant is a fresh process, because a profiler leaves a process changed. The variants of a
round run one after another, in rotating order. A variant's cost is its loop minus the loop without
a profiler, minimum minus minimum.

Three clocks are read. The first is the processor time of the main thread. The second is that of the
whole process without its children. It bounds how long helper threads kept the main thread waiting
for the interpreter's lock. The third is the wall clock, which includes everything, also other
programs.
"""

from __future__ import annotations

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.child import run_python
from benchmarks.figures import Figure, Row

__all__ = ["measure_window"]

LIMITS = {"torch": 1.1, "verl": 1 / 6}
CLOCKS = {
    "thread_seconds": "main thread's processor time",
    "process_seconds": "processor time of all its threads",
    "wall_seconds": "wall",
}
GROUP = "a recorded window of {operations:,} small ops, {clock}"
"""An operation is a call of ``add_`` with a number, which torch records as five events."""


def measure_window(*, quick: bool, rounds: int | None = None) -> tuple[list[Row], dict[str, str]]:
    """Return rows of the added cost of each variant, and the variants that cannot run here."""
    if find_spec("torch") is None:
        return [], {"torch": "the recorded window needs torch"}
    variants = ["none", "torch", "stepprof"]
    absent = {}
    if find_spec("verl") is None:
        absent["verl"] = "No module named 'verl'"
    else:
        variants.append("verl")
    operations, steps = (2_000, 6) if quick else (100_000, 24)
    results = _run(variants, operations, steps, rounds or (1 if quick else 7))
    rows: list[Row] = []
    for clock in CLOCKS:
        rows += _rows(variants, results, clock, operations)
    return rows, absent


def _run(variants: list[str], operations: int, steps: int, rounds: int) -> dict[str, list[dict[str, object]]]:
    results: dict[str, list[dict[str, object]]] = {variant: [] for variant in variants}
    order = list(variants)
    for _ in range(rounds):
        for variant in order:
            with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as name:
                folder, answer = Path(name, "out"), Path(name, "result.json")
                folder.mkdir()
                run_python(
                    *("-m", "benchmarks.window_child", variant, "--operations", str(operations)),
                    *("--steps", str(steps), "--folder", str(folder), "--result", str(answer)),
                )
                result = json.loads(answer.read_text(encoding="utf-8"))
            if variant in ("stepprof", "verl") and not result["artifact_bytes"]:
                raise RuntimeError(f"the variant {variant} left no trace: its figure would mean nothing")
            results[variant].append(result)
        order = order[1:] + order[:1]
    return results


def _rows(
    variants: list[str], results: dict[str, list[dict[str, object]]], clock: str, operations: int
) -> list[Row]:
    group = GROUP.format(operations=operations, clock=CLOCKS[clock])

    def seconds(variant: str) -> list[float]:
        return [float(str(result[clock])) for result in results[variant]]

    bare = seconds("none")
    added = {variant: min(seconds(variant)) - min(bare) for variant in variants if variant != "none"}
    rows = [
        Row(group, "the loop without a profiler", "s", *_parts(Figure.of(bare))),
    ]
    names = {
        "stepprof": "stepprof: window, export, shutdown",
        "torch": "torch.profiler: record and bare stop()",
        "verl": "verl DistProfiler: start, stop (.json.gz)",
    }
    for variant in ("stepprof", "torch", "verl"):
        if variant not in added:
            continue
        total = Figure.of(seconds(variant))
        rows.append(
            Row(
                group,
                names[variant],
                "s",
                *_parts(total),
                added=added[variant],
                ratio=added[variant] / added["stepprof"],
                note=_note(variant, results[variant]) if clock == "thread_seconds" else "",
            )
        )
    for variant, limit in LIMITS.items():
        if variant not in added:
            continue
        within_rounds = Figure.of(
            [
                (ours - its) / (theirs - its)
                for ours, theirs, its in zip(seconds("stepprof"), seconds(variant), bare, strict=True)
            ]
        )
        share = added["stepprof"] / added[variant]
        rows.append(
            Row(
                group,
                f"stepprof as a share of {variant}",
                "x",
                share,
                within_rounds.median,
                within_rounds.spread,
                limit=None if clock == "process_seconds" else limit,
                limit_on=None if clock == "process_seconds" else "min",
                judged=None if clock == "process_seconds" else share,
            )
        )
    return rows


def _parts(figure: Figure) -> tuple[float, float, float]:
    return figure.minimum, figure.median, figure.spread


def _note(variant: str, results: list[dict[str, object]]) -> str:
    if variant != "stepprof":
        return ""
    pending = sum(bool(result["pending_before_finish"]) for result in results)
    child = min(float(str(result["children_seconds"])) for result in results)
    finish = max(float(str(result["finish_seconds"])) for result in results)
    return (
        f"shutdown took {finish:.3f} s at most and is counted; exports were still running at the loop's end "
        f"in {pending} of {len(results)} rounds; the child that exports needs {child:.2f} s of another core"
    )
