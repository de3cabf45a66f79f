#!/usr/bin/env bash
# torch 2.13.0: the flight recorder of collectives, with gloo.
# Guess:   it is NCCL's, so a job on gloo has none.
# Seen:    it is on by default for gloo too (2,000 entries), on CPUs, without any variable. But a collective that has ended keeps the state `scheduled`
#          and has no time of its begin or end; only `retired` is true then, and the group's `last_completed_collective` counts it, while
#          `last_started_collective` stays -1.
# Matters: it tells which rank of a CPU job hangs, for free; but whoever filters by `state` finds every collective hanging, for ever.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 numpy
cat >job.py <<'PY'
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=2)
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    if number == 0:
        from torch._C._distributed_c10d import _dump_fr_trace_json

        with open("dump.json", "wb") as file:
            file.write(_dump_fr_trace_json(True, False))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert not [name for name in os.environ if name.startswith(("TORCH_FR", "TORCH_NCCL"))]
    mp.spawn(rank, args=(os.getcwd(),), nprocs=2)
    with open("dump.json") as file:
        dump = json.load(file)
    entries = dump["entries"]
    seen = {(e["profiling_name"], e["state"], e["retired"], e["time_discovered_started_ns"], e["time_discovered_completed_ns"]) for e in entries[:2]}
    print(len(entries), "collectives; of the first two (finished for certain):", seen)
    print("group:", dump["pg_status"])
    assert len(entries) == 3, entries
    assert seen == {("gloo:all_reduce", "scheduled", True, 0, 0)}, seen
    assert dump["pg_status"]["0"]["last_started_collective"] == "-1", dump["pg_status"]
    assert int(dump["pg_status"]["0"]["last_completed_collective"]) >= 2, dump["pg_status"]
PY
env/bin/python job.py 2>/dev/null
