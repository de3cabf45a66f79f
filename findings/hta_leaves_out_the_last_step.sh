#!/usr/bin/env bash
# HolisticTraceAnalysis 0.5.0: a trace with `ProfilerStep#N`.
# Guess:   the temporal breakdown covers every kernel of the trace.
# Seen:    the kernels of the last `ProfilerStep` are left out, in all figures, without a message. Of 2 steps the figures have 1, of 3 they have 2.
#          Exactly one step is an exception: all of it is counted. `include_last_profiler_step=True` counts everything.
# Matters: with `active=2`, a usual choice, half of the recorded GPU time is missing, and two traces of 1 and 2 steps look equally long.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet HolisticTraceAnalysis==0.5.0
cat >read.py <<'PY'
import json
import logging
import os
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis


def trace(steps):
    """Return a trace of a GPU: each step has five kernels of 80 us."""
    events, number = [], 0
    for step in range(steps):
        begin = 1000.0 + step * 1000
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": begin, "dur": 990.0, "args": {}})
        for kernel in range(5):
            number += 1
            args = {"correlation": number, "External id": number}
            at = begin + 10 + kernel * 100
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 20.0, "args": {"External id": number}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 5, "dur": 5.0, "args": args},
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 20, "dur": 80.0, "args": {**args, "stream": 7, "device": 0}},
            ]
    rank = {"backend": "nccl", "rank": 0, "world_size": 1}
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "distributedInfo": rank, "traceEvents": events}


found = {}
for steps in (1, 2, 3):
    os.makedirs(f"steps{steps}")
    with open(f"steps{steps}/rank0.json", "w") as file:
        json.dump(trace(steps), file)
    for everything in (False, True):
        options = {"include_last_profiler_step": True} if everything else {}
        table = TraceAnalysis(trace_dir=f"steps{steps}", **options).get_temporal_breakdown(visualize=False)
        found[steps, everything] = int(table["compute_time(us)"].sum())
    print(f"{steps} steps, {steps * 400} us of kernels: {found[steps, False]} us by default, {found[steps, True]} us with the last step")
assert [found[steps, False] for steps in (1, 2, 3)] == [400, 400, 800], found
assert [found[steps, True] for steps in (1, 2, 3)] == [400, 800, 1200], found
PY
env/bin/python read.py
