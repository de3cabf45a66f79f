"""Measure a job with `stepprof follow` next to it, compared with the same job without.

Blocks of steps alternate in one process: the follower, a process of its own with the watch, is stopped
(SIGSTOP), stopped once more, and runs. Ratios are taken within such a round. Wall-clock time counts: the two
share the machine, as they do next to a job.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stepprof
from benchmarks.child import REPOSITORY, environment
from benchmarks.figures import Figure, Row

__all__ = ["measure_following"]

GROUP = "a job of steps of some 10 ms, ten regions a step, with `stepprof follow` next to it"
START_SECONDS = 60.0
WORK = 40_000
"""Additions of a region."""


def measure_following(*, quick: bool) -> list[Row]:
    """Return rows of milliseconds per step and of the ratios."""
    rounds, steps = (2, 5) if quick else (15, 100)
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        config = Path(folder, "config.toml")
        config.write_text("keep_steps = 10\n[watch]\nenabled = true\nmax_captures = 0\n")
        session = stepprof.init({"output_dir": folder, "steps": "none", "backend": "null"})
        command = [sys.executable, "-m", "stepprof", "follow", str(session.path), "--config", str(config)]
        follower = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stderr=subprocess.DEVNULL)
        try:
            _wait_for(Path(session.path, "after", "follow.lock"))
            first, second, followed = _blocks(follower, rounds, steps)
        finally:
            stepprof.shutdown()
            follower.kill()
            follower.wait()
    itself = Figure.of([two / one for one, two in zip(first, second, strict=True)])
    ratio = Figure.of(
        [2 * ours / (one + two) for one, two, ours in zip(first, second, followed, strict=True)]
    )
    without, with_it = Figure.of([*first, *second]), Figure.of(followed)
    return [
        Row(GROUP, "without", "ms", without.minimum, without.median, without.spread),
        Row(GROUP, "with", "ms", with_it.minimum, with_it.median, with_it.spread),
        Row(GROUP, f"without against itself, {rounds} rounds of {steps} steps", "x", itself.minimum, itself.median, itself.spread),
        Row(
            GROUP,
            "with against without",
            "x",
            ratio.minimum,
            ratio.median,
            ratio.spread,
            judged=ratio.median,
            limit=1.02 + itself.spread,
            limit_on="1.02 and the loop's own spread",
        ),
    ]  # fmt: skip


def _blocks(follower: subprocess.Popen[bytes], rounds: int, steps: int) -> list[list[float]]:
    """Return the milliseconds per step of each block: the follower is stopped, stopped, and runs."""
    taken: list[list[float]] = [[], [], []]
    _block(steps)
    for turn in range(rounds):
        for place in range(3):
            which = (place * (1 if turn % 2 else -1) + turn) % 3  # the order changes
            follower.send_signal(signal.SIGCONT if which == 2 else signal.SIGSTOP)
            taken[which].append(_block(steps))
    return taken


def _block(steps: int) -> float:
    begun = time.perf_counter()
    for step in range(1, steps + 1):
        with stepprof.profile_step(step, role="actor"):
            for name in ("a", "b", "c", "d", "e") * 2:
                with stepprof.region(name):
                    sum(range(WORK))
    return (time.perf_counter() - begun) / steps * 1e3


def _wait_for(path: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path}: the follower has not begun")
        time.sleep(0.05)
