#!/usr/bin/env bash
# yappi 1.7.6, torch 2.13.0: yappi profiles a job, and `torch.profiler` with stacks records a part of it.
# Guess:   a thread has one profile function, so yappi misses the calls within torch's part and goes on counting after it, as it was.
# Seen:    torch removes yappi's function at its begin and gives nothing back at its end. yappi counts no call of this thread any more, until
#          it is stopped, while `yappi.is_running()` stays true and its statistics look complete. Without stacks nothing is lost.
# Matters: yappi runs for the whole of a job in many services. One profiled step leaves a profile in which every later step is missing, without
#          a message; `sys.getprofile()` is None before and afterwards, so a tool that asks Python cannot know.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 yappi==1.7.6 numpy
cat >job.py <<'PY'
import sys

import torch
import yappi
from torch.profiler import ProfilerActivity, profile


def step():
    return torch.ones(8).sum()


def counted(with_stack):
    yappi.clear_stats()
    yappi.start()
    for _ in range(50):
        step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack):
        for _ in range(50):
            step()
    for _ in range(100):
        step()
    running, hook = yappi.is_running(), sys.getprofile()
    yappi.stop()
    calls = sum(each.ncall for each in yappi.get_func_stats() if each.name == "step")
    print(f"with_stack={with_stack}: {calls} of 200 calls, is_running {running}, sys.getprofile {hook}")
    return calls, running, hook


assert counted(False) == (200, True, None)
assert counted(True) == (50, True, None)
assert counted(False) == (200, True, None)
print("as stated")
PY
env/bin/python job.py 2>errors.txt || { cat errors.txt; exit 1; }
