"""Measure how long a torch capture delays the training thread outside its own window: at the exit
of the previous step, and at the entry. Each round is a new process, because the first capture of a
process may cost more. Figures are processor time of the training thread.
"""

from __future__ import annotations

import importlib.util
import json

from benchmarks.child import run_python
from benchmarks.figures import Figure, Row

__all__ = ["measure_arming"]

GROUP = "arming a torch capture: the training thread's processor time"

_SCRIPT = """
import json, tempfile, time
import torch
import stepprof

def cpu(act, *arguments):
    before = time.thread_time()
    act(*arguments)
    return 1e3 * (time.thread_time() - before)

with tempfile.TemporaryDirectory() as folder:
    config = {"output_dir": folder, "steps": "4,9", "spans": False, "torch": {"activities": ["cpu"]}}
    stepprof.init(config, rank=0, world_size=1)
    entries, exits = {}, {}
    for step in range(1, 10):
        window = stepprof.profile_step(step)
        entries[step] = cpu(window.__enter__)
        torch.zeros(8).add_(1)
        exits[step] = cpu(window.__exit__, None, None, None)
        time.sleep(0.05)
    stepprof.shutdown()
print(json.dumps({"first": exits[3], "later": exits[8], "entry": entries[4], "quiet": exits[1]}))
"""

NAMES = {
    "quiet": "exit of a window that is not selected",
    "first": "exit of the window before the first selected one",
    "later": "exit of the window before a later one",
    "entry": "entry of the first selected window",
}


def measure_arming(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of exits and entries, in milliseconds."""
    if importlib.util.find_spec("torch") is None:
        return [], {"arming": "torch is not installed"}
    rounds = [json.loads(run_python("-c", _SCRIPT).splitlines()[-1]) for _ in range(2 if quick else 9)]
    figures = {key: Figure.of([each[key] for each in rounds]) for key in NAMES}
    return [
        Row(GROUP, name, "ms", figures[key].minimum, figures[key].median, figures[key].spread)
        for key, name in NAMES.items()
    ], {}
