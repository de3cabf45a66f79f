#!/usr/bin/env bash
# msprof-analyze 26.2.0: `compare` of two CUDA traces with 36 ms of kernels in 40 ms, one in kernels of 9.0 µs, one in kernels of 0.9 µs.
# Guess:   "Computing Time" is the union of the kernels: 0.036 s in both.
# Seen:    0.036 s and 0.000 s. The time is a count of whole microseconds that begin within a kernel, so that a kernel between two of them is nothing.
#          The sum of the same kernels in the row ("Cube Time") is 0.036 s in both, and the rest counts as "Free Time": 0.040 s of 0.040 s.
# Matters: decode steps of small models are kernels of one to three microseconds. They lose up to all of their computing time, and look idle.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet msprof-analyze==26.2.0
cat >make.py <<'PY'
import json


def host(name, cat, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": 100, "ts": ts, "dur": dur, "args": args}


def flow(phase, number, ts, pid, tid):
    return {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": number, "pid": pid, "tid": tid, "ts": ts}


def trace(path, kernels, graph=False):
    """Write kernels (name, start, duration in microseconds), each launched in an aten::mm of its own, or all of them by one cudaGraphLaunch."""
    events = [host("cudaGraphLaunch", "cuda_runtime", 10.0, 5.0, correlation=1), flow("s", 1, 10.0, 100, 100)] if graph else []
    for number, (name, start, duration) in enumerate(kernels, 1):
        launch, correlation = 10.0 + 4 * number, 1 if graph else number
        if not graph:
            events.append(host("aten::mm", "cpu_op", launch - 1, 3.0))
            events.append(host("cudaLaunchKernel", "cuda_runtime", launch, 1.0, correlation=correlation))
            events.append(flow("s", correlation, launch, 100, 100))
        arguments = {"stream": 7, "device": 0, "correlation": correlation}
        events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration, "args": arguments})
        events.append(flow("f", correlation, start, 0, 7))
    with open(path, "w") as file:
        json.dump({"schemaVersion": 1, "traceEvents": events}, file)


trace("short.json", [("gemm", 1_000_000 + each + 0.05, 0.9) for each in range(40_000)])
trace("long.json", [("gemm", 1_000_000 + 10 * each + 0.05, 9.0) for each in range(4_000)])
PY
env/bin/python make.py
env/bin/msprof-analyze compare -d short.json -bp long.json -o out --enable_profiling_compare --disable_details --force >seen.txt 2>errors.txt || { cat errors.txt; exit 1; }
grep -h '| GPU' seen.txt errors.txt | tr -d ' ' >rows.txt
cat rows.txt
grep -qF '|GPU|0.036s(4000)|0.000s(0)|0.036s|' rows.txt
grep -qF '|GPU|0.036s(40000)|0.000s(0)|0.000s|' rows.txt
echo "as stated"
