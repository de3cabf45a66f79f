#!/usr/bin/env bash
# torchmonarch 0.7.0, torch 2.13.0: two actors in one process of a mesh, the trainer starts `torch.profiler` in one endpoint and ends it in another.
# Guess:   as in Ray, a plain actor runs on the main thread of its process; a second actor in the process shares it, so the profile has the work of both.
# Seen:    no actor is on the main thread. Each has a thread of its own, and all of these have one name (`monarch-actor-driver`). The profile has the
#          trainer's operators of all endpoints and none of the other actor, and `signal.signal` raises ValueError in every endpoint.
# Matters: RL loops of Monarch put a trainer and its reward or replay actor into one process. A trace of the trainer shows the process as idle while the
#          other actor computes, and time-outs or SIGTERM handlers that frameworks install in the training function fail.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 torchmonarch==0.7.0 numpy
cat >job.py <<'PY'
import signal
import threading

import torch
from monarch.actor import Actor, endpoint, this_host
from torch.profiler import ProfilerActivity, profile


def thread():
    here = threading.current_thread()
    return here.name, here.ident, here is threading.main_thread()


class Trainer(Actor):
    @endpoint
    def begin(self):
        self.profiler = profile(activities=[ProfilerActivity.CPU])
        self.profiler.start()
        return thread()

    @endpoint
    def train(self):
        torch.ones(3).sum()
        return thread()

    @endpoint
    def finish(self):
        self.profiler.stop()
        return sorted(event.key for event in self.profiler.key_averages())

    @endpoint
    def handle(self):
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        except ValueError as error:
            return str(error)
        return "installed"


class Reward(Actor):
    @endpoint
    def score(self):
        torch.ones(3).cumsum(0)
        return thread()


def one(endpoint):
    ((_, value),) = endpoint.call().get()
    return value


def main():
    process = this_host().spawn_procs(per_host={"procs": 1})
    trainer = process.spawn("trainer", Trainer)
    begin = one(trainer.begin)  # alone: two actors that import torch at the same time may fail
    reward = process.spawn("reward", Reward)
    threads = begin, one(trainer.train), one(reward.score)
    recorded, handler = one(trainer.finish), one(trainer.handle)
    for name, (thread_name, ident, is_main) in zip(("begin", "train", "score"), threads):
        print(f"{name}: thread {thread_name!r} {ident}, main: {is_main}")
    print("recorded:", *recorded)
    print("signal.signal:", handler)
    assert [each[0] for each in threads] == ["monarch-actor-driver"] * 3, threads
    assert threads[0] == threads[1] and threads[0][1] != threads[2][1], threads
    assert not any(each[2] for each in threads), threads
    assert "aten::sum" in recorded and "aten::cumsum" not in recorded, recorded
    assert handler.startswith("signal only works in main thread"), handler
    print("as stated")


main()
PY
# the end of Monarch's own processes may be reported after the last line
env/bin/python job.py >seen.txt 2>errors.txt || true
cat seen.txt
tail -n 1 seen.txt | grep -qx "as stated" || { cat errors.txt; exit 1; }
