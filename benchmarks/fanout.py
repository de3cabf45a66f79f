"""Measure what many engines cost the training loop, with simulated engines whose calls take 50 ms
without using this processor. They are compared with the bare calls, gathered on an event loop.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

from benchmarks.child import run_python
from benchmarks.figures import Figure, Row

__all__ = ["measure_actors", "measure_fanout"]

GROUP = "enter of a window with n engines, calls of 50 ms"
LIMITS = {1: 1.1, 8: 1.1, 64: 1.1, 1000: 1.8}

_PLUGIN = """
import asyncio, json, os, sys, tempfile, time
from pathlib import Path
CALL = 0.05
folder = tempfile.mkdtemp()
info = Path(folder) / "bench_engines-1.0.dist-info"
info.mkdir()
(info / "METADATA").write_text("Metadata-Version: 2.1\\nName: bench-engines\\nVersion: 1.0\\n")
(info / "entry_points.txt").write_text("[stepprof.engines]\\nbench = bench_engines:Kind\\n")
(Path(folder) / "bench_engines.py").write_text('''
import asyncio
from stepprof.remote.base import Clock, EngineDriver, Stopped
CALL = 0.05

class Engine:
    hung = False

class Driver(EngineDriver):
    kind, host, loop, inside = "bench", "here", None, False
    def __init__(self, engine):
        self.engine, self.name, self.key = engine, f"engine-{id(engine)}", f"object:{id(engine)}"
    async def arm(self, window): pass
    async def start(self, window): await asyncio.sleep(3600 if self.engine.hung else CALL)
    async def stop(self, window):
        await asyncio.sleep(CALL)
        return Stopped()
    async def abort(self): pass
    async def clock(self): return Clock("here", 0, 0, "same-host")

class Kind:
    def recognises(self, target): return isinstance(target, Engine)
    def connect(self, target, **options): return Driver(target)
''')
sys.path.insert(0, folder)
import stepprof

def rest(wanted):
    # until every engine that answers is so: armed for the next step, or idle after the last
    deadline = time.monotonic() + 60
    while not set(stepprof.state().engines.values()) <= {wanted, "unknown"} and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)

def show(**found):
    print("\\n" + json.dumps(found))  # a line of its own, whatever Ray prints
    sys.stdout.flush()
"""

_SCRIPT = (
    _PLUGIN
    + """
count, steps, hung = map(int, sys.argv[1:4])
from bench_engines import Engine
engines = [Engine() for _ in range(count)]
for engine in engines[:hung]:
    engine.hung = True
config = {"steps": f"1-{steps}", "backend": "null", "output_dir": folder, "engine_start_timeout_seconds": 0.5,
          "roles": {"rollout": {"ranks": "all"}}}
stepprof.init(config, rank=0, world_size=1)
stepprof.attach(engines)
enters, exits, nexts = [], [], []
for step in range(1, steps + 1):
    began = time.perf_counter()
    with stepprof.profile_step(step, role="rollout"):
        entered = time.perf_counter()
        enters.append(entered - began)
        time.sleep(0.02)
        left = time.perf_counter()
    exits.append(time.perf_counter() - left)
    began = time.perf_counter()
    with stepprof.profile_step(step, role="actor"):
        nexts.append(time.perf_counter() - began)
    rest("armed" if step < steps else "idle")
async def one():
    await asyncio.sleep(CALL)
async def bare():
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - began
show(enters=enters, exits=exits, nexts=nexts, bare=[asyncio.run(bare()) for _ in range(3)])
stepprof.shutdown(1)
"""
)


_ACTORS = (
    _PLUGIN
    + """
import ray
count, steps = map(int, sys.argv[1:3])
ray.init("local", num_cpus=count, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}})

@ray.remote(num_cpus=1)
class Holder:
    def __init__(self):
        from bench_engines import Engine
        self.engine = Engine()
    def call(self):
        time.sleep(CALL)

actors = [Holder.remote() for _ in range(count)]
ray.get([actor.call.remote() for actor in actors])
stepprof.init({"steps": f"2-{steps}", "backend": "null", "output_dir": folder, "roles": {"rollout": {"ranks": "all"}}})
stepprof.attach(actors, find="engine")
with stepprof.profile_step(1, role="rollout"):
    pass  # at its end they are armed: so many processes import stepprof
rest("armed")
enters, exits, bare = [], [], []
for step in range(2, steps + 1):
    began = time.perf_counter()
    ray.get([actor.call.remote() for actor in actors])
    bare.append(time.perf_counter() - began)
    began = time.perf_counter()
    with stepprof.profile_step(step, role="rollout"):
        enters.append(time.perf_counter() - began)
        left = time.perf_counter()
    exits.append(time.perf_counter() - left)
    rest("armed" if step < steps else "idle")
show(enters=enters, exits=exits, bare=bare)
stepprof.shutdown(5)
"""
)


def measure_actors(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows with engines in real Ray actors, compared with bare calls of as many actors."""
    if find_spec("ray") is None:
        return [], {"Ray actors": "ray is not installed"}
    group = "enter of a window with n Ray actors, calls of 50 ms"
    rows = []
    for count in (2,) if quick else (8, 40):
        found = _found(run_python("-c", _ACTORS, str(count), "4" if quick else "10"))
        for name, key in (("enter", "enters"), ("exit", "exits"), ("bare calls", "bare")):
            figure = Figure.of([x / 0.05 for x in found[key]])
            rows.append(
                Row(group, f"{count} actors: {name}", "calls", figure.minimum, figure.median, figure.spread)
            )
    return rows, {}


def measure_fanout(*, quick: bool) -> list[Row]:
    """Return rows of the time in enter and exit, by the number of engines, as a multiple of one
    call's time. Further rows have one engine that hangs.
    """
    rows = []
    for count in (1, 8) if quick else (1, 8, 64, 1000):
        found = _run(count, 3 if quick else 8)
        # no engine is armed for the first window; for later ones, all are armed when the previous
        # one ends
        enter, leave = (Figure.of([x / 0.05 for x in found[key][1:]]) for key in ("enters", "exits"))
        bare = Figure.of([x / 0.05 for x in found["bare"]])
        rows.append(
            Row(
                GROUP,
                f"{count:,} engines: enter",
                "calls",
                enter.minimum,
                enter.median,
                enter.spread,
                limit=LIMITS[count],
                limit_on="median",
                judged=enter.median,
                note=f"first window, not armed: {found['enters'][0] / 0.05:.2f}",
            )
        )
        rows.append(
            Row(GROUP, f"{count:,} engines: exit", "calls", leave.minimum, leave.median, leave.spread)
        )
        rows.append(
            Row(GROUP, f"{count:,} engines: bare gather", "calls", bare.minimum, bare.median, bare.spread)
        )
    if not quick:
        found = _run(64, 4, hung=1)
        bound = Figure.of(found["enters"][:1])
        rows.append(
            Row(
                GROUP,
                "64 engines, one hung, bound 0.5 s: first enter",
                "s",
                bound.minimum,
                limit=0.55,
                limit_on="value",
                judged=bound.minimum,
            )
        )
        later = Figure.of([x / 0.05 for x in found["enters"][1:]])
        rows.append(
            Row(GROUP, "the windows after it", "calls", later.minimum, later.median, later.spread, limit=1.1,
                limit_on="median", judged=later.median)
        )  # fmt: skip
        local = Figure.of([x * 1e3 for x in found["nexts"]])
        rows.append(
            Row(GROUP, "the next local window's enter", "ms", local.minimum, local.median, local.spread)
        )
    return rows


def _run(count: int, steps: int, hung: int = 0) -> dict[str, list[float]]:
    return _found(run_python("-c", _SCRIPT, str(count), str(steps), str(hung)))


def _found(printed: str) -> dict[str, list[float]]:
    line = next(line for line in reversed(printed.splitlines()) if line.startswith("{"))
    found: dict[str, list[float]] = json.loads(line)
    return found
