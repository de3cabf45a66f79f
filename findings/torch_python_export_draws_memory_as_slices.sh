#!/usr/bin/env bash
# torch 2.13.0: `export_chrome_trace(path, use_python_export=True)`, the second exporter, against the first one on the same capture.
# Guess:   the same events in fewer bytes.
# Seen:    each memory event is a complete slice (`ph` X) in place of an instant (`ph` i), and its duration reaches to the end of the capture, so that
#          one thread has hundreds of slices that overlap. `host_name` and `trace_id` are missing. The other events are the same.
# Matters: readers that look for instants find no memory at all; readers that sum slices of a thread count the capture hundreds of times.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 numpy
cat >job.py <<'PY'
import json

import torch
from torch.profiler import ProfilerActivity, profile

layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    for _ in range(5):
        layers(torch.randn(8, 64)).sum().backward()
profiler.export_chrome_trace("python.json", use_python_export=True)
profiler.export_chrome_trace("kineto.json")
of = {}
for name in ("kineto", "python"):
    with open(f"{name}.json") as file:
        trace = json.load(file)
    memory = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_instant_event"]
    operators = sum(event.get("cat") == "cpu_op" for event in trace["traceEvents"])
    kinds = {event["ph"] for event in memory}
    seconds = sum(event.get("dur", 0) for event in memory) / 1e6
    of[name] = kinds, len(memory), operators, "host_name" in trace, "trace_id" in trace
    print(f"{name}: {operators} operators, {len(memory)} memory events of kind {kinds}, together {seconds:.3f} s; host_name {'host_name' in trace}")
    if name == "python":
        ends = {round(event["ts"] + event["dur"]) for event in memory}
        print(f"  their ends: {len(ends)} instant(s)")
        assert max(ends) - min(ends) <= 1, ends
kineto, python = of["kineto"], of["python"]
assert kineto[0] == {"i"} and python[0] == {"X"}, of
assert kineto[1:3] == python[1:3], of
assert kineto[3:] == (True, True) and python[3:] == (False, False), of
PY
env/bin/python job.py 2>/dev/null
