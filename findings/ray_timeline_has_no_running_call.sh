#!/usr/bin/env bash
# Ray 2.60.0: `ray.timeline()` while one call of an actor still runs.
# Guess:   the call that has been running for seconds is in the timeline, open or until now.
# Seen:    it is missing, also as a name: only its `task:deserialize_arguments` is there. Finished calls of the same actor are complete.
# Matters: people take the timeline of a job that hangs. The call that hangs is the one it does not show.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet ray==2.60.0
cat >job.py <<'PY'
import time

import ray

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)


@ray.remote
class Trainer:
    def quick_step(self):
        time.sleep(0.2)

    def slow_step(self):
        time.sleep(30)


trainer = Trainer.remote()
ray.get(trainer.quick_step.remote())
trainer.slow_step.remote()
time.sleep(6)  # workers report every second
events = ray.timeline()
names = [event["name"] for event in events]
last = max(event["ts"] for event in events if event["tid"].startswith("worker:"))
after = [event["name"] for event in events if event["tid"].startswith("worker:") and event["ts"] >= last]
print("quick_step:", names.count("quick_step"), " slow_step, running for 6 s:", names.count("slow_step"), " last event of the worker:", after)
assert names.count("quick_step") == 1, names
assert names.count("slow_step") == 0, names
assert after == ["task:deserialize_arguments"], after
PY
env/bin/python job.py 2>/dev/null
