"""Run other tools that merge and analyse traces, each in its own environment. ``python -m
benchmarks.trace_peers FOLDER`` creates the environments. ``$STEPPROF_BENCH_PEERS`` is the path of
that folder when the benchmarks run; a peer without an environment is omitted and named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, Row

__all__ = ["CHILD", "PEERS", "Done", "Peer", "interpreter", "measure"]

CHILD = Path(__file__).with_name("trace_child.py")
VARIABLE = "STEPPROF_BENCH_PEERS"
RL_INSIGHT = "https://github.com/verl-project/rl-insight at 5251bfa"
TRACELENS = "https://github.com/AMD-AGI/TraceLens at 171dd747"


@dataclass(frozen=True)
class Peer:
    """One peer: its name, and its arguments of `pip install`."""

    name: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    source: str | None = None
    """The folder of a checkout, because no package index has it."""
    checkout: str = ""
    """The repository and the commit of that."""
    is_package: bool = False
    """Whether the checkout is installed; otherwise the subject gets its path."""


PEERS = {
    "sglang": Peer("SGLang's ProfileMerger", ("sglang==0.5.23",), ("--no-deps",)),
    "viztracer": Peer("viztracer --combine", ("viztracer==1.1.1",)),
    "hta": Peer("HolisticTraceAnalysis", ("HolisticTraceAnalysis==0.5.0", "pandas<3")),
    "tensorboard": Peer("torch-tb-profiler", ("torch-tb-profiler==0.4.3", "pandas<3")),
    "rl_insight": Peer(
        "rl-insight's torch parser", ("pandas<3", "plotly"), source="rl-insight-source", checkout=RL_INSIGHT
    ),
    "tracelens": Peer("TraceLens", (), source="tracelens-source", checkout=TRACELENS, is_package=True),
}


@dataclass(frozen=True)
class Done:
    """The resources that one piece of work used, in one process."""

    cpu_seconds: float
    wall_seconds: float
    rss_mib: float
    child_rss_mib: float
    answer: object


def interpreter(subject: str) -> tuple[str | None, str]:
    """Return the Python that has a peer, or None and the reason."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None, f"${VARIABLE} names no folder; `python -m benchmarks.trace_peers FOLDER` makes it"
    python = Path(folder, subject, "Scripts" if os.name == "nt" else "bin", "python")
    if not python.exists():
        return None, f"not in {folder}"
    peer = PEERS[subject]
    if peer.source is not None and not Path(folder, peer.source).is_dir():
        return None, f"a checkout of {peer.checkout} is not in {folder}/{peer.source}"
    return str(python), ""


def measure(python: str, subject: str, given: Mapping[str, object]) -> Done:
    """Run one subject once. Raise RuntimeError with its output if it fails."""
    source = PEERS[subject].source if subject in PEERS else None
    if source is not None:
        given = {**given, "source": str(Path(os.environ[VARIABLE], source))}
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [python, str(CHILD), subject, json.dumps(given)],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{subject} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Done(**json.loads(done.stdout.splitlines()[-1]))


def rows_of(
    group: str, subjects: Sequence[tuple[str, Sequence[Done], str]], megabytes: float, ours: str
) -> list[Row]:
    """Return a row per subject, in processor seconds, with its ratio to stepprof's. Megabytes are
    of uncompressed text.
    """
    best = {name: min(done.cpu_seconds for done in rounds) for name, rounds, _ in subjects}
    rows = []
    for name, rounds, note in subjects:
        figure = Figure.of([done.cpu_seconds for done in rounds])
        peak = max(max(done.rss_mib, done.child_rss_mib) for done in rounds)
        said = f"{megabytes / figure.minimum:,.0f} MB/s per core, peak {peak:,.0f} MiB{note}"
        rows.append(
            Row(
                group,
                name,
                "s",
                figure.minimum,
                figure.median,
                figure.spread,
                ratio=best[name] / best[ours],
                note=said,
            )
        )
    return rows


def make(folder: Path) -> None:
    """Create the environments, and print what must be checked out."""
    for subject, peer in PEERS.items():
        path = folder / subject
        venv.create(path, with_pip=True)
        python = path / ("Scripts" if os.name == "nt" else "bin") / "python"
        source = None if peer.source is None else folder / peer.source
        is_there = source is not None and source.exists()
        wanted = [*peer.requirements, *([str(source)] if peer.is_package and is_there else [])]
        if wanted:
            subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", *peer.options, *wanted], check=True
            )
        print(f"{peer.name}: {path}")
        if source is not None and not is_there:
            print(f"  and check out {peer.checkout} as {source}{', then run this again' * peer.is_package}")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
