"""Read the spans of a session from its files."""

from __future__ import annotations

import json

import stepprof
from stepprof.run.spans import EVIDENCE


def lines_of(session) -> list[dict]:
    """End the session, and return every line of its span files, including the headers."""
    stepprof.shutdown()
    paths = sorted((session.path / "spans").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def spans_of(session, name=None, kind=None) -> list[dict]:
    """End the session, and return its spans in the order of their starts."""
    found = [line for line in lines_of(session) if line["kind"] not in {"spans", *EVIDENCE}]
    found = [line for line in found if (name in {None, line["name"]}) and (kind in {None, line["kind"]})]
    return sorted(found, key=lambda line: line["start"])


def only(session, name=None, kind=None) -> dict:
    """Return the only span of this name."""
    found = spans_of(session, name, kind)
    assert len(found) == 1, found
    return found[0]


def write_steps(run, steps, rank=0) -> None:
    """Write the spans of steps of a rank, as `digested.spans` reads that rank.

    Args:
        run: the folder of the run.
        steps: of each step its spans (kind, name, start, duration, role), optionally (…, thread, task), in milliseconds. They are
            written in the order of their ends, as a session does; of two with one end, the later one is inside.
        rank: of the process.
    """
    (run / "spans").mkdir(parents=True, exist_ok=True)
    lines = [{"kind": "spans", "rank": rank, "host": "h", "pid": 100 + rank}]
    for step, spans in steps.items():
        inside_first = sorted(enumerate(spans), key=lambda each: (each[1][2] + each[1][3], -each[0]))
        for _, (kind, name, start, duration, role, *lane) in inside_first:
            thread, task = (*lane, *(1, None)[len(lane) :])
            at = {"start": (step * 1_000_000 + start) * 1_000_000, "dur": duration * 1_000_000}
            lines.append({"name": name, "kind": kind, "thread": thread, "task": task, "step": step, "role": role, **at})  # fmt: skip
    path = run / "spans" / f"rank-{rank}.000001.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
