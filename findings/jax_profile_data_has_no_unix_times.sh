#!/usr/bin/env bash
# jax 0.10.2: `jax.profiler.trace` around an annotated multiplication; its `.xplane.pb` is read with `jax.profiler.ProfileData`.
# Guess:   the format states nanoseconds of the Unix clock for each line, and `start_ns` of an event is such a time, so that two hosts can be merged by it.
# Seen:    `start_ns` counts from the begin of the capture: 0.2 s for what began 0.2 s after it. The Unix time of the begin is in another plane without
#          lines, `Task Environment`, as `profile_start_time`. Only their sum lies between Python's clock readings before and after the work.
# Matters: merged by `start_ns`, two hosts (or two captures of one host) seem to begin together, whatever lies between them.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet jax==0.10.2 jaxlib==0.10.2 numpy
cat >job.py <<'PY'
import time
from pathlib import Path

import jax
import jax.numpy as jnp

multiply = jax.jit(lambda x: x @ x)
matrix = jnp.ones((256, 256))
multiply(matrix).block_until_ready()
with jax.profiler.trace("traces"):
    time.sleep(0.2)
    before = time.time_ns()
    with jax.profiler.TraceAnnotation("mine"):
        multiply(matrix).block_until_ready()
    after = time.time_ns()
(path,) = Path("traces").rglob("*.xplane.pb")
planes = {plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(path)).planes}
(event,) = (event for line in planes["/host:CPU"].lines for event in line.events if event.name == "mine")
environment = planes["Task Environment"]
began = dict(environment.stats)["profile_start_time"]
print(f"start_ns: {event.start_ns / 1e9:.1f} s; lines of Task Environment: {len(list(environment.lines))}")
print(f"between the clock readings: alone {before <= event.start_ns <= after}, with profile_start_time {before <= began + event.start_ns <= after}")
assert 0.2e9 <= event.start_ns < 60e9 and not list(environment.lines)
assert before <= began + event.start_ns <= after
print("as stated")
PY
env/bin/python job.py 2>errors.txt || { cat errors.txt; exit 1; }
