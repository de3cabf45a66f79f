#!/usr/bin/env bash
# torchtitan 0.3.0: the structured logger's spans, and the Gantt trace that it merges from them (`generate_gantt_trace`).
# Guess:   each record has the native id of its thread, so spans of two threads are two rows, with their own lengths.
# Seen:    begins and ends are paired per file and asyncio task, without the thread, the last begin first. If a span of another thread (a checkpoint that is
#          saved asynchronously) overlaps one of the training thread without being inside it, both are drawn on one row with each other's length: `train` of
#          0.3 s is 0.5 s long, `save` of 0.5 s is 0.3 s long. The records themselves have both lengths right, in `value`.
# Matters: a trainer with threads reads wrong figures from a picture that looks right; take `value` of the `_end` records.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 numpy
env/bin/pip install --quiet --no-deps torchtitan==0.3.0
cat >job.py <<'PY'
import glob
import json
import threading
import time

from torchtitan.observability.structured_logger.gantt_generator import generate_gantt_trace
from torchtitan.observability.structured_logger.structured_logging import init_structured_logger, log_trace_span

init_structured_logger("trainer", "out")


def span(name, after, seconds):
    time.sleep(after)
    with log_trace_span(name):
        time.sleep(seconds)


threads = [threading.Thread(target=span, args=each) for each in (("train", 0.0, 0.3), ("save", 0.1, 0.5))]
for each in threads:
    each.start()
for each in threads:
    each.join()

trace = generate_gantt_trace("out/structured_logs", "gantt.json")
drawn = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
with open(glob.glob("out/structured_logs/*.jsonl")[0]) as file:
    records = [json.loads(line) for line in file]
stated = {record["log_type_name"].removesuffix("_end"): record["value"] for record in records if record["log_type_name"].endswith("_end")}
threads_of = {record["log_type_name"].rpartition("_")[0]: record["tid"] for record in records}
for name in ("train", "save"):
    print(f"{name}: {stated[name]:.0f} ms in the records of thread {threads_of[name]}, {drawn[name]['dur'] / 1000:.0f} ms in row {drawn[name]['tid']} of the trace")
assert threads_of["train"] != threads_of["save"]
assert drawn["train"]["tid"] == drawn["save"]["tid"]
assert stated["train"] < 0.8 * stated["save"]
assert abs(drawn["train"]["dur"] / 1000 - stated["save"]) < 1
assert abs(drawn["save"]["dur"] / 1000 - stated["train"]) < 1
PY
env/bin/python job.py 2>/dev/null
