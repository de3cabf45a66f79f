"""Measure what a session with live control costs: publishing its status among a thousand others,
and the delay until all processes have answered a request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import REPOSITORY, run_python
from benchmarks.figures import Figure, Row

__all__ = ["measure_living"]

RANKS_PER_NODE = 8
PUBLISHING = "status of {ranks:,} ranks in one folder"
TRIGGERING = "a request to {processes} processes"

_PUBLISH = """
import json, sys, tempfile, time
from pathlib import Path
from stepprof.recording.control.status_publisher import BEAT_SECONDS, Publisher
from stepprof.run.manifest_writer import Origin
from stepprof.run.layout import RunDir

ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
with tempfile.TemporaryDirectory() as folder:
    run = RunDir(Path(folder), "run")
    step = 0
    def condition():
        return {"state": "idle", "engines": {}, "last_error": None, "requests": {}, "roles": ["actor", "rollout"]}
    def progress():
        return {"step": step, "step_seconds": 1.5, "role": "actor"}
    publishers = [Publisher(Origin(run, rank, ranks), condition, progress) for rank in range(ranks)]
    samples = []
    for step in range(rounds + 1):
        began = time.process_time()
        for publisher in publishers:
            publisher._write(condition(), progress(), ended=False)
        samples.append((time.process_time() - began) / ranks)
print(json.dumps({"seconds": samples[1:], "beat": BEAT_SECONDS}))
"""

_LOOP = """
import pathlib, sys, time
import stepprof
folder, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stepprof.init({"output_dir": folder, "backend": "null"}, rank=rank, world_size=world, run_id="run")
step = 0
while not pathlib.Path(folder, "stop").exists():
    step += 1
    with stepprof.profile_step(step):
        time.sleep(0.05)
"""


def measure_living(*, quick: bool) -> list[Row]:
    """Return rows of publishing and of requests."""
    return [*_publishing(quick=quick), *_triggering(quick=quick)]


def _publishing(*, quick: bool) -> list[Row]:
    ranks, rounds = (20, 2) if quick else (1000, 7)
    answer = json.loads(run_python("-c", _PUBLISH, str(ranks), str(rounds)).splitlines()[-1])
    one = Figure.of([1e6 * seconds for seconds in answer["seconds"]])
    share = 100 * RANKS_PER_NODE * one.median / 1e6 / answer["beat"]
    group = PUBLISHING.format(ranks=ranks)
    return [
        Row(group, "one version of one rank: processor time", "us", one.minimum, one.median, one.spread),
        Row(
            group,
            f"share of one core on a node of {RANKS_PER_NODE} ranks, a step at every beat",
            "%",
            share,
            limit=1,
            limit_on="share",
            judged=share,
        ),
    ]


def _triggering(*, quick: bool) -> list[Row]:
    from stepprof.run.status import read_statuses
    from stepprof.run.trigger import answers, ask

    processes, rounds = (2, 1) if quick else (16, 5)
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        run = Path(folder, "run")
        started = [
            subprocess.Popen([sys.executable, "-c", _LOOP, folder, str(rank), str(processes)], cwd=REPOSITORY)
            for rank in range(processes)
        ]
        try:
            _until(lambda: sum(s["step"] is not None for s in read_statuses(run)) == processes)
            heard = []
            for _ in range(rounds):
                began = time.perf_counter()
                request = ask(run, "next", count=1, role=None)
                _until(lambda name=request.name: _all_took(answers(run, name), processes))
                heard.append(time.perf_counter() - began)
        finally:
            Path(folder, "stop").touch()
            for process in started:
                process.wait(60)
    figure = Figure.of(heard)
    return [
        Row(
            TRIGGERING.format(processes=processes),
            "until the last has taken it and said so: wall",
            "s",
            figure.minimum,
            figure.median,
            figure.spread,
            limit=2,
            limit_on="worst",
            judged=max(heard),
        )
    ]


def _all_took(found: dict[str, list[dict[str, object]]], processes: int) -> bool:
    """Return whether every process has answered the request in time."""
    return sum(len(found.get(outcome, ())) for outcome in ("accepted", "reached", "not here")) == processes


def _until(test: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            raise TimeoutError("the processes did not answer")
        time.sleep(0.01)
