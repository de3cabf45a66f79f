#!/usr/bin/env bash
# msprof-analyze 26.2.0: `compare` of two CUDA traces with the same 4,000 matrix multiplications of cuBLAS on Hopper (`nvjet_…`), one launched by a CUDA graph.
# Guess:   the kind of a kernel comes from its name or its operator, so both have 0.040 s of "Cube Time".
# Seen:    without a graph 0.040 s of cube time; with the graph 0.000 s of it, and 0.040 s of "Vector Time". The kind is that of the host's operator around the
#          launch. A graph is launched outside of them, and then only names with words such as "gemm" count, which the kernels of Hopper do not contain.
# Matters: vLLM and SGLang decode by graphs. Compared with an eager run, or with an Ascend run, their matrix multiplications have "become" vector work.
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


NAME = "nvjet_tst_128x64_64x8_2x1_v_bz_TNN"
trace("graph.json", [(NAME, 100_000 + 20 * each, 10.0) for each in range(4_000)], graph=True)
trace("eager.json", [(NAME, 100_000 + 20 * each, 10.0) for each in range(4_000)])
PY
env/bin/python make.py
env/bin/msprof-analyze compare -d graph.json -bp eager.json -o out --enable_profiling_compare --disable_details --force >seen.txt 2>errors.txt || { cat errors.txt; exit 1; }
grep -h '| GPU' seen.txt errors.txt | tr -d ' ' >rows.txt
cat rows.txt
grep -qF '|GPU|0.040s(4000)|0.000s(0)|' rows.txt
grep -qF '|GPU|0.000s(0)|0.040s(4000)|' rows.txt
echo "as stated"
