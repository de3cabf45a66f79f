"""Measure in a separate process. A tool, a device or a backend is chosen once per process, so each
case needs a new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figure, Row
from benchmarks.timing import Subject, Timed

__all__ = ["ask", "ask_a_card", "call_rows"]


def ask(
    module: str, *arguments: str, timeout: float, environ: Mapping[str, str] | None = None
) -> tuple[list[Row], str | None]:
    """Run a module as a program and return its result. The last line of its output is ``{"rows":
    […]}``, or ``{"absent": reason}``. Raise RuntimeError if it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    reported = json.loads(done.stdout.splitlines()[-1])
    return [Row(**entry) for entry in reported.get("rows", [])], reported.get("absent")


def ask_a_card(module: str, *arguments: str, timeout: float) -> tuple[list[Row], str | None]:
    """Run a program on a device, as `ask` does. A hang or crash of the device is returned as a
    reason, so that other rows are not lost.
    """
    try:
        return ask(module, *arguments, timeout=timeout)
    except subprocess.TimeoutExpired:
        return [], f"no end after {timeout:g} s"
    except RuntimeError as error:  # the process died, for example of a signal
        lines = str(error).strip().splitlines()
        return [], f"its process died{': ' if lines else ''}{''.join(lines[-1:])}"


def call_rows(group: str, subjects: Sequence[Subject], timed: Mapping[str, Timed], ours: str) -> list[Row]:
    """Return rows of calls, in the processor time of the calling thread. The other subjects are
    compared with `ours`.
    """
    figures: dict[str, Figure] = {name: each.thread for name, each in timed.items()}
    measure = figures[ours].minimum
    rows = []
    for subject in subjects:
        figure = figures[subject.name]
        added = figure.less(figures[subject.base]).minimum if subject.base else None
        own = figure.minimum if added is None else added
        rows.append(
            Row(
                group=group,
                name=subject.name,
                unit="ns",
                value=figure.minimum,
                median=figure.median,
                spread=figure.spread,
                added=added,
                ratio=None if subject.name == "empty call" or measure <= 0 else own / measure,
            )
        )
    return rows
