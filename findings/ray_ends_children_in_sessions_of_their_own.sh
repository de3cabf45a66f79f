#!/usr/bin/env bash
# Ray 2.60.0: which processes that an actor has started outlive the actor (a companion, an exporter, a server of metrics).
# Guess:   a child in a session of its own (`start_new_session=True`) outlives the actor, as it outlives any other Python process; so does a child whose
#          parent, a shell with `nohup … &`, has ended.
# Seen:    after `exit_actor` and after `ray.kill`, every direct child is ended with SIGKILL, the one in a session of its own too, and within some seconds
#          every process of the actor's process group, orphans too. To outlive the actor a process needs both: a parent that has ended, and a session of its own.
# Matters: what a trainer starts to write or upload its last results is killed in the middle, without a message, although it was started as a daemon.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet ray==2.60.0
cat >job.py <<'PY'
import os
import signal
import subprocess
import time

import ray

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


def orphan(command):
    shell = subprocess.run(["sh", "-c", f"{command} sleep 300 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True)
    return int(shell.stdout)


@ray.remote(num_cpus=0)
class Trainer:
    def start(self):
        return {
            "child": subprocess.Popen(["sleep", "300"]).pid,
            "child in a session": subprocess.Popen(["sleep", "300"], start_new_session=True).pid,
            "orphan": orphan("nohup"),
            "orphan in a session": orphan("setsid"),
        }

    def leave(self):
        ray.actor.exit_actor()


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


left = {}
for how in ("exit_actor", "ray.kill"):
    actor = Trainer.remote()
    started = ray.get(actor.start.remote())
    try:
        if how == "ray.kill":
            ray.kill(actor)
        else:
            ray.get(actor.leave.remote())
    except ray.exceptions.RayActorError:
        pass
    deadline = time.monotonic() + 30
    while sum(map(lives, started.values())) > 1 and time.monotonic() < deadline:
        time.sleep(0.2)
    left[how] = [name for name, pid in started.items() if lives(pid)]
    print(f"after {how}: {', '.join(left[how])}")
    for pid in started.values():
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
ray.shutdown()
assert left == {"exit_actor": ["orphan in a session"], "ray.kill": ["orphan in a session"]}, left
PY
env/bin/python job.py 2>/dev/null
