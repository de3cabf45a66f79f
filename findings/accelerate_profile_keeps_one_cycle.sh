#!/usr/bin/env bash
# accelerate 1.15.0, torch 2.13.0: `Accelerator.profile()` with a schedule that repeats.
# Guess:   `output_trace_dir` with `repeat=3` leaves three traces per rank.
# Seen:    one, of the last cycle. The trace is exported once, after the `with` block, so earlier cycles exist only for `on_trace_ready`.
#          If the block raises, there is no file at all, although finished cycles were recorded.
# Matters: `repeat` is used to see whether a slow step is usual. Two thirds of the recording, and its cost, are thrown away silently.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 accelerate==1.15.0
cat >job.py <<'PY'
import json
import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs


def profiled(folder, fails):
    """Return how many cycles were handed to on_trace_ready, and the steps in each file."""
    cycles = []
    options = ProfileKwargs(
        activities=["cpu"],
        output_trace_dir=folder,
        on_trace_ready=cycles.append,
        schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 3, "skip_first": 0},
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    layer = torch.nn.Linear(8, 8)
    try:
        with accelerator.profile() as profiler:
            for step in range(14):
                if fails and step == 9:
                    raise ValueError("the job's own error")
                layer(torch.randn(2, 8))
                profiler.step()
    except ValueError:
        pass
    files = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name)) as file:
            events = json.load(file)["traceEvents"]
        files[name] = sorted({e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#")})
    return len(cycles), files


whole, broken = profiled("whole", False), profiled("broken", True)
print("cycles recorded, files:", whole)
print("the block raised after two cycles:", broken)
assert whole == (3, {"profile_0.json": ["ProfilerStep#10", "ProfilerStep#11"]}), whole
assert broken == (2, {}), broken
PY
env/bin/python job.py 2>/dev/null
