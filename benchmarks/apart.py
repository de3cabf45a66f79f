"""Measuring in a process of its own: what is decided once in a process (a tool, a device, a backend) is measured anew for each case."""

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
    """What a module says that is run as a program: its last line is ``{"rows": […]}``, or ``{"absent": why}``. Raises RuntimeError where it fails."""
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
    told = json.loads(done.stdout.splitlines()[-1])
    return [Row(**entry) for entry in told.get("rows", [])], told.get("absent")


def ask_a_card(module: str, *arguments: str, timeout: float) -> tuple[list[Row], str | None]:
    """The same of what runs on a device that few have: that it hangs or dies there is a reason like any other, and costs no other's rows."""
    try:
        return ask(module, *arguments, timeout=timeout)
    except subprocess.TimeoutExpired:
        return [], f"no end after {timeout:g} s"
    except RuntimeError as error:  # the process died, of a signal say
        lines = str(error).strip().splitlines()
        return [], f"its process died{': ' if lines else ''}{''.join(lines[-1:])}"


def call_rows(group: str, subjects: Sequence[Subject], timed: Mapping[str, Timed], ours: str) -> list[Row]:
    """Rows of calls by the calling thread's processor time; `ours` is the subject that the others are compared with."""
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
