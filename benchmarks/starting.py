"""Measure the cost to import stepprof and to begin a session, each in a fresh process."""

from __future__ import annotations

import json

from benchmarks.child import cpu_seconds, run_python
from benchmarks.figures import Figure, Row

__all__ = ["HEAVY", "measure_starting"]

HEAVY = ("torch", "ray", "vllm", "sglang", "numpy")
GROUP = "a fresh process"

_INIT = """
import json, sys, tempfile, time
import stepprof
imported = sorted(sys.modules)
with tempfile.TemporaryDirectory() as folder:
    wall, cpu = time.perf_counter(), time.process_time()
    stepprof.init({"output_dir": folder, "steps": "2", "backend": "null"}, rank=0, world_size=1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    begun = sorted(sys.modules)
    stepprof.shutdown()
print(json.dumps({"wall": wall, "cpu": cpu, "imported": imported, "begun": begun}))
"""


def measure_starting(*, quick: bool) -> list[Row]:
    """Return rows of import and init. The note names the heavy packages that they import."""
    rounds = 2 if quick else 15
    bare, imports, inits = [], [], []
    cpu_seconds("-c", "import stepprof")  # writes the byte code
    for _ in range(rounds):
        bare.append(1e3 * cpu_seconds("-c", "pass"))
        imports.append(1e3 * cpu_seconds("-c", "import stepprof"))
        inits.append(json.loads(run_python("-c", _INIT).splitlines()[-1]))
    nothing, whole = Figure.of(bare), Figure.of(imports)
    added = whole.less(nothing).minimum
    init_cpu = Figure.of([1e3 * init["cpu"] for init in inits])
    init_wall = Figure.of([1e3 * init["wall"] for init in inits])
    heavy = {when: [name for name in HEAVY if name in inits[0][when]] for when in ("imported", "begun")}
    return [
        Row(GROUP, "python -c pass", "ms", nothing.minimum, nothing.median, nothing.spread),
        Row(
            GROUP,
            "import stepprof",
            "ms",
            whole.minimum,
            whole.median,
            whole.spread,
            added=added,
            limit=25,
            limit_on="added",
            judged=added,
        ),
        Row(
            GROUP,
            'init, backend "null": processor time',
            "ms",
            init_cpu.minimum,
            init_cpu.median,
            init_cpu.spread,
            limit=120,
            limit_on="min",
            judged=init_cpu.minimum,
        ),
        Row(GROUP, 'init, backend "null": wall', "ms", init_wall.minimum, init_wall.median, init_wall.spread),
        _count("heavy packages after the import", heavy["imported"]),
        _count('heavy packages after init, backend "null"', heavy["begun"]),
    ]


def _count(name: str, found: list[str]) -> Row:
    return Row(
        GROUP,
        name,
        "",
        len(found),
        limit=0,
        limit_on="count",
        judged=len(found),
        note=f"imported: {', '.join(found)}" if found else "",
    )
