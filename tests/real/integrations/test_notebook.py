"""Test a notebook with the real kernel: a cell that fails inside a recorded step leaves its window open, and the loop is run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

INIT = """
import stepprof, torch
stepprof.init({"steps": "2", "output_dir": "out"}, run_id="cells")
x = torch.ones(8, 8)
"""
FAILS = """
whole = stepprof.profile_step(2).start()
window = stepprof.profile_step(2, role="actor").start()
for _ in range(5):
    x @ x
raise ValueError("in the cell")
"""
CALLBACKS = """
for step in (1, 2, 3):
    window = stepprof.profile_step(step, role="actor").start()
    for _ in range(5):
        x @ x
    window.stop()
"""
BLOCKS = """
for step in (1, 2, 3):
    with stepprof.profile_step(step, role="actor"):
        for _ in range(5):
            x @ x
"""


@pytest.fixture
def run_cell(tmp_path: Path) -> Iterator[Callable[[str], str | None]]:
    """Start a kernel, and return a function that runs a cell and returns the name of its exception."""
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)

        def run(code: str) -> str | None:
            reply = client.execute_interactive(code, timeout=120, output_hook=lambda _: None)
            name: str | None = reply["content"].get("ename")
            return name

        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def outcomes(folder: Path) -> list[tuple[str, str]]:
    """Return the role and the status of each window of step 2, in the order of their visits."""
    found = []
    for path in (folder / "out" / "cells" / "step-000002" / "manifest").glob("*.json"):
        found += json.loads(path.read_text())["windows"]
    found.sort(key=lambda window: (window["occurrence"], window["role"] or ""))
    return [(window["role"] or "step", window["status"]) for window in found]


class TestFailedCell:
    @pytest.mark.parametrize("again", [CALLBACKS, BLOCKS])
    def test_its_windows_end_before_the_next_loop(self, run_cell, tmp_path: Path, again: str) -> None:
        """The windows that a failed cell left open are partial, and the steps of the next cell are captured whole."""
        assert [run_cell(INIT), run_cell(FAILS), run_cell("1 + 1")] == [None, "ValueError", None]
        assert [run_cell(again), run_cell("stepprof.shutdown()")] == [None, None]
        assert outcomes(tmp_path) == [("step", "partial"), ("actor", "partial"), ("actor", "complete")]

    def test_a_window_over_several_cells(self, run_cell, tmp_path: Path) -> None:
        """A window that one cell starts and a later one stops is complete, with the windows of the cells between."""
        cells = (
            INIT,
            "window = stepprof.profile_step(2).start()",
            BLOCKS.replace("(1, 2, 3)", "(2,)"),
            "window.stop()",
        )
        assert [run_cell(cell) for cell in (*cells, "stepprof.shutdown()")] == [None] * 5
        assert outcomes(tmp_path) == [("step", "complete"), ("actor", "joined")]
