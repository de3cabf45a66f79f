"""State with which profilers and options a process was recorded, so that unlike recordings are not compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepprof.analysis.report.incomplete_captures import NOT_A_CAPTURE
from stepprof.errors import shown

MOST = 32
LONGEST = 200
_NOT_OF_THE_TRACE = (
    "lease_dir",
    "lease_wait_seconds",
    "analyse",
    "analyse_timeout_seconds",
    "trace_only",
    "warm_up",
    *("report_dir", "report_timeout_seconds", "keep_environment", "windows"),  # nsys: reports and variables
    *("on_oom", "on_oom_limit", "on_oom_entries"),  # memory: a snapshot of its own
)
"""Options that change nothing of what a trace contains."""


def options_of(windows: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Return the profilers and options of the captures in a process, each once; None: there are none, or not of all they are known.

    Args:
        windows: its entries in the manifest.

    >>> options_of([{"role": "actor", "backend": "torch", "options": {"torch": {"with_stack": True}}}])
    ['backend = "torch"', 'torch.with_stack = true']
    """
    captured = [window for window in windows if window["backend"] != NOT_A_CAPTURE]
    stated = [window.get("options") for window in captured]
    if not captured or not all(isinstance(options, Mapping) for options in stated):
        return None
    found: dict[str | None, set[str]] = {}
    for window in captured:
        found.setdefault(window["role"], set()).update(_of_window(window))
    alike = all(options == found[captured[0]["role"]] for options in found.values())
    texts = {
        text if alike else f"{role or 'step'}: {text}" for role, options in found.items() for text in options
    }
    return sorted(texts)[:MOST]


def _of_window(window: Mapping[str, Any]) -> Iterator[str]:
    yield f"backend = {shown(window['backend'])}"
    for backend, table in window["options"].items():
        values = table if isinstance(table, Mapping) else {}
        yield from (
            f"{backend}.{key} = {shown(value)}"[:LONGEST]
            for key, value in values.items()
            if key not in _NOT_OF_THE_TRACE
        )
